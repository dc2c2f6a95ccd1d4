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

// linearBound is how long the histories of one kind may take to be judged.
const linearBound = 10 * time.Second

// judgeHistories asks at the end whether they are those of one machine.
func (w *World) judgeHistories() {
	v := w.judge.Check(linearBound)
	w.Stats.Judged, w.Stats.Judgements, w.Stats.Undecided = v.Ops, v.Histories, v.Undecided
	if v.Illegal != nil {
		w.violate(v.Illegal.Spec, v.Illegal.Sentence)
		w.broken.History = v.Illegal
	}
}

// asksUnderKey notes that a client asks with its key. Who writes nothing down
// forgets keys too.
func (w *World) asksUnderKey(l *line) {
	c := l.client
	if c.key == "" || w.isVolatile(c.to.Agent) {
		return
	}
	w.keyed[l.call] = c.key
	l.asked = w.judge.Asks(w.now, c.key, fmt.Sprintf("client %d, try %d,", c.no, c.tries))
}

// told notes what a client was told. A refusal in the name of the ask itself may
// be of one who never looked for the key.
func (w *World) told(l *line, reply *actor.Reply) {
	if l.asked != nil && (reply.Refusal == nil || reply.Run != l.call) {
		outcome := reply.Status.String() + " " + actor.TextOf(reply.Parts)
		if r := reply.Refusal; r != nil {
			outcome += r.Error()
		}
		w.judge.Told(w.now, l.asked, reply.Run, outcome)
	}
	c := l.client
	if c.leaves == nil || reply.Status != actor.Succeeded {
		return
	}
	if found, ok := strings.CutPrefix(actor.TextOf(reply.Parts), foundMark); ok {
		w.judge.Left(w.now, c.leaves, found)
		c.leaves = nil
	}
}

// acts notes that a run has something done outside.
func (w *World) acts(what string, run actor.CallID) {
	if key, ok := w.keyed[run]; ok {
		switch what {
		case "tool", "work", "model", "invoke":
			w.judge.Acts(w.now, key, run)
		}
	}
}

func groupName(g int) string { return fmt.Sprintf("group %d of the shards", g) }

// serves notes that turns begin.
func (w *World) serves(e *history.Event) {
	g := w.claims.groupOf(dispatcher.ShardOf(e.Actor))
	w.judge.Serves(w.now, w.groups[g], linear.Owner{Cell: e.From, Epoch: e.Epoch})
}

// writing is a batch on its way to the store, for one group.
type writing struct {
	group int
	epoch actor.Epoch
	op    *linear.Op
}

// writes notes that a batch begins its way.
func (d *disk) writes(b *store.Batch) {
	w := d.n.w
	var all []writing
	for _, s := range b.Shards {
		g := w.claims.groupOf(s.Shard)
		if slices.ContainsFunc(all, func(o writing) bool { return o.group == g && o.epoch == s.Epoch }) {
			continue
		}
		all = append(all, writing{g, s.Epoch, w.judge.Writes(w.now, w.groups[g], d.n.id)})
	}
	d.writings = append(d.writings, all)
}

// wrote notes what came of the oldest batch. Where it is refused for one group,
// nothing is said of the others.
func (d *disk) wrote(ok bool) {
	w := d.n.w
	for _, one := range d.writings[0] {
		cl := &w.claims.groups[one.group]
		if ok || cl.node != d.n || cl.epoch != one.epoch {
			w.judge.Wrote(w.now, one.op, one.epoch, ok)
		}
	}
	d.writings = d.writings[1:]
}
