// SPDX-License-Identifier: Apache-2.0

package ingress_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// runTree is a run and all runs below it, as a store holds them.
type runTree struct {
	runs     []actor.CallID
	events   map[actor.CallID][]runs.Event
	children map[actor.CallID][]actor.CallID
}

func newRunTree() *runTree {
	t := &runTree{events: map[actor.CallID][]runs.Event{}, children: map[actor.CallID][]actor.CallID{}}
	t.addRun()
	return t
}

func (t *runTree) root() actor.CallID { return t.runs[0] }

func (t *runTree) addRun() actor.CallID {
	id := actor.NewCallID(actor.Time(time.Hour), 0, uint64(len(t.runs)+1))
	t.runs = append(t.runs, id)
	return id
}

func (t *runTree) appendEvent(run actor.CallID, e runs.Event) {
	e.Run, e.Seq, e.At = run, uint64(len(t.events[run])+1), actor.Time(time.Hour)
	t.events[run] = append(t.events[run], e)
}

func (t *runTree) appendDelta(run actor.CallID, text string) {
	t.appendEvent(run, runs.Event{Type: runs.AgentStreamDelta, Step: 1, Text: text})
}

func (t *runTree) callChild(run actor.CallID) actor.CallID {
	child := t.addRun()
	t.children[run] = append(t.children[run], child)
	t.appendEvent(run, runs.Event{Type: runs.AgentCalledChild, Actor: actor.NewID("helper", ""), Child: child, Step: 1, Left: time.Second})
	return child
}

func (t *runTree) returnChild(run, child actor.CallID) {
	t.appendEvent(run, runs.Event{Type: runs.AgentChildDone, Child: child, Step: 1, Status: actor.Succeeded})
}

func (t *runTree) endRun(run actor.CallID) {
	t.appendEvent(run, runs.Event{Type: runs.RunDone, Status: actor.Succeeded, Text: "done"})
}

func (t *runTree) runEnded(run actor.CallID) bool {
	all := t.events[run]
	return len(all) > 0 && all[len(all)-1].Type.Ends()
}

func (t *runTree) page(in ingress.Read) (page [][]byte) {
	all := t.events[in.Run]
	for _, e := range all[min(in.After, uint64(len(all))):min(in.After+uint64(in.Limit), uint64(len(all)))] {
		page = append(page, runs.Encode(e))
	}
	return page
}

// testClient is a client, its stream and the driver of the stream.
type testClient struct {
	*runTree
	stream         *ingress.Stream
	now            actor.Time
	watched        []actor.CallID
	pendingRead    *ingress.Read
	pendingPage    [][]byte // events that existed at the time of the Read
	unacked        []byte   // bytes written to the client and not yet taken
	maxQueued      int
	parser         *upstream.Parser
	frames         []runs.Frame
	end            *ingress.End
	nothingWritten bool // no Write since connect
}

func (l *testClient) connect(withTree bool, after string) {
	var cursor ingress.Cursor
	if after != "" {
		var refusal *actor.Refusal
		if cursor, refusal = ingress.ParseCursor(after); refusal != nil {
			panic(refusal)
		}
	}
	l.stream = ingress.NewStream(ingress.StreamConfig{Run: l.root(), Tree: withTree, After: cursor, Random: 7})
	l.watched, l.pendingRead, l.unacked, l.end, l.nothingWritten = nil, nil, nil, nil, true
	l.parser = upstream.NewParser(upstream.StreamLimits{Line: 4 << 20, Event: 4 << 20})
	l.step(ingress.Opened{})
}

func (l *testClient) step(in ingress.StreamInput) {
	for _, out := range l.stream.Step(l.now, in) {
		switch out := out.(type) {
		case ingress.Watch:
			l.watched = append(l.watched, out.Run)
		case ingress.Read:
			if l.pendingRead != nil {
				panic("second Read while one is outstanding")
			}
			l.pendingRead, l.pendingPage = &out, l.runTree.page(out)
		case ingress.Write:
			if len(l.unacked) > 0 || len(out.Bytes) == 0 {
				panic("empty Write, or a Write before the last one was taken")
			}
			l.unacked, l.nothingWritten = slices.Clone(out.Bytes), false
			l.maxQueued = max(l.maxQueued, len(out.Bytes))
		case ingress.End:
			l.end = &out
		}
	}
}

// answerRead answers the outstanding Read.
func (l *testClient) answerRead() {
	l.pendingRead = nil
	l.step(ingress.Events{Bodies: l.pendingPage})
}

// ackBytes makes the client take n bytes.
func (l *testClient) ackBytes(n int) {
	l.parseBytes(l.unacked[:n])
	l.unacked = l.unacked[n:]
	l.step(ingress.Wrote{Bytes: n})
}

func (l *testClient) parseBytes(b []byte) {
	frames, refusal := l.parser.Parse(b)
	if refusal != nil {
		panic(refusal)
	}
	l.frames = append(l.frames, frames...)
}

// runUntilIdle answers reads and takes writes until the stream waits or has
// ended.
func (l *testClient) runUntilIdle() {
	for l.end == nil && (l.pendingRead != nil || len(l.unacked) > 0) {
		if l.pendingRead != nil {
			l.answerRead()
			continue
		}
		l.ackBytes(len(l.unacked))
	}
	if l.end != nil {
		l.parseBytes(l.unacked)
		l.parseBytes(l.end.Final)
	}
}

func (l *testClient) frameNames() string {
	var all []string
	for _, f := range l.frames {
		all = append(all, strings.Trim(f.Name+" "+f.ID, " "))
	}
	return strings.Join(all, ", ")
}

func (l *testClient) lastID() string {
	for _, f := range slices.Backward(l.frames) {
		if f.ID != "" {
			return f.ID
		}
	}
	return ""
}

const start = actor.Time(time.Hour)

func openStream(t *runTree, withTree bool, after string) *testClient {
	l := &testClient{runTree: t, now: start}
	l.connect(withTree, after)
	return l
}

func TestStreamDeliversRunToItsEnd(t *testing.T) {
	tree := newRunTree()
	run := tree.root()
	tree.appendDelta(run, "one")
	l := openStream(tree, false, "")
	if first := string(l.unacked); !strings.HasPrefix(first, "retry: ") {
		t.Errorf("the stream begins with %q", first)
	}
	l.runUntilIdle()
	if got := l.frameNames(); got != "agent_stream_delta 1" || l.end != nil {
		t.Errorf("%s, %v", got, l.end)
	}
	tree.appendDelta(run, "two")
	tree.endRun(run)
	l.step(ingress.Appended{Run: run})
	l.runUntilIdle()
	if got := l.frameNames(); got != "agent_stream_delta 1, agent_stream_delta 2, run_done 3" || l.end == nil || l.end.Reason != ingress.RunEnded || len(l.end.Final) > 0 {
		t.Errorf("%s, %v", got, l.end)
	}
	if got, want := l.frames[2].Data, string(runs.Encode(tree.events[run][2])); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for after, want := range map[string]string{"0": "agent_stream_delta 1, agent_stream_delta 2, run_done 3", "1": "agent_stream_delta 2, run_done 3", "2": "run_done 3", "3": ""} {
		l := openStream(tree, false, after)
		l.runUntilIdle()
		if got := l.frameNames(); got != want || l.end == nil || l.end.Reason != ingress.RunEnded || l.nothingWritten != (want == "") {
			t.Errorf("after %s: %s, %+v, nothing written: %v", after, got, l.end, l.nothingWritten)
		}
	}
}

func TestTreeStreamFollowsCalls(t *testing.T) {
	tree := newRunTree()
	run := tree.root()
	tree.appendDelta(run, "hm")
	a := tree.callChild(run)
	tree.appendDelta(a, "a")
	grandchild := tree.callChild(a)
	tree.appendDelta(grandchild, "deep")
	tree.endRun(grandchild)
	tree.returnChild(a, grandchild)
	tree.endRun(a)
	tree.returnChild(run, a)
	tree.endRun(run)
	l := openStream(tree, true, "")
	l.runUntilIdle()
	const want = "agent_stream_delta 1, agent_called_child 2.0, agent_stream_delta 2.1, agent_called_child 2.2.0, agent_stream_delta 2.2.1, run_done 2.2.2, " +
		"agent_child_done 2.3.2, run_done 2.4.2, agent_child_done 3.4.2, run_done 4.4.2"
	if got := l.frameNames(); got != want || l.end == nil || l.end.Reason != ingress.RunEnded {
		t.Errorf("%s, %v", got, l.end)
	}
	for i, frame := range l.frames {
		resumed := openStream(tree, true, frame.ID)
		resumed.runUntilIdle()
		if want := strings.Join(strings.Split(l.frameNames(), ", ")[i+1:], ", "); resumed.frameNames() != want || resumed.end.Reason != ingress.RunEnded {
			t.Errorf("after %s: %s, want %s", frame.ID, resumed.frameNames(), want)
		}
	}
}

// The Appended inputs may arrive in any order. The events below a call still
// precede its result.
func TestChildEventsPrecedeChildResult(t *testing.T) {
	tree := newRunTree()
	run := tree.root()
	a := tree.callChild(run)
	b := tree.callChild(a)
	l := openStream(tree, true, "")
	l.runUntilIdle()
	tree.endRun(b)
	tree.returnChild(a, b)
	tree.endRun(a)
	tree.returnChild(run, a)
	c := tree.callChild(run)
	tree.appendDelta(c, "late")
	tree.endRun(run)
	l.frames = nil
	l.step(ingress.Appended{Run: run})
	l.runUntilIdle()
	const want = "run_done 1.1.1, agent_child_done 1.2.1, run_done 1.3.1, agent_child_done 2.3.1, agent_called_child 3.3.1.0, agent_stream_delta 3.3.1.1, run_done 4.3.1.1"
	if got := l.frameNames(); got != want {
		t.Error(got)
	}
}

func TestUnknownCursorIsRefused(t *testing.T) {
	tree := newRunTree()
	tree.appendDelta(tree.root(), "x")
	child := tree.callChild(tree.root())
	tree.appendDelta(child, "y")
	for _, c := range []struct {
		withTree    bool
		after, want string
	}{
		{false, "3", "has no event 3 yet"},
		{false, "9007199254740991", "has no event 9007199254740991 yet"},
		{false, "2.1", "add ?tree=1"},
		{true, "3", "has no event 3 yet"},
		{true, "3.1", "has no event 3 yet"},
		{true, "2", "does not belong to the tree"},
		{true, "1.0", "does not belong to the tree"},
		{true, "2.1.0", "does not belong to the tree"},
		{true, "2.2", "has no event 2 yet"},
		{true, "0.0", "does not belong to the tree"},
	} {
		l := openStream(tree, c.withTree, c.after)
		l.runUntilIdle()
		if l.end == nil || l.end.Reason != ingress.Refused || l.end.Refusal.Reason != actor.Invalid || !strings.Contains(l.end.Refusal.Detail, c.want) || !l.nothingWritten {
			t.Errorf("after %s: %+v, want %s", c.after, l.end, c.want)
		}
	}
}

func TestIdleStreamPings(t *testing.T) {
	tree := newRunTree()
	tree.appendDelta(tree.root(), "x")
	l := openStream(tree, false, "")
	l.runUntilIdle()
	for range 3 {
		due, ok := l.stream.NextDeadline()
		if !ok || due != l.now.Add(ingress.PingInterval) {
			t.Fatalf("next deadline is %d, %v", due, ok)
		}
		l.now = due - 1
		if l.step(ingress.Tick{}); len(l.unacked) > 0 {
			t.Errorf("written too early: %q", l.unacked)
		}
		l.now = due
		if l.step(ingress.Tick{}); string(l.unacked) != ": ping\n\n" {
			t.Errorf("%q", l.unacked)
		}
		l.runUntilIdle()
	}
}

func TestSlowReaderIsDisconnected(t *testing.T) {
	tree := newRunTree()
	for range 100 {
		tree.appendDelta(tree.root(), strings.Repeat("x", runs.TextBytesMax))
	}
	l := openStream(tree, false, "")
	l.ackBytes(len(l.unacked))
	for l.pendingRead != nil {
		l.answerRead()
	}
	bytesMax := ingress.QueueBytesMax + 2*runs.TextBytesMax
	if l.maxQueued = 0; len(l.unacked) == 0 || len(l.unacked) > bytesMax {
		t.Fatalf("%d bytes in flight", len(l.unacked))
	}
	// The reader takes some bytes, but fewer than it must.
	l.now = l.now.Add(ingress.WriteTimeout - 1)
	l.ackBytes(100)
	if due, _ := l.stream.NextDeadline(); l.end != nil || due != start.Add(ingress.WriteTimeout) {
		t.Fatalf("%+v, next deadline is %d", l.end, due)
	}
	l.now = l.now.Add(1)
	l.step(ingress.Tick{})
	if l.end == nil || l.end.Reason != ingress.TooSlow {
		t.Fatalf("%+v", l.end)
	}
	l.parseBytes(l.unacked)
	l.parseBytes(l.end.Final)
	last := l.frames[len(l.frames)-1]
	if last.Name != ingress.StreamClosed || last.ID != "" || !strings.Contains(last.Data, `"reason":"slow_reader"`) || !strings.Contains(last.Data, "Last-Event-ID") {
		t.Errorf("%+v", last)
	}
	seen := len(l.frames) - 1
	l.connect(false, l.lastID())
	l.runUntilIdle()
	if got := len(l.frames) - 1 - seen; got != 100-seen || l.lastID() != "100" || l.maxQueued > bytesMax {
		t.Errorf("got %d of %d remaining events; at most %d bytes at once", got, 100-seen, l.maxQueued)
	}
}

func TestReaderWithinWriteTimeoutStays(t *testing.T) {
	tree := newRunTree()
	tree.appendEvent(tree.root(), runs.Event{Type: runs.RunDone, Status: actor.Succeeded, Text: strings.Repeat("x", runs.AnswerBytesMax)})
	l := openStream(tree, false, "")
	l.ackBytes(len(l.unacked))
	for l.answerRead(); len(l.unacked) > ingress.QueueBytesMax; {
		l.now = l.now.Add(ingress.WriteTimeout - 1)
		if l.ackBytes(ingress.QueueBytesMax); l.end != nil {
			t.Fatalf("ended with %+v, %d bytes in flight", l.end, len(l.unacked))
		}
	}
	l.runUntilIdle()
	if l.end == nil || l.end.Reason != ingress.RunEnded {
		t.Errorf("%+v", l.end)
	}
}

func TestStreamEndReasons(t *testing.T) {
	for reason, in := range map[string]ingress.StreamInput{"revoked": ingress.Revoked{}, "draining": ingress.Draining{},
		"broken": ingress.ReadFailed{Refusal: actor.Refuse(actor.Unavailable, "the disk is \"gone\"")},
		"busy":   ingress.ReadFailed{Refusal: actor.RefuseBusy(actor.ScopeNode, 0, "the disk is \"gone\"")}} {
		tree := newRunTree()
		tree.appendDelta(tree.root(), "x")
		l := openStream(tree, false, "")
		l.ackBytes(len(l.unacked))
		l.step(in)
		l.runUntilIdle()
		if len(l.frames) != 1 || l.frames[0].Name != ingress.StreamClosed || !strings.Contains(l.frames[0].Data, `"reason":"`+reason+`"`) {
			t.Errorf("%s: %+v", reason, l.frames)
		}
		if more := l.stream.Step(l.now, ingress.Appended{Run: tree.root()}); more != nil {
			t.Errorf("%s: outputs after the end: %v", reason, more)
		}
	}
	tree := newRunTree()
	tree.appendDelta(tree.root(), "x")
	l := openStream(tree, false, "1")
	l.step(ingress.Draining{})
	if l.end == nil || l.end.Reason != ingress.Refused || l.end.Refusal.RetryAfter == 0 || !l.nothingWritten {
		t.Errorf("before the start: %+v", l.end)
	}
	l = openStream(tree, false, "")
	l.runUntilIdle()
	l.step(ingress.Closed{})
	if l.end == nil || l.end.Reason != ingress.ClientGone || len(l.end.Final) > 0 {
		t.Errorf("disconnected client: %+v", l.end)
	}
	// Bytes in flight at shutdown still arrive. If they end the run, no
	// StreamClosed frame follows.
	tree.endRun(tree.root())
	l = openStream(tree, false, "1")
	l.answerRead()
	if l.answerRead(); l.pendingRead != nil {
		t.Fatal("the stream reads past the end")
	}
	l.step(ingress.Draining{})
	l.runUntilIdle()
	if got := l.frameNames(); got != "run_done 2" {
		t.Errorf("%s", got)
	}
}

func TestCorruptEventsEndStream(t *testing.T) {
	tree := newRunTree()
	other := newRunTree()
	other.addRun()
	for i := range 3 {
		tree.appendDelta(tree.root(), fmt.Sprint(i))
		other.appendDelta(other.runs[1], fmt.Sprint(i))
	}
	good := tree.page(ingress.Read{Run: tree.root(), Limit: 3})
	for what, page := range map[string][][]byte{
		"a gap":        {good[0], good[2]},
		"duplicate":    {good[0], good[0]},
		"another run":  {good[0], other.page(ingress.Read{Run: other.runs[1], After: 1, Limit: 1})[0]},
		"not an event": {good[0], []byte("{}")},
	} {
		l := openStream(tree, false, "")
		l.step(ingress.Events{Bodies: page})
		l.runUntilIdle()
		if got := l.frameNames(); got != "agent_stream_delta 1, stream_closed" || l.end == nil || l.end.Reason != ingress.Broken {
			t.Errorf("%s: %s, %+v", what, got, l.end)
		}
	}
}

func TestTreeStreamIsBounded(t *testing.T) {
	tree := newRunTree()
	for range ingress.TreeRunsMax {
		tree.callChild(tree.root())
	}
	l := openStream(tree, true, "")
	l.runUntilIdle()
	if l.end == nil || l.end.Reason != ingress.Broken || !strings.Contains(l.frames[len(l.frames)-1].Data, "without tree=1") {
		t.Fatalf("%+v", l.end)
	}
	if _, refusal := ingress.ParseCursor(l.lastID()); refusal != nil || strings.Count(l.lastID(), ".") != ingress.TreeRunsMax-1 {
		t.Errorf("%v", refusal)
	}
}

// Events of a child run are not delivered after the root has ended.
func TestNoEventsAfterRootEnds(t *testing.T) {
	tree := newRunTree()
	child := tree.callChild(tree.root())
	l := openStream(tree, true, "")
	l.runUntilIdle()
	tree.endRun(tree.root())
	l.step(ingress.Appended{Run: tree.root()})
	for l.pendingRead != nil {
		l.answerRead()
	}
	tree.appendDelta(child, "late")
	if l.step(ingress.Appended{Run: child}); l.pendingRead != nil {
		t.Error("the stream reads past the end of the root")
	}
	if l.runUntilIdle(); l.end == nil || l.end.Reason != ingress.RunEnded || l.frames[len(l.frames)-1].Name != "run_done" {
		t.Errorf("%s, %+v", l.frameNames(), l.end)
	}
}

func TestCursorHasOneSpelling(t *testing.T) {
	for _, text := range []string{"", "-1", "+1", "01", "1.", ".", "1..2", " 1", "1,2", "9007199254740992", strings.Repeat("0.", ingress.TreeRunsMax) + "0"} {
		if c, refusal := ingress.ParseCursor(text); refusal == nil {
			t.Errorf("%q parses as %s", text, c)
		}
	}
	for _, text := range []string{"0", "9007199254740991", "3.0.1", strings.Repeat("0.", ingress.TreeRunsMax-1) + "0"} {
		if c, refusal := ingress.ParseCursor(text); refusal != nil || c.String() != text {
			t.Errorf("%q parses as %s, %v", text, c, refusal)
		}
	}
}

// Every text is either refused as a cursor or parsed. A stream either refuses a
// parsed cursor or delivers every later event once.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "0", "12", "12.7.3.0", "01", "1.", ".1", "+1", "9007199254740992", "2.1", "3.2.1.2", "1 ", "-1"} {
		f.Add(s)
	}
	tree := newRunTree()
	a := tree.callChild(tree.root())
	b := tree.callChild(a)
	tree.appendDelta(b, "x")
	tree.returnChild(a, b)
	c := tree.callChild(tree.root())
	tree.appendDelta(c, "y")
	tree.endRun(tree.root())
	f.Fuzz(func(t *testing.T, text string) {
		cursor, refusal := ingress.ParseCursor(text)
		if refusal != nil {
			if refusal.Reason != actor.Invalid || refusal.Detail == "" {
				t.Errorf("%+v", refusal)
			}
			return
		}
		if cursor.String() != text {
			t.Errorf("%q parses as %s", text, cursor)
		}
		for _, withTree := range []bool{false, true} {
			l := openStream(tree, withTree, text)
			l.runUntilIdle()
			switch {
			case l.end == nil:
				t.Errorf("after %s: the stream does not end", text)
			case l.end.Reason == ingress.Refused:
				if l.end.Refusal == nil || !l.nothingWritten {
					t.Errorf("after %s: %+v", text, l.end)
				}
			case l.end.Reason != ingress.RunEnded:
				t.Errorf("after %s: %+v", text, l.end)
			case !withTree && len(l.frames)+int(cursor[0]) != len(tree.events[tree.root()]):
				t.Errorf("after %s: %s", text, l.frameNames())
			}
		}
	})
}

func TestWantsStream(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/event-stream": true, "Text/Event-Stream": true,
		"text/html, text/event-stream;q=0.5": true, "text/event-stream;q=0": false, "text/event-stream;q=x": false, "text/event-stream;q=nan": false,
		"application/json, text/event-stream": true, "application/json;q=1, text/event-stream;q=0.9": false, "text/event-stream;charset=utf-8;q=0.2,application/json;q=0.1": true,
		"text/event-streams": false, ",,;;": false,
	} {
		if got := ingress.WantsStream(accept); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}
