// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// claim is a cell that owns shards from now on. Epochs of a shard only rise.
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

// lose is a cell that does not own shards any more.
func (c *Checker) lose(e *history.Event) {
	from := c.cell(e.From)
	for s := e.ShardLo; s < e.ShardHi && int(s) < len(c.shards); s++ {
		if old := &c.shards[s]; old.cell == from && (e.Epoch == 0 || e.Epoch == old.epoch) {
			old.cell = nil
			c.unownedShards++
		}
	}
}

// perform is an effect that leaves its node. What it depends on must be durable.
func (c *Checker) perform(e *history.Event) {
	n := c.node(e.From.Node)
	if e.Pos > e.Synced && !c.ungated(n, e) {
		c.fail(AckedIsDurable, "%s of %s leaves %s when its log is durable up to %d, and depends on %d", e.What, e.Call, e.From, e.Synced, e.Pos)
		return
	}
	switch e.What {
	case "respond":
		if r := c.runs[e.Call]; r.outcomeDiffers(e) {
			c.fail(ReplyToCallerOnly, "a client at %s is answered call %s with what %s did not say", e.From, e.Call, r.actor.id)
			return
		}
		key := clientKey{e.Call, e.From.Node}
		switch cl := c.clients[key]; {
		case cl == nil:
			c.fail(OneAnswer, "a client at %s is answered call %s, and does not wait for it", e.From, e.Call)
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
		r, one := c.runs[e.Call], effect{e.Step, e.Attempt, e.Index}
		if r == nil {
			return
		}
		if slices.Contains(r.performed, one) {
			c.fail(EffectOncePerAttempt, "%s does %s %d.%d of run %s once more as attempt %d", r.actor.id, e.What, e.Step, e.Index, r.id, e.Attempt)
			return
		}
		if e.Why == Once && slices.ContainsFunc(r.performed, func(o effect) bool { return o.step == one.step && o.index == one.index }) {
			c.fail(EffectOncePerAttempt, "%s does %s %d.%d of run %s once more, which must not be repeated", r.actor.id, e.What, e.Step, e.Index, r.id)
			return
		}
		r.performed = append(r.performed, one)
	}
}

// ungated tells whether an effect depends on no log: it says no where nothing was
// written down, or speaks of a run that stands in none.
func (c *Checker) ungated(n *node, e *history.Event) bool {
	r := c.runs[e.Call]
	refuses := e.Status == actor.Failed && (r == nil || !r.ended || !r.started || r.status != e.Status || r.reason != e.Reason || c.takeRefusal(e))
	switch e.What {
	case "respond":
		if refuses || e.Status == actor.Failed && e.Reason == actor.Deadline {
			return true // the client's own clock may be what ran out
		}
		if e.Status == 0 && r != nil && r.actor.volatile && !r.ended {
			return true // held: that it has the call is no secret of an unjournaled actor
		}
		if r == nil {
			cl := c.clients[clientKey{e.Call, e.From.Node}]
			return cl != nil && c.limits.Agents[cl.to.Agent].Volatile
		}
	case "send":
		k := c.asks[e.Call]
		switch e.Why {
		case "probe":
			return true
		case "request", "cancel":
			return k == nil || k.sentUngated // nil: a client's
		case "answered", "held", "resumed", "open":
			k = nil
		}
		if k != nil && k.parent.actor.cell.node == n {
			return k.sentUngated || refuses // it is the caller who speaks
		}
		if e.Attempt > 0 {
			return true // a client's request, sent again: it tells of no log
		}
		// That it has the call is no secret of an unjournaled actor, whatever its turn took in.
		return refuses || r == nil || r.actor.cell.node != n || r.ungated() || r.actor.volatile && !r.ended
	}
	return r == nil || r.ungated()
}

// takeRefusal tells whether what leaves is a refusal of this step, or one that came
// with it, once for each: a repeat that came as well may have been taken, and have
// ended with the same reason.
func (c *Checker) takeRefusal(e *history.Event) bool {
	i := slices.IndexFunc(c.refusals, func(n refusal) bool { return n.call == e.Call && (n.reason == e.Reason || n.reason == 0) })
	if i < 0 {
		return false
	}
	c.refusals = slices.Delete(c.refusals, i, i+1)
	return true
}

// ungated tells whether nothing of the run stands in a log.
func (r *run) ungated() bool { return r.actor.volatile && !r.tainted }
