// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
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

// Payload is the digest of content of a batch. The content can be deleted later without
// breaking the chain. Content with an empty key is a group of entries in the log.
type Payload struct {
	Key    []byte     // of a snapshot or blob, which have rows of their own
	Digest actor.Hash // of a group: salt and entries; of a row: its whole value
}

// Place is the place of an entry in its batch: the number of the part, and the number
// of the group in the part.
type Place struct{ Part, Group uint32 }

// PartBytesMax is the approximate maximum size in bytes of a part of a batch, and of a
// group of entries. Exception: a larger entry has a group and a part of its own.
const PartBytesMax = 64 << 10

// rowWriter encodes batches as rows. It owns the scratch buffers for the encoding.
type rowWriter struct {
	node    actor.NodeID
	salts   *rand.ChaCha8
	content actor.Encoder // content of the current value
	entry   encoder       // current entry
	log     actor.Encoder // groups of the batch, concatenated

	byActor      lists
	actors       map[actor.ID]int // index in byActor of the actor's current list
	lastSnapshot map[actor.ID]int // index of each actor's newest snapshot in the batch; only this one is put, because a second put of a key would make the first digest wrong
	once         map[string]bool  // keys of the rows that putOnce has put
	payloads     []Payload
	groups       []int // ends of the groups in log
	partEnds     []int // indexes in groups of the first group of the next part

	batch   uint64
	rows    []Row
	places  []Place
	values  actor.Encoder // values of the batch, concatenated in few large buffers
	segment []byte        // part of the last buffer in values that holds values of the batch
}

// recycle makes the memory of the last batch's rows available to the next batch.
func (w *rowWriter) recycle(rows []Row, places []Place) {
	if cap(w.segment) <= scratchBytesMax && cap(rows) <= scratchBytesMax/64 {
		clear(rows)
		w.rows, w.places, w.values.Buf = rows[:0], places[:0], w.segment[:0]
	}
	w.segment = nil
}

// scratchBytesMax is the maximum size of a buffer that is kept for the next batch.
const scratchBytesMax = 1 << 20

func newRowWriter(node actor.NodeID, seed [32]byte) rowWriter {
	return rowWriter{node: node, salts: rand.NewChaCha8(seed), actors: map[actor.ID]int{},
		lastSnapshot: map[actor.ID]int{}, once: map[string]bool{}}
}

// write returns the rows of a batch, the record that links it into the chain, and the
// place of each entry. Each key occurs once. The callback record encodes the record from
// the payloads. Consecutive entries of an actor share a group, because the fixed cost of
// a digest exceeds that of an entry.
//
//	entries   groups by actor, in parts of the log
//	Snapshot  the actor's only snapshot row: the last of the batch; of others only the blobs
//	Kept      one row each
//	blobs     one row each
func (w *rowWriter) write(batch uint64, entries []Entry, record func([]Payload) []byte) (rows []Row, link []byte, places []Place) {
	w.batch, w.payloads = batch, w.payloads[:0]
	w.log.Buf, w.groups, w.partEnds = w.log.Buf[:0], w.groups[:0], w.partEnds[:0]
	clear(w.once)
	w.groupEntries(entries)
	w.rows = slices.Grow(w.rows, len(w.byActor.heads)+4)
	places = slices.Grow(w.places[:0], len(entries))[:len(entries)]
	for list := range w.byActor.heads {
		w.putList(entries, list, places)
	}
	w.partEnds = append(w.partEnds, len(w.groups))
	w.sortPayloads()
	link = record(w.payloads)
	w.putParts(link)
	rows, w.segment, w.rows, w.places = w.rows, w.values.Buf, nil, nil
	w.values.Buf = w.segment[len(w.segment):] // the next batch uses the rest of the buffer
	if cap(w.content.Buf)+cap(w.entry.Buf)+cap(w.log.Buf) > scratchBytesMax {
		w.content.Buf, w.entry.Buf, w.log.Buf = nil, nil, nil
	}
	return rows, link, places
}

// sortPayloads moves the groups of entries before the other payloads, so that the n-th
// payload is the n-th group of the log.
func (w *rowWriter) sortPayloads() {
	if len(w.groups) < len(w.payloads) {
		slices.SortStableFunc(w.payloads, func(a, b Payload) int { return cmp.Compare(min(1, len(a.Key)), min(1, len(b.Key))) })
	}
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

// groupEntries assigns entries to groups by actor.
func (w *rowWriter) groupEntries(entries []Entry) {
	clear(w.actors)
	clear(w.lastSnapshot)
	for i := range entries {
		if _, ok := entries[i].Record.(Snapshot); ok {
			w.lastSnapshot[entries[i].Actor] = i
		}
	}
	byActor, actors := &w.byActor, w.actors
	byActor.reset(len(entries))
	for i := range entries {
		e := &entries[i]
		switch r := e.Record.(type) {
		case Snapshot:
			if i == w.lastSnapshot[e.Actor] || len(r.Pages) > 0 {
				byActor.begin(i, 0)
			}
			continue
		case Kept:
			byActor.begin(i, 0)
			continue
		}
		list, ok := actors[e.Actor]
		if size := entrySize(e); ok && entries[byActor.tails[list]].N+1 == e.N && byActor.sizes[list]+size <= PartBytesMax {
			byActor.add(list, i, size)
		} else {
			actors[e.Actor] = byActor.begin(i, size)
		}
	}
}

// room returns the buffer for values with space for n more bytes.
func (w *rowWriter) room(n int) *actor.Encoder {
	if cap(w.values.Buf)-len(w.values.Buf) < n {
		w.values.Buf = make([]byte, 0, max(n, segmentBytes))
	}
	return &w.values
}

// put appends a row and its payload. The value of the row is node, batch and salt,
// followed by the content.
func (w *rowWriter) put(key, content []byte) {
	e := w.room(sealedBytesMax(w.node, content))
	from := len(e.Buf)
	e.String(string(w.node))
	e.Uint(w.batch)
	w.salt(e)
	e.Bytes(content)
	value := e.Buf[from:len(e.Buf):len(e.Buf)]
	w.rows = append(w.rows, Row{Key: key, Value: value})
	w.payloads = append(w.payloads, Payload{key, actor.HashOf(value)})
}

func (w *rowWriter) salt(e *actor.Encoder) {
	at := len(e.Buf)
	e.Buf = slices.Grow(e.Buf, saltBytes)[:at+saltBytes]
	w.salts.Read(e.Buf[at:]) //nolint:errcheck // cannot fail
}

// segmentBytes is the minimum size of a buffer for values.
const segmentBytes = 64 << 10

// sealedBytesMax returns the maximum size in bytes of a value with this content.
func sealedBytesMax(node actor.NodeID, content []byte) int {
	return 3*binary.MaxVarintLen64 + len(node) + saltBytes + len(content)
}

// putOnce puts a row whose content is a function of its key, unless the batch has it.
func (w *rowWriter) putOnce(key, content []byte) {
	if !w.once[string(key)] {
		w.once[string(key)] = true
		w.put(key, content)
	}
}

// putList puts one list of entries as a group, after the rows of their blobs. It puts a
// Snapshot or a Kept as a row.
func (w *rowWriter) putList(entries []Entry, list int, places []Place) {
	w.content.Buf = w.content.Buf[:0]
	first := &entries[w.byActor.heads[list]]
	for i := w.byActor.heads[list]; i >= 0; i = w.byActor.next[i] {
		for _, b := range w.pack(&entries[i]) {
			w.putOnce(blobKey(first.Actor, actor.HashOf(b)), b)
		}
	}
	switch first.Record.(type) {
	case Snapshot:
		if w.byActor.heads[list] == w.lastSnapshot[first.Actor] {
			w.put(snapshotKey(first.Actor), w.content.Buf)
		}
		return
	case Kept:
		w.putOnce(keptKey(first.Actor, first.N), w.content.Buf) // copies of an outcome are equal
		return
	}
	place := w.putGroup()
	for i := w.byActor.heads[list]; i >= 0; i = w.byActor.next[i] {
		places[i] = place
	}
}

// putGroup appends the current content to the log as a group: its salt and its entries.
func (w *rowWriter) putGroup() Place {
	from := 0
	if len(w.groups) > 0 {
		from = w.groups[len(w.groups)-1]
	}
	first := 0 // group of the current part
	if len(w.partEnds) > 0 {
		first = w.partEnds[len(w.partEnds)-1]
	}
	start := 0
	if first > 0 {
		start = w.groups[first-1]
	}
	if len(w.groups) > first && from-start+len(w.content.Buf) > PartBytesMax {
		w.partEnds, first = append(w.partEnds, len(w.groups)), len(w.groups)
	}
	w.salt(&w.log)
	w.log.Raw(w.content.Buf)
	w.payloads = append(w.payloads, Payload{Digest: actor.HashOf(w.log.Buf[from:])})
	w.groups = append(w.groups, len(w.log.Buf))
	return Place{uint32(len(w.partEnds)), uint32(len(w.groups) - 1 - first)}
}

// putParts appends the rows of the log. The first part begins with the batch record.
func (w *rowWriter) putParts(record []byte) {
	group, from := 0, 0
	for part, end := range w.partEnds {
		size := 0
		if end > group {
			size = w.groups[end-1] - from
		}
		e := w.room(len(record) + size + (end-group+1)*binary.MaxVarintLen64)
		at := len(e.Buf)
		if part == 0 {
			e.Bytes(record)
		}
		for ; group < end; group++ {
			e.Bytes(w.log.Buf[from:w.groups[group]])
			from = w.groups[group]
		}
		w.rows = append(w.rows, Row{Key: partKey(w.node, w.batch, uint32(part)), Value: e.Buf[at:len(e.Buf):len(e.Buf)]})
	}
}

// decodePart splits the value of a part into the batch record, which only the first part
// has, and the groups. The results alias value.
func decodePart(part uint32, value []byte) (record []byte, groups [][]byte, err error) {
	d := actor.NewDecoder(value)
	if part == 0 {
		record = d.Raw(int(d.UintMax(1<<31-1, "length")))
	}
	for d.Err() == nil && d.More() {
		groups = append(groups, d.Raw(int(d.UintMax(1<<31-1, "length"))))
	}
	return record, groups, d.End()
}

// openGroup returns the entries of a group, without its salt. The error is Gone if the
// group was blanked.
func openGroup(group []byte) ([]byte, error) {
	if len(group) < saltBytes {
		return nil, fmt.Errorf("group of %d bytes", len(group))
	}
	if gone, ok := blanked(group); ok {
		return nil, gone
	}
	return group[saltBytes:], nil
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

// pack appends an entry to the content of a group. Large parts are
// replaced by references and returned as blobs. The positions of the replaced parts
// precede the entry.
func (w *rowWriter) pack(e *Entry) (blobs [][]byte) {
	record := e.Record
	var places []int
	if hasLarge(record) {
		record, places, blobs = extractBlobs(record)
	}
	if s, ok := record.(Snapshot); ok && len(s.Pages) > 0 {
		blobs = append(blobs, s.Pages...)
		s.Pages = nil
		record = s
	}
	w.entry.Buf = w.entry.Buf[:0]
	w.entry.entry(e, record)
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

// blobReader returns the content of a blob that an entry refers to.
type blobReader func(e *Entry, name actor.Hash) ([]byte, error)

// noBlob leaves out the content of blobs.
func noBlob(*Entry, actor.Hash) ([]byte, error) { return nil, nil }

// unpackEntries decodes entries written by pack, restores their blobs and passes each
// entry to the callback each. If the callback returns an error, unpackEntries stops
// and returns that error.
func unpackEntries(content []byte, blob blobReader, each func(Entry) error) error {
	d := newDecoder(content)
	for first := true; first || d.More(); first = false {
		places := decodeList(d, d.Count(itemsMax, "blobs"), func() int { return int(d.UintMax(1<<31-1, "position")) })
		raw := d.Raw(int(d.UintMax(1<<31-1, "length")))
		if d.Err() != nil {
			break
		}
		e, err := DecodeEntry(raw)
		if err == nil && len(places) > 0 {
			e.Record, err = restoreBlobs(&e, places, blob)
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

func restoreBlobs(e *Entry, places []int, blob blobReader) (Record, error) {
	place := 0
	record, err := mapParts(e.Record, func(parts []actor.Part) ([]actor.Part, error) {
		for i, p := range parts {
			if len(places) > 0 && places[0] == place {
				b, err := blob(e, p.Blob)
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
	case Kept:
		each(r.Outcome.Reply.Parts)
	case Appended:
		each(r.Message.Parts)
	case Detached:
		each(r.Pending.Call.Parts)
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
	case Appended:
		each(&r.Message.Parts)
		record = r
	case Kept:
		each(&r.Outcome.Reply.Parts)
		record = r
	case Detached:
		each(&r.Pending.Call.Parts)
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
		for i := range j.Transcript.Tail {
			each(&j.Transcript.Tail[i].Parts)
		}
		for i := range j.Mail.Rows {
			each(&j.Mail.Rows[i].Call.Parts)
		}
		record = Snapshot{Journal: EncodeJournal(&j), Pages: r.Pages}
	}
	return record, err
}
