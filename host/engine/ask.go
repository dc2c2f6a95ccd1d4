// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
)

// Ask brings a client's call to its actor and waits for what comes of it. What
// the call leaves open is filled in; its content is the node's from then on, and
// nobody changes it. If ctx ends first the run goes on, and its
// client may ask for it by its id.
func (e *Engine) Ask(ctx context.Context, call actor.Call) (Answer, error) {
	return e.AskStream(ctx, call, nil)
}

// AskStream is Ask for a client that follows the run meanwhile. If the call
// repeats one whose run is open, joined is told once which run that is; otherwise
// the run has the call's own id.
func (e *Engine) AskStream(ctx context.Context, call actor.Call, joined func(run actor.CallID)) (Answer, error) {
	setDefaults(&call)
	if err := call.CheckEncodable(); err != nil {
		return refusalAnswer(call.ID, actor.Refuse(actor.Invalid, "%v", err)), nil
	}
	now := e.clock.now()
	if refusal := e.admission.check(now, e.config.Log); refusal != nil {
		return refusalAnswer(call.ID, refusal), nil
	}
	c := e.cellOf(call.To)
	w, refusal := e.clients.admit(&call, c.n, now, joined != nil)
	if refusal != nil {
		return refusalAnswer(call.ID, refusal), nil
	}
	defer e.clients.release(w)
	if !c.ask(w) {
		e.clients.remove(call.ID)
		return refusalAnswer(call.ID, e.nodeBusy()), nil
	}
	return e.wait(ctx, w, joined)
}

// wait waits for what comes of a client's call.
func (e *Engine) wait(ctx context.Context, w *waiter, joined func(run actor.CallID)) (Answer, error) {
	if !w.park() {
		return w.answer, nil
	}
	for {
		var gone error
		select {
		case <-w.ready:
			return w.answer, nil
		case run := <-w.joined:
			joined(run)
			continue
		case <-ctx.Done():
			gone = ctx.Err()
		case <-e.done:
			gone = e.err
		}
		if _, waits := e.clients.remove(w.request.Call.ID); !waits { // it is being answered
			<-w.ready
			return w.answer, nil
		}
		return Answer{}, gone
	}
}

func (e *Engine) nodeBusy() *actor.Refusal {
	return actor.RefuseBusy(actor.ScopeNode, time.Second, "this node has more to do than it can take in")
}

// Cancel gives up a run of an actor on behalf of a client. Whoever waits for the
// run is told that it was cancelled; one that is over stays as it is.
func (e *Engine) Cancel(run actor.CallID, id actor.ID) *actor.Refusal {
	if err := id.Check(); err != nil {
		return actor.Refuse(actor.Invalid, "%v", err)
	}
	if !e.cellOf(id).post(&actor.Envelope{To: id, Body: actor.Cancel{Call: run, Reason: actor.Stopped}}) {
		return e.nodeBusy()
	}
	return nil
}

// cellOf is the cell at which an actor lives.
func (e *Engine) cellOf(id actor.ID) *cell {
	return e.cells[int(dispatcher.ShardOf(id))%len(e.cells)]
}

func setDefaults(call *actor.Call) {
	if call.Kind == 0 {
		call.Kind = actor.Waiting
	}
	if call.Lane == 0 {
		call.Lane = actor.Normal
	}
	if call.Origin == 0 {
		call.Origin = actor.Human
	}
	if call.Operation == "" {
		call.Operation = actor.HandleMessageFull
	}
	call.Root, call.Attempt = call.ID, 1
}

func refusalAnswer(call actor.CallID, r *actor.Refusal) Answer {
	return Answer{Reply: actor.Fail(call, r)}
}
