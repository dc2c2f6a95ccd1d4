// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/specs"
)

// reminderCancels is a client that cancels one of three reminders, and judges that none is delivered once its
// cancellation was acknowledged.
type reminderCancels struct {
	*Simulation
	acknowledged map[actor.CallID]bool
}

// event handles an event of a cell.
func (w reminderCancels) event(e *history.Event) {
	switch {
	case e.Kind == history.Settle && w.acknowledged[e.Call]:
		w.fail(specs.OneOutcomePerCorrelation, fmt.Sprintf("%s delivers the reminder %s, whose cancellation was acknowledged", e.Actor, e.Call))
	case e.Kind == history.Detach && e.What == history.Reminder && !w.recovering:
		defer w.setStream(w.setStream(topicOperator | 1))
		if w.entropy.Int(3) == 2 {
			to, id := e.Actor, e.Call
			w.after(w.between(0, 4*time.Second), func() { w.cancel(to, id) })
		}
	}
}

// cancel sends the cancellation of a reminder.
func (w reminderCancels) cancel(to actor.ID, reminder actor.CallID) {
	defer w.setStream(w.setStream(topicOperator | 1))
	call := actor.Call{ID: w.newCallID(), To: to, Kind: actor.Signal, Operation: signals.OpCancelReminder, Parent: reminder, Lane: actor.Normal, Left: 10 * time.Second,
		Attempt: 1, Principal: "operator", Origin: actor.Human}
	call.Root = call.ID
	w.send(call, 1)
	if w.entropy.Int(4) == 3 { // another cancellation is acknowledged alike
		call.ID = w.newCallID()
		call.Root = call.ID
		w.send(call, 1)
	}
}

// send sends a cancellation, again if its reply is lost.
func (w reminderCancels) send(call actor.Call, try int) {
	n := w.drawNode()
	if n == nil {
		return
	}
	w.log.note(w.now, "operator cancels the reminder %s of %s through %s", call.Parent, call.To, n.id)
	w.submitCall(n, call, func(reply *actor.Reply) {
		defer w.setStream(w.setStream(topicOperator | 1))
		switch {
		case reply != nil:
			w.judge(&call, reply)
		case try < appendTriesMax && !w.recovering:
			w.after(w.between(time.Millisecond, time.Second), func() { w.send(call, try+1) })
		}
	})
}

// judge checks the reply to a cancellation.
func (w reminderCancels) judge(call *actor.Call, reply *actor.Reply) {
	switch r := reply.Refusal; {
	case r == nil:
		w.acknowledged[call.Parent] = true
		w.Stats.Audit.OutcomesStay++
	case w.acknowledged[call.Parent] && w.retention == nil && (r.Reason == actor.Rejected || r.Reason == actor.NotFound):
		w.fail(specs.OneOutcomePerCorrelation, fmt.Sprintf("reminder %s was cancelled; another cancellation is refused: %v", call.Parent, r))
	}
}
