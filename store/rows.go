// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/must"
)

// BlobBytesMin is the size above which a part of content is stored once, under
// its SHA-256, and referred to.
const BlobBytesMin = 4 << 10

// Salt is mixed into the digest of one value, so that nobody can guess a deleted
// value from the digest that stays in the chain.
type Salt [16]byte

// Payload is one value that a batch put, as the chain knows it. The value can be
// deleted later; the chain still holds.
type Payload struct {
	Key    []byte
	Digest actor.Hash // of the whole value: who wrote it, salt, content
}

// Rows is what a batch of entries does to a KV: its puts and deletes in order,
// and of the puts those that carry content.
//
//	entry            its row; large parts of it as blobs
//	Snapshot         the actor's one snapshot row instead, the last of the batch
//	Accepted         whose run it is
//	each event       its row
//	WasDue != Due    the actor's row in the expiry index, moved
func Rows(node actor.NodeID, batch uint64, entries []Entry, salt func() Salt) (rows []Row, payloads []Payload) {
	put := func(key, content []byte) {
		value := seal(node, batch, salt(), content)
		rows = append(rows, Row{Key: key, Value: value})
		payloads = append(payloads, Payload{key, actor.HashOf(value)})
	}
	blobs := map[string]bool{}
	last := map[actor.ID]uint64{} // an actor's newest snapshot: a key is put once, or its digest would not hold
	for _, e := range entries {
		if _, ok := e.Record.(Snapshot); ok {
			last[e.Actor] = e.N
		}
	}
	for _, e := range entries {
		if _, ok := e.Record.(Snapshot); ok && e.N < last[e.Actor] {
			continue
		}
		tenant := e.Actor.Tenant
		content, spilled := packEntry(e)
		for _, b := range spilled {
			if key := blobKey(tenant, actor.HashOf(b)); !blobs[string(key)] {
				blobs[string(key)] = true
				put(key, b)
			}
		}
		if _, ok := e.Record.(Snapshot); ok {
			put(snapshotKey(e.Actor), content)
		} else {
			put(entryKey(e.Actor, e.N), content)
		}
		if r, ok := e.Record.(Accepted); ok {
			rows = append(rows, Row{Key: runKey(tenant, r.Call.ID), Value: encodeOwner(e.Actor, r.Call.Root)})
		}
		for _, ev := range e.Events {
			put(eventKey(tenant, ev.Run, ev.Seq), ev.Body)
		}
	}
	return append(rows, dueRows(entries)...), payloads
}

// dueRows moves each actor at most once, however often the batch moved it.
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

// seal puts in front of content who wrote it, and its salt.
func seal(node actor.NodeID, batch uint64, salt Salt, content []byte) []byte {
	e := actor.Encoder{Buf: make([]byte, 0, 1+len(node)+10+len(salt)+5+len(content))}
	e.String(string(node))
	e.Uint(batch)
	e.Raw(salt[:])
	e.Bytes(content)
	return e.Buf
}

// unseal reads what seal wrote. The content is part of value.
func unseal(value []byte) (node actor.NodeID, batch uint64, content []byte, err error) {
	d := actor.NewDecoder(value)
	node = actor.NodeID(d.String(actor.NameBytesMax))
	batch = d.Uint()
	d.Raw(len(Salt{}))
	content = d.Raw(int(d.UintMax(1<<31-1, "length")))
	return node, batch, content, d.End()
}

func encodeOwner(id actor.ID, root actor.CallID) []byte {
	var e actor.Encoder
	e.Uint(frameVersion)
	e.ID(id)
	e.CallID(root)
	return e.Buf
}

func decodeOwner(value []byte) (id actor.ID, root actor.CallID, err error) {
	d := newDecoder(value)
	if err := d.version("owner", frameVersion); err != nil {
		return id, root, err
	}
	id, root = d.ID(), d.CallID()
	if id == (actor.ID{}) {
		d.Fail("run without actor")
	}
	return id, root, d.End()
}

// packEntry writes an entry as its row holds it: without the bodies of its
// events, large parts taken out, and before it the places they were taken from.
func packEntry(e Entry) (content []byte, blobs [][]byte) {
	e.Events = slices.Clone(e.Events)
	for i := range e.Events {
		e.Events[i].Body = nil
	}
	var places []int
	place := 0
	spill := func(parts []actor.Part) ([]actor.Part, error) {
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
	}
	if snapshot, ok := e.Record.(Snapshot); !ok || len(snapshot.Journal) > BlobBytesMin { // or it cannot hold a large part
		e.Record = must.Do(mapParts(e.Record, spill))
	}
	entry := EncodeEntry(e)
	w := actor.Encoder{Buf: make([]byte, 0, len(entry)+10*(len(places)+2))}
	w.Uint(uint64(len(places)))
	for _, p := range places {
		w.Uint(uint64(p))
	}
	w.Bytes(entry)
	return w.Buf, blobs
}

// unpackEntry reads what packEntry wrote, and puts the blobs back in their places.
func unpackEntry(content []byte, blob func(actor.Hash) ([]byte, error)) (Entry, error) {
	d := newDecoder(content)
	places := list(d, d.Count(itemsMax, "blobs"), func() int { return int(d.UintMax(1<<31-1, "place")) })
	raw := d.Raw(int(d.UintMax(1<<31-1, "length")))
	if err := d.End(); err != nil {
		return Entry{}, err
	}
	e, err := DecodeEntry(raw)
	if err != nil || len(places) == 0 {
		return e, err
	}
	place := 0
	e.Record, err = mapParts(e.Record, func(parts []actor.Part) ([]actor.Part, error) {
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
		err = fmt.Errorf("wants a blob put in place %d of %d", places[0], place)
	}
	return e, err
}

// mapParts replaces each list of parts in a record, in a fixed order. What is
// not replaced is shared with the record that came in, which stays as it was.
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
		record = Snapshot{EncodeJournal(&j)}
	}
	return record, err
}
