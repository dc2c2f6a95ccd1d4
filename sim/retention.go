// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// retention cuts the log of the only node and deletes sessions, at random instants. Each
// step waits until the one before it is durable, and the process may crash in between.
// The deleted sessions have clients of their own, which send each request once: a client
// that repeats a request after a deletion would receive a second answer.
type retention struct {
	w         *Simulation
	log       store.Forgetter
	busyUntil actor.Time // a cut or deletion is in progress, at the latest until this time
	judge     retentionJudge
}

// forgottenSessions is the number of the sessions that are deleted.
const forgottenSessions = 6

// retentionTimeout bounds a cut or deletion whose cell panics.
const retentionTimeout = 3 * time.Second

// retentionFaults are the faults of a retention.
var retentionFaults = [...]Fault{LogCut, SessionForgotten, NodeCrashRetaining}

// drawRetention draws whether the log is cut and sessions are deleted: in most runs with one
// node, and in one of eight others, which then has one node.
func (p *Plan) drawRetention(c Entropy, o Options) {
	if o.Plain || o.Long || o.Team != nil {
		return
	}
	wanted := len(p.Cells) == 1 && c.Int(4) > 0 || len(p.Cells) > 1 && c.Int(8) == 7
	var odds [len(retentionFaults)]int
	for i, f := range retentionFaults {
		odds[i] = 1 + faultTable[f].maxOdds/4 + c.Int(faultTable[f].maxOdds*3/4)
	}
	if o.Faultless {
		wanted, odds = false, [len(retentionFaults)]int{}
	}
	explicit := false
	for _, given := range o.Odds {
		if i := slices.Index(retentionFaults[:], given.Fault); i >= 0 {
			odds[i], explicit = given.Per, explicit || given.Per > 0
		} else if given.Per > 0 { // a fault of the network needs several nodes
			wanted = wanted && len(p.Cells) == 1 && !slices.Contains(corruptionFaults[:], given.Fault)
		}
	}
	if !wanted && !explicit {
		return
	}
	p.Retention = true
	p.Cells, p.Drift, p.Offset = p.Cells[:1], p.Drift[:1], p.Offset[:1]
	for _, f := range corruptionFaults { // a backup would not have the rows that are deleted
		p.Odds[f] = 0
	}
	for i, f := range retentionFaults {
		p.Odds[f] = odds[i]
	}
}

func (w *Simulation) startRetention() {
	if !w.plan.Retention {
		return
	}
	w.retention = &retention{w: w, log: w.store.log.(store.Forgetter), judge: newRetentionJudge(w)}
	defer w.setStream(w.setStream(topicRetention))
	w.after(10*time.Millisecond, w.retention.arrive)
}

// arrive submits a request to a session that may be deleted, and schedules the next one.
func (r *retention) arrive() {
	w := r.w
	if w.recovering {
		return
	}
	w.after(w.between(w.plan.ArrivalInterval, 4*w.plan.ArrivalInterval), r.arrive)
	def := &w.plan.Agents[w.entropy.Int(w.plan.Targets)]
	d := newGenerator(w)
	to := d.actor(def.Name, forgottenSession(w.entropy.Int(forgottenSessions)))
	text := d.message(2, to.Agent)
	if w.entropy.Int(2) == 1 {
		text = instruction{verb: "big", ms: 6}.String() // the answer is stored as a blob
	}
	c := w.addClient(to, text, time.Duration(1+w.entropy.Int(5))*time.Second)
	c.key, c.tries = "", triesMax
	w.submit(c)
}

func forgottenSession(i int) string { return fmt.Sprintf("f%d", i+1) }

// begin reports whether no other cut or deletion is in progress.
func (r *retention) begin() bool {
	if r.w.now < r.busyUntil {
		return false
	}
	r.busyUntil = r.w.now.Add(retentionTimeout)
	return true
}

func (r *retention) end() { r.busyUntil = 0 }

// crashes reports whether the process crashes before a step.
func (r *retention) crashes(n *node, step string) bool {
	w := r.w
	return w.faultFires(NodeCrashRetaining) &&
		w.endProcess(NodeCrashRetaining, n, func() { w.crash(n, "crash") }, "%s crashes before it %s", n.id, step)
}

// append appends entries, and calls then once they are durable, unless another cut or deletion
// has begun by then.
func (r *retention) append(n *node, entries []store.Entry, then func()) {
	w, begun := r.w, r.busyUntil
	for i := range entries {
		e := &entries[i]
		if _, ok := e.Record.(store.Cut); !ok {
			g := w.claims.groupOf(e.Shard)
			if w.claims.owner(g) != n {
				r.end()
				return
			}
			e.Epoch = w.claims.groups[g].epoch
		}
		w.log.entry(e)
	}
	pos := n.log.appendEntries(entries)
	var wait func()
	wait = func() {
		if n.log.released() < pos {
			n.after(time.Millisecond, wait)
			return
		}
		if r.busyUntil == begun {
			then()
		}
	}
	n.after(w.between(time.Microsecond, 2*time.Millisecond), wait)
}

// cutLog cuts the log behind a random batch. One in four cuts is requested without the
// entries that it needs, and MUST be refused if there are any.
func (r *retention) cutLog(n *node) {
	w := r.w
	first, last := r.judge.cut.Batch, n.log.mark.Batch
	if last <= first+1 || !r.begin() {
		return
	}
	batch := last - uint64(w.entropy.Int(int(last-first)))
	mark, err := r.log.MarkAt(n.id, batch)
	if err != nil {
		w.fail(StoreReads, fmt.Sprintf("batch %d of %s, whose log ends at batch %d: %v", batch, n.id, last, err))
		return
	}
	c := store.Cut{Upto: mark, At: max(0, n.clock.now(w.now).Add(-w.plan.maxSkew()))}
	var entries []store.Entry
	if w.entropy.Int(4) < 3 {
		err = r.log.Retain(n.id, c, func(e store.Entry) error {
			entries = append(entries, e)
			return nil
		})
	}
	if r.refused(err) || r.crashes(n, "keeps entries of a cut") {
		return
	}
	r.append(n, entries, func() {
		if r.refused(r.log.MayCut(n.id, c)) || r.crashes(n, "cuts its log") {
			return
		}
		if !w.acts(LogCut) {
			r.end()
			return
		}
		w.log.note(w.now, "%s cuts its log behind batch %d", n.id, c.Upto.Batch)
		r.append(n, []store.Entry{store.CutEntry(n.id, 0, c)}, r.end)
	})
}

// refused reports whether a cut is not allowed, and then ends it.
func (r *retention) refused(err error) bool {
	if err == nil {
		return false
	}
	if !errors.As(err, new(store.CannotCut)) {
		r.w.fail(CutKeepsOpen, err.Error())
	}
	r.w.Stats.Points[CutRefused]++
	r.w.log.note(r.w.now, "%v", err)
	r.end()
	return true
}

// forget has a cell delete a session that has entries.
func (r *retention) forget(n *node) {
	w := r.w
	var session runtime.Session
	first, tenant := w.entropy.Int(forgottenSessions), namespaces{w}.drawNamespace()
	for i := range forgottenSessions {
		next := runtime.Session{Tenant: tenant, Name: forgottenSession((first + i) % forgottenSessions)}
		if session.Name == "" && r.judge.hasEntries(next) {
			session = next
		}
	}
	if session.Name == "" {
		return
	}
	shard := dispatcher.ShardOf(store.ForgottenEntry(session.Tenant, session.Name, 0, 0, 0).Actor)
	g := w.claims.groupOf(shard)
	if w.claims.owner(g) != n || !w.acts(SessionForgotten) || !r.begin() {
		return
	}
	n.cells[w.claims.groups[g].cell].enqueue(input{orderGroup: unordered, in: runtime.Forget{Session: session}})
}

// check answers a MayForget.
func (r *retention) check(c *cell, op runtime.MayForget) {
	if r.crashes(c.n, "checks a session") {
		return
	}
	c.n.log.read(c, func() runtime.Input {
		in, err := op.Check(r.log)
		if err != nil {
			r.w.fail(StoreReads, err.Error())
		}
		return in
	})
}

// forgot erases a session that a cell has deleted.
func (r *retention) forgot(n *node, op runtime.Forgot) {
	if op.Refusal != nil {
		r.w.Stats.Points[DeletionRefused]++
		r.end()
		return
	}
	r.erase(n)
}

func (r *retention) erase(n *node) {
	if r.crashes(n, "erases a session") {
		return
	}
	if r.eraseStep(n) {
		n.after(r.w.between(10*time.Microsecond, 2*time.Millisecond), func() { r.erase(n) })
		return
	}
	r.end()
}

// eraseStep performs one step of the deletion of sessions. It returns false if there is none.
func (r *retention) eraseStep(n *node) (more bool) {
	more, err := r.log.Erase(n.id, n.log.mark.Batch)
	if err != nil {
		r.w.fail(StoreReads, err.Error())
		return false
	}
	if more {
		r.judge.checkStart()
	} else {
		r.judge.erased(n)
	}
	return more
}

// start completes the deletion of sessions at the start of a process, and checks what it
// finds. It returns false if the process crashes before.
func (r *retention) start(n *node) bool {
	w := r.w
	r.end()
	for {
		if r.judge.erasing() && w.faultFires(NodeCrashRetaining) {
			crashed := w.acts(NodeCrashRetaining)
			if crashed {
				w.store.crash()
			}
			if recordChange(w, NodeCrashRetaining, false, crashed, "%s crashes at its start, before it erases a session", n.id) {
				return false
			}
		}
		if !r.eraseStep(n) {
			break
		}
	}
	r.judge.check(n)
	return true
}

// isDropped reports whether events of a run cannot be read because the log was cut.
func (w *Simulation) isDropped(err error) bool {
	return w.retention != nil && w.retention.judge.cut.Batch > 0 && errors.As(err, new(store.EventsDropped))
}
