// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// actorExaminer is the position of an examination in the entries of one actor. It folds
// the entries after the snapshot, without the content of messages and without outcomes,
// so its size does not depend on the number of entries.
type actorExaminer struct {
	id       actor.ID
	state    Journal
	shard    uint16
	snapshot uint64           // number of the last entry in the snapshot; 0 if none
	outcomes []EvictedOutcome // outcomes of the snapshot that refer to later entries, in order of these entries
	broken   bool             // the fold has failed

	lastEvents map[actor.CallID]lastEvent // last events that have not been compared with the stored events
}

// lastEvent is the number of a run's last event, and the entry that holds it.
type lastEvent struct{ seq, entry uint64 }

// lastEventsMax is the maximum number of runs whose last event is held.
const lastEventsMax = 1024

// checkActorRow checks one row of entries. The snapshot is read first, although it is
// the last row.
func (x *examiner) checkActorRow(id actor.ID, key, value []byte, snapshot bool) {
	if x.actor == nil || x.actor.id != id {
		x.endActor()
		x.Actors++
		x.actor = &actorExaminer{id: id, lastEvents: map[actor.CallID]lastEvent{}}
		if err := x.actor.start(x.kv, x.blob); err != nil {
			x.report(snapshotKey(id), lossOf(snapshotKey(id)), "%v", err)
			x.actor.broken = true
		}
	}
	if snapshot {
		return
	}
	if err := readEntries(id, key, value, x.blob, x.checkEntry); err != nil {
		x.report(key, lossOf(key), "%v", err)
	}
}

// start reads the snapshot of the actor, if it has one.
func (a *actorExaminer) start(kv KV, blob func(actor.Hash) ([]byte, error)) error {
	key := snapshotKey(a.id)
	value, ok, err := kv.Get(key)
	if err != nil || !ok {
		return err
	}
	return readEntries(a.id, key, value, blob, func(e Entry) error {
		s, ok := e.Record.(Snapshot)
		if !ok {
			return fmt.Errorf("key %s: holds %T, not a snapshot", key, e.Record)
		}
		state, err := DecodeJournal(s.Journal)
		if err != nil {
			return err
		}
		a.state, a.shard, a.snapshot = state, e.Shard, e.N
		a.outcomes = slices.SortedFunc(slices.Values(state.Evicted), func(a, b EvictedOutcome) int { return cmp.Compare(a.N, b.N) })
		a.state.dropOutcomes()
		if state.N != e.N {
			return fmt.Errorf("holds the state after %d entries, want %d", state.N, e.N)
		}
		return nil
	})
}

// fold applies an entry after the snapshot.
func (a *actorExaminer) fold(e Entry) error {
	if a.broken || e.N <= a.snapshot {
		return nil
	}
	a.shard = e.Shard
	record, err := mapParts(e.Record, func([]actor.Part) ([]actor.Part, error) { return nil, nil })
	if err == nil {
		e.Record = record
		err = a.state.ApplyEntry(e)
	}
	a.state.dropOutcomes()
	return err
}

// dueKey returns the key of the actor in the expiry index; nil if no run is open.
func (a *actorExaminer) dueKey() []byte {
	due := a.state.Due()
	if due == 0 {
		return nil
	}
	return dueKey(a.shard, due, a.id)
}

// blob checks that a blob of the current tenant is intact. It returns no content,
// because the examination does not need it.
func (x *examiner) blob(name actor.Hash) ([]byte, error) {
	if len(x.references) < referencesMax {
		x.references[hashPrefix(name)] = struct{}{}
	}
	_, err := loadBlob(x.kv, x.tenant, name)
	return nil, err
}

func hashPrefix(h actor.Hash) uint64 { return binary.BigEndian.Uint64(h[:]) }

// checkEntry checks one entry of the current actor.
func (x *examiner) checkEntry(e Entry) error {
	a := x.actor
	x.Entries++
	x.checkOutcomes(e.N)
	if len(a.outcomes) > 0 && a.outcomes[0].N == e.N {
		if outcome, ok := e.Record.(Ended); ok && outcome.Call == a.outcomes[0].Call {
			a.outcomes = a.outcomes[1:]
		}
		x.checkOutcomes(e.N + 1)
	}
	if err := a.fold(e); err != nil {
		a.broken = true
		x.report(actorKey(a.id), "the state of "+a.id.String(), "its entries cannot be folded: %v", err)
	}
	for _, ev := range e.Events {
		if ev.Seq > a.lastEvents[ev.Run].seq {
			a.lastEvents[ev.Run] = lastEvent{ev.Seq, e.N}
		}
	}
	switch r := e.Record.(type) {
	case Accepted:
		x.checkAccepted(r.Call.ID, r.Call.Root)
	case Ended:
		x.checkEnded(a.id, &r)
		x.checkLastEvent(r.Call)
	}
	if len(a.lastEvents) > lastEventsMax {
		x.checkLastEvents()
	}
	return nil
}

// checkOutcomes reports the outcomes of the snapshot whose entries before n were not
// found.
func (x *examiner) checkOutcomes(n uint64) {
	a := x.actor
	for len(a.outcomes) > 0 && a.outcomes[0].N < n {
		o := &a.outcomes[0]
		x.report(entryKey(a.id, o.N), fmt.Sprintf("the outcome of call %s", o.Call), "holds no outcome of call %s, although the snapshot refers to it", o.Call)
		a.outcomes = a.outcomes[1:]
	}
}

// checkAccepted compares the stored owner of a run with the entry that accepted it.
func (x *examiner) checkAccepted(run, root actor.CallID) {
	id := x.actor.id
	key := runKey(id.Tenant, run)
	value, ok, err := x.kv.Get(key)
	if err != nil || !ok {
		problem := fmt.Sprintf("is missing; the run belongs to %s", id)
		if err != nil {
			problem = err.Error()
		}
		x.report(key, "the owner of run "+run.String(), "%s", problem)
		return
	}
	switch s, err := decodeSummary(run, value); {
	case err != nil: // reported by checkOwner
	case s.Actor != id:
		x.report(key, "", "names owner %s, want %s", s.Actor, id)
	case s.Root != root:
		x.report(key, "", "names root %s, want %s", s.Root, root)
	}
}

// checkLastEvents calls checkLastEvent for all runs.
func (x *examiner) checkLastEvents() {
	for _, run := range slices.SortedFunc(maps.Keys(x.actor.lastEvents), actor.CallID.Compare) {
		x.checkLastEvent(run)
	}
}

// checkLastEvent checks that the stored events of a run reach the last event in the
// entries read so far.
func (x *examiner) checkLastEvent(run actor.CallID) {
	a := x.actor
	last, ok := a.lastEvents[run]
	if !ok {
		return
	}
	delete(a.lastEvents, run)
	stored := uint64(0)
	err := x.kv.ScanBack(eventKey(a.id.Tenant, run, 1), eventKey(a.id.Tenant, run, last.seq+1), func(key, value []byte) bool {
		//nolint:errcheck // checkEvents reports the damage
		readEvents(key, len(eventsKey(a.id.Tenant, run)), value, func(seq uint64, _ []byte) error {
			stored = seq
			return nil
		})
		return false
	})
	if err == nil && stored < last.seq {
		x.report(eventKey(a.id.Tenant, run, stored+1), "events of run "+run.String(), "is missing; entry %d of %s has event %d", last.entry, a.id, last.seq)
	}
}

// endActor completes the checks of the current actor, if any.
func (x *examiner) endActor() {
	a := x.actor
	if a == nil {
		return
	}
	x.checkOutcomes(a.snapshot + 1)
	x.checkLastEvents()
	x.actor = nil
	if a.broken {
		return
	}
	x.Open += uint64(len(a.state.Runs))
	for _, run := range a.state.Runs {
		x.checkOpen(a.id, run)
	}
	key := a.dueKey()
	if key == nil {
		return
	}
	switch _, ok, err := x.kv.Get(key); {
	case ok:
		x.due++
	case err == nil:
		x.report(key, "", "the expiry index lacks an actor with open runs: they would not resume after a restart")
	}
}

// expectedDue returns the key of an actor in the expiry index according to its entries;
// nil if no run is open. The result known is false if the entries cannot be folded.
func (x *examiner) expectedDue(id actor.ID) (key []byte, known bool) {
	a := &actorExaminer{id: id}
	blob := func(actor.Hash) ([]byte, error) { return nil, nil }
	if a.start(x.kv, blob) != nil {
		return nil, false
	}
	err := x.kv.Scan(entryKey(id, 1), snapshotKey(id), func(key, value []byte) bool {
		a.broken = readEntries(id, key, value, blob, a.fold) != nil
		return !a.broken
	})
	return a.dueKey(), err == nil && !a.broken
}
