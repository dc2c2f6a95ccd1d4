// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/emitter"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
)

// effectKey identifies one attempt of an effect.
type effectKey struct {
	id      actor.EffectID
	attempt uint32
}

// key returns the effect that an outcome or a piece belongs to.
func (c *completion) key() effectKey {
	if in, ok := c.input.(runtime.Streamed); ok {
		return effectKey{in.ID, in.Attempt}
	}
	in := c.input.(runtime.Outcome)
	return effectKey{in.ID, in.Attempt}
}

// effect is the use of a tool, work, a model or an external agent. It exists
// from the step that requested it to the step that takes its outcome or cancels
// it. At most one of its results is in flight. If an earlier incarnation
// requested the effect, the result is kept until the current one awaits it.
type effect struct {
	cancel       context.CancelFunc
	acknowledged chan struct{} // capacity 1: the result in flight was stepped
	awaited      bool          // the current incarnation awaits the result
	unclaimed    []completion  // results kept until the effect is awaited
	timer        *time.Timer   // deadline of an invocation; nil for other effects
	adjusted     chan actor.Duration
}

// effectFunc performs an effect. It passes each piece of the answer to the
// callback pass, one after the other, and returns the whole answer.
type effectFunc func(ctx context.Context, pass func(actor.Piece)) actor.Answer

// prepareEffect registers an effect of a run and returns the function that
// starts it.
func (c *cell) prepareEffect(e runtime.Effect, kind actor.AskKind, left actor.Duration, do effectFunc) func() {
	ctx, cancel := context.WithTimeout(c.engine.ctx, left)
	return c.register(ctx, e, kind, &effect{cancel: cancel}, do)
}

// prepareInvoke is prepareEffect for an external agent, whose deadline may move.
func (c *cell) prepareInvoke(e runtime.Effect, op runtime.Invoke) func() {
	ctx, cancel := context.WithCancelCause(c.engine.ctx)
	timer := time.AfterFunc(op.Left, func() { cancel(context.DeadlineExceeded) })
	f := &effect{timer: timer, adjusted: make(chan actor.Duration, 1)}
	f.cancel = func() {
		timer.Stop()
		cancel(nil)
	}
	return c.register(ctx, e, actor.AskInvoke, f, c.invoke(op, f.adjusted))
}

// adjust replaces the time left of an invocation. It runs on the goroutine of the
// cell's holder, which alone sends to adjusted.
func (c *cell) adjust(key effectKey, left actor.Duration) {
	f := c.effects[key]
	if f == nil || f.timer == nil {
		return
	}
	select {
	case <-f.adjusted: // not received yet, and replaced now
	default:
	}
	f.adjusted <- left
	f.timer.Reset(left)
}

func (c *cell) register(ctx context.Context, e runtime.Effect, kind actor.AskKind, f *effect, do effectFunc) func() {
	key := effectKey{e.ID, e.Attempt}
	f.acknowledged, f.awaited = make(chan struct{}, 1), true
	c.abort(key) // a volatile actor restarts with its cell and reuses the effect's key
	c.effects[key] = f
	late := false // the time of the effect was over before its last result was acknowledged
	deliver := func(in runtime.Input) {
		c.mailbox.postCompletion(completion{input: in, effect: f})
		select {
		case <-f.acknowledged:
		case <-ctx.Done():
			late = true
		}
	}
	pass := func(p actor.Piece) {
		if ctx.Err() == nil {
			deliver(runtime.Streamed{ID: key.id, Attempt: key.attempt, Piece: p})
		}
	}
	discard := func() { // may be called from any goroutine; runs while the cell is held
		c.mailbox.postCompletion(completion{run: func() {
			if c.effects[key] == f {
				c.abort(key)
			}
		}})
	}
	finish := func(a actor.Answer) {
		deliver(runtime.Outcome{ID: key.id, Attempt: key.attempt, Answer: a})
		if late { // an effect that is not awaited by now will never be awaited
			discard()
		}
	}
	return func() { // runs on the goroutine of the cell's holder or of the log
		if ctx.Err() != nil { // cancelled, or out of time, before the gate opened
			discard()
			return
		}
		if !c.engine.acquireEffect() {
			busy := actor.RefuseBusy(actor.ScopeNode, c.engine.effectTurnover.retryAfter(c.engine.clock.now()), "%d tools, models and external agents are already running on this node", c.engine.config.EffectsMax)
			c.engine.effects.Go(func() { finish(actor.Answer{Refusal: busy}) })
			return
		}
		go func() {
			defer c.engine.releaseEffect()
			var result actor.Answer
			returned := false
			defer func() { // the turn gets an outcome however the code ends
				if !returned {
					result.Refusal = actor.Refuse(actor.Unavailable, "its code called runtime.Goexit")
				}
				finish(result)
			}()
			defer c.engine.effectCounters[kind].start()() // counted before the outcome is delivered
			c.engine.awaitLease()
			result, returned = do.runRecovered(ctx, pass), true
		}()
	}
}

// await delivers the kept results of an effect, and all later ones, to the
// current incarnation.
func (c *cell) await(key effectKey) {
	f := c.effects[key]
	if f == nil {
		return
	}
	f.awaited = true
	for _, a := range f.unclaimed {
		c.mailbox.postCompletion(a)
	}
	f.unclaimed = nil
}

// abort cancels an effect and drops its outcome.
func (c *cell) abort(key effectKey) {
	if f := c.effects[key]; f != nil {
		f.cancel()
		delete(c.effects, key)
	}
}

func (do effectFunc) runRecovered(ctx context.Context, pass func(actor.Piece)) (a actor.Answer) {
	defer func() {
		if p := recover(); p != nil {
			a = actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "panic: %v", p)}
		}
	}()
	return do(ctx, pass)
}

func (c *cell) tool(id actor.EffectID, attempt uint32, op runtime.Tool) effectFunc {
	out := c.engine.config.Outbound
	if devices := c.engine.config.Devices; devices != nil && op.Declared != nil && op.Declared.Kind == tools.KindClient {
		return func(ctx context.Context, _ func(actor.Piece)) actor.Answer {
			answer := devices.Perform(ctx, id, attempt, op)
			answer.Refusal = op.Declared.FallBack(answer.Refusal) // only NoDevice: nothing was passed on
			return answer
		}
	}
	remote := op.Declared != nil && !op.Declared.IsLocal()
	if remote && out == nil {
		return noOutbound
	}
	return func(ctx context.Context, _ func(actor.Piece)) actor.Answer {
		if remote {
			return out.Tool(ctx, id, op)
		}
		current, _ := c.engine.agents.current()
		return current.Tools.Execute(withToolCall(ctx, id, &op), op.Name, op.Input, op.Context)
	}
}

// work runs a function that belongs to the agent.
func work(op runtime.Work) effectFunc {
	return func(ctx context.Context, pass func(actor.Piece)) actor.Answer {
		var emits sync.Mutex // pieces are passed one after the other
		b, err := op.Func(emitter.With(ctx, func(text string) {
			emits.Lock()
			defer emits.Unlock()
			pass(actor.Piece{Text: text})
		}))
		var refusal *actor.Refusal
		switch {
		case err == nil && len(b) > actor.MessageBytesMax:
			refusal = actor.Refuse(actor.Rejected, "%s: result of %d bytes exceeds %d", op.Name, len(b), actor.MessageBytesMax)
		case err == nil:
			return actor.Answer{Parts: []actor.Part{{Media: actor.MediaText, Bytes: b}}}
		case errors.As(err, &refusal):
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
			refusal = &actor.Refusal{Reason: actor.Deadline, Operation: op.Name, Timeout: op.Left,
				Detail: op.Name + ": deadline exceeded"}
		default:
			refusal = actor.Refuse(actor.Unavailable, "%s: %v", op.Name, err)
		}
		return actor.Answer{Refusal: refusal}
	}
}

func (c *cell) model(op runtime.Model) effectFunc {
	out := c.engine.config.Outbound
	if out == nil {
		return noOutbound
	}
	return func(ctx context.Context, pass func(actor.Piece)) actor.Answer {
		a := out.Model(ctx, op, pass)
		c.tally.recordUsage(op.Name, op.Call.To.Agent, a)
		return a
	}
}

func (c *cell) invoke(op runtime.Invoke, adjusted <-chan actor.Duration) effectFunc {
	out := c.engine.config.Outbound
	if out == nil {
		return noOutbound
	}
	return func(ctx context.Context, pass func(actor.Piece)) actor.Answer {
		return out.Invoke(ctx, op, adjusted, pass) // the cell decides whether the tokens in the answer count
	}
}

func noOutbound(context.Context, func(actor.Piece)) actor.Answer {
	return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "this node is not configured to call models, external agents or tools")}
}

// read returns a function that reads the disk on a reader goroutine. The result
// is delivered to the incarnation that asked for it.
func (c *cell) read(load func(deliver func(runtime.Input))) func() {
	incarnation := c.incarnation
	deliver := func(in runtime.Input) { c.mailbox.postCompletion(completion{incarnation: incarnation, input: in}) }
	return func() { c.engine.readers.do(func() { load(deliver) }) }
}

func (e *Engine) load(op runtime.Load, deliver func(runtime.Input)) {
	in, err := op.Read(e.config.Store)
	if err != nil {
		e.log.Error("cannot load actor", "actor", op.Actor.String(), "error", err.Error())
	}
	if loaded, ok := in.(runtime.Loaded); ok {
		for _, r := range loaded.ParkedRuns() {
			e.logParked(op.Actor, r)
		}
	}
	deliver(in)
}

// dueBatchMin is the number of actors in the first batch of due actors. A cell
// can process this batch while the other actors are being read. Each further
// batch is twice as large as the one before.
const dueBatchMin = 256

func (e *Engine) findDue(shards []uint16, deliver func(runtime.Input)) {
	batch := make([]actor.ID, 0, dueBatchMin)
	flush := func() {
		if len(batch) > 0 {
			deliver(runtime.Due{Actors: batch})
			batch = make([]actor.ID, 0, 2*cap(batch))
		}
	}
	err := e.config.Store.Due(shards, func(id actor.ID) {
		if e.config.Resumes != nil && !e.config.Resumes(id) {
			return
		}
		if batch = append(batch, id); len(batch) == cap(batch) {
			flush()
		}
	})
	if err != nil {
		e.fail(err)
		return
	}
	// The cells never know all open runs if some are not resumed, so no definition that these
	// need is dropped.
	deliver(runtime.Due{Actors: batch, Last: e.config.Resumes == nil})
}
