// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

func TestLoadRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var entries []Entry
		id := drawID(t)
		for n := range rapid.IntRange(1, 8).Draw(t, "entries") {
			e := drawEntry(t)
			e.Actor, e.N = id, uint64(n+1)
			if !isNumbered(e.Record) {
				e.Record = Parked{}
			}
			entries = append(entries, e)
		}
		w, m := NewWriter(WriterConfig{Node: "n1"}), &MemoryKV{}
		w.Append(entries)
		b, _ := w.Next()
		_ = m.Apply(b.Rows)
		saved, err := recovered(t, m).Load(id)
		if err != nil {
			t.Fatal(err)
		}
		for i := range entries {
			e := &entries[i]
			for k := range e.Events {
				e.Events[k].Body = nil
			}
			for seq := e.Shown.Seq; seq < e.Shown.Seq+uint64(e.Shown.N); seq++ {
				e.Events = append(e.Events, RunEvent{Run: e.EventRun(), Seq: seq})
			}
			e.Shown = Shown{}
		}
		if !reflect.DeepEqual(saved.Entries, entries) {
			t.Fatalf("wrote %+v\nloaded %+v", entries, saved.Entries)
		}
	})
}

// encodeAll returns the concatenated encodings of entries.
func encodeAll(entries []Entry) []byte {
	var all []byte
	for _, e := range entries {
		all = append(all, EncodeEntry(e)...)
	}
	return all
}

func TestWriterDoesNotModifyEntries(t *testing.T) {
	s := newEntryBuilder(t, "alice")
	entries := append([]Entry{s.accept(large)}, s.work(large)...)
	entries = append(entries, s.end(large))
	before := encodeAll(entries)
	newTestLog(t).write(entries...)
	if !bytes.Equal(encodeAll(entries), before) {
		t.Error("the Writer modified the entries")
	}
}

func TestLoadSnapshotAndLaterEntries(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	l.write(s.accept(large))
	l.write(s.work(large)...)
	before := s.journal(l)
	l.write(s.snapshot(l))
	if after := s.journal(l); !reflect.DeepEqual(before, after) {
		t.Errorf("before the snapshot %+v\nafter it %+v", before, after)
	}
	saved, _ := l.Load(s.id)
	if saved.Snapshot == nil || len(saved.Entries) != 0 {
		t.Errorf("got %d entries after the snapshot, want 0", len(saved.Entries))
	}
	l.write(s.end("done"))
	saved, _ = l.Load(s.id)
	if len(saved.Entries) != 1 {
		t.Errorf("got %d entries after the snapshot, want 1", len(saved.Entries))
	}
	if j := s.journal(l); j.N != s.n || len(j.Runs) != 0 || actor.TextOf(j.Ended[0].Reply.Parts) != "done" {
		t.Errorf("unexpected journal: %+v", j)
	}
	// The message and the answer have the same content, which is stored once.
	blobs := 0
	_ = l.m.Scan(blobKey(s.id, actor.Hash{}), prefixEnd(scopeKey(s.id).kind(kindBlob)), func(_, v []byte) bool { blobs++; return true })
	if blobs != 1 {
		t.Errorf("got %d blobs, want 1", blobs)
	}
	rowsBytes := 0
	for _, prefix := range []string{"l/", "t/default/s/s-1/a/"} {
		_ = l.m.Scan([]byte(prefix), prefixEnd([]byte(prefix)), func(_, v []byte) bool { rowsBytes += len(v); return true })
	}
	if rowsBytes > 2*BlobBytesMin {
		t.Errorf("entries and snapshot have %d bytes: large parts are not stored as blobs", rowsBytes)
	}
}

func TestLoadErrorNamesDamagedKey(t *testing.T) {
	alice := actor.NewID("alice", "s-1")
	part := func(batch uint64) string { return string(partKey("n1", batch, 0)) }
	copyOf := func(from, to string) func(*MemoryKV) {
		return func(m *MemoryKV) {
			v, _, _ := m.Get([]byte(from))
			_ = m.Apply([]Row{{Key: []byte(to), Value: v}})
		}
	}
	regroup := func(groups ...string) func(*MemoryKV) { // of the first batch
		return func(m *MemoryKV) {
			v, _, _ := m.Get([]byte(part(1)))
			record, _, _ := decodePart(0, v)
			var e actor.Encoder
			e.Bytes(record)
			for _, g := range groups {
				e.String(g)
			}
			_ = m.Apply([]Row{{Key: []byte(part(1)), Value: e.Buf}})
		}
	}
	blob := string(blobKey(alice, actor.HashOf([]byte(large))))
	for _, c := range []struct {
		name   string
		damage func(m *MemoryKV)
		want   string
	}{
		{"part lost", func(m *MemoryKV) { m.delete([]byte(part(2))) }, "key " + part(2) + ": is missing"},
		{"cut", func(m *MemoryKV) { _ = m.Apply([]Row{{Key: []byte(part(1)), Value: []byte{2}}}) }, "key " + part(1) + ": "},
		{"group lost", regroup(), "key " + part(1) + ": holds 0 groups, want group 0"},
		{"salt lost", regroup("short"), "key " + part(1) + ": group of 5 bytes"},
		{"bytes", regroup("a salt, then some bytes"), "key " + part(1) + ": byte"},
		{"blob", func(m *MemoryKV) { corrupt(m, blob, 99) }, "blob " + blob + " does not match its hash"},
		{"no blob", func(m *MemoryKV) { m.delete([]byte(blob)) }, "blob " + blob + " is missing"},
		{"misplaced", copyOf(part(1), part(2)), "key " + part(2) + ": ends at entry 1 of alice/s-1, want entry 3"},
		{"of another actor", copyOf(part(4), part(1)), "key " + part(1) + ": holds an entry of bob/s-1"},
		{"index", func(m *MemoryKV) { _ = m.Apply([]Row{{Key: indexKey(alice, 1), Value: []byte{9}}}) }, "key " + string(indexKey(alice, 1)) + ": index written in version 9"},
	} {
		l, s := newTestLog(t), newEntryBuilder(t, "alice")
		l.write(s.accept(large))
		l.write(s.work("small")...)
		l.write(s.end("done"))
		l.write(newEntryBuilder(t, "bob").accept("hi"))
		l.flush()
		c.damage(l.m)
		if _, err := l.Load(s.id); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func corrupt(m *MemoryKV, key string, at int) {
	v, ok, _ := m.Get([]byte(key))
	if !ok {
		panic(key + " does not exist")
	}
	v = bytes.Clone(v)
	v[at] ^= 0x55
	_ = m.Apply([]Row{{Key: []byte(key), Value: v}})
}

func TestDueByShard(t *testing.T) {
	l := newTestLog(t)
	a, b, c := newEntryBuilder(t, "a"), newEntryBuilder(t, "b"), newEntryBuilder(t, "c")
	l.write(a.accept("hi"), b.accept("hi"), c.accept("hi"))
	l.write(b.end("bye"))
	l.write(c.accept("more"), c.end("bye"), c.accept("again"))
	all := []uint16{a.shard(), b.shard(), c.shard()}
	l.flush()
	l.write(a.work("found")...)
	l.write(c.end("bye"), b.accept("again"))
	l.write(b.end("bye"), c.accept("last")) // the index rows of c are out of date
	for _, want := range []struct {
		shards []uint16
		ids    []actor.ID
	}{{all, []actor.ID{a.id, c.id}}, {all[2:], []actor.ID{c.id}}, {all[1:2], nil}, {nil, nil}} {
		var got []actor.ID
		if err := l.Due(want.shards, func(id actor.ID) { got = append(got, id) }); err != nil || !slices.Equal(got, want.ids) {
			t.Errorf("shards %v: got %v, %v, want %v", want.shards, got, err, want.ids)
		}
	}
	// A run that starts and ends within one batch leaves no row. The actor after it has one,
	// and so has an actor after entries that move nothing.
	d, e := newEntryBuilder(t, "d"), newEntryBuilder(t, "e")
	l.write(b.accept("quick"), b.end("bye"), d.accept("later"))
	l.write(append(a.work("done"), e.accept("last"))...)
	rows := 0
	l.flush()
	_ = l.m.Scan([]byte("x/"), []byte("x0"), func(_, _ []byte) bool { rows++; return true })
	if rows != 4 {
		t.Errorf("got %d rows in the expiry index, want 4", rows)
	}
}

func TestReadRunsAndEvents(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	for range 5 {
		l.write(append(append([]Entry{s.accept("hi")}, s.work("x")...), s.end("bye"))...)
	}
	owner, ok, err := l.Run("default", s.run(2))
	if want := (RunOwner{s.run(2), s.run(2), s.id}); !ok || err != nil || owner != want {
		t.Errorf("got %v, %v, %v, want %v", owner, ok, err, want)
	}
	if _, ok, err := l.Run("default", s.run(9)); ok || err != nil {
		t.Errorf("unknown run: got %v, %v", ok, err)
	}
	if _, ok, _ := l.Run("other", s.run(2)); ok {
		t.Error("another tenant's run was found")
	}
	for limit, want := range map[int][]uint64{1: {5}, 3: {5, 4, 3}, 5: {5, 4, 3, 2, 1}, 9: {5, 4, 3, 2, 1}, 0: nil} {
		page, err := l.Runs("default", runs.Filter{}, actor.CallID{}, limit)
		var got []uint64
		for _, o := range page.All {
			for i := range uint64(6) {
				if o.Run == s.run(i) {
					got = append(got, i)
				}
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("newest %d: got %v, %v, want %v", limit, got, err, want)
		}
	}
	events, err := l.Events("default", s.run(3), 1, 2)
	if err != nil || len(events) != 2 || events[0].Seq != 2 || string(events[1].Body) != `{"n":3}` {
		t.Errorf("got %v, %v", events, err)
	}
	if events, err := l.Events("default", s.run(3), 4, 2); err != nil || len(events) != 0 {
		t.Errorf("got %v, %v after the last event, want none", events, err)
	}
}

// Every page of events is complete, for any distribution of the events over rows.
func TestEventPaging(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, w := &MemoryKV{}, NewWriter(WriterConfig{Node: "n1"})
		index := NewIndex(IndexConfig{Entries: rapid.IntRange(1, 12).Draw(t, "flush")})
		run := actor.NewCallID(1, 1, 1)
		var bodies []string
		for n := range rapid.IntRange(1, 12).Draw(t, "batches") {
			var entries []Entry
			for range rapid.IntRange(1, 3).Draw(t, "entries") {
				e := Entry{Actor: actor.NewID("alice", "s-1"), N: uint64(n), Record: Parked{Run: run}}
				for range rapid.IntRange(0, 3).Draw(t, "events") {
					body := rapid.SampledFrom([]string{`{"a":1}`, `{}`, `{"long":"` + strings.Repeat("x", PartBytesMax/8) + `"}`}).Draw(t, "body")
					bodies = append(bodies, body)
					e.Events = append(e.Events, RunEvent{run, uint64(len(bodies)), []byte(body)})
				}
				entries = append(entries, e)
			}
			w.Append(entries)
			b, _ := w.Next()
			_ = m.Apply(b.Rows)
			if index.Add(&b) {
				_ = m.Apply(index.Rows())
				index.Clear()
			}
			w.Written(b.No)
			w.Synced(b.No)
		}
		_ = m.Scan([]byte("l/"), []byte("u"), func(key, value []byte) bool {
			if len(value) > PartBytesMax*5/4 {
				t.Fatalf("got %d bytes in row %s", len(value), key)
			}
			return true
		})
		from := rapid.IntRange(0, len(bodies)).Draw(t, "from")
		limit := rapid.IntRange(0, len(bodies)+1).Draw(t, "limit")
		rows := Rows{KV: m, Index: index}
		if rapid.Bool().Draw(t, "recovered") {
			rows = recovered(t, m)
		}
		got, err := rows.Events(actor.DefaultTenant, run, uint64(from), limit)
		want := bodies[from:min(len(bodies), from+limit)]
		if err != nil || len(got) != len(want) {
			t.Fatalf("got %d events after %d, error %v, want %d", len(got), from, err, len(want))
		}
		for i, e := range got {
			if e.Seq != uint64(from+i+1) || string(e.Body) != want[i] {
				t.Fatalf("event %d: got %+v", from+i+1, e)
			}
		}
	})
}

// A snapshot is searched for blobs if any list of parts in the journal has a large
// part.
func TestSnapshotDetectsLargeParts(t *testing.T) {
	parts := actor.Text(large)
	run := func(call actor.Call, asks ...Asked) Journal {
		return Journal{Runs: []*Run{{Call: call, Steps: []Step{{Asks: asks}}}}}
	}
	for name, j := range map[string]Journal{
		"message": run(actor.Call{Parts: parts}),
		"ask":     run(actor.Call{}, Asked{Ask: actor.Ask{Parts: parts}}),
		"sent":    run(actor.Call{}, Asked{Sent: &actor.Ask{Parts: parts}}),
		"answer":  run(actor.Call{}, Asked{Answer: &actor.Answer{Parts: parts}}),
		"tail":    {Transcript: Transcript{Tail: []actor.ChatMessage{{Parts: parts}}}},
	} {
		if s := SnapshotOf(&j); !hasLarge(s) {
			t.Errorf("%s: the large part is not detected", name)
		}
	}
	j := run(actor.Call{Parts: actor.Text("x")}, Asked{})
	if s := SnapshotOf(&j); hasLarge(s) {
		t.Error("a journal without large parts is searched")
	}
}

// The size of a part is bounded, for any number of entries of an actor in a batch.
func TestPartsAreBounded(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	entries := []Entry{s.accept("hi")}
	for range 100 {
		entries = append(entries, s.work(strings.Repeat("x", BlobBytesMin))...)
	}
	l.write(entries...)
	rows := 0
	_ = l.m.Scan([]byte("l/"), []byte("l0"), func(_, value []byte) bool {
		rows++
		if len(value) > PartBytesMax*5/4 {
			t.Errorf("got %d bytes in a part", len(value))
		}
		return true
	})
	if saved, err := l.Load(s.id); err != nil || len(saved.Entries) != 201 || rows < 6 || rows > 12 {
		t.Errorf("got %d entries in %d rows, error %v", len(saved.Entries), rows, err)
	}
}

// The buffers kept for the next batch are bounded together, after a row of any size.
func TestBuffersForRowsAreBounded(t *testing.T) {
	e := newEntryBuilder(t, "alice").accept("hi")
	accepted := e.Record.(Accepted)
	for size := 0; size < scratchBytesMax*3/4; size += BlobBytesMin {
		accepted.Call.Parts = append(accepted.Call.Parts, actor.Text(strings.Repeat("x", BlobBytesMin))...)
	}
	e.Record = accepted
	w := newRowWriter("o1", [32]byte{})
	rows, _, _ := w.write(1, []Entry{e}, func([]Payload) []byte { return nil })
	if got := cap(w.content.Buf) + cap(w.entry.Buf) + cap(w.log.Buf); got > scratchBytesMax || !slices.ContainsFunc(rows, func(r Row) bool { return len(r.Value) > scratchBytesMax/2 }) {
		t.Errorf("got buffers of %d bytes after %d rows, want at most %d", got, len(rows), scratchBytesMax)
	}
}

// A missing row is detected by every read of a range that includes an event of the
// row.
func TestEventGapIsDetected(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	l.write(s.accept("hi"))   // events 1, 2
	l.write(s.work("x")...)   // event 3
	l.write(s.end("goodbye")) // event 4
	l.flush()
	for batch, from := range map[uint64][]uint64{1: {0, 1}, 2: {0, 1, 2}, 3: {0, 1, 2, 3}} {
		m := l.m.Clone()
		m.delete(partKey("n1", batch, 0))
		for _, from := range from {
			if _, err := (Rows{KV: m}).Events("default", s.run(1), from, 9); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s: is missing", partKey("n1", batch, 0))) {
				t.Errorf("batch %d missing, read from %d: got error %v", batch, from, err)
			}
		}
	}
	key := eventKey("default", s.run(1), 1)
	v, _, _ := l.m.Get(key)
	spans, _ := decodeSpans(v)
	m := l.m.Clone()
	_ = m.Apply([]Row{{Key: key, Value: encodeSpans(slices.Delete(spans, 1, 2))}})
	if _, err := (Rows{KV: m}).Events("default", s.run(1), 1, 9); err == nil || !strings.Contains(err.Error(), "event 3 of run "+s.run(1).String()+" is missing, the next is 4") {
		t.Errorf("span missing: got error %v", err)
	}
}

// A read starts after the snapshot, also within a group of entries.
func TestLoadWithSnapshotInBatch(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	l.write(s.accept("hi"))
	work := s.work("x")
	var j Journal
	saved, _ := l.Load(s.id)
	for _, e := range append(saved.Entries, work...) {
		if err := j.ApplyEntry(e); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := Entry{Actor: s.id, Shard: s.shard(), Epoch: 3, N: j.N, Record: SnapshotOf(&j), WasDue: s.due, Due: s.due}
	l.write(work[0], work[1], snapshot, s.end("done"))
	saved, err := l.Load(s.id)
	if err != nil || saved.Snapshot == nil || len(saved.Entries) != 1 || saved.Entries[0].N != s.n {
		t.Errorf("got %d entries after the snapshot, error %v", len(saved.Entries), err)
	}
}

func TestCheckFormatRejectsOtherFormats(t *testing.T) {
	m := &MemoryKV{}
	if err := CheckFormat(m); err != nil {
		t.Error(err)
	}
	_ = m.Apply([]Row{FormatRow()})
	if err := CheckFormat(m); err != nil {
		t.Error(err)
	}
	_ = m.Apply([]Row{{Key: []byte(FormatKey), Value: []byte("4")}})
	if err := CheckFormat(m); err == nil || !strings.Contains(err.Error(), `store of format "4", this program reads format 3`) {
		t.Error(err)
	}
}

// A row that lost bytes at its end, or gained some, is not read.
func TestUnsealRejectsOtherLengths(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	l.write(s.accept(large))
	l.write(s.snapshot(l))
	read := 0
	for _, key := range [][]byte{snapshotKey(s.id), blobKey(s.id, actor.HashOf([]byte(large)))} {
		value, _, _ := l.m.Get(key)
		row := Row{Key: key, Value: value}
		if _, _, _, err := unseal(value); err != nil {
			t.Fatal(err)
		}
		read++
		for cut := range row.Value {
			if _, _, content, err := unseal(row.Value[:cut]); err == nil {
				t.Errorf("%q cut to %d of %d bytes reads as %q", row.Key, cut, len(row.Value), content)
			}
		}
		if _, _, content, err := unseal(append(bytes.Clone(row.Value), 0)); err == nil {
			t.Errorf("%q with another byte reads as %q", row.Key, content)
		}
	}
	if read < 2 {
		t.Errorf("%d rows were read, want a snapshot and a blob", read)
	}
}
