// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// claim handles a cell that becomes the owner of shards. The epoch of a shard never decreases.
func (c *Checker) claim(e *history.Event) {
	if n := int(e.ShardHi) - len(c.shards); n > 0 {
		c.shards = append(c.shards, make([]claim, n)...)
	}
	to := c.cell(e.From)
	for s := e.ShardLo; s < e.ShardHi; s++ {
		old := &c.shards[s]
		if e.Epoch < old.epoch || e.Epoch == old.epoch && old.cell != to && old.epoch != 0 {
			c.fail(SingleActivation, "%s claims shard %d under epoch %d after epoch %d", e.From, s, e.Epoch, old.epoch)
			return
		}
		if old.cell == nil && old.epoch != 0 {
			c.unownedShards--
			c.ownedSince = c.now
		}
		*old = claim{to, e.Epoch}
	}
}

// lose handles a cell that is no longer the owner of shards.
func (c *Checker) lose(e *history.Event) {
	from := c.cell(e.From)
	for s := e.ShardLo; s < e.ShardHi && int(s) < len(c.shards); s++ {
		if old := &c.shards[s]; old.cell == from && (e.Epoch == 0 || e.Epoch == old.epoch) {
			old.cell = nil
			c.unownedShards++
			c.Premises.OwnedAgain++
		}
	}
}

// perform handles an effect that leaves its node. The entries it depends on must be durable.
func (c *Checker) perform(e *history.Event) {
	n := c.node(e.From.Node)
	if e.Pos > e.Synced && !c.ungated(n, e) {
		c.fail(AckedIsDurable, "%s of %s leaves %s while the log is durable up to %d, want %d", e.What, e.Call, e.From, e.Synced, e.Pos)
		return
	}
	if e.Wrote > 0 && e.Pos <= e.Synced {
		c.Premises.AckedIsDurable++
	}
	switch e.What {
	case "respond":
		if r := c.runs[e.Call]; r.outcomeDiffers(e) {
			c.fail(ReplyToCallerOnly, "a client at %s receives an answer to call %s that differs from the outcome recorded by %s", e.From, e.Call, r.actor.id)
			return
		}
		key := clientKeyOf(e)
		switch cl := c.clients[key]; {
		case cl == nil:
			c.fail(OneAnswer, "a client at %s receives a response to call %s and waits for none", e.From, e.Call)
			return
		case cl.expected > 0:
			cl.expected--
		default:
			cl.stale--
		}
		if cl := c.clients[key]; cl.expected+cl.stale == 0 {
			delete(c.clients, key)
		}
	case "try", "pass", "act", "show", "take back":
		c.observeExternal(e)
	case "listen", "hear", "revoke":
		c.observeStream(e)
	case "tool", "work", "model", "invoke":
		r := c.runs[e.Call]
		if r == nil {
			return
		}
		attempt := effect{e.Step, e.Attempt, e.Index, r.actor.activations}
		if slices.ContainsFunc(r.performed, func(o effect) bool { return o.sameAsk(attempt) && o.attempt == attempt.attempt }) {
			c.fail(EffectOncePerAttempt, "%s performs %s %d.%d of run %s again as attempt %d", r.actor.id, e.What, e.Step, e.Index, r.id, e.Attempt)
			return
		}
		if e.Why == Once && slices.ContainsFunc(r.performed, func(o effect) bool { return o.sameAsk(attempt) && !r.mayInvokeAgain(o, e) }) {
			c.fail(EffectOncePerAttempt, "%s performs %s %d.%d of run %s again, which must not be repeated", r.actor.id, e.What, e.Step, e.Index, r.id)
			return
		}
		if e.Attempt > 1 {
			c.Premises.EffectOncePerAttempt++
		}
		r.performed = append(r.performed, attempt)
	}
}

// mayInvokeAgain reports whether an invocation that must not be repeated may be attempted again after
// an earlier attempt: the agent has not begun it, and the activation that made the attempt has
// received its answer. A later activation cannot know whether the agent has begun.
func (r *run) mayInvokeAgain(earlier effect, e *history.Event) bool {
	return e.What == "invoke" && earlier.activation == r.actor.activations && !r.external(e).begun
}

// ungated reports whether an effect depends on no log entry. The effect is then a refusal of a
// call that was never admitted, or it belongs to a run without durable input.
func (c *Checker) ungated(n *node, e *history.Event) bool {
	r := c.runs[e.Call]
	refuses := e.Status == actor.Failed && (r == nil || !r.ended || !r.started || r.status != e.Status || r.reason != e.Reason || c.takeRefusal(e))
	switch e.What {
	case "respond":
		if refuses || e.Status == actor.Failed && e.Reason == actor.Deadline {
			return true // the timer of the client itself may have fired
		}
		if e.Status == 0 && r != nil && r.volatile {
			return true // held: a volatile actor may reveal that it has admitted the call, and may have ended since
		}
		if r == nil {
			cl := c.clients[clientKeyOf(e)]
			return cl != nil && c.limits.Agents[cl.to.Agent].Volatile
		}
	case "send":
		k := c.asks[e.Call]
		switch e.Why {
		case "probe":
			return true
		case "request", "cancel":
			if k != nil && e.Why == "cancel" && k.forwards > 0 {
				k.forwards--
				return true
			}
			return k == nil || k.sentUngated // nil for a call of a client
		case "answered", "held", "resumed", "open":
			k = nil
			if r != nil && r.ended && r.volatile && r.activation != r.actor.activations {
				return true // another activation answers with the outcome of another run with the same key
			}
		}
		if k != nil && k.parent.actor.cell.node == n {
			return k.sentUngated || refuses // sent by the caller, not the callee
		}
		if e.Attempt > 0 {
			return true // a repeated client request reveals nothing about a log
		}
		// A volatile actor may reveal that it has admitted a call, whatever input its turn has
		// read.
		return refuses || r == nil || r.actor.cell.node != n || r.ungated() || r.volatile && !r.ended
	}
	return r == nil || r.ungated()
}

// takeRefusal reports whether the effect is a refusal made or received in this step, and consumes
// that refusal. Each refusal counts once, because a repeat of the same call may have been admitted
// and then failed for the same reason. That failure depends on the log.
func (c *Checker) takeRefusal(e *history.Event) bool {
	i := slices.IndexFunc(c.refusals, func(n refusal) bool { return n.call == e.Call && (n.reason == e.Reason || n.reason == 0) })
	if i < 0 {
		return false
	}
	c.refusals = slices.Delete(c.refusals, i, i+1)
	return true
}

// ungated reports whether the effects of a run need no gate: its actor is volatile and the run
// has read no durable data.
func (r *run) ungated() bool { return r.volatile && !r.tainted }
