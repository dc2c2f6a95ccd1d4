// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// A log is cut from its front:
//
//	MarkAt ─▶ Retain: fresh snapshots, copies of outcomes ─▶ MayCut ─▶ entry Cut
//
// Retain passes the entries that MUST be in the log before the entry Cut. A Log performs
// the deletion in the batch with that entry, so a crash leaves both or neither. Summaries
// of runs stay. Their events are dropped with the entries that hold them.

// CutEntriesMax is the maximum number of entries that one Cut deletes. A batch that exceeds
// it can be cut alone.
const CutEntriesMax = 1 << 16

// CutEntry returns the entry that cuts the log of a node, which has a number among those of its store. It is in
// that log as if its shard was the number.
func CutEntry(node actor.NodeID, log uint16, c Cut) Entry {
	return Entry{Actor: actor.ID{Tenant: actor.DefaultTenant, Agent: actor.SystemAgent + ".log", Key: string(node)}, Shard: log, Record: c}
}

// Obstacle is the reason why a log cannot be cut yet.
type Obstacle uint8

// The obstacles.
const (
	NotInLog    Obstacle = iota + 1 // the log does not hold the batch
	NotIndexed                      // the rows of the index do not cover the batch
	TooLong                         // more than CutEntriesMax entries
	NoSnapshot                      // an actor has no snapshot behind the batch
	OutcomeLost                     // a needed outcome would be deleted
	NotErased                       // the deletion of a session is not complete
)

var obstacles = [...]string{NotInLog: "the log does not hold the batch", NotIndexed: "the index does not cover the batch",
	TooLong: "too many entries", NoSnapshot: "no snapshot behind the batch", OutcomeLost: "a needed outcome has no copy behind the batch",
	NotErased: "the session is not erased"}

// CannotCut is the error for a Cut that is not allowed yet.
type CannotCut struct {
	Obstacle Obstacle
	Actor    actor.ID // of NoSnapshot, OutcomeLost and NotErased
}

// Error implements error.
func (c CannotCut) Error() string {
	if c.Actor == (actor.ID{}) {
		return "cannot cut the log: " + obstacles[c.Obstacle]
	}
	return fmt.Sprintf("cannot cut the log: %s: %s", c.Actor, obstacles[c.Obstacle])
}

// EventsDropped is the error for events of a run that were cut.
type EventsDropped struct {
	Run   actor.CallID
	First uint64 // first event that can still be read, if there is one
}

// Error implements error.
func (e EventsDropped) Error() string {
	return fmt.Sprintf("events of run %s before event %d were dropped", e.Run, e.First)
}

// MarkAt returns the mark of a batch in the log of a node.
func (r Rows) MarkAt(node actor.NodeID, batch uint64) (Mark, error) {
	value, ok, err := r.KV.Get(partKey(node, batch, 0))
	if err != nil {
		return Mark{}, err
	}
	if !ok {
		return Mark{}, CannotCut{Obstacle: NotInLog}
	}
	record, _, err := decodePart(0, value)
	if err != nil {
		return Mark{}, err
	}
	b, err := decodeBatch(record)
	return Mark{batch, b.to, actor.HashOf(record)}, err
}

// OldBatches returns the last batch at the front of a node's log that was written before a
// time, with all batches before it; 0 if a Cut would delete nothing but earlier Cuts. One Cut
// can delete them: they have at most CutEntriesMax entries, or are one batch.
func (r Rows) OldBatches(node actor.NodeID, before actor.Time) (last uint64, err error) {
	origin, err := Origin(r.KV, node)
	if err != nil {
		return 0, err
	}
	var failure error
	err = scanLog(r.KV, node, origin.Batch+1, func(b *storedBatch) bool {
		var record batchRecord
		if record, failure = decodeBatch(b.record); failure != nil {
			return false
		}
		if last > 0 && record.to-origin.Pos > CutEntriesMax {
			return false
		}
		old, worth := true, false
		for _, group := range b.groups {
			content, err := openGroup(group)
			if errors.As(err, new(Gone)) {
				continue
			}
			if err == nil {
				err = unpackEntries(content, noBlob, func(e Entry) error {
					_, cut := e.Record.(Cut)
					old, worth = old && e.Record.at() < before, worth || !cut
					return nil
				})
			}
			if failure = err; failure != nil {
				failure = fmt.Errorf("key %s: %w", partKey(node, b.no, 0), failure)
				return false
			}
		}
		if old && worth {
			last = b.no
		}
		return old
	})
	return last, cmp.Or(failure, err)
}

// Retain passes the entries to the callback each that MUST be in the log before the Cut.
// It may run at the same time as Append.
func (r Rows) Retain(node actor.NodeID, c Cut, each func(Entry) error) error {
	front, err := r.readFront(node, c)
	if err != nil {
		return err
	}
	for _, id := range front.ids {
		if err := front.retain(id, each); err != nil {
			return err
		}
	}
	return nil
}

// MayCut returns an error if the log of a node cannot be cut now: CannotCut or SeveralLogs.
func (r Rows) MayCut(node actor.NodeID, c Cut) error {
	front, err := r.readFront(node, c)
	if err != nil {
		return err
	}
	mark, ok, err := readWatermark(r.KV, node)
	if err != nil {
		return err
	}
	if !ok || mark.batch < c.Upto.Batch {
		return CannotCut{Obstacle: NotIndexed}
	}
	for _, e := range front.forgotten {
		t, ok, err := readTombstone(r.KV, tenantSession{e.Tenant, e.Key})
		if err != nil {
			return err
		}
		if !ok || t.stage < stageBlanked {
			return CannotCut{NotErased, e}
		}
	}
	for _, id := range front.ids {
		err := front.retain(id, func(e Entry) error {
			if _, ok := e.Record.(Snapshot); ok {
				return CannotCut{NoSnapshot, id}
			}
			return CannotCut{OutcomeLost, id}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// front is the part of a node's log that a Cut deletes.
type front struct {
	rows      Rows
	node      actor.NodeID
	cut       Cut
	ids       []actor.ID          // actors with entries, snapshots or kept outcomes, in the order of the log
	first     map[actor.ID]uint64 // number of the first of its entries; 0 if there is none
	last      map[actor.ID]uint64 // number of the last one
	runIDs    []tenantRun         // runs with events
	events    map[tenantRun]uint64
	accepted  [][]byte        // keys of the runs that sessions accepted
	blobs     map[string]bool // keys
	kept      [][]byte        // keys
	forgotten []actor.ID
}

// readFront reads the batches that a Cut deletes, one at a time.
func (r Rows) readFront(node actor.NodeID, c Cut) (*front, error) {
	f := &front{rows: r, node: node, cut: c, first: map[actor.ID]uint64{}, last: map[actor.ID]uint64{}, events: map[tenantRun]uint64{}, blobs: map[string]bool{}}
	if err := r.oneLog(); err != nil {
		return nil, err
	}
	origin, err := Origin(r.KV, node)
	if err != nil {
		return nil, err
	}
	if mark, err := r.MarkAt(node, c.Upto.Batch); err != nil || mark != c.Upto || origin.Batch >= c.Upto.Batch {
		return nil, cmp.Or(err, error(CannotCut{Obstacle: NotInLog}))
	}
	if c.Upto.Pos-origin.Pos > CutEntriesMax && c.Upto.Batch > origin.Batch+1 {
		return nil, CannotCut{Obstacle: TooLong}
	}
	var failure error
	err = scanLog(r.KV, node, origin.Batch+1, func(b *storedBatch) bool {
		if b.no > c.Upto.Batch {
			return false
		}
		if failure = f.add(b); failure != nil {
			failure = fmt.Errorf("key %s: %w", partKey(node, b.no, 0), failure)
		}
		return failure == nil
	})
	return f, cmp.Or(failure, err)
}

func (f *front) actor(id actor.ID, n uint64) {
	last, ok := f.last[id]
	if !ok {
		f.ids = append(f.ids, id)
	}
	if f.last[id] = max(last, n); f.first[id] == 0 {
		f.first[id] = n
	}
}

// add adds a batch.
func (f *front) add(b *storedBatch) error {
	if b.err != nil {
		return b.err
	}
	record, err := decodeBatch(b.record)
	if err != nil {
		return err
	}
	for _, p := range record.payloads {
		key := bytes.Clone(p.Key)
		switch s, ok := parseScoped(key); {
		case !ok:
		case s.kind == kindBlob:
			f.blobs[string(key)] = true
		case s.kind == kindKept:
			f.kept = append(f.kept, key)
			fallthrough
		case s.kind == kindSnapshot:
			f.actor(s.actor, 0)
		}
	}
	for _, group := range b.groups {
		content, err := openGroup(group)
		if errors.As(err, new(Gone)) {
			continue
		}
		if err == nil {
			err = unpackEntries(content, noBlob, func(e Entry) error { f.entry(&e); return nil })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *front) entry(e *Entry) {
	if _, ok := e.Record.(Forgotten); ok {
		f.forgotten = append(f.forgotten, e.Actor)
	}
	if !isNumbered(e.Record) {
		return
	}
	f.actor(e.Actor, e.N)
	if a, ok := e.Record.(Accepted); ok {
		if of, ok := sessionOf(e.Actor); ok {
			f.accepted = append(f.accepted, sessionRunKey(of.tenant, of.session, a.Call.ID))
		}
	}
	for _, ev := range e.WithoutBodies().Events {
		key := tenantRun{e.Actor.Tenant, ev.Run}
		last, ok := f.events[key]
		if !ok {
			f.runIDs = append(f.runIDs, key)
		}
		f.events[key] = max(last, ev.Seq)
	}
}

// isCut reports whether a value was written by a batch that is cut.
func (f *front) isCut(value []byte) (bool, error) {
	by, batch, _, err := unseal(value)
	return err == nil && by == f.node && batch <= f.cut.Upto.Batch, err
}

// retain passes the entries of an actor to the callback each that MUST be in the log before
// the Cut.
func (f *front) retain(id actor.ID, each func(Entry) error) error {
	if gone := f.rows.gone(id); gone != nil {
		if errors.As(gone, new(Gone)) {
			return nil
		}
		return gone
	}
	key := snapshotKey(id)
	value, ok, err := f.rows.KV.Get(key)
	if err != nil {
		return err
	}
	var last Entry // with a snapshot that is fresh, or the newest one
	fresh := ok
	if ok {
		if last, err = snapshotEntry(id, key, value, f.rows.blob); err != nil {
			return err
		}
		cut, err := f.isCut(value)
		if err != nil {
			return err
		}
		fresh = !cut && last.N >= f.last[id]
	}
	if last.N == 0 && f.last[id] == 0 {
		return nil // it had no entry when the front was written
	}
	var j Journal
	if fresh {
		j, err = DecodeJournal(last.Record.(Snapshot).Journal)
	} else {
		var saved Saved
		if saved, err = f.rows.Load(id); err == nil {
			j, err = Fold(saved)
		}
		if n := len(saved.Entries); n > 0 {
			last = saved.Entries[n-1]
		}
	}
	if err != nil || j.N == 0 {
		return err
	}
	write := func() error {
		fresh = true
		return each(Entry{Actor: id, Shard: last.Shard, Epoch: last.Epoch, N: j.N, Record: SnapshotOf(&j), WasDue: j.Due(), Due: j.Due()})
	}
	more, err := j.Transcript.restore(func(p *Page) (bool, error) { return f.losesPage(id, p) },
		func(name actor.Hash) ([]byte, error) { return f.rows.Blob(id, name) }, write)
	if err == nil && (more || !fresh) {
		err = write()
	}
	if err != nil {
		return err
	}
	outcomes := j.Evicted
	for i := range j.Ended {
		outcomes = append(outcomes, j.Ended[i].evicted())
	}
	for _, o := range outcomes {
		lost, err := f.losesOutcome(id, &o)
		if err != nil {
			return err
		}
		if !lost {
			continue
		}
		outcome, err := f.rows.Outcome(id, o.N)
		if err != nil {
			return err
		}
		if err := each(Entry{Actor: id, Shard: last.Shard, Epoch: last.Epoch, N: o.N, Record: Kept{outcome}}); err != nil {
			return err
		}
	}
	return nil
}

// losesPage reports whether the Cut deletes a page of a transcript. The blobs that the page
// refers to are in its batch or in a later one.
func (f *front) losesPage(id actor.ID, p *Page) (bool, error) {
	key := blobKey(id, p.Hash)
	if !f.blobs[string(key)] {
		return false, nil
	}
	value, ok, err := f.rows.KV.Get(key)
	if err != nil || !ok {
		return false, err
	}
	return f.isCut(value)
}

// losesOutcome reports whether the Cut deletes a needed outcome.
func (f *front) losesOutcome(id actor.ID, o *EvictedOutcome) (bool, error) {
	if o.Until < f.cut.At {
		return false, nil
	}
	value, ok, err := f.rows.KV.Get(keptKey(id, o.N))
	if err != nil || !ok {
		first := f.first[id]
		return first > 0 && o.N >= first && o.N <= f.last[id], err // it was not needed at an earlier Cut, or is behind this one
	}
	return f.isCut(value)
}

// StoredRows returns the rows that store a batch, and with it the deletion that an entry Cut
// in it orders. It removes the deleted places from the Index.
func (r Rows) StoredRows(b *Batch) ([]Row, error) {
	rows := b.Rows
	for i := range b.Entries {
		c, ok := b.Entries[i].Record.(Cut)
		if !ok {
			continue
		}
		f, err := r.readFront(b.Node, c)
		if err != nil {
			return nil, err
		}
		deleted, err := f.deletions()
		if err != nil {
			return nil, err
		}
		r.with(func(x *Index) { x.cut(b.Node, c.Upto.Batch) }) // the rows cover them until they are deleted
		rows = append(deleted, rows...)
	}
	return rows, nil
}

// deletions returns the rows that delete the front of the log.
func (f *front) deletions() ([]Row, error) {
	rows := []Row{
		{Key: logKey(f.node), To: batchKey(f.node, f.cut.Upto.Batch+1), Delete: true},
		OriginRow(f.node, f.cut.Upto),
	}
	for _, id := range f.ids {
		changed, err := f.shorten(indexPrefix(id), f.last[id], func(n uint64) []byte { return indexKey(id, n) })
		if err != nil {
			return nil, err
		}
		rows = append(rows, changed...)
	}
	for _, key := range f.runIDs {
		changed, err := f.shorten(eventsKey(key.tenant, key.run), f.events[key], func(n uint64) []byte { return eventKey(key.tenant, key.run, n) })
		if err != nil {
			return nil, err
		}
		rows = append(append(rows, changed...), droppedRow(key, f.events[key]))
	}
	for _, key := range f.accepted {
		rows = append(rows, Row{Key: key})
	}
	keys := f.kept
	for _, key := range slices.Sorted(maps.Keys(f.blobs)) {
		keys = append(keys, []byte(key))
	}
	for _, key := range keys {
		value, ok, err := f.rows.KV.Get(key)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		cut, err := f.isCut(value)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", key, err)
		}
		if cut {
			rows = append(rows, Row{Key: key, Delete: true})
		}
	}
	for _, e := range f.forgotten {
		rows = append(rows, Row{Key: tombstoneKey(e.Tenant, e.Key), Delete: true})
	}
	return rows, nil
}

// shorten returns the rows that remove places in cut batches, whose numbers end at last,
// from the rows of an index.
func (f *front) shorten(prefix keyBuilder, last uint64, key func(n uint64) []byte) (rows []Row, err error) {
	var left []span
	var failure error
	err = f.rows.KV.Scan(prefix, prefixEnd(prefix), func(k, value []byte) bool {
		var spans []span
		if spans, failure = readSpans(k, value); failure != nil || len(spans) == 0 {
			return false
		}
		if spans[0].first > last && (len(left) == 0 || spans[0].first > left[0].first) {
			return false
		}
		rows = append(rows, Row{Key: bytes.Clone(k), Delete: true})
		for _, s := range spans {
			if s.at.node != f.node || s.at.batch > f.cut.Upto.Batch {
				left = append(left, s)
			}
		}
		return true
	})
	if err := cmp.Or(failure, err); err != nil || len(left) == 0 {
		return rows, err
	}
	slices.SortStableFunc(left, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	left = slices.CompactFunc(left, func(a, b span) bool { return a == b })
	return append(rows, Row{Key: key(left[0].first), Value: encodeSpans(left)}), nil
}

// droppedRow returns the row with the number of the last event of a run that was cut. It
// ends in a checksum, because any number would be valid.
func droppedRow(of tenantRun, last uint64) Row {
	var e actor.Encoder
	key := droppedKey(of.tenant, of.run)
	e.Uint(frameVersion)
	e.Uint(last)
	sum := actor.HashOf(append(slices.Clone(key), e.Buf...))
	e.Raw(sum[:8])
	return Row{Key: key, Value: e.Buf}
}

// dropped returns the number of the last event of a run that was cut.
func (r Rows) dropped(tenant string, run actor.CallID) (last uint64, err error) {
	key := droppedKey(tenant, run)
	value, ok, err := r.KV.Get(key)
	if err != nil || !ok {
		return 0, err
	}
	return decodeDropped(tenantRun{tenant, run}, value)
}

func decodeDropped(of tenantRun, value []byte) (last uint64, err error) {
	d := newDecoder(value)
	if err := d.readVersion("dropped events", frameVersion); err != nil {
		return 0, fmt.Errorf("key %s: %w", droppedKey(of.tenant, of.run), err)
	}
	last = d.Uint()
	if row := droppedRow(of, last); !bytes.Equal(row.Value, value) {
		return 0, fmt.Errorf("key %s: is damaged: checksum mismatch", row.Key)
	}
	return last, nil
}
