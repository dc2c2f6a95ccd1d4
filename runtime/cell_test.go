// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

func TestCallAndReply(t *testing.T) {
	n := newNode(t, 2, agent("a", calling("b")), agent("b", echo()))
	n.want(n.send("a/s", "hello"), "a(b:hello)")
	n.want(n.send("b/s", "again"), "b:again")
	n.want(n.send("missing/s", "?"), "NotFound")
}

func TestCallDepthIsLimited(t *testing.T) {
	n := newNode(t, 3, agent("a", calling("b")), agent("b", calling("c")), agent("c", calling("d")), agent("d", calling("e")),
		agent("e", calling("f")), agent("f", calling("g")), agent("g", echo()))
	n.want(n.send("a", "x"), "a(b(c(d(e(f(Depth))))))")
}

func TestCallCyclesAreRefused(t *testing.T) {
	byActor := func(d *actor.Definition) { d.Recursion = actor.ByActor }
	n := newNode(t, 1, agent("a", calling("b")), agent("b", calling("a")), agent("self", calling("self/other")),
		agent("tree", script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			next := map[string]string{"1": "tree/2", "2": "tree/1"}[b.Call.To.Key]
			return calling(next)(b, answers)
		}), byActor))
	n.want(n.send("a", "x"), "a(b(Cycle))")
	n.want(n.send("self", "x"), "self(Cycle)")
	n.want(n.send("tree/1", "x"), "tree(tree(Cycle))")
}

func TestTimeoutCancelsCallTree(t *testing.T) {
	shortTimeout := script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "b", Timeout: time.Second}}}, nil
		}
		return actor.Complete(actor.Text(answerText(answers[0][0]))), nil
	})
	n := newNode(t, 2, agent("a", shortTimeout), agent("b", calling("c")), agent("c", sleeping(time.Minute)))
	id := n.send("a", "x")
	n.want(id, "nothing")
	n.advance(2 * time.Second)
	n.want(id, "Deadline")
	for _, c := range n.cells {
		for _, a := range c.State().Actors {
			if len(a.Turns) > 0 || len(a.Queue) > 0 {
				t.Errorf("%s still has work: %+v", a.ID, a)
			}
		}
	}
}

func TestFullMailboxReturnsBusy(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Second)))
	n.limits.MaxPendingPerActor = 2
	n.restart(1)
	ids := []actor.CallID{n.send("a", "1"), n.send("a", "2"), n.send("a", "3"), n.send("a", "4")}
	n.want(ids[3], "Busy")
	n.advance(10 * time.Second)
	for _, id := range ids[:3] {
		n.want(id, "slept")
	}
}

func TestConcurrentCallsAreLimited(t *testing.T) {
	fanOut := script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			var asks []actor.Ask
			for range 12 {
				asks = append(asks, actor.Ask{Kind: actor.AskCall, Name: "b"})
			}
			return actor.Action{Asks: asks}, nil
		}
		text := ""
		for _, a := range answers[0] {
			text += answerText(a) + " "
		}
		return actor.Complete(actor.Text(text)), nil
	})
	n := newNode(t, 2, agent("a", fanOut), agent("b", echo()))
	n.want(n.send("a", ""), "b: b: b: b: b: b: b: b: b: b: Busy Busy ")
}

func TestRunResumesAfterRestart(t *testing.T) {
	n := newNode(t, 2, agent("a", calling("b")), agent("b", calling("c", "d")), agent("c", echo()), agent("d", sleeping(20*time.Second)))
	id := n.send("a", "x", func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} })
	n.advance(10 * time.Second)
	n.restart(3)
	n.drain()
	again := n.send("a", "x", func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} })
	n.advance(time.Minute)
	n.want(again, "a(b(c:xslept))")
	if r := n.replies[again]; r.Run != id {
		t.Errorf("the duplicate was answered by run %s, want %s", r.Run, id)
	}
	other := n.send("a", "y", func(c *actor.Call) {
		c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k", Body: actor.HashOf([]byte("y"))}
	})
	n.want(other, "Invalid")
}

func TestWaitPausesClocksOfCallTree(t *testing.T) {
	n := newNode(t, 2, agent("a", calling("b")), agent("b", calling("c")), agent("c", waiting(5*time.Minute)))
	id := n.send("a", "x")
	if n.held[id] == 0 {
		t.Fatal("the client was not notified that the run is held")
	}
	n.advance(200 * time.Second) // each call has 30 s
	n.restart(2)
	n.advance(10 * time.Second)
	var run actor.CallID
	for actorID, saved := range n.log {
		if actorID.Agent == "c" {
			run = saved.Entries[0].Record.(store.Accepted).Call.ID
		}
	}
	signal := n.send("c", "yes", func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, run, "go" })
	n.drain()
	n.want(signal, "")
	n.advance(time.Second)
	if j := n.log[actor.NewID("a", "")]; len(j.Entries) == 0 {
		t.Fatal("no entries of actor a")
	}
	for _, c := range n.cells {
		for _, a := range c.State().Actors {
			if len(a.Turns) > 0 {
				t.Errorf("%s still waits: %+v", a.ID, a)
			}
		}
	}
	late := n.send("c", "yes", func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, run, "go" })
	n.want(late, "NotFound")
}

// A run held by several calls lists each call until that call resumes.
func TestRunListsCallsThatHoldIt(t *testing.T) {
	gate := script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		switch {
		case len(answers) == 0:
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWait, Name: "go", Timeout: 5 * time.Minute}}}, nil
		case len(answers) == 1 && b.Call.To.Key == "1":
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: 20 * time.Second}}}, nil
		}
		return actor.Complete(actor.Text("done")), nil
	})
	both := script(func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "gate/1"}, {Kind: actor.AskCall, Name: "gate/2"}}}, nil
		}
		return actor.Complete(actor.Text("both")), nil
	})
	n := newNode(t, 2, agent("both", both), agent("gate", gate))
	run := n.send("both", "x")
	wantHeld := func(want string, status runs.Status) {
		t.Helper()
		var keys []string
		for _, p := range n.runs[run].Pauses {
			keys = append(keys, n.runs[p.Child].Actor.Key)
		}
		if got := strings.Join(keys, " "); got != want || n.runs[run].Status != status {
			t.Errorf("got status %s held by %q, want %s by %q", n.runs[run].Status, got, status, want)
		}
	}
	signal := func(key string) {
		for id, r := range n.runs {
			if r.Actor == actor.NewID("gate", key) {
				n.send("gate/"+key, "yes", func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, id, "go" })
			}
		}
	}
	wantHeld("1 2", runs.PausedWaitingApproval)
	signal("1") // resumes and continues to run
	wantHeld("2", runs.PausedWaitingApproval)
	for id, r := range n.runs {
		if to := actor.NewID("gate", "2"); r.Actor == to { // cancelled, so it never resumes
			n.step(n.cells[n.shard(to)%2], Deliver{actor.Envelope{To: to, Body: actor.Cancel{Call: id, Reason: actor.Stopped}}})
		}
	}
	n.drain()
	wantHeld("", runs.PausedWaitingTool)
	n.advance(time.Minute)
	if r := n.runs[run]; r.Text != "both" {
		t.Errorf("got run %+v, want text \"both\"", r)
	}
	counts := map[runs.Type]int{}
	for _, e := range n.events[run] {
		counts[e.Type]++
	}
	if counts[runs.RunPaused] != 2 || counts[runs.RunResumed] != 2 {
		t.Errorf("got %d run_paused and %d run_resumed events, want 2 each", counts[runs.RunPaused], counts[runs.RunResumed])
	}
}

// The outcome of a run that was held is retained longer, because the caller's clock may
// be stopped until the end of the wait.
func TestOutcomeOfHeldRunIsRetainedLonger(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(5*time.Minute)), agent("b", echo()))
	held, other := n.send("a", "x"), n.send("b", "x")
	n.send("a", "yes", func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, held, "go" })
	until := func(run actor.CallID) (at actor.Time) {
		for _, saved := range n.log {
			for _, e := range saved.Entries {
				if ended, ok := e.Record.(store.Ended); ok && ended.Call == run {
					at = ended.Until
				}
			}
		}
		return at
	}
	if longer := until(held).Sub(until(other)); until(other) == 0 || longer != 5*time.Minute {
		t.Errorf("outcome retained %v longer than that of a run not held, want the time of its wait", longer)
	}
}

// This holds for a run that ends while it is held, too.
func TestOutcomeOfRunCancelledWhileHeldIsRetainedLonger(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(5*time.Minute)))
	held := n.send("a", "x")
	to := actor.NewID("a", "")
	before := n.now
	n.step(n.cells[0], Deliver{actor.Envelope{To: to, Body: actor.Cancel{Call: held, Reason: actor.Stopped}}})
	n.drain()
	want := n.limits.RunTimeoutDefault + n.limits.RememberDone + 5*time.Minute
	for _, e := range n.log[to].Entries {
		if ended, ok := e.Record.(store.Ended); ok && ended.Until.Sub(before) == want {
			return
		}
	}
	t.Errorf("no outcome is retained for %v", want)
}

// The refusal that an agent returns as its error is the outcome of its run.
func TestErrorOfAgentIsItsOutcome(t *testing.T) {
	n := newNode(t, 1, agent("a", func(actor.Begin, [][]actor.Answer) (actor.Action, error) {
		return actor.Action{}, actor.Refuse(actor.Rejected, "not today")
	}))
	id := n.send("a", "x")
	n.want(id, "Rejected")
	if r := n.replies[id].Refusal; r == nil || r.Detail != "not today" {
		t.Errorf("got refusal %v", r)
	}
}

// A cell with ActorsPerCellMax actors refuses calls to further actors on their
// first attempt. Retries are dropped, because the call of a retry may have run
// already.
func TestFullCellRefusesOnlyFirstAttempts(t *testing.T) {
	c := newTestCell(Config{}, agent("a", echo()))
	limits := dispatcher.DefaultLimits()
	limits.ActorsPerCellMax = 1
	c.Step(1, Limits{limits})
	ask := func(n uint64, key string, attempt uint32) (refused int) {
		call := newVisit(n, "a").Call
		call.To, call.Attempt = actor.NewID("a", key), attempt
		for _, e := range c.Step(2, Deliver{actor.Envelope{To: call.To, Body: actor.Request{Call: call}}}).Effects {
			if r, ok := e.Op.(Respond); ok && r.Reply.Refusal != nil {
				refused++
			}
		}
		return refused
	}
	if ask(1, "x", 1) != 0 || ask(2, "y", 1) != 1 || ask(3, "z", 2) != 0 {
		t.Error("a first attempt was accepted, or a retry was refused")
	}
}

// A signal loads its actor even if the agent of the run was deleted.
func TestSignalLoadsActorOfDeletedAgent(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(5*time.Minute)))
	run := n.send("a", "x")
	c := newTestCell(Config{})
	call := newVisit(1, "a").Call
	call.To, call.Kind, call.Parent, call.Operation = actor.NewID("a", ""), actor.Signal, run, "go"
	loads := 0
	for _, e := range c.Step(2, Deliver{actor.Envelope{To: call.To, Body: actor.Request{Call: call}}}).Effects {
		if _, ok := e.Op.(Load); ok {
			loads++
		}
	}
	if loads != 1 {
		t.Errorf("the actor was loaded %d times, want 1", loads)
	}
}

func TestOnlyIdempotentWorkIsRepeatedAfterRestart(t *testing.T) {
	done := 0
	work := func(idempotent bool) script {
		return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWork, Name: "count", Idempotent: idempotent,
					Work: func(context.Context) ([]byte, error) { done++; return []byte("1"), nil }}}}, nil
			}
			return actor.Complete(actor.Text(answerText(answers[0][0]) + "!")), nil
		}
	}
	n := newNode(t, 1, agent("safe", work(true)), agent("unsafe", work(false)))
	key := func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} }
	for _, name := range []string{"safe", "unsafe"} {
		n.inputs = nil
		n.send(name, "x", key)
	}
	if done != 2 {
		t.Fatalf("work ran %d times, want 2", done)
	}
	// The process crashes before the outcome is logged.
	n = newNode(t, 1, n.agents...)
	n.drain()
	for _, name := range []string{"safe", "unsafe"} {
		callCount++
		id := actor.NewCallID(n.now, 99, callCount)
		call := actor.Call{ID: id, Root: id, To: actor.NewID(name, ""), Operation: "o", Kind: actor.Waiting, Lane: actor.Normal, Attempt: 1, Origin: actor.Human}
		key(&call)
		n.step(n.cells[0], Deliver{actor.Envelope{To: call.To, Body: actor.Request{Call: call}}})
		n.inputs[0]() // Loaded: the turn begins and starts its work
		n.inputs = nil
	}
	done = 0
	n.restart(1)
	n.drain()
	if done != 1 {
		t.Errorf("work ran %d times after the restart, want 1: the idempotent one", done)
	}
	n.want(n.send("safe", "", key), "!")
	n.want(n.send("unsafe", "", key), "Unknown!")
}

func TestRecoveryFromSnapshot(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b")), agent("b", waiting(time.Minute)))
	n.limits.SnapshotBytes = 1
	n.restart(1)
	id := n.send("a", "x", func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} })
	for actorID, saved := range n.log {
		if len(saved.Snapshot) == 0 {
			t.Errorf("%s has no snapshot", actorID)
		}
	}
	n.restart(2)
	n.drain()
	n.advance(2 * time.Minute)
	again := n.send("a", "x", func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} })
	n.want(again, "a(went Deadline)")
	if n.replies[again].Run != id {
		t.Error("the run was started again")
	}
}

// A call that asks for more time than is allowed gets the allowed time, and the run's
// stream reports both.
func TestClampedTimeoutIsReported(t *testing.T) {
	for asked, want := range map[time.Duration]bool{300 * time.Second: false, 301 * time.Second: true} {
		n := newNode(t, 1, agent("b", echo()), agent("a", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "b", Timeout: asked}}}, nil
			}
			return actor.Complete(answers[0][0].Parts), nil
		}))
		id, reported := n.send("a", "x"), false
		for _, e := range n.events[id] {
			if e.Type == runs.TimeoutClamped {
				reported = e.Asked == asked && e.Left == 300*time.Second && e.Name == "b/main"
			}
		}
		if reported != want {
			t.Errorf("asked for %v: reported %v, want %v", asked, reported, want)
		}
	}
}

// A wait for a signal that asks for more time than is allowed ends after the allowed time, and the
// run's stream reports both. A wait that names no time gets the default.
func TestClampedWaitIsReported(t *testing.T) {
	const longest = 90 * 24 * time.Hour
	for _, test := range []struct {
		asked, granted time.Duration
		reported       bool
	}{{0, 10 * time.Minute, false}, {time.Hour, time.Hour, false}, {longest, longest, false}, {longest + time.Millisecond, longest, true}, {2 * longest, longest, true}} {
		n := newNode(t, 1, agent("a", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWait, Name: "approved", Timeout: test.asked}}}, nil
			}
			return actor.Complete(answers[0][0].Parts), nil
		}))
		id := n.send("a", "x")
		var got []runs.Event
		for _, e := range n.events[id] {
			if e.Type == runs.TimeoutClamped || e.Type == runs.WaitOpened {
				got = append(got, e)
			}
		}
		if test.reported {
			if len(got) != 2 || got[0].Type != runs.TimeoutClamped || got[0].Asked != test.asked || got[0].Left != test.granted || got[0].Name != "approved" {
				t.Errorf("asked for %v: %v, want a report of %v", test.asked, got, test.granted)
				continue
			}
			got = got[1:]
		}
		if len(got) != 1 || got[0].Type != runs.WaitOpened || got[0].Until.Sub(got[0].At) != test.granted {
			t.Errorf("asked for %v: %v, want a wait of %v", test.asked, got, test.granted)
		}
	}
}
