// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// Writers of several logs keep their guarantees under any order of appends, writes, syncs and crashes. After
// a crash the logs hold a prefix of what was appended, in the order of Append, and each chain is whole.
func TestWritersGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kv := &MemoryKV{}
		logs := []LogEnd{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}}
		for restart := range 3 {
			runWriters(t, kv, logs[:], byte(restart))
		}
	})
}

// runWriters runs Writers that continue logs until a crash. It applies the surviving transactions to kv and
// sets the ends of the logs.
func runWriters(t *rapid.T, kv *MemoryKV, logs []LogEnd, seed byte) {
	w := NewWriters(WriterConfig{Seed: [32]byte{seed}, BatchBytesMax: 4000, BatchesInFlight: rapid.IntRange(1, 3).Draw(t, "in flight")}, logs)
	actorOf := func(log uint16) actor.ID { return actor.NewID(fmt.Sprintf("a%d", log), "") }
	next := map[uint16]uint64{}
	for log := range logs {
		saved, err := recovered(t, kv).Load(actorOf(uint16(log)))
		if err != nil {
			t.Fatal(err)
		}
		next[uint16(log)] = uint64(len(saved.Entries))
	}
	type step struct { // of one Append
		log   uint16
		first uint64
		n     int
		end   Pos
	}
	var (
		steps           []step
		taken           int // of steps
		all             []Transaction
		ends            []Pos // after each transaction
		written, synced int
	)
	start := w.End()
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch rapid.IntRange(0, 4).Draw(t, "do") {
		case 0, 1:
			log := uint16(rapid.IntRange(0, len(logs)-1).Draw(t, "log"))
			s := step{log: log, first: next[log] + 1, n: rapid.IntRange(1, 4).Draw(t, "entries")}
			var entries []Entry
			for range s.n {
				next[log]++
				entries = append(entries, Entry{Actor: actorOf(log), Shard: log + 3*uint16(rapid.IntRange(0, 5).Draw(t, "shard")), Epoch: 1, N: next[log], Record: Parked{}})
			}
			want := w.End() + Pos(s.n)
			if s.end = w.Append(entries); s.end != want || w.End() != want {
				t.Fatalf("the logs end at %d, want %d", s.end, want)
			}
			steps = append(steps, s)
		case 2:
			got, ok := w.Take()
			if !ok {
				break
			}
			w.Seal(got)
			one := Transaction{got.No, append([]Batch{}, got.Batches...)}
			// The transaction holds the next steps, all of them up to its end, in their order in each log.
			have := map[uint16][]uint64{}
			count := 0
			for _, b := range one.Batches {
				if len(b.Entries) == 0 || b.Node != logs[b.Log].Node {
					t.Fatalf("batch %d of log %d, %s, has %d entries", b.No, b.Log, b.Node, len(b.Entries))
				}
				count += len(b.Entries)
				for _, e := range b.Entries {
					if LogOf(e.Shard, len(logs)) != b.Log {
						t.Fatalf("log %d has an entry of shard %d", b.Log, e.Shard)
					}
					have[b.Log] = append(have[b.Log], e.N)
				}
			}
			for count > 0 {
				s := steps[taken]
				for i := range s.n {
					if len(have[s.log]) == 0 || have[s.log][0] != s.first+uint64(i) {
						t.Fatalf("step %d of log %d is not whole in transaction %d, or not in order", taken, s.log, one.No)
					}
					have[s.log] = have[s.log][1:]
				}
				count, taken = count-s.n, taken+1
			}
			all, ends = append(all, one), append(ends, steps[taken-1].end)
		case 3:
			if written < len(all) {
				w.Written(all[written].No)
				written++
			}
		case 4:
			if synced < written {
				synced = rapid.IntRange(synced+1, written).Draw(t, "synced")
				w.Synced(all[synced-1].No)
			}
		}
		want := start
		if synced > 0 {
			want = ends[synced-1]
		}
		if w.Released() != want {
			t.Fatalf("released %d, want %d", w.Released(), want)
		}
	}
	// The crash: what was synced survives, and maybe more of what was written.
	for _, one := range all[:rapid.IntRange(synced, written).Draw(t, "survive")] {
		for _, b := range one.Batches {
			if err := kv.Apply(b.Rows); err != nil {
				t.Fatal(err)
			}
			logs[b.Log].End = b.Mark()
		}
	}
	for _, l := range logs {
		if end, err := VerifyAll(kv, l.Node, l.End); err != nil || end != l.End {
			t.Fatalf("log of %s ends at %+v, want %+v, error %v", l.Node, end, l.End, err)
		}
	}
}

func TestWritersRefuseAStepOfTwoLogs(t *testing.T) {
	w := NewWriters(WriterConfig{}, []LogEnd{{Node: "n1"}, {Node: "n2"}})
	defer func() {
		if recover() == nil {
			t.Error("a step appended to two logs")
		}
	}()
	w.Append([]Entry{{Shard: 2, Record: Parked{}}, {Shard: 3, Record: Parked{}}})
}

// Processes that write the logs of one store in turn continue each other's chains.
func TestWritersContinueEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kv := &MemoryKV{}
		logs := []LogEnd{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}}
		writers := []*Writers{NewWriters(WriterConfig{Seed: [32]byte{1}}, logs), NewWriters(WriterConfig{Seed: [32]byte{2}}, logs)}
		next, owner := [3]uint64{}, [3]int{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			log := rapid.IntRange(0, len(logs)-1).Draw(t, "log")
			if rapid.IntRange(0, 3).Draw(t, "moves") == 0 {
				owner[log] = 1 - owner[log]
				writers[owner[log]].Continue(uint16(log), logs[log].End)
			}
			w := writers[owner[log]]
			next[log]++
			before := w.Released()
			end := w.Append([]Entry{{Actor: actor.NewID(fmt.Sprintf("a%d", log), ""), Shard: uint16(log), Epoch: 1, N: next[log], Record: Parked{}}})
			got, ok := w.Take()
			if !ok {
				t.Fatal("no transaction")
			}
			w.Seal(got)
			b := got.Batches[0]
			if b.From != logs[log].End {
				t.Fatalf("a batch of log %d continues %+v, want %+v", log, b.From, logs[log].End)
			}
			if err := kv.Apply(b.Rows); err != nil {
				t.Fatal(err)
			}
			logs[log].End = b.Mark()
			w.Written(got.No)
			w.Synced(got.No)
			if w.Released() != end || end != before+1 {
				t.Fatalf("released %d after %d, want %d", w.Released(), before, end)
			}
		}
		for _, l := range logs {
			if end, err := VerifyAll(kv, l.Node, l.End); err != nil || end != l.End {
				t.Fatalf("log of %s ends at %+v, want %+v, error %v", l.Node, end, l.End, err)
			}
		}
	})
}

func TestWritersDoNotContinueAnOpenLog(t *testing.T) {
	for name, open := range map[string]func(*Writers){"waiting": func(*Writers) {}, "taken": func(w *Writers) { w.Take() }} {
		w := NewWriters(WriterConfig{}, []LogEnd{{Node: "n1"}, {Node: "n2"}})
		w.Append([]Entry{{Actor: actor.NewID("a", ""), Shard: 1, N: 1, Record: Parked{}}})
		open(w)
		w.Continue(0, Mark{Batch: 7})
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: a log is continued although an entry of it is not written", name)
				}
			}()
			w.Continue(1, Mark{Batch: 7})
		}()
	}
}
