// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// retentionJudge checks what a node finds after its log was cut and sessions were deleted.
// It compares that with the entries that the store has taken, which loadJudge keeps in
// memory.
type retentionJudge struct {
	w       *Simulation
	cut     store.Mark // last batch that was cut
	cutAt   actor.Time // outcomes that are needed until an earlier time may be lost
	batches map[actor.ID][]uint64
	dead    map[runtime.Session]*deadSession // deleted sessions whose names cannot be used yet
	former  []*deadSession                   // others
}

// deadSession is a deleted session.
type deadSession struct {
	session runtime.Session
	batch   uint64 // with its entry Forgotten
	process uint64 // that appended the entry
	erased  bool
	ids     []actor.ID
	runs    []actor.CallID
	answers [][]byte // that are stored as blobs
}

func newRetentionJudge(w *Simulation) retentionJudge {
	return retentionJudge{w: w, batches: map[actor.ID][]uint64{}, dead: map[runtime.Session]*deadSession{}}
}

// commit records an entry that the store has taken, before loadJudge does. It reports
// whether the entry is the change of an actor.
func (j *retentionJudge) commit(b *store.Batch, e *store.Entry) (numbered bool) {
	switch r := e.Record.(type) {
	case store.Snapshot, store.Kept:
		return false
	case store.Cut:
		j.recordCut(b, r)
		return false
	case store.Forgotten:
		j.recordForgotten(b, runtime.Session{Tenant: e.Actor.Tenant, Name: e.Actor.Key})
		return false
	}
	if session := sessionOf(e.Actor); j.dead[session] != nil {
		j.fail("entry %d of %s is appended, but batch %d has deleted its session", e.N, e.Actor, j.dead[session].batch)
	}
	j.batches[e.Actor] = append(j.batches[e.Actor], b.No)
	return true
}

func (j *retentionJudge) recordCut(b *store.Batch, c store.Cut) {
	recordChange(j.w, LogCut, j.cut.Batch, c.Upto.Batch, "batch %d of %s cuts its log behind batch %d", b.No, b.Node, c.Upto.Batch)
	j.cut, j.cutAt = c.Upto, max(j.cutAt, c.At)
	for _, session := range j.deadSessions() {
		if d := j.dead[session]; d.batch <= c.Upto.Batch {
			if !d.erased {
				j.fail("the cut behind batch %d passes the deletion of session %s, which is not erased", c.Upto.Batch, session)
			}
			delete(j.dead, session)
			j.former = append(j.former, d)
		}
	}
}

func (j *retentionJudge) recordForgotten(b *store.Batch, session runtime.Session) {
	d := &deadSession{session: session, batch: b.No, process: j.w.nodes[0].process}
	entries := j.w.loadJudge.entries
	for id := range entries {
		if sessionOf(id) == session {
			d.ids = append(d.ids, id)
		}
	}
	slices.SortFunc(d.ids, actor.ID.Compare)
	for _, id := range d.ids {
		for i := range entries[id] {
			switch r := entries[id][i].Record.(type) {
			case store.Accepted:
				d.runs = append(d.runs, r.Call.ID)
			case store.Ended:
				if text := actor.TextOf(r.Reply.Parts); len(text) > store.BlobBytesMin {
					d.answers = append(d.answers, []byte(text))
				}
			}
		}
		delete(entries, id)
		delete(j.batches, id)
	}
	j.dead[session] = d
}

// sessionOf returns the session of an actor, or the zero Session.
func sessionOf(id actor.ID) runtime.Session {
	if name, ok := id.Session(); ok {
		return runtime.Session{Tenant: id.Tenant, Name: name}
	}
	return runtime.Session{}
}

// deadSessions returns the sessions whose names cannot be used yet, sorted.
func (j *retentionJudge) deadSessions() []runtime.Session {
	return slices.SortedFunc(maps.Keys(j.dead), func(a, b runtime.Session) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
	})
}

// hasEntries reports whether a session can be deleted.
func (j *retentionJudge) hasEntries(session runtime.Session) bool {
	for id := range j.w.loadJudge.entries {
		if sessionOf(id) == session {
			return j.dead[session] == nil
		}
	}
	return false
}

// erasing reports whether the deletion of a session is not complete.
func (j *retentionJudge) erasing() bool {
	for _, d := range j.dead {
		if !d.erased {
			return true
		}
	}
	return false
}

// erased records that no step of a deletion is left.
func (j *retentionJudge) erased(n *node) {
	for _, session := range j.deadSessions() {
		d := j.dead[session]
		if d.erased || d.batch > n.log.mark.Batch {
			continue
		}
		d.erased = true
		recordChange(j.w, SessionForgotten, len(d.runs), j.found(d), "session %s with %d runs is deleted", session, len(d.runs))
	}
	j.checkForgotten()
}

// found returns the number of runs of a deleted session that are found.
func (j *retentionJudge) found(d *deadSession) (count int) {
	for _, run := range d.runs {
		if _, found, err := j.w.store.Run(d.session.Tenant, run); found || err != nil {
			count++
		}
	}
	return count
}

func (j *retentionJudge) fail(format string, args ...any) {
	j.w.fail(ForgottenStays, fmt.Sprintf(format, args...))
}

// checkStart checks that a process which started now, between two steps of a deletion, would
// find no run that is deleted already.
func (j *retentionJudge) checkStart() {
	s := &j.w.store
	next, err := s.recovered(j.w.plan.Index)
	if err != nil {
		j.fail("a start between two steps of a deletion: %v", err)
		return
	}
	for _, session := range j.deadSessions() {
		for _, run := range j.dead[session].runs {
			_, now, nowErr := s.Run(session.Tenant, run)
			_, then, err := next.Run(session.Tenant, run)
			if err = cmp.Or(nowErr, err); then && !now || err != nil {
				j.fail("run %s of the deleted session %s is found by a start between two steps of the deletion; error %v", run, session, err)
				return
			}
		}
	}
}

// check checks all that a process finds at its start.
func (j *retentionJudge) check(n *node) {
	if j.cut.Batch == 0 && len(j.dead)+len(j.former) == 0 {
		return
	}
	j.checkKept()
	j.checkForgotten()
	for _, d := range j.dead {
		if d.erased && d.process < n.process {
			j.w.Stats.Audit.ForgottenStays++
		}
	}
}

// checkKept checks that open runs, timers, outcomes and keys are those of the entries.
func (j *retentionJudge) checkKept() {
	entries := j.w.loadJudge.entries
	due := map[actor.ID]bool{}
	for _, id := range slices.SortedFunc(maps.Keys(entries), actor.ID.Compare) {
		saved, err := j.w.store.Load(id)
		if err != nil {
			j.w.fail(CutKeepsOpen, fmt.Sprintf("%s: %v", id, err))
			return
		}
		got, want := j.w.loadJudge.compare(CutKeepsOpen, id, &saved)
		if j.w.violation != nil {
			return
		}
		j.checkOutcomes(id, &got, &want)
		due[id] = want.Due() != 0
		for i := range want.Runs {
			if run := want.Runs[i]; j.isCut(id, run.Call.ID) {
				j.w.Stats.Audit.CutKeepsOpen++
			}
		}
	}
	shards := make([]uint16, dispatcher.Shards)
	for i := range shards {
		shards[i] = uint16(i)
	}
	err := j.w.store.Due(shards, func(id actor.ID) {
		if !due[id] {
			j.w.fail(CutKeepsOpen, fmt.Sprintf("%s is listed with open work, but has none", id))
		}
		delete(due, id)
	})
	if err != nil {
		j.w.fail(CutKeepsOpen, err.Error())
	}
	for id, open := range due {
		if open {
			j.w.fail(CutKeepsOpen, fmt.Sprintf("%s has open work, but is not listed", id))
		}
	}
}

// isCut reports whether the log no longer holds the entry that accepted a run.
func (j *retentionJudge) isCut(id actor.ID, run actor.CallID) bool {
	for i, e := range j.w.loadJudge.entries[id] {
		if a, ok := e.Record.(store.Accepted); ok && a.Call.ID == run {
			return j.batches[id][i] <= j.cut.Batch
		}
	}
	return false
}

// checkOutcomes checks the outcomes that an actor retains, and the keys that refer to them.
func (j *retentionJudge) checkOutcomes(id actor.ID, got, want *store.Journal) {
	written := j.w.loadJudge.entries[id]
	ended := map[actor.CallID]*actor.Reply{}
	for i := range written {
		switch r := written[i].Record.(type) {
		case store.Ended:
			ended[r.Call] = &r.Reply
		case store.Accepted:
			if key := r.Call.Idempotency; !key.IsZero() {
				gotCall, gotBody, gotOK := got.FindByKey(key)
				wantCall, wantBody, wantOK := want.FindByKey(key)
				if gotCall != wantCall || gotBody != wantBody || gotOK != wantOK {
					j.w.fail(CutKeepsOpen, fmt.Sprintf("%s finds call %s under the key of call %s, want %s", id, gotCall, r.Call.ID, wantCall))
				}
			}
		}
	}
	same := func(call actor.CallID, reply *actor.Reply) {
		if got, want, different := differ(reply, ended[call]); different {
			j.w.fail(CutKeepsOpen, fmt.Sprintf("%s has another outcome of call %s: %.200s, want %.200s", id, call, got, want))
		}
	}
	for i := range got.Ended {
		same(got.Ended[i].Call, &got.Ended[i].Reply)
	}
	for _, o := range got.Evicted {
		if o.Until < j.cutAt {
			continue
		}
		outcome, err := j.w.store.Outcome(id, o.N)
		if err != nil {
			j.w.fail(CutKeepsOpen, fmt.Sprintf("outcome of call %s of %s: %v", o.Call, id, err))
			return
		}
		same(o.Call, &outcome.Reply)
		if j.batches[id][o.N-1] <= j.cut.Batch {
			j.w.Stats.Audit.CutKeepsOpen++
		}
	}
}

// checkForgotten checks that nothing of a deleted session is found.
func (j *retentionJudge) checkForgotten() {
	for _, session := range j.deadSessions() {
		d := j.dead[session]
		for _, id := range d.ids {
			if _, err := j.w.store.Load(id); !errors.As(err, new(store.Gone)) {
				j.fail("%s is loaded, but its session is deleted: error %v", id, err)
			}
		}
		if d.erased {
			j.checkRuns(d)
			j.checkRows(d)
		}
	}
	for _, d := range j.former {
		j.checkRuns(d)
	}
}

// checkRuns checks that no run of a deleted session is found, listed, or has events.
func (j *retentionJudge) checkRuns(d *deadSession) {
	for _, run := range d.runs {
		_, found, err := j.w.store.Run(d.session.Tenant, run)
		events, eventsErr := j.w.store.Events(d.session.Tenant, run, 0, 1)
		if found || len(events) > 0 || err != nil || eventsErr != nil {
			j.fail("run %s of the deleted session %s is found: %v, with %d events; errors %v, %v", run, d.session, found, len(events), err, eventsErr)
		}
	}
	err := store.EachRun(j.w.store, d.session.Tenant, runs.Filter{Calls: true, System: true}, func(s *runs.Summary) {
		if slices.Contains(d.runs, s.Run) {
			j.fail("run %s of the deleted session %s is listed", s.Run, d.session)
		}
	})
	if err != nil {
		j.w.fail(StoreReads, err.Error())
	}
}

// rowScope returns the tenant, family and name in a key.
func rowScope(key []byte) string {
	return string(bytes.Join(bytes.SplitN(key, []byte("/"), 5)[:4], []byte("/")))
}

// checkRows checks that no row belongs to a deleted session, and that its answers are only
// in rows of other sessions and agents that have entries.
func (j *retentionJudge) checkRows(d *deadSession) {
	if j.w.store.kv == nil {
		return
	}
	living := map[string]bool{}
	for id := range j.w.loadJudge.entries {
		living[rowScope(store.SnapshotKey(id))] = true
	}
	prefix := []byte("t/" + d.session.Tenant + "/s/" + d.session.Name + "/")
	err := j.w.store.kv.Scan([]byte("t/"), []byte("u"), func(key, value []byte) bool {
		if bytes.HasPrefix(key, prefix) {
			j.fail("the row %s of the deleted session %s is left", key, d.session)
		}
		if !slices.ContainsFunc(d.answers, func(answer []byte) bool { return bytes.Contains(value, answer) }) {
			return j.w.violation == nil
		}
		if !living[rowScope(key)] {
			j.fail("the row %s holds an answer of the deleted session %s", key, d.session)
		}
		return j.w.violation == nil
	})
	if err != nil {
		j.w.fail(StoreReads, err.Error())
	}
}
