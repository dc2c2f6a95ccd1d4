// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/signals"
)

// operator looks after parked runs, as no run may wait for ever in a simulation: it retries
// some, and cancels those of clients.
type operator struct{ w *Simulation }

// operatorTriesMax is the number of times that a cancel is sent.
const operatorTriesMax = 8

// stepped handles the events of a step.
func (o operator) stepped(events []history.Event) {
	for i := range events {
		if e := &events[i]; e.Kind == history.Hold && e.What == history.Parked {
			o.w.Stats.Points[RunParked]++
			o.attend(e.Actor, e.Call)
		}
	}
}

func (o operator) attend(id actor.ID, run actor.CallID) {
	w := o.w
	defer w.setStream(w.setStream(topicOperator))
	delay := w.between(10*time.Millisecond, 4*time.Second)
	if w.entropy.Int(2) == 1 && !w.recovering {
		w.after(delay, func() { o.retry(id, run) })
		delay += 4 * time.Second
	}
	w.after(delay, func() { o.cancel(id, run, 0) })
}

func (o operator) retry(id actor.ID, run actor.CallID) {
	if n := o.w.drawNode(); n != nil {
		call := o.w.approvals.signal(id, run, signals.Retry{})
		call.Parts, call.Origin, call.Principal = nil, actor.Human, "operator"
		o.w.log.note(o.w.now, "operator retries run %s", run.Short())
		o.w.submitCall(n, call, func(*actor.Reply) {})
	}
}

// cancel cancels a run. A cancel may be lost, so it is sent several times.
func (o operator) cancel(id actor.ID, run actor.CallID, sent int) {
	if sent++; sent < operatorTriesMax {
		o.w.after(5*time.Second, func() { o.cancel(id, run, sent) })
	}
	n := o.w.drawNode()
	if n == nil {
		return
	}
	o.w.log.note(o.w.now, "operator cancels run %s", run.Short())
	n.cells[o.w.entropy.Int(len(n.cells))].enqueue(input{orderGroup: unordered,
		in: runtime.Deliver{Envelope: actor.Envelope{To: id, Body: actor.Cancel{Call: run, Reason: actor.Stopped, By: "operator"}}}})
}
