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

// effectKey names one attempt at a tool or work.
type effectKey struct {
	id      actor.EffectID
	attempt uint32
}

// effect is a tool or work from the step that asked for it to the one that
// takes in its outcome, or gives it up.
type effect struct{ giveUp context.CancelFunc }

// effect notes a tool or work, and is what starts it.
func (c *cell) effect(e runtime.Effect, left actor.Duration, do func(context.Context) actor.Answer) func() {
	key := effectKey{e.ID, e.Attempt}
	ctx, giveUp := context.WithTimeout(c.engine.ctx, left)
	c.effects[key] = &effect{giveUp}
	incarnation := c.incarnation
	tell := func(a actor.Answer) {
		c.mailbox.answer(answer{incarnation, runtime.Outcome{ID: key.id, Attempt: key.attempt, Answer: a}})
	}
	return func() {
		if ctx.Err() != nil {
			return // given up before its gate opened
		}
		if !c.engine.begin() {
			giveUp()
			tell(actor.Answer{Refusal: actor.RefuseBusy(actor.ScopeNode, time.Second, "%d tools are under way on this node", c.engine.config.EffectsMax)})
			return
		}
		go func() {
			defer c.engine.finish()
			defer giveUp()
			result := actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "its code ended its goroutine")}
			defer func() { tell(result) }() // whatever the code does, its asker hears of it
			result = perform(ctx, do)
		}()
	}
}

// abort gives a tool or work up; nobody waits for its outcome.
func (c *cell) abort(key effectKey) {
	if f := c.effects[key]; f != nil {
		f.giveUp()
		delete(c.effects, key)
	}
}

func perform(ctx context.Context, do func(context.Context) actor.Answer) (a actor.Answer) {
	defer func() {
		if p := recover(); p != nil {
			a = actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "panic: %v", p)}
		}
	}()
	return do(ctx)
}

// work runs a function of the agent's own.
func work(ctx context.Context, op runtime.Work) actor.Answer {
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

// read has the disk read, outside the cell.
func (c *cell) read(get func() runtime.Input) func() {
	incarnation := c.incarnation
	return func() {
		c.engine.readers.do(func() {
			if in := get(); in != nil {
				c.mailbox.answer(answer{incarnation, in})
			}
		})
	}
}

func (e *Engine) load(op runtime.Load) runtime.Input {
	id := op.Actor
	saved, err := store.LoadActor(e.config.Store, id)
	if err != nil {
		e.log.Error("an actor cannot be read", "actor", id.String(), "error", err.Error())
		return runtime.LoadFailed{Actor: id, Epoch: op.Epoch, Why: err.Error()}
	}
	return runtime.Loaded{Actor: id, Epoch: op.Epoch, Saved: saved}
}

func (e *Engine) expiries(shards []uint16) runtime.Input {
	ids, err := store.DueActors(e.config.Store, shards)
	if err != nil {
		e.fail(err)
		return nil
	}
	return runtime.Due{Actors: ids}
}
