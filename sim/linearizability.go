// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/specs/linear"
	"github.com/troupe-run/troupe/store"
)

// The recorded histories contain only events that are visible from outside the
// cells: to clients, and to the store shared by the nodes.

// linearizabilityTimeout is the maximum time to check the histories of one kind.
const linearizabilityTimeout = 10 * time.Second

// checkHistories checks at the end of a run that all recorded histories are
// linearizable.
func (w *Simulation) checkHistories() {
	v := w.judge.Check(linearizabilityTimeout)
	w.Stats.JudgedOps, w.Stats.JudgedHistories, w.Stats.Undecided = v.Ops, v.Histories, v.Undecided
	p := &w.checker.Premises
	p.LinearKeys, p.LinearOwners, p.LinearKept = v.Premises.Keys, v.Premises.Owners, v.Premises.Kept
	if v.Illegal != nil {
		w.fail(v.Illegal.Spec, v.Illegal.Detail)
		w.violation.History = v.Illegal
	}
}

// recordKeyedRequest records a request with an idempotency key. Requests to
// volatile agents are left out, because these agents also forget idempotency keys.
func (w *Simulation) recordKeyedRequest(r *pendingRequest) {
	c := r.client
	if c.key == "" || c.otherBody || w.isVolatile(c.to.Agent) {
		return
	}
	w.keyOfCall[r.call] = c.key
	r.keyedOp = w.judge.BeginRequest(w.now, c.key, fmt.Sprintf("client %d, try %d,", c.no, c.tries))
}

// recordReply records a client's reply. A refusal under the request's own run id is
// left out, because it may come from a cell that never looked up the key.
func (w *Simulation) recordReply(r *pendingRequest, reply *actor.Reply) {
	if r.keyedOp != nil && (reply.Refusal == nil || reply.Run != r.call) {
		outcome := reply.Status.String() + " " + actor.TextOf(reply.Parts)
		if refusal := reply.Refusal; refusal != nil {
			outcome += refusal.Error()
		}
		w.judge.EndRequest(w.now, r.keyedOp, reply.Run, outcome)
	}
	c := r.client
	if c.swap == nil || reply.Status != actor.Succeeded {
		return
	}
	if previous, ok := strings.CutPrefix(actor.TextOf(reply.Parts), previousPrefix); ok {
		w.judge.EndSwap(w.now, c.swap, previous)
		c.swap = nil
	}
}

// recordExternalEffect records that a run performs an effect outside the cell.
func (w *Simulation) recordExternalEffect(kind string, run actor.CallID) {
	if key, ok := w.keyOfCall[run]; ok {
		switch kind {
		case "tool", "work", "model", "invoke":
			w.judge.RecordEffect(w.now, key, run)
		}
	}
}

func shardGroupName(g int) string { return fmt.Sprintf("shard group %d", g) }

// recordTurnStart records that the owner of a shard group starts a turn.
func (w *Simulation) recordTurnStart(e *history.Event) {
	g := w.claims.groupOf(dispatcher.ShardOf(e.Actor))
	w.judge.RecordTurn(w.now, w.groupNames[g], linear.Owner{Cell: e.From, Epoch: e.Epoch})
}

// groupWrite is a batch in flight to the store, as seen by one shard group.
type groupWrite struct {
	group int
	epoch actor.Epoch
	op    *linear.Op
}

// recordWriteStart records that a batch is on its way to the store.
func (d *disk) recordWriteStart(b *store.Batch) {
	w := d.n.w
	var all []groupWrite
	for _, s := range b.Shards {
		g := w.claims.groupOf(s.Shard)
		if slices.ContainsFunc(all, func(x groupWrite) bool { return x.group == g && x.epoch == s.Epoch }) {
			continue
		}
		all = append(all, groupWrite{g, s.Epoch, w.judge.BeginWrite(w.now, w.groupNames[g], d.n.id)})
	}
	d.pendingWrites = append(d.pendingWrites, all)
}

// recordWriteEnd records the result of the oldest batch. If the store refused it
// because of one group, nothing is recorded for the other groups.
func (d *disk) recordWriteEnd(ok bool) {
	w := d.n.w
	for _, write := range d.pendingWrites[0] {
		if ok || !w.claims.holds(d.n, write.group, write.epoch) {
			w.judge.EndWrite(w.now, write.op, write.epoch, ok)
		}
	}
	d.pendingWrites = d.pendingWrites[1:]
}
