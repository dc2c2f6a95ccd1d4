// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
)

// Ask delivers a client's call to its actor and waits for the outcome. Unset
// fields of the call are filled in. The node owns the content of the call from
// then on, and the caller MUST NOT change it. If ctx ends first, the run
// continues and the client can look it up by its ID.
func (e *Engine) Ask(ctx context.Context, call actor.Call) (Answer, error) {
	return e.ask(ctx, &call, e.admission.check, nil)
}

// AskDeletion is Ask for a call that frees space. The log takes it while it takes no other new work.
func (e *Engine) AskDeletion(ctx context.Context, call actor.Call) (Answer, error) {
	return e.ask(ctx, &call, e.admission.checkDeletion, nil)
}

// AskStream is Ask for a client that also follows the run. If the call repeats
// an earlier call whose run is open, the callback joined receives the ID of
// that run, once. Otherwise the ID of the run is that of the call.
func (e *Engine) AskStream(ctx context.Context, call actor.Call, joined func(run actor.CallID)) (Answer, error) {
	return e.ask(ctx, &call, e.admission.check, joined)
}

func (e *Engine) ask(ctx context.Context, call *actor.Call, admit func(actor.Time, Log) *actor.Refusal, joined func(run actor.CallID)) (Answer, error) {
	call.SetClientDefaults()
	if err := call.CheckEncodable(); err != nil {
		return refusalAnswer(call.ID, actor.Refuse(actor.Invalid, "%v", err)), nil
	}
	now := e.clock.now()
	if refusal := admit(now, e.config.Log); refusal != nil {
		return refusalAnswer(call.ID, refusal), nil
	}
	c := e.cellOf(call.To)
	w, refusal := e.clients.admit(call, c.n, now, joined != nil)
	if refusal != nil {
		return refusalAnswer(call.ID, refusal), nil
	}
	defer e.clients.release(w)
	if !c.ask(w) {
		e.clients.remove(call.ID)
		return refusalAnswer(call.ID, c.queueFull(now)), nil
	}
	return e.wait(ctx, w, joined)
}

// wait waits for the outcome of a client's call.
func (e *Engine) wait(ctx context.Context, w *waiter, joined func(run actor.CallID)) (Answer, error) {
	answer := func() (Answer, error) {
		select {
		case run := <-w.joined: // it was sent before the answer
			joined(run)
		default:
		}
		return w.answer, nil
	}
	if !w.park() {
		return answer()
	}
	for {
		var cause error
		select {
		case <-w.ready:
			return answer()
		case run := <-w.joined:
			joined(run)
			continue
		case <-ctx.Done():
			cause = ctx.Err()
		case <-e.done:
			cause = fmt.Errorf("%w (%w)", actor.RefuseReplyClosed(), e.err)
		}
		if _, waiting := e.clients.remove(w.request.Call.ID); !waiting { // the answer is being delivered
			<-w.ready
			return answer()
		}
		return Answer{}, cause
	}
}

// queueFull returns the refusal of a message for which the cell's queue has no room.
func (c *cell) queueFull(now actor.Time) *actor.Refusal {
	return actor.RefuseBusy(actor.ScopeNode, c.turnover.retryAfterOf(now, c.tally.steps.Load()), "the queue of the actor's cell is full")
}

// Cancel cancels a run of an actor on behalf of the user by. The callers waiting
// for the run are refused as cancelled. A run that has ended stays as it is.
func (e *Engine) Cancel(run actor.CallID, id actor.ID, by string) *actor.Refusal {
	if err := id.Check(); err != nil {
		return actor.Refuse(actor.Invalid, "%v", err)
	}
	if c := e.cellOf(id); !c.post(&actor.Envelope{To: id, Body: actor.Cancel{Call: run, Reason: actor.Stopped, By: by}}) {
		return c.queueFull(e.clock.now())
	}
	return nil
}

// cellOf returns the cell of an actor.
func (e *Engine) cellOf(id actor.ID) *cell {
	return e.cells[int(dispatcher.ShardOf(id))%len(e.cells)]
}

func refusalAnswer(call actor.CallID, r *actor.Refusal) Answer {
	return Answer{Reply: actor.Fail(call, r)}
}
