// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
)

// A call from another node starts a run whose own calls are local. The budget of a
// local call that is refused returns to the run, because no copy of it can arrive.
func TestRefusedLocalCallOfRemoteRunReturnsItsBudget(t *testing.T) {
	for _, from := range []actor.Address{{Node: "n", Cell: 1, Incarnation: 1}, {Node: "far", Incarnation: 1}} {
		c := newTestCell(Config{}, agent("a", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "b"}}}, nil
			}
			return waiting(time.Minute)(b, answers[1:])
		}, volatile), agent("b", sleeping(time.Minute), volatile))
		limits := dispatcher.DefaultLimits()
		limits.MaxPendingPerActor = 1
		c.Step(2, Limits{limits})
		for i := range uint64(2) {
			c.Step(2, newVisit(10+i, "b"))
		}
		call := newVisit(1, "a").Call
		call.Via, call.Left, call.Budget = from, time.Hour, 10
		c.Step(2, Deliver{actor.Envelope{From: from, To: call.To, Epoch: 1, Body: actor.Request{Call: call}}})
		act := c.actors.find(call.To)
		if act == nil || len(act.journal.Runs) != 1 || len(act.journal.Runs[0].Steps) != 2 {
			t.Fatalf("from %s: the run has not started its second step", from.Node)
		}
		run := act.journal.Runs[0]
		refused := run.Steps[0].Asks[0]
		if r := refused.Answer.Refusal; r == nil || r.RetryAfter == 0 || r.Reason != actor.Busy || refused.Budget == 0 {
			t.Fatalf("from %s: got the answer %+v of a call with budget %d, want busy with a retry delay", from.Node, refused.Answer, refused.Budget)
		}
		if run.Budget != 9 {
			t.Errorf("from %s: the run may make %d more calls, want 9", from.Node, run.Budget)
		}
	}
}
