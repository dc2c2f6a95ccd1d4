// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// askOnce returns an agent that makes all asks in one action and completes with the
// first answer.
func askOnce(asks ...actor.Ask) script {
	return func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: asks}, nil
		}
		return actor.Complete(actor.Text(answerText(answers[0][0]))), nil
	}
}

// A turn may go on as long as the answers to its asks are at most state_bytes_max together, also after a restart.
func TestAnswersOfTurnAreBounded(t *testing.T) {
	for _, c := range []struct {
		answer int // bytes of each of three answers
		want   string
	}{{900, "done"}, {1100, "Budget"}} {
		n := newNode(t, 1, agent("a", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) < 4 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "b", Operation: actor.HandleMessageFull, Timeout: time.Minute}}}, nil
			}
			return actor.Complete(actor.Text("done")), nil
		}), agent("b", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Second}}}, nil
			}
			return actor.Complete(actor.Text(strings.Repeat("x", c.answer))), nil
		}))
		n.limits.TurnBytesMax = 3000
		n.restart(1)
		id := n.send("a", "x")
		n.advance(1500 * time.Millisecond)
		n.restart(1) // the bytes of the first answer count
		n.advance(10 * time.Second)
		if got := fmt.Sprintf("%q %v", n.runs[id].Text, n.runs[id].Refusal); !strings.Contains(got, c.want) {
			t.Errorf("three answers of %d bytes: got %s, want %s", c.answer, got, c.want)
		}
	}
}

func TestUnnamedAskIsRefused(t *testing.T) {
	for kind, want := range map[actor.AskKind]string{actor.AskCall: "Invalid", actor.AskTool: "NotFound", actor.AskWork: "Invalid", actor.AskWait: "Invalid"} {
		n := newNode(t, 1, agent("a", askOnce(actor.Ask{Kind: kind})))
		n.want(n.send("a", "x"), want)
	}
}

func TestInvalidToolPlanIsRefused(t *testing.T) {
	wantRefused := func(f tools.ContextHandler) {
		t.Helper()
		n := newNode(t, 1, agent("a", askOnce(actor.Ask{Kind: actor.AskTool, Name: "bad"})))
		if err := n.tools.RegisterBuiltin(tools.Tool{Name: "bad", Schema: `{"type":"object"}`, ContextHandler: f}); err != nil {
			t.Fatal(err)
		}
		n.want(n.send("a", "x"), "Unavailable")
	}
	wantRefused(func([]byte, tools.ExecutionContext) (actor.Ask, *tools.Result) { panic("plan failed") })
	for _, ask := range []actor.Ask{{}, {Kind: actor.AskTool, Name: "x"}, {Kind: actor.AskWork, Name: "w"}, {Kind: actor.AskWait, Name: "go"}} {
		wantRefused(func([]byte, tools.ExecutionContext) (actor.Ask, *tools.Result) { return ask, nil })
	}
}

// The test node encodes and decodes every entry that is written, so it fails on an
// entry with a text that the decoder rejects.
func TestEntriesWithLongTextRoundTrip(t *testing.T) {
	long := strings.Repeat("o", 4090)
	n := newNode(t, 1, agent("a", askOnce(actor.Ask{Kind: actor.AskCall, Name: "b", Operation: long, Timeout: time.Second})), agent("b", sleeping(time.Hour)))
	id := n.send("a", "x")
	n.advance(2 * time.Second)
	n.want(id, "Deadline")

	diverge := false
	n = newNode(t, 1, agent("a", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if diverge {
			return actor.Action{}, actor.Refuse(actor.Invalid, "%s", long)
		}
		return waiting(time.Minute)(actor.Begin{}, answers)
	}))
	id = n.send("a", "x")
	diverge = true
	n.restart(1)
	n.drain()
	n.send("a", "y", func(c *actor.Call) { c.Kind, c.Operation, c.Parent = actor.Signal, "go", id })
	if run := n.cells[0].actors.find(actor.NewID("a", "")).journal.Run(id); run == nil || !strings.Contains(run.Parked, "ooo") {
		t.Errorf("got run %+v, want it parked", run)
	}
	n.restart(1)
	n.drain()
	if act := n.cells[0].actors.find(actor.NewID("a", "")); act == nil || !act.loaded {
		t.Error("the actor of the parked run was not loaded")
	}
}

func TestInvalidBlobPartIsRefused(t *testing.T) {
	for _, p := range []actor.Part{{Blob: actor.Hash{1}, Size: 1 << 50}, {Blob: actor.Hash{1}, Bytes: []byte("x")}} {
		n := newNode(t, 1, agent("a", func(actor.Begin, [][]actor.Answer) (actor.Action, error) { return actor.Complete([]actor.Part{p}), nil }))
		n.want(n.send("a", "x"), "Invalid")
	}
}

// panicAgent is an agent whose Begin or Stop panics.
type panicAgent struct{ begin, stop bool }

func (r panicAgent) Begin(actor.Begin) actor.Turn {
	if r.begin {
		panic("agent failed")
	}
	return r
}

func (r panicAgent) Next([]actor.Answer) (actor.Action, error) { return actor.Complete(nil), nil }

func (r panicAgent) Stop() {
	if r.stop {
		panic("agent failed")
	}
}

func TestPanicInBeginOrStopReportsFaultingCall(t *testing.T) {
	for _, r := range []panicAgent{{begin: true}, {stop: true}} {
		n := newNode(t, 1, actor.Definition{Name: "a", Behavior: r})
		id := func() (id actor.CallID) {
			defer func() {
				if recover() == nil {
					t.Error("Step did not panic")
				}
				id = n.cells[0].FaultingCall()
			}()
			return n.send("a", "x")
		}()
		if id.IsZero() {
			t.Errorf("%+v: FaultingCall is zero", r)
		}
	}
}

func TestClockRollbackDoesNotStallRuns(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b")), agent("b", waiting(time.Minute)), agent("c", sleeping(10*time.Second)))
	n.send("a", "x")
	n.send("c", "x", func(c *actor.Call) { c.Left = 5 * time.Minute }) // this run has its actor's earliest deadline once the clock is right again
	n.now = n.now.Add(-time.Hour)
	n.restart(1)
	n.send("c", "y")
	n.restart(1) // a second restart: the expiry index must match the journal
	n.advance(2 * time.Minute)
	if n.eventCounts[history.Reply] != 4 {
		t.Errorf("%d runs ended, want 4", n.eventCounts[history.Reply])
	}
	if state := n.cells[0].State(); len(state.Actors) > 0 && len(state.Actors[0].Turns) > 0 {
		t.Errorf("got open turns: %+v", state)
	}
}

func TestSnapshotCountsEntriesBeforePassivation(t *testing.T) {
	n := newNode(t, 1, agent("a", echo()))
	for range 100 {
		n.send("a", strings.Repeat("x", 1000))
		n.advance(time.Hour)
	}
	saved := n.log[actor.NewID("a", "")]
	if saved.Snapshot == nil || len(saved.Entries) > 100 {
		t.Errorf("a load reads %d entries, want a snapshot and at most 100", len(saved.Entries))
	}
}

func TestStaleTimersAreCompacted(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b")), agent("b", echo()))
	for range 2000 {
		n.want(n.send("a", "x"), "a(b:x)")
		n.advance(10 * time.Millisecond)
	}
	if set := len(n.cells[0].timers); set > 2*timersCompactMin {
		t.Errorf("got %d timers for 2 actors and no client", set)
	}
}

func TestParkedRunIsNotParkedAgain(t *testing.T) {
	work := func(context.Context) ([]byte, error) { return nil, nil }
	ask := actor.Ask{Kind: actor.AskWork, Name: "w", Idempotent: true, Work: work}
	n := newNode(t, 1, agent("a", askOnce(ask, ask)))
	n.paused = true
	id := n.send("a", "x")
	for n.entries < 2 { // stop as soon as the asks are logged
		in := n.inputs[0]
		n.inputs = n.inputs[1:]
		in()
	}
	n.paused = false
	n.agents = []actor.Definition{agent("a", echo())}
	for range 3 {
		n.restart(1)
		n.drain()
	}
	parked := 0
	for _, e := range n.log[actor.NewID("a", "")].Entries {
		if _, ok := e.Record.(store.Parked); ok {
			parked++
		}
	}
	if parked != 1 {
		t.Errorf("run %s was parked %d times, want 1", id, parked)
	}
}

func TestTaintedCallsAreClearedOnExpiry(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b/main")), agent("b", sleeping(time.Hour), func(d *actor.Definition) { d.Durability = actor.Volatile }))
	for _, key := range []string{"a/1", "a/2", "a/3"} {
		n.send(key, "x")
	}
	b := n.cells[0].actors.find(actor.NewID("b", ""))
	if len(b.tainted) != 2 {
		t.Fatalf("got %d tainted calls, want 2", len(b.tainted))
	}
	n.advance(time.Minute)
	if len(b.tainted) != 0 {
		t.Errorf("got %d tainted calls after they expired, want 0", len(b.tainted))
	}
}

// A client's call that is retried after its cell restarted may be open in the log.
// It MUST NOT be refused while the log cannot be read.
func TestClientRetryIsNotRefusedWhileActorIsUnreadable(t *testing.T) {
	for _, to := range []string{"a", "b"} {
		n := newNode(t, 1, agent("a", sleeping(10*time.Second)), agent("b", echo()))
		var id actor.CallID
		if to == "a" {
			id = n.send("a", "x")
		}
		n.restart(1)
		n.failLoads = 2
		n.send(to, "x", func(c *actor.Call) {
			if id.IsZero() {
				id = c.ID
			}
			c.ID, c.Root, c.Attempt = id, id, 2
		})
		n.want(id, "nothing")
		n.advance(time.Minute)
		n.want(id, map[string]string{"a": "slept", "b": "b:x"}[to])
	}
}

// Messages queued behind a turn that waits for approval do not age. This holds
// across a restart too.
func TestMailboxAgeExcludesHeldTime(t *testing.T) {
	n := newNode(t, 1, agent("a", script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 1 {
			return sleeping(20*time.Second)(b, nil)
		}
		return waiting(5*time.Minute)(b, answers)
	})))
	sendOne := func(when string) {
		t.Helper()
		if id := n.send("a", "z"); n.result(id) != "nothing" {
			t.Errorf("%s: got %s, want nothing", when, n.result(id))
		}
	}
	run := n.send("a", "x")
	n.send("a", "y")
	n.advance(n.limits.MailboxAgeMax + time.Second)
	sendOne("while the run waits")
	n.restart(1)
	sendOne("while the run waits, after a restart")
	n.send("a", "", func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, run, "go" })
	n.advance(10 * time.Second)
	sendOne("after the run resumed")
	n.restart(1)
	sendOne("after the run resumed and a restart")
	if r := n.runs[run]; r.Status.Ended() {
		t.Errorf("got status %v, want an open run", r.Status)
	}
}

// A message that was accepted under a clock ahead of this one ages from its load on.
func TestMailboxAgesAfterClockWasSetBack(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(4*time.Minute)))
	n.send("a", "x")
	n.send("a", "y")
	n.drain()
	n.now = n.now.Add(-time.Hour)
	n.restart(1)
	n.advance(n.limits.MailboxAgeMax + time.Second)
	id := n.send("a", "z")
	n.drain()
	if n.result(id) != "Busy" {
		t.Errorf("behind an old message: got %s, want Busy", n.result(id))
	}
}
