// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// effectKey names one attempt at something that a run wants of the world.
type effectKey struct {
	id      actor.EffectID
	attempt uint32
}

// key is which effect an outcome or a piece comes of.
func (a *completion) key() effectKey {
	if in, ok := a.input.(runtime.Streamed); ok {
		return effectKey{in.ID, in.Attempt}
	}
	in := a.input.(runtime.Outcome)
	return effectKey{in.ID, in.Attempt}
}

// effect is a tool, work, model or external agent from the step that asked for
// it to the one that takes in its outcome, or gives it up. One thing that came of
// it is on its way at most; of an effect that an incarnation before had begun it
// is kept until the present one awaits it.
type effect struct {
	cancel       context.CancelFunc
	acknowledged chan struct{} // of one: what was on its way was taken in
	awaited      bool          // by the present incarnation
	unclaimed    []completion
}

// effectFunc is how an effect is done. What comes of it before its answer goes to
// pass, one piece after the other.
type effectFunc func(ctx context.Context, pass func(actor.Piece)) actor.Answer

// prepareEffect notes what a run wants of the world, and is what starts it.
func (c *cell) prepareEffect(e runtime.Effect, kind actor.AskKind, left actor.Duration, do effectFunc) func() {
	key := effectKey{e.ID, e.Attempt}
	ctx, giveUp := context.WithTimeout(c.engine.ctx, left)
	f := &effect{cancel: giveUp, acknowledged: make(chan struct{}, 1), awaited: true}
	c.abort(key) // an actor that writes nothing down begins anew with the cell, and asks under the same name
	c.effects[key] = f
	late := false // something may not have been taken in when its time was over
	tell := func(in runtime.Input) {
		c.mailbox.postCompletion(completion{input: in, effect: f})
		select {
		case <-f.acknowledged:
		case <-ctx.Done():
			late = true
		}
	}
	pass := func(p actor.Piece) {
		if ctx.Err() == nil {
			tell(runtime.Streamed{ID: key.id, Attempt: key.attempt, Piece: p})
		}
	}
	forget := func() { // on the cell's thread, from wherever it is said
		c.mailbox.postCompletion(completion{run: func() {
			if c.effects[key] == f {
				c.abort(key)
			}
		}})
	}
	end := func(a actor.Answer) {
		tell(runtime.Outcome{ID: key.id, Attempt: key.attempt, Answer: a})
		if late { // who does not await it by now never will
			forget()
		}
	}
	return func() { // on the thread of the cell, or of the log
		if ctx.Err() != nil { // given up before its gate opened, or its time was over
			forget()
			return
		}
		if !c.engine.acquireEffect() {
			busy := actor.RefuseBusy(actor.ScopeNode, time.Second, "%d tools, models and agents are under way on this node", c.engine.config.EffectsMax)
			c.engine.effects.Go(func() { end(actor.Answer{Refusal: busy}) })
			return
		}
		go func() {
			defer c.engine.releaseEffect()
			result := actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "its code ended its goroutine")}
			defer func() { end(result) }()                // whatever the code does, its asker hears of it
			defer c.engine.effectCounters[kind].start()() // who hears of it finds it counted
			result = do.runRecovered(ctx, pass)
		}()
	}
}

// await has what came of an effect, and what comes of it, stepped by this incarnation.
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

// abort gives an effect up; nobody waits for its outcome.
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

func (c *cell) tool(op runtime.Tool) effectFunc {
	return func(ctx context.Context, _ func(actor.Piece)) actor.Answer {
		return c.engine.config.Tools.Execute(ctx, op.Name, op.Input, op.Context)
	}
}

// work runs a function of the agent's own.
func work(op runtime.Work) effectFunc {
	return func(ctx context.Context, _ func(actor.Piece)) actor.Answer {
		b, err := op.Func(ctx)
		var refusal *actor.Refusal
		switch {
		case err == nil && len(b) > actor.MessageBytesMax:
			refusal = actor.Refuse(actor.Rejected, "%s: its result of %d bytes is over %d", op.Name, len(b), actor.MessageBytesMax)
		case err == nil:
			return actor.Answer{Parts: []actor.Part{{Media: actor.MediaText, Bytes: b}}}
		case errors.As(err, &refusal):
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
			refusal = &actor.Refusal{Reason: actor.Deadline, Operation: op.Name, Timeout: op.Left,
				Detail: op.Name + ": its time has run out"}
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
	return func(ctx context.Context, pass func(actor.Piece)) actor.Answer { return out.Model(ctx, op, pass) }
}

func (c *cell) invoke(op runtime.Invoke) effectFunc {
	out := c.engine.config.Outbound
	if out == nil {
		return noOutbound
	}
	return func(ctx context.Context, pass func(actor.Piece)) actor.Answer { return out.Invoke(ctx, op, pass) }
}

func noOutbound(context.Context, func(actor.Piece)) actor.Answer {
	return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "this node asks neither models nor external agents")}
}

// read has the disk read, outside the cell, which is told what was found.
func (c *cell) read(get func(found func(runtime.Input))) func() {
	incarnation := c.incarnation
	found := func(in runtime.Input) { c.mailbox.postCompletion(completion{incarnation: incarnation, input: in}) }
	return func() { c.engine.readers.do(func() { get(found) }) }
}

func (e *Engine) load(op runtime.Load, found func(runtime.Input)) {
	in, err := op.Read(e.config.Store)
	if err != nil {
		e.log.Error("an actor cannot be read", "actor", op.Actor.String(), "error", err.Error())
	}
	found(in)
}

// dueBatchMin is how many actors with open work a cell is told of at first, so that
// it takes them up while the rest are being looked for; then twice as many each time.
const dueBatchMin = 256

func (e *Engine) findDue(shards []uint16, found func(runtime.Input)) {
	next := make([]actor.ID, 0, dueBatchMin)
	tell := func() {
		if len(next) > 0 {
			found(runtime.Due{Actors: next})
			next = make([]actor.ID, 0, 2*cap(next))
		}
	}
	err := store.EachDue(e.config.Store, shards, func(id actor.ID) {
		if next = append(next, id); len(next) == cap(next) {
			tell()
		}
	})
	if err != nil {
		e.fail(err)
		return
	}
	tell()
}
