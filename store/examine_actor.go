// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// actorExaminer is the position of an examination in the entries of one actor. It folds
// the entries after the snapshot, without the content of messages and without outcomes,
// so its size does not depend on the number of entries.
type actorExaminer struct {
	id        actor.ID
	state     Journal
	shard     uint16
	n         uint64                         // number of the last entry
	snapshot  uint64                         // number of the last entry in the snapshot; 0 if none
	outcomes  []EvictedOutcome               // outcomes of the snapshot that refer to later entries, in order of these entries
	broken    bool                           // the fold has failed
	events    map[actor.CallID]uint64        // number of the last event of each open run
	summaries map[actor.CallID]*runs.Summary // of each open run
}

// checkActor checks the snapshot and all entries of an actor, row by row of its index.
func (x *examiner) checkActor(id actor.ID) {
	x.Actors++
	a := &actorExaminer{id: id, events: map[actor.CallID]uint64{}, summaries: map[actor.CallID]*runs.Summary{}}
	blob := func(e *Entry, name actor.Hash) ([]byte, error) {
		content, err := x.checkReference(id, name)
		if n := uint64(e.Shown.N); err != nil && n > 0 {
			err = fmt.Errorf("events %d to %d of run %s: %w", e.Shown.Seq, e.Shown.Seq+n-1, e.EventRun(), err)
		}
		if _, ends := e.Record.(Ended); !ends { // its text is in the summary of the run
			content = nil
		}
		return content, err
	}
	key := snapshotKey(id)
	if err := a.start(x.kv, blob); err != nil {
		x.report(key, lossOf(key), "%v", err)
		a.broken = true
	}
	x.checkPages(a)
	reader := groupReader{kv: x.kv}
	read := func(spans []span) {
		for _, s := range spans {
			if s.last <= a.n {
				continue // also in an earlier row
			}
			err := reader.entries(id, s, blob, func(e Entry) error { x.checkEntry(a, s.at, e); return nil })
			if err == nil && a.n < s.last { // the actor cannot be loaded
				err = fmt.Errorf("ends at entry %d of %s, want entry %d by its index", a.n, id, s.last)
			}
			if err != nil {
				x.report(s.at.key(), "the state of "+id.String()+" and the events of its runs from there on", "%v", err)
			}
		}
	}
	prefix := indexPrefix(id)
	//nolint:errcheck // readableKV reports errors
	x.kv.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		spans, err := readSpans(key, value)
		if err != nil {
			x.report(key, lossOf(key), "%v", err)
			return true
		}
		if n, err := lastNumber(key, len(prefix)); err != nil || len(spans) == 0 || spans[0].first != n {
			x.report(key, lossOf(key), "does not begin with the entry in its key")
		}
		read(spans)
		return true
	})
	tail := x.index.actors[id]
	if tail != nil {
		read(tail.spans)
	}
	if a.n < a.snapshot && !x.cut {
		x.report(key, lossOf(key), "holds the state after %d entries, but the index ends at entry %d", a.snapshot, a.n)
	}
	x.checkOutcomes(a, max(a.n, a.snapshot)+1)
	if a.broken {
		return
	}
	x.Open += uint64(len(a.state.Runs))
	x.checkOpenSummaries(a)
	due := a.state.Due()
	if tail != nil {
		due = tail.was // the row changes with the next flush
	}
	if due != 0 {
		x.due[string(dueKey(a.shard, due, id))] = true
	}
}

// start reads the snapshot of the actor, if it has one.
func (a *actorExaminer) start(kv KV, blob blobReader) error {
	key := snapshotKey(a.id)
	value, ok, err := kv.Get(key)
	if err != nil || !ok {
		return err
	}
	snapshot, err := snapshotEntry(a.id, key, value, blob)
	if err != nil {
		return err
	}
	if a.state, err = DecodeJournal(snapshot.Record.(Snapshot).Journal); err != nil {
		return err
	}
	n := snapshot.N
	a.snapshot, a.shard = n, snapshot.Shard
	a.outcomes = slices.SortedFunc(slices.Values(a.state.Evicted), func(a, b EvictedOutcome) int { return cmp.Compare(a.N, b.N) })
	a.state.dropOutcomes()
	if a.state.N != n {
		return fmt.Errorf("holds the state after %d entries, want %d", a.state.N, n)
	}
	return nil
}

// checkPages checks the pages of the transcript in the snapshot, and the blobs that they refer
// to. Then it drops the transcript, which would grow with each entry.
func (x *examiner) checkPages(a *actorExaminer) {
	first := uint64(1)
	for _, p := range a.state.Transcript.Pages {
		all, err := x.readPage(a.id, p.Hash)
		if err == nil && len(all) != int(p.Messages) {
			err = errors.New("holds another number of messages than the snapshot says")
		}
		next := first + uint64(p.Messages)
		if err != nil {
			x.report(blobKey(a.id, p.Hash), fmt.Sprintf("messages %d to %d of the conversation of %s", first, next-1, a.id), "%v", err)
		}
		first = next
	}
	a.state.Transcript = Transcript{}
}

func (x *examiner) readPage(id actor.ID, page actor.Hash) ([]actor.ChatMessage, error) {
	read := func(name actor.Hash) ([]byte, error) { return x.checkReference(id, name) }
	content, err := read(page)
	if err != nil {
		return nil, err
	}
	return readPage(content, read)
}

// fold applies an entry after the snapshot.
func (a *actorExaminer) fold(e Entry) error {
	a.shard = e.Shard
	if a.broken || e.N <= a.snapshot {
		return nil
	}
	record, err := mapParts(e.Record, func([]actor.Part) ([]actor.Part, error) { return nil, nil })
	if err == nil {
		e.Record = record
		err = a.state.ApplyEntry(e)
	}
	a.state.dropOutcomes()
	a.state.Transcript = Transcript{}
	return err
}

// checkReference returns the content of a blob, if it is intact.
func (x *examiner) checkReference(id actor.ID, name actor.Hash) ([]byte, error) {
	if len(x.references) < referencesMax {
		x.references[hashPrefix(actor.HashOf(blobKey(id, name)))] = struct{}{}
	}
	return loadBlob(x.kv, id, name)
}

func hashPrefix(h actor.Hash) uint64 { return binary.BigEndian.Uint64(h[:]) }

// checkEntry checks one entry of an actor.
func (x *examiner) checkEntry(a *actorExaminer, at location, e Entry) {
	x.Entries++
	if x.cut && e.N > a.n+1 && e.N <= a.snapshot+1 {
		a.n = e.N - 1 // cut
	}
	if a.n++; e.N != a.n {
		x.report(at.key(), "the state of "+a.id.String()+" from there on", "holds entry %d of %s, want entry %d", e.N, a.id, a.n)
		a.n, a.broken = e.N, true
	}
	x.checkOutcomes(a, e.N)
	if len(a.outcomes) > 0 && a.outcomes[0].N == e.N {
		if outcome, ok := e.Record.(Ended); ok && outcome.Call == a.outcomes[0].Call {
			a.outcomes = a.outcomes[1:]
		}
		x.checkOutcomes(a, e.N+1)
	}
	if err := a.fold(e); err != nil {
		a.broken = true
		x.report(at.key(), "the state of "+a.id.String(), "the entries of %s cannot be folded: %v", a.id, err)
	}
	x.checkEntryEvents(a, at, &e)
	x.checkSummary(a, &e)
	switch r := e.Record.(type) {
	case Accepted:
		x.accepted++
		x.checkOwner(RunOwner{Run: r.Call.ID, Root: r.Call.Root, Actor: a.id})
	case Ended:
		delete(a.events, r.Call)
	}
}

// checkEntryEvents checks that the events of each run are dense, and passes their bodies
// to x.event.
func (x *examiner) checkEntryEvents(a *actorExaminer, at location, e *Entry) {
	events, err := e.WithoutBodies().Events, error(nil)
	if x.event != nil {
		var all []RunEvent
		if all, err = e.AllEvents(); err == nil {
			events = all
		} else {
			x.report(at.key(), "events of run "+eventsOf(e.Record).String(), "%v", err)
		}
	}
	for _, ev := range events {
		x.told++
		if _, ok := a.events[ev.Run]; !ok && x.cut && ev.Seq > 1 {
			if last, err := x.rows().dropped(a.id.Tenant, ev.Run); err == nil {
				a.events[ev.Run] = last
			}
		}
		if a.events[ev.Run]++; ev.Seq != a.events[ev.Run] {
			x.report(at.key(), "events of run "+ev.Run.String(), "holds event %d of run %s, want event %d", ev.Seq, ev.Run, a.events[ev.Run])
			a.events[ev.Run] = ev.Seq
		}
		if x.event == nil || err != nil {
			continue
		}
		if err := x.event(ev.Body); err != nil {
			x.report(at.key(), "events of run "+ev.Run.String(), "event %d of run %s: %v", ev.Seq, ev.Run, err)
		}
	}
}

// checkOutcomes reports the outcomes of the snapshot whose entries before n were not
// found.
func (x *examiner) checkOutcomes(a *actorExaminer, n uint64) {
	for len(a.outcomes) > 0 && a.outcomes[0].N < n {
		o := &a.outcomes[0]
		if x.cut && (o.Until < x.cutAt || x.isKept(a.id, o)) {
			a.outcomes = a.outcomes[1:]
			continue
		}
		x.report(indexKey(a.id, o.N), fmt.Sprintf("the outcome of call %s", o.Call), "entry %d of %s holds no outcome of call %s, although the snapshot refers to it", o.N, a.id, o.Call)
		a.outcomes = a.outcomes[1:]
	}
}

// isKept reports whether a copy of an outcome that was cut is intact.
func (x *examiner) isKept(id actor.ID, o *EvictedOutcome) bool {
	outcome, err := x.rows().Outcome(id, o.N)
	if err != nil {
		x.report(keptKey(id, o.N), lossOf(keptKey(id, o.N)), "%v", err)
	}
	return err == nil && outcome.Call == o.Call
}

// checkOwner compares the owner of a run with the entry that accepted it.
func (x *examiner) checkOwner(want RunOwner) {
	key := runKey(want.Actor.Tenant, want.Run)
	switch got, ok, err := x.rows().summary(want.Actor.Tenant, want.Run); {
	case err != nil:
		x.report(key, lossOf(key), "%v", err)
	case !ok:
		x.report(key, lossOf(key), "is missing; the run belongs to %s", want.Actor)
	case got.Actor != want.Actor:
		x.report(key, "", "names owner %s, want %s", got.Actor, want.Actor)
	case got.Root != want.Root:
		x.report(key, "", "names root %s, want %s", got.Root, want.Root)
	}
}
