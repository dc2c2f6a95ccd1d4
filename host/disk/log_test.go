// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"github.com/troupe-run/troupe/host/logs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/troupe-run/troupe/store"
)

// Callbacks run one at a time and in the order of Commit, each after a sync of
// the committed entries. This also holds for a Commit without entries and for a
// Commit within a callback.
func TestCallbacksRunInCommitOrder(t *testing.T) {
	d := mustOpen(t, t.TempDir(), Options{})
	l := NewLog(d)
	var (
		mu       sync.Mutex
		promised []int // IDs in the order of Commit
		end      store.Pos
		ran      []int
		wg       sync.WaitGroup
	)
	for w := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s := newEntryGenerator(fmt.Sprintf("%c", 'a'+w))
			for i := range 100 {
				var entries []store.Entry
				for range i % 4 {
					entries = append(entries, s.next())
				}
				mu.Lock() // keeps promised in the order of Commit
				id := len(promised)
				promised = append(promised, id)
				end += store.Pos(len(entries))
				at := end
				l.Commit(entries, func() {
					if got := l.Released(); got < at {
						t.Errorf("callback for position %d ran at %d", at, got)
					}
					ran = append(ran, id)
					if id%50 == 0 {
						l.Barrier(func() { ran = append(ran, -1) })
					}
				})
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	done := make(chan struct{})
	l.Barrier(func() { close(done) })
	<-done
	mustClose(t, l)
	total := len(ran)
	ran = slices.DeleteFunc(ran, func(id int) bool { return id == -1 })
	if !slices.Equal(ran, promised) || total-len(ran) != 16 {
		t.Errorf("got %d callbacks of %d, in order: %v; %d from within callbacks, want 16", len(ran), len(promised), slices.IsSorted(ran), total-len(ran))
	}
	for w := range 8 {
		if n, err := checkEntries(d, newEntryGenerator(fmt.Sprintf("%c", 'a'+w)).id); n != 150 || err != nil {
			t.Errorf("got %d entries, error %v, want 150", n, err)
		}
	}
}

func TestBarrierOnDurableLogRunsImmediately(t *testing.T) {
	l := NewLog(mustOpen(t, t.TempDir(), Options{}))
	ran := false
	l.Barrier(func() { ran = true })
	if !ran {
		t.Error("barrier did not run immediately")
	}
	mustClose(t, l)
}

// A piece of an answer is delayed, so that it shares a sync with the next
// entry. The delay is bounded, and a Barrier ends it at once.
func TestPieceSharesSyncWithNextEntry(t *testing.T) {
	d := mustOpen(t, t.TempDir(), Options{})
	l, s := NewLog(d), newEntryGenerator("alice")
	piece := func() []store.Entry {
		e := s.next()
		e.Record, e.Events = store.Streamed{}, nil
		return []store.Entry{e}
	}
	batches := func(commit func(after func())) uint64 {
		before := l.Synced(0).End.Batch
		done := make(chan struct{})
		commit(func() { close(done) })
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatal("batch was not written in time")
		}
		return l.Synced(0).End.Batch - before
	}
	yield := func() {
		for range 1000 {
			runtime.Gosched()
		}
	}
	yield()
	if n := batches(func(after func()) { l.Commit(piece(), after) }); n != 1 {
		t.Errorf("a single piece took %d batches, want 1", n)
	}
	mustClose(t, l, d)
	d = mustOpen(t, d.dir, Options{})
	config := logConfig(d)
	config.PieceDelay = time.Hour
	l = logs.New(config)
	for attempt := 1; ; attempt++ { // the writer may be taking a batch at this moment
		yield()
		n := batches(func(after func()) { l.Commit(piece(), nil); yield(); l.Commit([]store.Entry{s.next()}, after) })
		if n == 1 {
			break
		}
		if attempt == 20 {
			t.Fatalf("a piece and the next entry took %d batches, want 1", n)
		}
	}
	yield()
	if n := batches(func(after func()) { l.Commit(piece(), nil); l.Barrier(after) }); n != 1 {
		t.Errorf("a piece before a barrier took %d batches, want 1", n)
	}
	l.Commit(piece(), nil)
	mustClose(t, l, d)
	if end := mustOpen(t, d.dir, Options{ReadOnly: true}).End(); uint64(end.Pos) != s.n {
		t.Errorf("got %d entries after Close, want %d", end.Pos, s.n)
	}
}

func TestCloseSyncsCommittedEntries(t *testing.T) {
	dir := t.TempDir()
	d := mustOpen(t, dir, Options{})
	l, s := NewLog(d), newEntryGenerator("alice")
	ran := 0
	for range 500 {
		l.Commit([]store.Entry{s.next()}, func() { ran++ })
	}
	mustClose(t, l, l, d)
	if ran != 500 {
		t.Errorf("got %d callbacks, want 500", ran)
	}
	d = mustOpen(t, dir, Options{})
	if got := d.anchor.last.End; got != d.End() || got.Pos != 500 {
		t.Errorf("anchor is at %+v, log ends at %+v", got, d.End())
	}
}

// The anchor is synced at most once per interval, however many commits there
// are. Close syncs it a last time.
func TestAnchorSyncsAreRateLimited(t *testing.T) {
	var syncs atomic.Int64
	counting := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, anchorFile) {
			syncs.Add(1)
		}
		return nil
	}))
	d := mustOpen(t, "/data", Options{fs: counting})
	l, s := NewLog(d), newEntryGenerator("alice")
	began := time.Now()
	for range 300 {
		commit(l, s.next())
	}
	mustClose(t, l)
	most := 2 + int64(time.Since(began)/logs.AnchorEvery)
	if n := syncs.Load(); n < 1 || n > most {
		t.Errorf("%d syncs of the anchor in %v, want 1 to %d", n, time.Since(began), most)
	}
	if mark, err := d.readAnchor(); err != nil || mark != l.Synced(0).End || mark.Pos != 300 {
		t.Errorf("anchor is at %+v, error %v, log was synced to %+v", mark, err, l.Synced(0))
	}
}

// BenchmarkSyncedSet measures the upper limit of BenchmarkCommit: each writer
// calls Pebble's Set with a sync.
func BenchmarkSyncedSet(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			d := mustOpen(b, b.TempDir(), Options{FreeFloor: 1})
			value := make([]byte, 300)
			runWriters(b, writers, func(w, i int) {
				if err := d.db.Set(fmt.Appendf(nil, "k/%d/%d", w, i), value, pebble.Sync); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			l := NewLog(mustOpen(b, b.TempDir(), Options{FreeFloor: 1}))
			generators := make([]*entryGenerator, writers)
			for w := range generators {
				generators[w] = newEntryGenerator(fmt.Sprintf("a%d", w))
			}
			runWriters(b, writers, func(w, _ int) {
				s := generators[w]
				if s.n%14 == 6 || s.n%14 == 13 {
					s.n += 2 // skip the entries with large messages
				}
				commit(l, s.next())
			})
			batches := l.Synced(0).End.Batch
			mustClose(b, l)
			b.ReportMetric(float64(b.N)/float64(batches), "entries/batch")
		})
	}
}

// runWriters distributes b.N among writers.
func runWriters(b *testing.B, writers int, do func(w, i int)) {
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; i < b.N; i += writers {
				do(w, i)
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// Entries committed one by one during a sync are written in few batches.
func TestBatchesGrowDuringSync(t *testing.T) {
	const steps = 200
	gate := make(chan struct{})
	var blocking atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if blocking.Load() && op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log") {
			<-gate
		}
		return nil
	}))
	d := mustOpen(t, "store", Options{fs: fs, FreeFloor: 1})
	l, s := NewLog(d), newEntryGenerator("alice")
	blocking.Store(true)
	for range steps {
		l.Commit([]store.Entry{s.next()}, nil)
		for range 20 {
			runtime.Gosched()
		}
	}
	blocking.Store(false)
	close(gate)
	mustClose(t, l)
	if n := l.Synced(0).End; n.Pos != steps || n.Batch > steps/4 {
		t.Errorf("%d entries took %d batches", n.Pos, n.Batch)
	}
}
