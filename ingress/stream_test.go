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

// tree is a run and those below it, as they stand in a store.
type tree struct {
	runs   []actor.CallID
	events map[actor.CallID][]runs.Event
	below  map[actor.CallID][]actor.CallID
}

func newTree() *tree {
	t := &tree{events: map[actor.CallID][]runs.Event{}, below: map[actor.CallID][]actor.CallID{}}
	t.add()
	return t
}

func (t *tree) root() actor.CallID { return t.runs[0] }

func (t *tree) add() actor.CallID {
	id := actor.NewCallID(actor.Time(time.Hour), 0, uint64(len(t.runs)+1))
	t.runs = append(t.runs, id)
	return id
}

func (t *tree) append(run actor.CallID, e runs.Event) {
	e.Run, e.Seq, e.At = run, uint64(len(t.events[run])+1), actor.Time(time.Hour)
	t.events[run] = append(t.events[run], e)
}

func (t *tree) say(run actor.CallID, text string) {
	t.append(run, runs.Event{Type: runs.AgentStreamDelta, Step: 1, Text: text})
}

func (t *tree) call(run actor.CallID) actor.CallID {
	child := t.add()
	t.below[run] = append(t.below[run], child)
	t.append(run, runs.Event{Type: runs.AgentCalledChild, Actor: actor.NewID("helper", ""), Child: child, Step: 1, Left: time.Second})
	return child
}

func (t *tree) returns(run, child actor.CallID) {
	t.append(run, runs.Event{Type: runs.AgentChildDone, Child: child, Step: 1, Status: actor.Succeeded})
}

func (t *tree) done(run actor.CallID) {
	t.append(run, runs.Event{Type: runs.RunDone, Status: actor.Succeeded, Text: "done"})
}

func (t *tree) over(run actor.CallID) bool {
	all := t.events[run]
	return len(all) > 0 && all[len(all)-1].Type.Ends()
}

func (t *tree) read(in ingress.Read) (page [][]byte) {
	all := t.events[in.Run]
	for _, e := range all[min(in.After, uint64(len(all))):min(in.After+uint64(in.Limit), uint64(len(all)))] {
		page = append(page, runs.Encode(e))
	}
	return page
}

// line is one client and its stream, and the world between them.
type line struct {
	*tree
	stream  *ingress.Stream
	now     actor.Time
	watched []actor.CallID
	read    *ingress.Read
	page    [][]byte // what there was when it was asked for
	out     []byte   // handed over and not taken
	queued  int
	parser  *upstream.Parser
	got     []runs.Frame
	end     *ingress.End
	silent  bool // nothing was ever written
}

func (l *line) connect(whole bool, after string) {
	var cursor ingress.Cursor
	if after != "" {
		var refusal *actor.Refusal
		if cursor, refusal = ingress.ParseCursor(after); refusal != nil {
			panic(refusal)
		}
	}
	l.stream = ingress.NewStream(ingress.StreamConfig{Run: l.root(), Tree: whole, After: cursor, Chance: 7})
	l.watched, l.read, l.out, l.end, l.silent = nil, nil, nil, nil, true
	l.parser = upstream.NewParser(upstream.StreamLimits{Line: 4 << 20, Event: 4 << 20})
	l.step(ingress.Opened{})
}

func (l *line) step(in ingress.StreamInput) {
	for _, out := range l.stream.Step(l.now, in) {
		switch out := out.(type) {
		case ingress.Watch:
			l.watched = append(l.watched, out.Run)
		case ingress.Read:
			if l.read != nil {
				panic("two reads at a time")
			}
			l.read, l.page = &out, l.tree.read(out)
		case ingress.Write:
			if len(l.out) > 0 || len(out.Bytes) == 0 {
				panic("a write before the last was taken, or of nothing")
			}
			l.out, l.silent = slices.Clone(out.Bytes), false
			l.queued = max(l.queued, len(out.Bytes))
		case ingress.End:
			l.end = &out
		}
	}
}

// answer answers what the stream wants to read.
func (l *line) answer() {
	l.read = nil
	l.step(ingress.Events{Bodies: l.page})
}

// take has the client take n bytes.
func (l *line) take(n int) {
	l.receive(l.out[:n])
	l.out = l.out[n:]
	l.step(ingress.Wrote{Bytes: n})
}

func (l *line) receive(b []byte) {
	frames, refusal := l.parser.Parse(b)
	if refusal != nil {
		panic(refusal)
	}
	l.got = append(l.got, frames...)
}

// rest does all there is to do, until the stream waits or has ended.
func (l *line) rest() {
	for l.end == nil && (l.read != nil || len(l.out) > 0) {
		if l.read != nil {
			l.answer()
			continue
		}
		l.take(len(l.out))
	}
	if l.end != nil {
		l.receive(l.out)
		l.receive(l.end.Last)
	}
}

func (l *line) names() string {
	var all []string
	for _, f := range l.got {
		all = append(all, strings.Trim(f.Name+" "+f.ID, " "))
	}
	return strings.Join(all, ", ")
}

func (l *line) lastID() string {
	for _, f := range slices.Backward(l.got) {
		if f.ID != "" {
			return f.ID
		}
	}
	return ""
}

const start = actor.Time(time.Hour)

func open(t *tree, whole bool, after string) *line {
	l := &line{tree: t, now: start}
	l.connect(whole, after)
	return l
}

func TestARunIsToldToItsEnd(t *testing.T) {
	story := newTree()
	run := story.root()
	story.say(run, "one")
	l := open(story, false, "")
	if first := string(l.out); !strings.HasPrefix(first, "retry: ") {
		t.Errorf("begins with %q", first)
	}
	l.rest()
	if got := l.names(); got != "agent_stream_delta 1" || l.end != nil {
		t.Errorf("%s, %v", got, l.end)
	}
	story.say(run, "two")
	story.done(run)
	l.step(ingress.News{Run: run})
	l.rest()
	if got := l.names(); got != "agent_stream_delta 1, agent_stream_delta 2, run_done 3" || l.end == nil || l.end.Why != ingress.Over || len(l.end.Last) > 0 {
		t.Errorf("%s, %v", got, l.end)
	}
	if got, want := l.got[2].Data, string(runs.Encode(story.events[run][2])); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for after, want := range map[string]string{"0": "agent_stream_delta 1, agent_stream_delta 2, run_done 3", "1": "agent_stream_delta 2, run_done 3", "2": "run_done 3", "3": ""} {
		l := open(story, false, after)
		l.rest()
		if got := l.names(); got != want || l.end == nil || l.end.Why != ingress.Over || l.silent != (want == "") {
			t.Errorf("after %s: %s, %+v, nothing written: %v", after, got, l.end, l.silent)
		}
	}
}

func TestATreeIsToldCallByCall(t *testing.T) {
	story := newTree()
	run := story.root()
	story.say(run, "hm")
	a := story.call(run)
	story.say(a, "a")
	deep := story.call(a)
	story.say(deep, "deep")
	story.done(deep)
	story.returns(a, deep)
	story.done(a)
	story.returns(run, a)
	story.done(run)
	l := open(story, true, "")
	l.rest()
	const want = "agent_stream_delta 1, agent_called_child 2.0, agent_stream_delta 2.1, agent_called_child 2.2.0, agent_stream_delta 2.2.1, run_done 2.2.2, " +
		"agent_child_done 2.3.2, run_done 2.4.2, agent_child_done 3.4.2, run_done 4.4.2"
	if got := l.names(); got != want || l.end == nil || l.end.Why != ingress.Over {
		t.Errorf("%s, %v", got, l.end)
	}
	for i, frame := range l.got {
		again := open(story, true, frame.ID)
		again.rest()
		if want := strings.Join(strings.Split(l.names(), ", ")[i+1:], ", "); again.names() != want || again.end.Why != ingress.Over {
			t.Errorf("after %s: %s, want %s", frame.ID, again.names(), want)
		}
	}
}

// News may come in any order: what an answer came of is told before it.
func TestAnAnswerIsToldAfterWhatItCameOf(t *testing.T) {
	story := newTree()
	run := story.root()
	a := story.call(run)
	b := story.call(a)
	l := open(story, true, "")
	l.rest()
	story.done(b)
	story.returns(a, b)
	story.done(a)
	story.returns(run, a)
	c := story.call(run)
	story.say(c, "late")
	story.done(run)
	l.got = nil
	l.step(ingress.News{Run: run})
	l.rest()
	const want = "run_done 1.1.1, agent_child_done 1.2.1, run_done 1.3.1, agent_child_done 2.3.1, agent_called_child 3.3.1.0, agent_stream_delta 3.3.1.1, run_done 4.3.1.1"
	if got := l.names(); got != want {
		t.Error(got)
	}
}

func TestAPlaceThatIsNone(t *testing.T) {
	story := newTree()
	story.say(story.root(), "x")
	child := story.call(story.root())
	story.say(child, "y")
	for _, c := range []struct {
		whole       bool
		after, want string
	}{
		{false, "3", "has no event 3 yet"},
		{false, "9007199254740991", "has no event 9007199254740991 yet"},
		{false, "2.1", "ask with ?tree=1"},
		{true, "3", "has no event 3 yet"},
		{true, "3.1", "has no event 3 yet"},
		{true, "2", "no place in the tree"},
		{true, "1.0", "no place in the tree"},
		{true, "2.1.0", "no place in the tree"},
		{true, "2.2", "has no event 2 yet"},
		{true, "0.0", "no place in the tree"},
	} {
		l := open(story, c.whole, c.after)
		l.rest()
		if l.end == nil || l.end.Why != ingress.Refused || l.end.Refusal.Reason != actor.Invalid || !strings.Contains(l.end.Refusal.Detail, c.want) || !l.silent {
			t.Errorf("after %s: %+v, want %s", c.after, l.end, c.want)
		}
	}
}

func TestAStreamThatIsSilentPings(t *testing.T) {
	story := newTree()
	story.say(story.root(), "x")
	l := open(story, false, "")
	l.rest()
	for range 3 {
		due, ok := l.stream.NextDeadline()
		if !ok || due != l.now.Add(ingress.PingEvery) {
			t.Fatalf("next at %d, %v", due, ok)
		}
		l.now = due - 1
		if l.step(ingress.Tick{}); len(l.out) > 0 {
			t.Errorf("too early: %q", l.out)
		}
		l.now = due
		if l.step(ingress.Tick{}); string(l.out) != ": ping\n\n" {
			t.Errorf("%q", l.out)
		}
		l.rest()
	}
}

func TestAReaderThatIsTooSlowIsSentAway(t *testing.T) {
	story := newTree()
	for range 100 {
		story.say(story.root(), strings.Repeat("x", runs.TextBytesMax))
	}
	l := open(story, false, "")
	l.take(len(l.out))
	for l.read != nil {
		l.answer()
	}
	most := ingress.QueueBytesMax + 2*runs.TextBytesMax
	if l.queued = 0; len(l.out) == 0 || len(l.out) > most {
		t.Fatalf("%d bytes are out", len(l.out))
	}
	// A reader that takes something, but less than it must.
	l.now = l.now.Add(ingress.WriteWithin - 1)
	l.take(100)
	if due, _ := l.stream.NextDeadline(); l.end != nil || due != start.Add(ingress.WriteWithin) {
		t.Fatalf("%+v, next at %d", l.end, due)
	}
	l.now = l.now.Add(1)
	l.step(ingress.Tick{})
	if l.end == nil || l.end.Why != ingress.TooSlow {
		t.Fatalf("%+v", l.end)
	}
	l.receive(l.out)
	l.receive(l.end.Last)
	last := l.got[len(l.got)-1]
	if last.Name != ingress.StreamClosed || last.ID != "" || !strings.Contains(last.Data, `"reason":"slow_reader"`) || !strings.Contains(last.Data, "Last-Event-ID") {
		t.Errorf("%+v", last)
	}
	seen := len(l.got) - 1
	l.connect(false, l.lastID())
	l.rest()
	if got := len(l.got) - 1 - seen; got != 100-seen || l.lastID() != "100" || l.queued > most {
		t.Errorf("%d of %d came after it; %d at once", got, 100-seen, l.queued)
	}
}

func TestAReaderThatIsSlowEnoughStays(t *testing.T) {
	story := newTree()
	story.append(story.root(), runs.Event{Type: runs.RunDone, Status: actor.Succeeded, Text: strings.Repeat("x", runs.AnswerBytesMax)})
	l := open(story, false, "")
	l.take(len(l.out))
	for l.answer(); len(l.out) > ingress.QueueBytesMax; {
		l.now = l.now.Add(ingress.WriteWithin - 1)
		if l.take(ingress.QueueBytesMax); l.end != nil {
			t.Fatalf("%+v with %d bytes to go", l.end, len(l.out))
		}
	}
	l.rest()
	if l.end == nil || l.end.Why != ingress.Over {
		t.Errorf("%+v", l.end)
	}
}

func TestHowStreamsEndBeforeTheirRuns(t *testing.T) {
	for reason, in := range map[string]ingress.StreamInput{"revoked": ingress.Revoked{}, "draining": ingress.Draining{},
		"broken": ingress.Unreadable{Refusal: actor.Refuse(actor.Unavailable, "the disk is \"gone\"")}} {
		story := newTree()
		story.say(story.root(), "x")
		l := open(story, false, "")
		l.take(len(l.out))
		l.step(in)
		l.rest()
		if len(l.got) != 1 || l.got[0].Name != ingress.StreamClosed || !strings.Contains(l.got[0].Data, `"reason":"`+reason+`"`) {
			t.Errorf("%s: %+v", reason, l.got)
		}
		if more := l.stream.Step(l.now, ingress.News{Run: story.root()}); more != nil {
			t.Errorf("%s: after its end it wants %v", reason, more)
		}
	}
	story := newTree()
	story.say(story.root(), "x")
	l := open(story, false, "1")
	l.step(ingress.Draining{})
	if l.end == nil || l.end.Why != ingress.Refused || l.end.Refusal.RetryAfter == 0 || !l.silent {
		t.Errorf("before it began: %+v", l.end)
	}
	l = open(story, false, "")
	l.rest()
	l.step(ingress.Closed{})
	if l.end == nil || l.end.Why != ingress.Gone || len(l.end.Last) > 0 {
		t.Errorf("a client that is gone: %+v", l.end)
	}
	// What was on its way when the door closed still comes, and needs no excuse if it is the end.
	story.done(story.root())
	l = open(story, false, "1")
	l.answer()
	if l.answer(); l.read != nil {
		t.Fatal("it reads behind the end")
	}
	l.step(ingress.Draining{})
	l.rest()
	if got := l.names(); got != "run_done 2" {
		t.Errorf("%s", got)
	}
}

func TestWhatIsStoredWrongIsNotTold(t *testing.T) {
	story := newTree()
	other := newTree()
	other.add()
	for i := range 3 {
		story.say(story.root(), fmt.Sprint(i))
		other.say(other.runs[1], fmt.Sprint(i))
	}
	good := story.read(ingress.Read{Run: story.root(), Limit: 3})
	for what, page := range map[string][][]byte{
		"a gap":       {good[0], good[2]},
		"twice":       {good[0], good[0]},
		"another run": {good[0], other.read(ingress.Read{Run: other.runs[1], After: 1, Limit: 1})[0]},
		"no event":    {good[0], []byte("{}")},
	} {
		l := open(story, false, "")
		l.step(ingress.Events{Bodies: page})
		l.rest()
		if got := l.names(); got != "agent_stream_delta 1, stream_closed" || l.end == nil || l.end.Why != ingress.Broken {
			t.Errorf("%s: %s, %+v", what, got, l.end)
		}
	}
}

func TestATreeHasItsBound(t *testing.T) {
	story := newTree()
	for range ingress.TreeRunsMax {
		story.call(story.root())
	}
	l := open(story, true, "")
	l.rest()
	if l.end == nil || l.end.Why != ingress.Broken || !strings.Contains(l.got[len(l.got)-1].Data, "without tree=1") {
		t.Fatalf("%+v", l.end)
	}
	if _, refusal := ingress.ParseCursor(l.lastID()); refusal != nil || strings.Count(l.lastID(), ".") != ingress.TreeRunsMax-1 {
		t.Errorf("%v", refusal)
	}
}

// What a run below says after the end of the one asked for is not told any more.
func TestNothingFollowsTheEnd(t *testing.T) {
	story := newTree()
	child := story.call(story.root())
	l := open(story, true, "")
	l.rest()
	story.done(story.root())
	l.step(ingress.News{Run: story.root()})
	for l.read != nil {
		l.answer()
	}
	story.say(child, "late")
	if l.step(ingress.News{Run: child}); l.read != nil {
		t.Error("it reads on")
	}
	if l.rest(); l.end == nil || l.end.Why != ingress.Over || l.got[len(l.got)-1].Name != "run_done" {
		t.Errorf("%s, %+v", l.names(), l.end)
	}
}

func TestCursorsAreWrittenInOneWay(t *testing.T) {
	for _, text := range []string{"", "-1", "+1", "01", "1.", ".", "1..2", " 1", "1,2", "9007199254740992", strings.Repeat("0.", ingress.TreeRunsMax) + "0"} {
		if c, refusal := ingress.ParseCursor(text); refusal == nil {
			t.Errorf("%q reads as %s", text, c)
		}
	}
	for _, text := range []string{"0", "9007199254740991", "3.0.1", strings.Repeat("0.", ingress.TreeRunsMax-1) + "0"} {
		if c, refusal := ingress.ParseCursor(text); refusal != nil || c.String() != text {
			t.Errorf("%q reads as %s, %v", text, c, refusal)
		}
	}
}

// Any text is refused as a cursor, or is one; any cursor is refused by a stream,
// or is a place after which all is told once.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "0", "12", "12.7.3.0", "01", "1.", ".1", "+1", "9007199254740992", "2.1", "3.2.1.2", "1 ", "-1"} {
		f.Add(s)
	}
	story := newTree()
	a := story.call(story.root())
	b := story.call(a)
	story.say(b, "x")
	story.returns(a, b)
	c := story.call(story.root())
	story.say(c, "y")
	story.done(story.root())
	f.Fuzz(func(t *testing.T, text string) {
		cursor, refusal := ingress.ParseCursor(text)
		if refusal != nil {
			if refusal.Reason != actor.Invalid || refusal.Detail == "" {
				t.Errorf("%+v", refusal)
			}
			return
		}
		if cursor.String() != text {
			t.Errorf("%q reads as %s", text, cursor)
		}
		for _, whole := range []bool{false, true} {
			l := open(story, whole, text)
			l.rest()
			switch {
			case l.end == nil:
				t.Errorf("after %s: it waits", text)
			case l.end.Why == ingress.Refused:
				if l.end.Refusal == nil || !l.silent {
					t.Errorf("after %s: %+v", text, l.end)
				}
			case l.end.Why != ingress.Over:
				t.Errorf("after %s: %+v", text, l.end)
			case !whole && len(l.got)+int(cursor[0]) != len(story.events[story.root()]):
				t.Errorf("after %s: %s", text, l.names())
			}
		}
	})
}

func TestWhoWantsAStream(t *testing.T) {
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
