// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"slices"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// forgetter returns the log as one that can be cut.
func (x *trial) forgetter() store.Forgetter {
	log, ok := x.store.Log.(store.Forgetter)
	if !ok {
		x.t.Fatalf("%T cannot be cut", x.store.Log)
	}
	return log
}

// forgetSome cuts the log, deletes a session, or continues deletions.
func (x *trial) forgetSome() {
	switch rapid.IntRange(0, 4).Draw(x.t, "forgets") {
	case 0, 1:
		x.cut()
	case 2:
		x.forget()
	case 3:
		x.erase()
	}
}

// cut cuts the log, or expects the refusal that the model gives a reason for.
func (x *trial) cut() {
	log := x.forgetter()
	batch := uint64(rapid.IntRange(1, int(x.end.Batch)+1).Draw(x.t, "upto"))
	upto, err := log.MarkAt(Node, batch)
	var cannot store.CannotCut
	if held := batch <= x.end.Batch && batch > x.cutUpto; held != (err == nil) || err != nil && (!errors.As(err, &cannot) || cannot.Obstacle != store.NotInLog) {
		x.t.Fatalf("mark of batch %d: error %v, the log ends at %d and was cut up to %d", batch, err, x.end.Batch, x.cutUpto)
	}
	if err != nil {
		return
	}
	c := store.Cut{Upto: upto, At: x.history.now + actor.Time(rapid.IntRange(-5, 5).Draw(x.t, "at"))}
	var entries []store.Entry
	if err := log.Retain(Node, c, func(e store.Entry) error { entries = append(entries, e); return nil }); err != nil {
		x.t.Fatalf("retain before the cut of batch %d: %v", batch, err)
	}
	if len(entries) > 0 {
		if err := log.MayCut(Node, c); !errors.As(err, &cannot) {
			x.t.Fatalf("cut of batch %d without %d entries: got error %v", batch, len(entries), err)
		}
		x.room()
		x.write(entries)
	}
	if rapid.IntRange(0, 3).Draw(x.t, "between") == 0 {
		x.append([]operation{accept, ask, end, refuse})
	}
	err = log.MayCut(Node, c)
	switch {
	case err != nil && !errors.As(err, &cannot):
		x.t.Fatalf("cut of batch %d: %v", batch, err)
	case err != nil && (cannot.Obstacle == store.NoSnapshot || cannot.Obstacle == store.OutcomeLost || cannot.Obstacle == store.NotErased && x.erased):
		x.t.Fatalf("cut of batch %d: %v", batch, err)
	case err != nil: // the index is not flushed, or a session not erased
		return
	}
	x.room()
	x.write([]store.Entry{store.CutEntry(Node, 0, c)})
	x.cutUpto = batch
}

// forget deletes a session, or expects the refusal that the model gives a reason for.
func (x *trial) forget() {
	log := x.forgetter()
	id := rapid.SampledFrom(slices.DeleteFunc(slices.Clone(ids), func(id actor.ID) bool { return id.Key == actor.DefaultKey })).Draw(x.t, "session")
	open, known := false, false
	for _, other := range ids {
		if other.Tenant == id.Tenant && other.Key == id.Key {
			open = open || len(x.history.journals[other].Runs) > 0
			known = known || x.history.journals[other].N > 0
		}
	}
	err := log.MayForget(id.Tenant, id.Key)
	gone := x.written.isDeleted(id)
	switch {
	case gone != errors.As(err, new(store.Gone)), !gone && open != errors.As(err, new(store.OpenRuns)), err == nil && (gone || open):
		x.t.Fatalf("session %s of %s: got error %v, deleted %v, open runs %v", id.Key, id.Tenant, err, gone, open)
	case err != nil:
		return
	case !known:
		return
	}
	free := func(other actor.ID) bool {
		return !x.written.isDeleted(other) && (other.Tenant != id.Tenant || other.Key != id.Key)
	}
	if !slices.ContainsFunc(ids, free) {
		return // the history continues in another session
	}
	x.room()
	var last []store.Entry // its detached calls end in the same batch
	for _, other := range ids {
		if other.Tenant == id.Tenant && other.Key == id.Key {
			for _, row := range x.history.journals[other].Mail.Rows {
				last = append(last, x.history.entry(other, store.Late{Call: row.Call.ID, At: x.history.now}, actor.CallID{}))
			}
		}
	}
	x.write(append(last, store.ForgottenEntry(id.Tenant, id.Key, shard(id), 3, x.history.now)))
	for i := range x.written {
		if e := &x.written[i]; slices.Contains(ids, e.Actor) && e.Actor.Tenant == id.Tenant && e.Actor.Key == id.Key {
			e.deleted = true
		}
	}
	for _, other := range ids {
		if other.Tenant == id.Tenant && other.Key == id.Key {
			x.history.journals[other] = &store.Journal{}
			x.history.transcripts[other] = nil
		}
	}
	x.erased = false
}

// erase performs some or all steps of deletions.
func (x *trial) erase() {
	x.sync()
	for range rapid.IntRange(1, 4).Draw(x.t, "steps") {
		more, err := x.forgetter().Erase(Node, x.synced)
		if err != nil {
			x.t.Fatalf("erase: %v", err)
		}
		if !more {
			x.erased = true
			return
		}
	}
}

// room makes room for another batch.
func (x *trial) room() {
	if x.end.Batch-x.synced >= 3 {
		x.sync()
	}
}

// isGone checks that no read finds an actor of a deleted session.
func (x *trial) isGone(id actor.ID) {
	if saved, err := x.store.Reader.Load(id); !errors.As(err, new(store.Gone)) || saved.Snapshot != nil || len(saved.Entries) > 0 {
		x.t.Fatalf("load %s of a deleted session: got %d entries, error %v", id, len(saved.Entries), err)
	}
	if !x.erased {
		return
	}
	var due []actor.ID
	err := x.store.Reader.Due([]uint16{shard(id)}, func(id actor.ID) { due = append(due, id) })
	if err != nil || slices.Contains(due, id) {
		x.t.Fatalf("%s of a deleted session is due, error %v", id, err)
	}
	for n := range uint64(9) {
		if outcome, err := x.store.Reader.Outcome(id, n); err == nil {
			x.t.Fatalf("%s of a deleted session has outcome %+v", id, outcome)
		}
	}
}
