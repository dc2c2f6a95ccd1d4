// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// BlobBytesMin is the size in bytes above which a part of content is stored as a blob.
// The blob is stored once, under its SHA-256, and entries refer to it.
const BlobBytesMin = 4 << 10

// saltBytes is the size of the random salt in each value. The digest of a deleted
// value stays in the chain. The salt prevents guessing the value from that digest.
const saltBytes = 16

// Payload is the key and digest of one value that a batch put. The value can be
// deleted later without breaking the chain.
type Payload struct {
	Key    []byte
	Digest actor.Hash // of the whole value: node, batch, salt, content
}

// RowBytesMax is the approximate maximum size in bytes of a row with several entries or events.
const RowBytesMax = 64 << 10

// rowWriter encodes batches as rows. It owns the scratch buffers for the encoding.
type rowWriter struct {
	node     actor.NodeID
	salts    *rand.ChaCha8
	version1 bool          // write the format of version 1 where it can represent the entry
	content  actor.Encoder // content of the current value
	entry    encoder       // current entry

	byActor, byRun lists
	actors         map[actor.ID]int // index in byActor of the actor's current list
	runs           map[actor.CallID]int
	lastSnapshot   map[actor.ID]int // index of each actor's newest snapshot in the batch; only this one is put, because a second put of a key would make the first digest wrong
	events         []eventRef
	blobs          map[string]bool
	indexed        map[actor.CallID]bool // runs whose index row the batch has
	payloads       []Payload

	batch   uint64
	rows    []Row
	values  actor.Encoder // values of the batch, concatenated in few large buffers
	segment []byte        // part of the last buffer in values that holds values of the batch
}

// recycle makes the memory of the last batch's rows available to the next batch.
func (w *rowWriter) recycle(rows []Row) {
	if cap(w.segment) <= scratchBytesMax && cap(rows) <= scratchBytesMax/64 {
		clear(rows)
		w.rows, w.values.Buf = rows[:0], w.segment[:0]
	}
	w.segment = nil
}

// scratchBytesMax is the maximum size of a buffer that is kept for the next batch.
const scratchBytesMax = 1 << 20

func newRowWriter(node actor.NodeID, seed [32]byte) rowWriter {
	return rowWriter{node: node, salts: rand.NewChaCha8(seed), actors: map[actor.ID]int{}, runs: map[actor.CallID]int{},
		lastSnapshot: map[actor.ID]int{}, blobs: map[string]bool{}, indexed: map[actor.CallID]bool{}}
}

// write returns the rows of a batch and the payloads of its rows with content. Each
// key occurs once. The payloads are valid until the next call. Consecutive entries of
// an actor and events of a run share a row under the key of the first entry or event,
// because the fixed cost of a row exceeds that of its content.
//
//	entries          one row per actor, split at snapshots; large parts as blobs
//	Snapshot         the actor's only snapshot row: the last of the batch
//	Summary          index row of the run: the last of the batch
//	events           one row per run
//	WasDue != Due    the actor's move in the expiry index
func (w *rowWriter) write(batch uint64, entries []Entry) (rows []Row, payloads []Payload) {
	w.batch, w.payloads = batch, w.payloads[:0]
	clear(w.blobs)
	w.groupRows(entries)
	w.rows = slices.Grow(w.rows, len(w.byActor.heads)+len(w.byRun.heads)+len(entries)+4)
	for list := range w.byActor.heads {
		w.putEntries(entries, list)
	}
	for list := range w.byRun.heads {
		w.putEvents(entries, list)
	}
	w.putSummaries(entries)
	rows, w.segment, w.rows = append(w.rows, dueRows(entries)...), w.values.Buf, nil
	w.values.Buf = w.segment[len(w.segment):] // the next batch uses the rest of the buffer
	if cap(w.content.Buf)+cap(w.entry.Buf) > scratchBytesMax {
		w.content.Buf, w.entry.Buf = nil, nil
	}
	return rows, w.payloads
}

// lists is a set of singly linked lists of indexes, each in insertion order.
type lists struct {
	heads []int
	tails []int
	next  []int
	sizes []int // total bytes of the list's items
}

func (l *lists) begin(n, size int) int {
	l.heads, l.tails, l.sizes = append(l.heads, n), append(l.tails, n), append(l.sizes, size)
	return len(l.heads) - 1
}

func (l *lists) add(list, n, size int) {
	l.next[l.tails[list]] = n
	l.tails[list] = n
	l.sizes[list] += size
}

func (l *lists) reset(count int) {
	l.heads, l.tails, l.sizes, l.next = l.heads[:0], l.tails[:0], l.sizes[:0], l.next[:0]
	for range count {
		l.next = append(l.next, -1)
	}
}

// eventRef identifies an event by two indexes: that of its entry in the batch, and
// that of the event in the entry.
type eventRef struct{ entry, event int }

// groupRows assigns entries to rows by actor, and events by run. Entries before and
// after a snapshot never share a row. A read that starts after the snapshot therefore
// starts at a row boundary.
func (w *rowWriter) groupRows(entries []Entry) {
	clear(w.actors)
	clear(w.runs)
	clear(w.lastSnapshot)
	count := 0
	for i := range entries {
		count += len(entries[i].Events)
		if _, ok := entries[i].Record.(Snapshot); ok {
			w.lastSnapshot[entries[i].Actor] = i
		}
	}
	byActor, byRun, actors, runs := &w.byActor, &w.byRun, w.actors, w.runs
	byActor.reset(len(entries))
	byRun.reset(count)
	w.events = w.events[:0]
	for i := range entries {
		e := &entries[i]
		list, ok := actors[e.Actor]
		if _, snapshot := e.Record.(Snapshot); snapshot {
			delete(actors, e.Actor)
			if i == w.lastSnapshot[e.Actor] {
				byActor.begin(i, 0)
			}
		} else if size := entrySize(e); ok && entries[byActor.tails[list]].N+1 == e.N && byActor.sizes[list]+size <= RowBytesMax {
			byActor.add(list, i, size)
		} else {
			actors[e.Actor] = byActor.begin(i, size)
		}
		for j := range e.Events {
			ev := &e.Events[j]
			list, ok := runs[ev.Run]
			if ok {
				before := w.events[byRun.tails[list]]
				ok = entries[before.entry].Events[before.event].Seq+1 == ev.Seq && byRun.sizes[list]+len(ev.Body) <= RowBytesMax
			}
			if ok {
				byRun.add(list, len(w.events), len(ev.Body))
			} else {
				runs[ev.Run] = byRun.begin(len(w.events), len(ev.Body))
			}
			w.events = append(w.events, eventRef{i, j})
		}
	}
}

// put appends a row and its payload. The value of the row is node, batch and salt,
// followed by the content.
func (w *rowWriter) put(key, content []byte) {
	from := w.reserve(sealedBytesMax(w.node, content))
	w.values.String(string(w.node))
	w.values.Uint(w.batch)
	salt := len(w.values.Buf)
	w.values.Buf = w.values.Buf[:salt+saltBytes]
	w.salts.Read(w.values.Buf[salt:]) //nolint:errcheck // cannot fail
	w.values.Bytes(content)
	value := w.values.Buf[from:len(w.values.Buf):len(w.values.Buf)]
	w.rows = append(w.rows, Row{Key: key, Value: value})
	w.payloads = append(w.payloads, Payload{key, actor.HashOf(value)})
}

// reserve makes room for a value of up to this many bytes in w.values, and returns
// the offset at which it begins.
func (w *rowWriter) reserve(bytes int) int {
	if cap(w.values.Buf)-len(w.values.Buf) < bytes {
		w.values.Buf = make([]byte, 0, max(bytes, segmentBytes))
	}
	return len(w.values.Buf)
}

// segmentBytes is the minimum size of a buffer for values.
const segmentBytes = 64 << 10

// sealedBytesMax returns the maximum size in bytes of a value with this content.
func sealedBytesMax(node actor.NodeID, content []byte) int {
	return 3*binary.MaxVarintLen64 + len(node) + saltBytes + len(content)
}

// putEntries puts the row of one list of entries, after the rows of their blobs.
func (w *rowWriter) putEntries(entries []Entry, list int) {
	w.content.Buf = w.content.Buf[:0]
	first := &entries[w.byActor.heads[list]]
	for i := w.byActor.heads[list]; i >= 0; i = w.byActor.next[i] {
		for _, b := range w.pack(&entries[i]) {
			key := blobKey(first.Actor.Tenant, actor.HashOf(b))
			if !w.blobs[string(key)] {
				w.blobs[string(key)] = true
				w.put(key, b)
			}
		}
	}
	if _, ok := first.Record.(Snapshot); ok {
		w.put(snapshotKey(first.Actor), w.content.Buf)
	} else {
		w.put(entryKey(first.Actor, first.N), w.content.Buf)
	}
}

// putEvents puts the row of one list of events: their bodies, one line each.
func (w *rowWriter) putEvents(entries []Entry, list int) {
	w.content.Buf = w.content.Buf[:0]
	var key []byte
	for i := w.byRun.heads[list]; i >= 0; i = w.byRun.next[i] {
		e := &entries[w.events[i].entry]
		ev := &e.Events[w.events[i].event]
		if key == nil {
			key = eventKey(e.Actor.Tenant, ev.Run, ev.Seq)
		} else {
			w.content.Buf = append(w.content.Buf, eventSeparator)
		}
		invariant.Check(bytes.IndexByte(ev.Body, eventSeparator) < 0, "store: event %d of run %s contains a newline", ev.Seq, ev.Run)
		w.content.Buf = append(w.content.Buf, ev.Body...)
	}
	w.put(key, w.content.Buf)
}

// putSummaries puts the index rows of runs. A row of version 1, also that of an entry
// without summary, has only the owner and the root.
func (w *rowWriter) putSummaries(entries []Entry) {
	clear(w.indexed)
	for i := len(entries) - 1; i >= 0; i-- {
		e := &entries[i]
		accepted, ok := e.Record.(Accepted)
		run, root := accepted.Call.ID, accepted.Call.Root
		if e.Summary != nil {
			run, root, ok = e.Summary.Run, e.Summary.Root, true
		}
		if !ok || w.indexed[run] {
			continue
		}
		w.indexed[run] = true
		start := w.reserve(indexRowBytes)
		w.values.Buf = run.AppendTo(appendTenantKey(w.values.Buf, e.Actor.Tenant, 'r'))
		from := len(w.values.Buf)
		if e.Summary != nil && !w.version1 {
			w.values.Buf = appendSummary(w.values.Buf, e.Summary)
		} else {
			w.values.Buf = appendOwner(w.values.Buf, e.Actor, root)
		}
		to := len(w.values.Buf)
		w.rows = append(w.rows, Row{Key: w.values.Buf[start:from:from], Value: w.values.Buf[from:to:to]})
	}
}

// indexRowBytes is the space reserved for an index row. Longer rows are rare.
const indexRowBytes = 1 << 10

// eventSeparator separates the bodies of events in a row. Canonical JSON never contains it.
const eventSeparator = '\n'

// dueRows returns the changes of the expiry index. Several moves of an actor within
// the batch are merged into one.
func dueRows(entries []Entry) []Row {
	type move struct {
		shard   uint16
		id      actor.ID
		was, is actor.Time
	}
	var moves []move
	at := map[actor.ID]int{}
	for _, e := range entries {
		if e.WasDue == e.Due {
			continue
		}
		if i, ok := at[e.Actor]; ok {
			moves[i].is = e.Due
			continue
		}
		at[e.Actor] = len(moves)
		moves = append(moves, move{e.Shard, e.Actor, e.WasDue, e.Due})
	}
	var rows []Row
	for _, m := range moves {
		if m.was == m.is {
			continue
		}
		if m.was != 0 {
			rows = append(rows, Row{Key: dueKey(m.shard, m.was, m.id), Delete: true})
		}
		if m.is != 0 {
			rows = append(rows, Row{Key: dueKey(m.shard, m.is, m.id)})
		}
	}
	return rows
}

// unseal decodes a value written by put. The content aliases value.
func unseal(value []byte) (node actor.NodeID, batch uint64, content []byte, err error) {
	d := actor.NewDecoder(value)
	node = actor.NodeID(d.String(actor.NameBytesMax))
	batch = d.Uint()
	d.Raw(saltBytes)
	content = d.Raw(int(d.UintMax(1<<31-1, "length")))
	return node, batch, content, d.End()
}

// pack appends an entry to the content of a row, without event bodies. Large parts are
// replaced by references and returned as blobs. The positions of the replaced parts
// precede the entry.
func (w *rowWriter) pack(e *Entry) (blobs [][]byte) {
	record := e.Record
	var places []int
	if hasLarge(record) {
		record, places, blobs = extractBlobs(record)
	}
	w.entry.Buf = w.entry.Buf[:0]
	w.entry.version1, w.entry.beyondVersion1 = w.version1, false
	if w.entry.entry(e, record, false); w.entry.beyondVersion1 && w.version1 {
		w.entry.Buf, w.entry.version1 = w.entry.Buf[:0], false
		w.entry.entry(e, record, false)
	}
	w.content.Uint(uint64(len(places)))
	for _, p := range places {
		w.content.Uint(uint64(p))
	}
	w.content.Bytes(w.entry.Buf)
	return blobs
}

func extractBlobs(record Record) (_ Record, places []int, blobs [][]byte) {
	place := 0
	record = invariant.Must(mapParts(record, func(parts []actor.Part) ([]actor.Part, error) {
		var out []actor.Part
		for i, p := range parts {
			if len(p.Bytes) > BlobBytesMin {
				if out == nil {
					out = slices.Clone(parts)
				}
				out[i] = actor.Part{Media: p.Media, Blob: actor.HashOf(p.Bytes), Size: uint64(len(p.Bytes))}
				blobs = append(blobs, p.Bytes)
				places = append(places, place)
			}
			place++
		}
		if out == nil {
			return parts, nil
		}
		return out, nil
	}))
	return record, places, blobs
}

// unpackEntries decodes entries written by pack, restores their blobs and passes each
// entry to the callback each. If the callback returns an error, unpackEntries stops
// and returns that error.
func unpackEntries(content []byte, blob func(actor.Hash) ([]byte, error), each func(Entry) error) error {
	d := newDecoder(content)
	for first := true; first || d.More(); first = false {
		places := decodeList(d, d.Count(itemsMax, "blobs"), func() int { return int(d.UintMax(1<<31-1, "position")) })
		raw := d.Raw(int(d.UintMax(1<<31-1, "length")))
		if d.Err() != nil {
			break
		}
		e, err := DecodeEntry(raw)
		if err == nil && len(places) > 0 {
			e.Record, err = restoreBlobs(e.Record, places, blob)
		}
		if err == nil {
			err = each(e)
		}
		if err != nil {
			return err
		}
	}
	return d.End()
}

func restoreBlobs(record Record, places []int, blob func(actor.Hash) ([]byte, error)) (Record, error) {
	place := 0
	record, err := mapParts(record, func(parts []actor.Part) ([]actor.Part, error) {
		for i, p := range parts {
			if len(places) > 0 && places[0] == place {
				b, err := blob(p.Blob)
				if err != nil {
					return nil, err
				}
				parts[i] = actor.Part{Media: p.Media, Bytes: b}
				places = places[1:]
			}
			place++
		}
		return parts, nil
	})
	if err == nil && len(places) > 0 {
		err = fmt.Errorf("blob position %d exceeds the record's %d parts", places[0], place)
	}
	return record, err
}

// visitParts calls the callback each for every list of parts in a record. Exception:
// it does not visit the parts within a Snapshot.
func visitParts(record Record, each func([]actor.Part)) {
	switch r := record.(type) {
	case Accepted:
		each(r.Call.Parts)
	case Asking:
		visitAskParts(r.Asks, each)
	case Added:
		visitAskParts([]Asked{r.Ask}, each)
	case Answered:
		each(r.Answer.Parts)
	case Ended:
		each(r.Reply.Parts)
	}
}

func visitAskParts(asks []Asked, each func([]actor.Part)) {
	for i := range asks {
		each(asks[i].Ask.Parts)
		if asks[i].Sent != nil {
			each(asks[i].Sent.Parts)
		}
		if asks[i].Answer != nil {
			each(asks[i].Answer.Parts)
		}
	}
}

// hasLarge reports whether the record may contain a part that must be stored as a
// blob.
func hasLarge(record Record) bool {
	if snapshot, ok := record.(Snapshot); ok {
		return !snapshot.noLargeParts && len(snapshot.Journal) > BlobBytesMin
	}
	large := false
	visitParts(record, func(parts []actor.Part) { large = large || anyLarge(parts) })
	return large
}

func anyLarge(parts []actor.Part) bool {
	return slices.ContainsFunc(parts, func(p actor.Part) bool { return len(p.Bytes) > BlobBytesMin })
}

// mapParts returns a copy of a record. In a fixed order, it replaces each list of
// parts by the result of the callback f for that list. The copy shares unchanged data
// with the record. mapParts does not modify the record, but the callback f may modify
// its argument.
func mapParts(record Record, f func([]actor.Part) ([]actor.Part, error)) (Record, error) {
	var err error
	each := func(parts *[]actor.Part) (other bool) {
		before := *parts
		if err == nil {
			*parts, err = f(before)
		}
		return len(*parts) != len(before) || len(before) > 0 && &(*parts)[0] != &before[0]
	}
	asks := func(in []Asked) []Asked {
		out := in
		own := func(i int) *Asked {
			if &out[0] == &in[0] {
				out = slices.Clone(in)
			}
			return &out[i]
		}
		for i := range in {
			if parts := in[i].Ask.Parts; each(&parts) {
				own(i).Ask.Parts = parts
			}
			if in[i].Sent != nil {
				if parts := in[i].Sent.Parts; each(&parts) {
					sent := *in[i].Sent
					sent.Parts = parts
					own(i).Sent = &sent
				}
			}
			if in[i].Answer != nil {
				if parts := in[i].Answer.Parts; each(&parts) {
					answer := *in[i].Answer
					answer.Parts = parts
					own(i).Answer = &answer
				}
			}
		}
		return out
	}
	switch r := record.(type) {
	case Accepted:
		each(&r.Call.Parts)
		record = r
	case Asking:
		r.Asks = asks(r.Asks)
		record = r
	case Added:
		r.Ask = asks([]Asked{r.Ask})[0]
		record = r
	case Answered:
		each(&r.Answer.Parts)
		record = r
	case Ended:
		each(&r.Reply.Parts)
		record = r
	case Snapshot:
		j, failed := DecodeJournal(r.Journal)
		if failed != nil {
			return nil, failed
		}
		for _, run := range j.Runs {
			each(&run.Call.Parts)
			for i := range run.Steps {
				run.Steps[i].Asks = asks(run.Steps[i].Asks)
			}
		}
		for i := range j.Ended {
			each(&j.Ended[i].Reply.Parts)
		}
		record = Snapshot{Journal: EncodeJournal(&j)}
	}
	return record, err
}
