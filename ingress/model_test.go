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

// Whatever happens to runs, lines and clients, a client that comes back with the
// id it has ends up with each event once, in its run's order, and in the order
// that Stream promises between runs.
func TestStreamsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &streams{}
		s.begin(t)
		t.Repeat(rapid.StateMachineActions(s))
		s.finish(t)
	})
}

// streams is a machine of rapid: things happen in a tree of runs, a client reads
// of them, lines break. Its model is the tree, and what the client has heard.
type streams struct {
	*line
	client *reader
	news   []actor.CallID // of which the stream was not told yet
}

func (s *streams) begin(t *rapid.T) {
	story := newTree()
	s.line, s.client = &line{tree: story, now: start}, newReader(story, rapid.Bool().Draw(t, "tree"))
	s.again()
}

// again connects with the id that the client has.
func (s *streams) again() {
	s.news, s.got = nil, nil
	s.connect(s.client.whole, s.client.id)
}

// open draws a run that is not over, and there will be news of it.
func (s *streams) open(t *rapid.T) actor.CallID {
	if s.over(s.root()) {
		t.Skip("all is over")
	}
	run := rapid.SampledFrom(slices.DeleteFunc(slices.Clone(s.runs), s.over)).Draw(t, "run")
	if slices.Contains(s.watched, run) {
		s.news = append(s.news, run)
	}
	return run
}

func (s *streams) Say(t *rapid.T) {
	run := s.open(t)
	s.say(run, strings.Repeat("x", rapid.SampledFrom([]int{1, 4000}).Draw(t, "size")))
	if rapid.IntRange(0, 5).Draw(t, "long") == 5 {
		for range 40 { // more than a page
			s.say(run, "y")
		}
	}
}

func (s *streams) Call(t *rapid.T) {
	if run := s.open(t); len(s.runs) < 9 {
		s.call(run)
	}
}

func (s *streams) Return(t *rapid.T) {
	run := s.open(t)
	if below := s.below[run]; len(below) > 0 {
		child := rapid.SampledFrom(below).Draw(t, "child")
		s.client.note(run, child)
		s.returns(run, child)
	}
}

func (s *streams) Over(t *rapid.T) {
	run := s.open(t)
	s.client.note(run, run)
	s.done(run)
}

func (s *streams) News(t *rapid.T) {
	if len(s.news) == 0 {
		t.Skip("there are none")
	}
	s.step(ingress.News{Run: s.news[0]})
	s.news = s.news[1:]
}

func (s *streams) Read(t *rapid.T) {
	if s.read == nil || s.end != nil {
		t.Skip("nothing is asked for")
	}
	s.answer()
}

func (s *streams) Take(t *rapid.T) {
	if len(s.out) == 0 || s.end != nil {
		t.Skip("nothing was written")
	}
	n := len(s.out)
	if rapid.Bool().Draw(t, "slow") {
		n = rapid.IntRange(0, n).Draw(t, "bytes")
	}
	s.take(n)
}

func (s *streams) Pass(t *rapid.T) {
	s.now = s.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, ingress.WriteWithin, ingress.PingEvery}).Draw(t, "time"))
	s.step(ingress.Tick{})
}

// Cut breaks the line; some of what was under way still comes.
func (s *streams) Cut(t *rapid.T) {
	s.receive(s.out[:rapid.IntRange(0, len(s.out)).Draw(t, "bytes")])
	s.hear(t)
	s.again()
}

// Next goes on with another tree once this one is over.
func (s *streams) Next(t *rapid.T) {
	if !s.over(s.root()) {
		t.Skip("it is not over")
	}
	s.finish(t)
	s.begin(t)
}

func (s *streams) Check(t *rapid.T) {
	s.hear(t)
	if s.end != nil && s.end.Why != ingress.Over {
		if s.end.Why != ingress.TooSlow {
			t.Fatalf("%+v", s.end)
		}
		s.again()
	}
	if s.queued > ingress.QueueBytesMax+5000 {
		t.Fatalf("%d bytes were held", s.queued)
	}
}

func (s *streams) hear(t *rapid.T) {
	for _, f := range s.got {
		if err := s.client.hear(f); err != nil {
			t.Fatal(err)
		}
	}
	s.got = nil
}

// finish has all be read that there is; nothing may be missing then.
func (s *streams) finish(t *rapid.T) {
	for range 2 { // News of what was read meanwhile may come late
		for _, run := range s.news {
			s.step(ingress.News{Run: run})
		}
		s.news = nil
		s.rest()
		s.hear(t)
	}
	if ended := s.over(s.root()); ended != (s.end != nil) {
		t.Fatalf("the run is over: %v, the stream: %+v", ended, s.end)
	}
	if err := s.client.missing(); err != nil {
		t.Fatal(err)
	}
}

// reader is a client that checks what it hears against what there is.
type reader struct {
	*tree
	whole bool
	id    string
	heard map[actor.CallID]int
	known map[actor.CallID]bool
	// before says what has to be heard before an event: it is the answer of a call or the end of a run.
	before map[string]map[actor.CallID]int
}

func newReader(t *tree, whole bool) *reader {
	return &reader{tree: t, whole: whole, heard: map[actor.CallID]int{}, known: map[actor.CallID]bool{t.root(): true}, before: map[string]map[actor.CallID]int{}}
}

// note remembers what stands below a run when its caller is about to be told, or it is to end.
func (r *reader) note(run, below actor.CallID) {
	there := map[actor.CallID]int{}
	var all func(actor.CallID)
	all = func(id actor.CallID) {
		there[id] = len(r.events[id])
		for _, child := range r.below[id] {
			all(child)
		}
	}
	all(below)
	r.before[fmt.Sprint(run, len(r.events[run])+1)] = there
}

func (r *reader) hear(f runs.Frame) error {
	if f.Name == ingress.StreamClosed {
		return nil
	}
	e, err := runs.Decode([]byte(f.Data))
	switch {
	case err != nil:
		return err
	case !r.known[e.Run]:
		return fmt.Errorf("an event of run %s, which nobody called", e.Run.Short())
	case int(e.Seq) != r.heard[e.Run]+1:
		return fmt.Errorf("event %d of run %s after %d", e.Seq, e.Run.Short(), r.heard[e.Run])
	case f.Name != e.Type.String() || !bytes.Equal([]byte(f.Data), runs.Encode(r.events[e.Run][e.Seq-1])):
		return fmt.Errorf("%s is told as %s", f.Data, f.Name)
	case r.heard[r.root()] == len(r.events[r.root()]) && r.over(r.root()):
		return fmt.Errorf("%s after the end", f.Name)
	}
	if r.whole {
		for run, count := range r.before[fmt.Sprint(e.Run, e.Seq)] {
			if run != e.Run && r.heard[run] < count {
				return fmt.Errorf("%s of run %s before event %d of run %s below it", f.Name, e.Run.Short(), count, run.Short())
			}
		}
		if e.Type == runs.AgentCalledChild {
			r.known[e.Child] = true
		}
	}
	r.heard[e.Run], r.id = int(e.Seq), f.ID
	return nil
}

// missing says what should have been heard by the end.
func (r *reader) missing() error {
	for _, run := range r.runs {
		if !r.known[run] || r.whole && r.over(r.root()) && run != r.root() {
			continue // before the root's end it was checked what has to be there
		}
		if r.heard[run] != len(r.events[run]) {
			return fmt.Errorf("run %s has %d events, %d were heard", run.Short(), len(r.events[run]), r.heard[run])
		}
	}
	return nil
}
