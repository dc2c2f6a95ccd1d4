// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// A Writer keeps its four guarantees under any order of appends, writes, syncs and
// crashes. After a crash the log ends at the last synced batch or at a later batch.
func TestWriterGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kv := &MemoryKV{}
		var end Mark
		for restart := range 3 {
			end = runWriter(t, kv, end, byte(restart))
		}
	})
}

// runWriter runs a Writer that continues the log at the argument from, until a crash.
// It applies the surviving batches to kv and returns the end of the log.
func runWriter(t *rapid.T, kv *MemoryKV, from Mark, seed byte) Mark {
	config := WriterConfig{Node: "n1", From: from, Seed: [32]byte{seed}, BatchBytesMax: 4000, BatchesInFlight: rapid.IntRange(1, 3).Draw(t, "in flight")}
	w := NewWriter(config)
	next := map[string]uint64{}
	for _, name := range []string{"a", "b"} {
		saved, err := recovered(t, kv).Load(actor.NewID(name, ""))
		if err != nil {
			t.Fatal(err)
		}
		next[name] = uint64(len(saved.Entries))
	}
	var (
		batches         []Batch
		written, synced int
		groups          = []Pos{from.Pos} // end of the log after each Append
		failed          bool
		releasedAtFail  Pos
	)
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch rapid.IntRange(0, 4).Draw(t, "do") {
		case 0, 1:
			var entries []Entry
			for range rapid.IntRange(0, 6).Draw(t, "entries") {
				name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "actor")
				next[name]++
				entries = append(entries, Entry{Actor: actor.NewID(name, ""), Shard: uint16(name[0]), Epoch: 1, N: next[name], Record: Parked{}})
			}
			want := groups[len(groups)-1] + Pos(len(entries))
			if got := w.Append(entries); got != want || w.End() != want {
				t.Fatalf("log ends at %d, want %d", got, want)
			}
			groups = append(groups, want)
		case 2:
			b, ok := w.Next()
			if ok && failed {
				t.Fatal("got a batch after the failure")
			}
			if !ok {
				break
			}
			if last := from.Batch + uint64(len(batches)); b.No != last+1 {
				t.Fatalf("batch %d after batch %d", b.No, last)
			}
			atGroupEnd := false
			for _, g := range groups {
				atGroupEnd = atGroupEnd || g == b.Pos
			}
			if !atGroupEnd {
				t.Fatalf("batch %d ends at %d, within the entries of one Append: %v", b.No, b.Pos, groups)
			}
			if batches = append(batches, b); len(batches)-synced > config.BatchesInFlight {
				t.Fatalf("%d batches in flight, want at most %d", len(batches)-synced, config.BatchesInFlight)
			}
		case 3:
			if written < len(batches) {
				w.Written(batches[written].No)
				written++
			}
		case 4:
			if synced < written {
				synced = rapid.IntRange(synced+1, written).Draw(t, "synced")
				w.Synced(batches[synced-1].No)
			}
		}
		if !failed && rapid.IntRange(0, 40).Draw(t, "fails") == 0 {
			failed, releasedAtFail = true, w.Released()
			w.Failed()
		}
		want := from.Pos
		if synced > 0 {
			want = batches[synced-1].Pos
		}
		if failed {
			want = releasedAtFail
		}
		if w.Released() != want {
			t.Fatalf("released %d, want %d", w.Released(), want)
		}
	}
	// The crash preserves all synced batches and possibly later ones.
	survived := rapid.IntRange(synced, written).Draw(t, "kept")
	anchor := from
	if n := rapid.IntRange(0, synced).Draw(t, "anchor"); n > 0 {
		anchor = batches[n-1].Mark()
	}
	end := from
	for _, b := range batches[:survived] {
		_ = kv.Apply(b.Rows)
		end = b.Mark()
	}
	got, err := Verify(kv, "n1", anchor)
	if err != nil || got != end {
		t.Fatalf("log ends at %+v, %v, want %+v", got, err, end)
	}
	return end
}

func TestFailedWriterReleasesNothing(t *testing.T) {
	w := NewWriter(WriterConfig{Node: "n1"})
	w.Failed()
	s := newEntryBuilder(t, "alice")
	if end := w.Append([]Entry{s.accept("hi")}); end <= w.Released() {
		t.Errorf("entries after the failure end at %d, but %d is released", end, w.Released())
	}
	if _, ok := w.Next(); ok {
		t.Error("got a batch after the failure")
	}
}

func TestSameSeedSameBytes(t *testing.T) {
	chain := func(seed byte) (all []Batch) {
		w := NewWriter(WriterConfig{Node: "n1", Seed: [32]byte{seed}})
		s := newEntryBuilder(t, "alice")
		for range 3 {
			w.Append([]Entry{s.accept(large), s.end("bye")})
			b, _ := w.Next()
			all = append(all, b)
		}
		return all
	}
	if a, b := chain(1), chain(1); !reflect.DeepEqual(a, b) {
		t.Error("the same seed gave different batches")
	}
	if a, b := chain(1), chain(2); a[2].Hash == b[2].Hash {
		t.Error("different seeds gave the same hash")
	}
}

// Reusing the memory of written rows does not change the bytes of later rows.
func TestReuseDoesNotChangeRows(t *testing.T) {
	chain := func(reuse bool) (all []Row) {
		w := NewWriter(WriterConfig{Node: "n1"})
		s := newEntryBuilder(t, "alice")
		for n := range 20 {
			var entries []Entry
			for range 1 + n%5 {
				entries = append(append(entries, s.accept(large)), s.work("x")...)
				entries = append(entries, s.end("bye"))
			}
			w.Append(entries)
			b, _ := w.Next()
			for _, row := range b.Rows {
				all = append(all, Row{Key: bytes.Clone(row.Key), Value: bytes.Clone(row.Value), Delete: row.Delete})
			}
			w.Written(b.No)
			w.Synced(b.No)
			if reuse {
				w.Reuse(&b)
			}
		}
		return all
	}
	if !reflect.DeepEqual(chain(true), chain(false)) {
		t.Error("reusing memory changed rows")
	}
}

func TestVerifyDetectsDamage(t *testing.T) {
	batch := func(no uint64) string { return string(partKey("n1", no, 0)) }
	blob := string(blobKey(actor.NewID("alice", "s-1"), actor.HashOf([]byte(large))))
	rewrite := func(m *MemoryKV, no uint64, change func(record []byte, groups [][]byte) ([]byte, [][]byte)) {
		v, _, _ := m.Get([]byte(batch(no)))
		record, groups, _ := decodePart(0, bytes.Clone(v))
		record, groups = change(record, groups)
		var e actor.Encoder
		e.Bytes(record)
		for _, g := range groups {
			e.Bytes(g)
		}
		_ = m.Apply([]Row{{Key: []byte(batch(no)), Value: e.Buf}})
	}
	for _, c := range []struct {
		name   string
		damage func(m *MemoryKV)
		want   string
	}{
		{"last batches lost", func(m *MemoryKV) { m.delete([]byte(batch(4))); m.delete([]byte(batch(5))) },
			"the log of n1 ends at batch 3, before its anchor at batch 5"},
		{"batch lost", func(m *MemoryKV) { m.delete([]byte(batch(3))) }, "batch 3 of n1 is missing"},
		{"all lost", func(m *MemoryKV) { *m = MemoryKV{} }, "ends at batch 0, before its anchor at batch 5"},
		{"record changed", func(m *MemoryKV) { corrupt(m, batch(3), 60) }, "batch"},
		{"record cut", func(m *MemoryKV) { _ = m.Apply([]Row{{Key: []byte(batch(3)), Value: []byte{2, frameVersion, 2}}}) },
			"key " + batch(3) + ": batch 3 of n1: byte"},
		{"record replaced by earlier one", func(m *MemoryKV) {
			v, _, _ := m.Get([]byte(batch(2)))
			_ = m.Apply([]Row{{Key: []byte(batch(3)), Value: v}})
		}, "batch 3 of n1: does not follow the previous batch"},
		{"last record replaced", func(m *MemoryKV) {
			rewrite(m, 5, func(_ []byte, _ [][]byte) ([]byte, [][]byte) {
				return (&batchRecord{prev: hashAt(m, 4), from: 4, to: 5}).encode(), nil
			})
		}, "batch 5 of n1: hash "},
		{"group changed", func(m *MemoryKV) {
			rewrite(m, 2, func(record []byte, groups [][]byte) ([]byte, [][]byte) {
				groups[0][30]++
				return record, groups
			})
		}, "batch 2 of n1: group 0 of " + batch(2) + ": differs from the value that was written"},
		{"group lost", func(m *MemoryKV) {
			rewrite(m, 4, func(record []byte, _ [][]byte) ([]byte, [][]byte) { return record, nil })
		}, "batch 4 of n1: holds 0 groups of entries, want 1"},
		{"group added", func(m *MemoryKV) {
			rewrite(m, 4, func(record []byte, groups [][]byte) ([]byte, [][]byte) { return record, append(groups, groups[0]) })
		}, "batch 4 of n1: holds 2 groups of entries, want 1"},
		{"part added", func(m *MemoryKV) { m.put(Row{Key: partKey("n1", 4, 2), Value: nil}) }, "batch 4 of n1: part 1 is missing, the next is 2"},
		{"blob lost", func(m *MemoryKV) { m.delete([]byte(blob)) }, "payload " + blob + ": is missing"},
		{"blob changed", func(m *MemoryKV) { corrupt(m, blob, 99) }, "does not match the hash in its key"},
	} {
		l, s := newTestLog(t), newEntryBuilder(t, "alice")
		var anchor Mark
		for range 5 {
			anchor = l.write(s.accept(large))
		}
		if end, err := Verify(l.m, "n1", anchor); err != nil || end != anchor {
			t.Fatalf("before the damage: %+v, %v", end, err)
		}
		c.damage(l.m)
		if _, err := Verify(l.m, "n1", anchor); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// Verify detects an intact value of a later batch that is under the wrong key.
func TestVerifyDetectsMisplacedSnapshot(t *testing.T) {
	l, alice, bob := newTestLog(t), newEntryBuilder(t, "alice"), newEntryBuilder(t, "bob")
	l.write(alice.accept("a"), bob.accept("b"))
	l.write(alice.snapshot(l))
	anchor := l.write(bob.snapshot(l))
	if _, err := Verify(l.m, "n1", anchor); err != nil {
		t.Fatalf("before the damage: %v", err)
	}
	bobs, _, _ := l.m.Get(snapshotKey(bob.id))
	if err := l.m.Apply([]Row{{Key: snapshotKey(alice.id), Value: bytes.Clone(bobs)}}); err != nil {
		t.Fatal(err)
	}
	want := "payload " + string(snapshotKey(alice.id)) + ": claims to be from batch 3 of n1, which did not put this value here"
	if _, err := Verify(l.m, "n1", anchor); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func hashAt(m *MemoryKV, no uint64) actor.Hash {
	v, _, _ := m.Get(partKey("n1", no, 0))
	record, _, _ := decodePart(0, v)
	return actor.HashOf(record)
}

// Snapshots and blobs may be replaced by a later batch of this node or by a batch of
// another node. The names of actors do not matter: keys of blobs contain a b.
func TestReplacedValuesVerify(t *testing.T) {
	for _, name := range []string{"alice", "b"} {
		l, s := newTestLog(t), newEntryBuilder(t, name)
		l.write(s.accept(large))
		l.write(s.snapshot(l))
		l.write(s.accept(large), s.accept(large))
		anchor := l.write(s.snapshot(l))
		if _, err := VerifyAll(l.m, "n1", anchor); err != nil {
			t.Error(err)
		}
		other := NewWriter(WriterConfig{Node: "n2"})
		other.Append([]Entry{s.accept(large)})
		b, _ := other.Next()
		_ = l.m.Apply(b.Rows)
		other.Append([]Entry{s.snapshot(l)})
		b2, _ := other.Next()
		_ = l.m.Apply(b2.Rows)
		for node, mark := range map[actor.NodeID]Mark{"n1": anchor, "n2": b2.Mark()} {
			if _, err := VerifyAll(l.m, node, mark); err != nil {
				t.Error(err)
			}
		}
		corrupt(l.m, string(snapshotKey(s.id)), 60)
		if _, err := VerifyAll(l.m, "n2", b2.Mark()); err == nil || !strings.Contains(err.Error(), string(snapshotKey(s.id))+": differs from the value that was written") {
			t.Errorf("changed snapshot: got error %v", err)
		}
	}
}

// A batch may hold two snapshots with the same number.
func TestSnapshotTwiceInOneBatch(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	l.write(s.accept("hi"))
	anchor := l.write(s.snapshot(l), s.snapshot(l))
	if _, err := Verify(l.m, "n1", anchor); err != nil {
		t.Error(err)
	}
}

// Verify checks only recent batches, bounded by the number of batches or of entries.
// VerifyAll also checks the older batches.
func TestVerifyCoversRecentBatches(t *testing.T) {
	for _, entries := range []int{1, 100} {
		l, s := newTestLog(t), newEntryBuilder(t, "alice")
		l.write(s.accept("hi"))
		batches := min(RecentBatches, (RecentEntries+entries-1)/entries) + 1
		var anchor Mark
		for range batches {
			batch := make([]Entry, entries)
			for i := range batch {
				batch[i] = s.entry(Parked{Run: s.run(1)}, s.due)
			}
			anchor = l.write(batch...) // the third batch is the first recent one
		}
		old, recent := l.m.Clone(), l.m.Clone()
		corrupt(old, string(partKey("n1", 2, 0)), 120)
		if end, err := Verify(old, "n1", anchor); err != nil || end != anchor {
			t.Errorf("%d entries per batch: got %+v, %v", entries, end, err)
		}
		if _, err := VerifyAll(old, "n1", anchor); err == nil {
			t.Errorf("%d entries per batch: VerifyAll accepted a changed old entry", entries)
		}
		corrupt(recent, string(partKey("n1", 3, 0)), 120)
		if _, err := Verify(recent, "n1", anchor); err == nil {
			t.Errorf("%d entries per batch: Verify accepted a changed recent entry", entries)
		}
		for _, no := range []uint64{anchor.Batch - 1, 4} {
			m := l.m.Clone()
			m.delete(partKey("n1", no, 0))
			if _, err := Verify(m, "n1", anchor); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("batch %d of n1 is missing", no)) {
				t.Errorf("%d entries per batch: batch %d missing: got error %v", entries, no, err)
			}
			m.put(Row{Key: partKey("n1", no, 0), Value: []byte("?")})
			if _, err := Verify(m, "n1", anchor); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("batch %d of n1: ", no)) {
				t.Errorf("%d entries per batch: batch %d damaged: got error %v", entries, no, err)
			}
		}
	}
}

func TestAnchorSurvivesTornWrite(t *testing.T) {
	older := Anchor{End: Mark{7, 9, actor.HashOf([]byte("a"))}, Origin: Mark{3, 4, actor.HashOf([]byte("c"))}}
	newer := Anchor{End: Mark{8, 11, actor.HashOf([]byte("b"))}, Origin: Mark{5, 6, actor.HashOf([]byte("d"))}}
	file := make([]byte, AnchorFileBytes)
	copy(file, EncodeAnchor("n1", older))
	copy(file[AnchorSlotStride:], EncodeAnchor("n1", newer))
	if got, slot, err := DecodeAnchor(file, "n1"); err != nil || got != newer || slot != 1 {
		t.Fatalf("got %+v in slot %d, %v", got, slot, err)
	}
	for bit := range AnchorSlotBytes * 8 {
		torn := append([]byte(nil), file...)
		torn[AnchorSlotStride+bit/8] ^= 1 << (bit % 8)
		if got, slot, err := DecodeAnchor(torn, "n1"); err != nil || got != older || slot != 0 {
			t.Fatalf("bit %d: got %+v in slot %d, %v", bit, got, slot, err)
		}
		torn[bit/8] ^= 1
		if _, _, err := DecodeAnchor(torn, "n1"); err == nil || !strings.Contains(err.Error(), "slot 0: is damaged") {
			t.Fatalf("both slots damaged: got error %v", err)
		}
	}
	for cut := range AnchorFileBytes {
		got, _, err := DecodeAnchor(file[:cut], "n1")
		if cut < AnchorSlotBytes && err == nil || cut >= AnchorSlotBytes && got != older {
			t.Fatalf("cut at %d: got %+v, %v", cut, got, err)
		}
	}
	if _, _, err := DecodeAnchor(file, "n2"); err == nil || !strings.Contains(err.Error(), "belongs to node n1, not n2") {
		t.Errorf("anchor of another node: got error %v", err)
	}
}

// BenchmarkWriter encodes the entries of a simple turn: a message accepted and answered.
func BenchmarkWriter(b *testing.B) {
	w, s := NewWriter(WriterConfig{Node: "n1"}), newEntryBuilder(b, "alice")
	rows := 0
	for b.Loop() {
		w.Append([]Entry{s.accept("hello"), s.end("bye")})
		batch, _ := w.Next()
		rows += len(batch.Rows)
		w.Written(batch.No)
		w.Synced(batch.No)
	}
	b.ReportMetric(float64(rows)/float64(b.N), "rows/op")
}

func TestTwoSnapshotsInOneBatch(t *testing.T) {
	id, tomb := actor.NewID("alice", "s-1"), Buried{At: 1, Until: 2}
	w, m := NewWriter(WriterConfig{Node: "n1"}), &MemoryKV{}
	for n := uint64(1); n <= 2; n++ {
		journal := EncodeJournal(&Journal{N: n})
		w.Append([]Entry{{Actor: id, Epoch: 1, N: n, Record: tomb}, {Actor: id, Epoch: 1, N: n, Record: Snapshot{Journal: journal}}})
	}
	b, _ := w.Next()
	_ = m.Apply(b.Rows)
	if _, err := VerifyAll(m, "n1", b.Mark()); err != nil {
		t.Error(err)
	}
	saved, err := recovered(t, m).Load(id)
	if err != nil || len(saved.Entries) != 0 {
		t.Fatalf("loaded %+v, %v", saved, err)
	}
	if j, err := Fold(saved); err != nil || j.N != 2 {
		t.Errorf("journal ends at %d, error %v, want 2", j.N, err)
	}
}
