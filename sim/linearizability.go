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

// What is told here to the judge of histories is what can be seen from outside
// the cells: by clients, and by the store that the nodes share.

// linearizabilityTimeout is how long the histories of one kind may take to be judged.
const linearizabilityTimeout = 10 * time.Second

// checkHistories asks at the end whether they are those of one machine.
func (w *Simulation) checkHistories() {
	v := w.judge.Check(linearizabilityTimeout)
	w.Stats.JudgedOps, w.Stats.JudgedHistories, w.Stats.Undecided = v.Ops, v.Histories, v.Undecided
	if v.Illegal != nil {
		w.fail(v.Illegal.Spec, v.Illegal.Sentence)
		w.violation.History = v.Illegal
	}
}

// recordKeyedRequest notes that a client asks with its key. Who writes nothing down
// forgets keys too.
func (w *Simulation) recordKeyedRequest(l *pendingRequest) {
	c := l.client
	if c.key == "" || w.isVolatile(c.to.Agent) {
		return
	}
	w.keyOfCall[l.call] = c.key
	l.keyedOp = w.judge.Asks(w.now, c.key, fmt.Sprintf("client %d, try %d,", c.no, c.tries))
}

// recordReply notes what a client was told. A refusal in the name of the ask itself may
// be of one who never looked for the key.
func (w *Simulation) recordReply(l *pendingRequest, reply *actor.Reply) {
	if l.keyedOp != nil && (reply.Refusal == nil || reply.Run != l.call) {
		outcome := reply.Status.String() + " " + actor.TextOf(reply.Parts)
		if r := reply.Refusal; r != nil {
			outcome += r.Error()
		}
		w.judge.Told(w.now, l.keyedOp, reply.Run, outcome)
	}
	c := l.client
	if c.swap == nil || reply.Status != actor.Succeeded {
		return
	}
	if found, ok := strings.CutPrefix(actor.TextOf(reply.Parts), previousPrefix); ok {
		w.judge.Left(w.now, c.swap, found)
		c.swap = nil
	}
}

// recordExternalEffect notes that a run has something done outside.
func (w *Simulation) recordExternalEffect(what string, run actor.CallID) {
	if key, ok := w.keyOfCall[run]; ok {
		switch what {
		case "tool", "work", "model", "invoke":
			w.judge.Acts(w.now, key, run)
		}
	}
}

func shardGroupName(g int) string { return fmt.Sprintf("group %d of the shards", g) }

// recordTurnStart notes that turns begin.
func (w *Simulation) recordTurnStart(e *history.Event) {
	g := w.claims.groupOf(dispatcher.ShardOf(e.Actor))
	w.judge.Serves(w.now, w.groupNames[g], linear.Owner{Cell: e.From, Epoch: e.Epoch})
}

// groupWrite is a batch on its way to the store, for one group.
type groupWrite struct {
	group int
	epoch actor.Epoch
	op    *linear.Op
}

// recordWriteStart notes that a batch begins its way.
func (d *disk) recordWriteStart(b *store.Batch) {
	w := d.n.w
	var all []groupWrite
	for _, s := range b.Shards {
		g := w.claims.groupOf(s.Shard)
		if slices.ContainsFunc(all, func(o groupWrite) bool { return o.group == g && o.epoch == s.Epoch }) {
			continue
		}
		all = append(all, groupWrite{g, s.Epoch, w.judge.Writes(w.now, w.groupNames[g], d.n.id)})
	}
	d.pendingWrites = append(d.pendingWrites, all)
}

// recordWriteEnd notes what came of the oldest batch. Where it is refused for one group,
// nothing is said of the others.
func (d *disk) recordWriteEnd(ok bool) {
	w := d.n.w
	for _, one := range d.pendingWrites[0] {
		cl := &w.claims.groups[one.group]
		if ok || cl.node != d.n || cl.epoch != one.epoch {
			w.judge.Wrote(w.now, one.op, one.epoch, ok)
		}
	}
	d.pendingWrites = d.pendingWrites[1:]
}
