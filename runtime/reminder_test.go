// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/tools"
)

// A reminder is a message with a turn at its time, over restarts, once.
func TestReminderComesBack(t *testing.T) {
	for _, restarts := range []int{0, 1, 3} {
		turns := 0
		reminded := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if strings.HasPrefix(actor.TextOf(b.Call.Parts), `{"kind":"reminder"`) {
				turns++
			}
			return usingFor(tools.Remind)(b, answers)
		}
		n := newNode(t, 1, agent("a", reminded))
		at := time.UnixMilli(int64(n.now) / 1_000_000).Add(48 * time.Hour).UTC().Format(time.RFC3339Nano)
		p := n.pendingOf(n.send("a/s-1", `{"text":"call back","after":3600000}`+"\n"+`{"text":"later","at":"`+at+`"}`))
		for range restarts {
			n.advance(10 * time.Minute)
			n.restart(1)
			n.drain()
		}
		n.advance(time.Hour - actor.Duration(restarts)*10*time.Minute - 2*time.Second)
		if got := n.conversation(alice); strings.Contains(got, "call back\"}") {
			t.Errorf("reminded too early:\n%s", got)
		}
		n.advance(3 * time.Second)
		if want := `delivered: {"kind":"reminder","correlationId":"` + p[0].CorrelationID + `","taskId":"` + p[0].TaskID + `","status":"completed","text":"call back"}`; !strings.Contains(n.conversation(alice), want) {
			t.Errorf("the conversation is\n%s", n.conversation(alice))
		}
		n.advance(72 * time.Hour)
		if got := n.delivered(alice); len(got) != 2 || turns != 2 || len(n.journalOf(alice).Mail.Rows) > 0 {
			t.Errorf("delivered %q in %d turns", got, turns)
		}
	}
	n := newNode(t, 1, agent("a", usingFor(tools.Remind)), agent("v", usingFor(tools.Remind), volatile))
	for _, input := range []string{`{"text":"x"}`, `{"text":"x","after":1,"at":"2030-01-31T09:00:00Z"}`, `{"text":"x","at":"tomorrow"}`, `{"text":"x","at":"1970-01-01T00:00:00Z"}`,
		`{"text":"x","after":40000000000}`, `{"text":"","after":5}`, `{"text":"` + strings.Repeat("x", tools.ReminderTextMax+1) + `","after":5}`} {
		n.want(n.send("a/s-1", input), "Invalid")
	}
	n.want(n.send("v/s-1", `{"text":"x","after":5}`), "Rejected")
}

// The state of a call is read by its task, also the response that came too late to be delivered. Those of others are
// A cancelled reminder does not come, over restarts too; it is readable, and cancelled as often as a client likes.
func TestReminderIsCancelled(t *testing.T) {
	n := newNode(t, 1, agent("a", usingFor(tools.Remind)), agent("p", usingFor(tools.AgentPoll)))
	remind := func(text string, after time.Duration) actor.CallID {
		id, err := actor.ParseCallID(n.pendingOf(n.send("a/s-1", fmt.Sprintf(`{"text":%q,"after":%d}`, text, after.Milliseconds())))[0].TaskID)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	cancel := func(id actor.CallID) actor.Reply {
		return n.replies[n.send("a/s-1", "", func(c *actor.Call) { c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCancelReminder, id })]
	}
	early, _, dropped := remind("early", time.Second), remind("kept", time.Hour), remind("dropped", time.Hour)
	n.advance(2 * time.Second)
	if r := cancel(early); r.Refusal == nil || r.Refusal.Reason != actor.Rejected {
		t.Errorf("a reminder that has come: %v", r.Refusal)
	}
	if r := cancel(dropped); r.Refusal != nil {
		t.Fatal(r.Refusal)
	}
	if r := cancel(actor.NewCallID(1, 2, 3)); r.Refusal == nil || r.Refusal.Reason != actor.NotFound {
		t.Errorf("an unknown reminder: %v", r.Refusal)
	}
	listed := func() (all []string) {
		rows, _ := PendingCalls(n.cells[0], alice.Tenant, "")
		for _, p := range rows {
			all = append(all, fmt.Sprint(actor.TextOf(p.Call.Parts), " ", p.Cancelled))
		}
		return all
	}
	for range 2 {
		n.restart(1)
		if r := cancel(dropped); r.Refusal != nil {
			t.Errorf("cancelled again: %v", r.Refusal)
		}
		if got := listed(); !slices.Equal(got, []string{"kept false", "dropped true"}) {
			t.Errorf("listed %q", got)
		}
	}
	n.advance(cancelledKept)
	if got := listed(); !slices.Equal(got, []string{"kept false"}) {
		t.Errorf("listed %q", got)
	}
	if r := cancel(dropped); r.Refusal != nil {
		t.Errorf("cancelled once its row is gone: %v", r.Refusal)
	}
	if answer := (mail{n.cells[0], n.cells[0].actors.find(alice)}).outcomeOf(dropped); !strings.HasSuffix(string(answer), `,"status":"cancelled","text":"dropped"}`) {
		t.Errorf("polled %s", answer)
	}
	n.advance(2 * time.Hour)
	n.wantDelivered("reminder completed ", "reminder completed ") // early and kept
}
