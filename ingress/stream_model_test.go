// SPDX-License-Identifier: Apache-2.0

package ingress_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// Whatever happens to runs, connections and clients, a client that resumes with
// its last id receives each event once, in the order of its run, and in the order
// between runs that Stream guarantees.
func TestStreamMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &streamMachine{}
		s.setup(t)
		t.Repeat(rapid.StateMachineActions(s))
		s.finish(t)
	})
}

// streamMachine is a rapid state machine. Runs of a tree progress, a client reads
// them, and connections break. The model is the tree and the events that the
// client has received.
type streamMachine struct {
	*testClient
	client     *modelClient
	unreported []actor.CallID // runs with new events that the stream was not notified of
}

func (s *streamMachine) setup(t *rapid.T) {
	tree := newRunTree()
	s.testClient, s.client = &testClient{runTree: tree, now: start}, newModelClient(tree, rapid.Bool().Draw(t, "tree"))
	s.reconnect()
}

// reconnect opens a stream at the last id that the client has.
func (s *streamMachine) reconnect() {
	s.unreported, s.frames = nil, nil
	s.connect(s.client.withTree, s.client.id)
}

// drawOpenRun draws a run that has not ended. The caller appends an event to it,
// so a watched run is marked as unreported.
func (s *streamMachine) drawOpenRun(t *rapid.T) actor.CallID {
	if s.runEnded(s.root()) {
		t.Skip("the root has ended")
	}
	run := rapid.SampledFrom(slices.DeleteFunc(slices.Clone(s.runs), s.runEnded)).Draw(t, "run")
	if slices.Contains(s.watched, run) {
		s.unreported = append(s.unreported, run)
	}
	return run
}

func (s *streamMachine) AppendDelta(t *rapid.T) {
	run := s.drawOpenRun(t)
	s.appendDelta(run, strings.Repeat("x", rapid.SampledFrom([]int{1, 4000}).Draw(t, "size")))
	if rapid.IntRange(0, 5).Draw(t, "long") == 5 {
		for range 40 { // more than a page
			s.appendDelta(run, "y")
		}
	}
}

func (s *streamMachine) CallChild(t *rapid.T) {
	if run := s.drawOpenRun(t); len(s.runs) < 9 {
		s.callChild(run)
	}
}

func (s *streamMachine) ReturnChild(t *rapid.T) {
	run := s.drawOpenRun(t)
	if below := s.children[run]; len(below) > 0 {
		child := rapid.SampledFrom(below).Draw(t, "child")
		s.client.requireSubtree(run, child)
		s.returnChild(run, child)
	}
}

func (s *streamMachine) EndRun(t *rapid.T) {
	run := s.drawOpenRun(t)
	s.client.requireSubtree(run, run)
	s.endRun(run)
}

func (s *streamMachine) ReportAppended(t *rapid.T) {
	if len(s.unreported) == 0 {
		t.Skip("no unreported events")
	}
	s.step(ingress.Appended{Run: s.unreported[0]})
	s.unreported = s.unreported[1:]
}

func (s *streamMachine) AnswerRead(t *rapid.T) {
	if s.pendingRead == nil || s.end != nil {
		t.Skip("no outstanding Read")
	}
	s.answerRead()
}

func (s *streamMachine) AckBytes(t *rapid.T) {
	if len(s.unacked) == 0 || s.end != nil {
		t.Skip("no bytes in flight")
	}
	n := len(s.unacked)
	if rapid.Bool().Draw(t, "slow") {
		n = rapid.IntRange(0, n).Draw(t, "bytes")
	}
	s.ackBytes(n)
}

func (s *streamMachine) AdvanceTime(t *rapid.T) {
	s.now = s.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, ingress.WriteTimeout, ingress.PingInterval}).Draw(t, "time"))
	s.step(ingress.Tick{})
}

// Disconnect breaks the connection. A prefix of the bytes in flight still
// arrives.
func (s *streamMachine) Disconnect(t *rapid.T) {
	s.parseBytes(s.unacked[:rapid.IntRange(0, len(s.unacked)).Draw(t, "bytes")])
	s.checkFrames(t)
	s.reconnect()
}

// NextTree starts over with a new tree after this one has ended.
func (s *streamMachine) NextTree(t *rapid.T) {
	if !s.runEnded(s.root()) {
		t.Skip("the root has not ended")
	}
	s.finish(t)
	s.setup(t)
}

func (s *streamMachine) Check(t *rapid.T) {
	s.checkFrames(t)
	if s.end != nil && s.end.Reason != ingress.RunEnded {
		if s.end.Reason != ingress.TooSlow {
			t.Fatalf("%+v", s.end)
		}
		s.reconnect()
	}
	if s.maxQueued > ingress.QueueBytesMax+5000 {
		t.Fatalf("the stream held %d bytes", s.maxQueued)
	}
}

func (s *streamMachine) checkFrames(t *rapid.T) {
	for _, f := range s.frames {
		if err := s.client.receiveFrame(f); err != nil {
			t.Fatal(err)
		}
	}
	s.frames = nil
}

// finish delivers everything that is pending. No event may be missing afterwards.
func (s *streamMachine) finish(t *rapid.T) {
	for range 2 { // an Appended input may arrive after its event was read
		for _, run := range s.unreported {
			s.step(ingress.Appended{Run: run})
		}
		s.unreported = nil
		s.runUntilIdle()
		s.checkFrames(t)
	}
	if ended := s.runEnded(s.root()); ended != (s.end != nil) {
		t.Fatalf("root ended: %v, stream end: %+v", ended, s.end)
	}
	if err := s.client.missing(); err != nil {
		t.Fatal(err)
	}
}

// modelClient is a client that checks the received events against the tree.
type modelClient struct {
	*runTree
	withTree  bool
	id        string
	received  map[actor.CallID]int
	knownRuns map[actor.CallID]bool
	// number of events of each run that must precede an event: the result of a
	// call, or the end of a run
	prerequisites map[string]map[actor.CallID]int
}

func newModelClient(t *runTree, withTree bool) *modelClient {
	return &modelClient{runTree: t, withTree: withTree, received: map[actor.CallID]int{}, knownRuns: map[actor.CallID]bool{t.root(): true}, prerequisites: map[string]map[actor.CallID]int{}}
}

// requireSubtree takes a run and a run below it. It makes the current events of
// the run below, and of all runs under that run, prerequisites of the next
// event of run.
func (r *modelClient) requireSubtree(run, below actor.CallID) {
	counts := map[actor.CallID]int{}
	var count func(actor.CallID)
	count = func(id actor.CallID) {
		counts[id] = len(r.events[id])
		for _, child := range r.children[id] {
			count(child)
		}
	}
	count(below)
	r.prerequisites[fmt.Sprint(run, len(r.events[run])+1)] = counts
}

func (r *modelClient) receiveFrame(f runs.Frame) error {
	if f.Name == ingress.StreamClosed {
		return nil
	}
	e, err := runs.Decode([]byte(f.Data))
	switch {
	case err != nil:
		return err
	case !r.knownRuns[e.Run]:
		return fmt.Errorf("got an event of run %s, which was not called", e.Run.Short())
	case int(e.Seq) != r.received[e.Run]+1:
		return fmt.Errorf("got event %d of run %s after event %d", e.Seq, e.Run.Short(), r.received[e.Run])
	case f.Name != e.Type.String() || !bytes.Equal([]byte(f.Data), runs.Encode(r.events[e.Run][e.Seq-1])):
		return fmt.Errorf("event %s has the name %s or other data", f.Data, f.Name)
	case r.received[r.root()] == len(r.events[r.root()]) && r.runEnded(r.root()):
		return fmt.Errorf("got %s after the end of the root", f.Name)
	}
	if r.withTree {
		for run, count := range r.prerequisites[fmt.Sprint(e.Run, e.Seq)] {
			if run != e.Run && r.received[run] < count {
				return fmt.Errorf("%s of run %s before event %d of run %s below it", f.Name, e.Run.Short(), count, run.Short())
			}
		}
		if e.Type == runs.AgentCalledChild {
			r.knownRuns[e.Child] = true
		}
	}
	r.received[e.Run], r.id = int(e.Seq), f.ID
	return nil
}

// missing returns an error if an event has not been received.
func (r *modelClient) missing() error {
	for _, run := range r.runs {
		if !r.knownRuns[run] || r.withTree && r.runEnded(r.root()) && run != r.root() {
			continue // receiveFrame has already checked which events precede the root's end
		}
		if r.received[run] != len(r.events[run]) {
			return fmt.Errorf("run %s has %d events, %d were received", run.Short(), len(r.events[run]), r.received[run])
		}
	}
	return nil
}
