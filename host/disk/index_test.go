// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// expectedReads returns the results of all reads of a store that holds these entries, in
// the form of observedReads. It does not use the store.
func expectedReads(entries []store.Entry) string {
	var b strings.Builder
	due := map[actor.ID]store.Entry{}
	var owners []actor.CallID
	for _, e := range entries {
		body := e.Events[0].Body
		e.Summary = nil
		e.Events = []store.RunEvent{{Run: e.Events[0].Run, Seq: e.Events[0].Seq}}
		fmt.Fprintf(&b, "%s %d %x event %x\n", e.Actor, e.N, store.EncodeEntry(e), body)
		switch r := e.Record.(type) {
		case store.Accepted:
			owners = append(owners, r.Call.ID)
			fmt.Fprintf(&b, "run %s of %s\n", r.Call.ID, e.Actor)
		case store.Ended:
			fmt.Fprintf(&b, "outcome %s\n", actor.TextOf(r.Reply.Parts))
		}
		if delete(due, e.Actor); e.Due != 0 {
			due[e.Actor] = e
		}
	}
	slices.SortFunc(owners, func(a, b actor.CallID) int { return b.Compare(a) })
	fmt.Fprintln(&b, "runs", owners)
	var open []store.Entry
	for _, e := range due {
		open = append(open, e)
	}
	slices.SortFunc(open, func(a, b store.Entry) int { return int(a.Shard) - int(b.Shard) })
	for _, e := range open {
		fmt.Fprintln(&b, "due", e.Actor)
	}
	return b.String()
}

// observedReads reads a store of entries that these generators made, in the order of
// the argument order.
func observedReads(d *Disk, order []store.Entry) (string, error) {
	var b strings.Builder
	saved := map[actor.ID]store.Saved{}
	for _, e := range order {
		if _, ok := saved[e.Actor]; !ok {
			s, err := d.Load(e.Actor)
			if err != nil {
				return "", err
			}
			saved[e.Actor] = s
		}
		s := saved[e.Actor]
		if uint64(len(s.Entries)) < e.N {
			return "", fmt.Errorf("%s has %d entries, want %d", e.Actor, len(s.Entries), e.N)
		}
		got := s.Entries[e.N-1]
		events, err := d.Events(e.Actor.Tenant, e.Events[0].Run, e.Events[0].Seq-1, 1)
		if err != nil || len(events) != 1 {
			return "", fmt.Errorf("got events %v, error %v", events, err)
		}
		fmt.Fprintf(&b, "%s %d %x event %x\n", got.Actor, got.N, store.EncodeEntry(got), events[0].Body)
		if _, ok := e.Record.(store.Accepted); ok {
			owner, ok, err := d.Run(e.Actor.Tenant, e.Events[0].Run)
			if err != nil || !ok {
				return "", fmt.Errorf("run %s: found %v, error %v", e.Events[0].Run, ok, err)
			}
			fmt.Fprintf(&b, "run %s of %s\n", owner.Run, owner.Actor)
		} else {
			ended, err := d.Outcome(e.Actor, e.N)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "outcome %s\n", actor.TextOf(ended.Reply.Parts))
		}
	}
	page, err := d.Runs(actor.DefaultTenant, runs.Filter{Calls: true, System: true}, actor.CallID{}, len(order))
	if err != nil {
		return "", err
	}
	var ids []actor.CallID
	for _, s := range page.All {
		ids = append(ids, s.Run)
	}
	fmt.Fprintln(&b, "runs", ids)
	err = d.Due([]uint16{'a', 'b', 'c'}, func(id actor.ID) { fmt.Fprintln(&b, "due", id) })
	return b.String(), err
}

// After each commit, with flushes of the index between them, a store gives the same
// reads while it is open, after it was closed, after its process was killed, and after
// a power failure.
func TestIndexFlushKeepsReads(t *testing.T) {
	const dir, commits = "/data", 20
	for _, indexEntries := range []int{1, 3, 7} {
		fs, random := vfs.NewCrashableMem(), rand.New(rand.NewPCG(uint64(indexEntries), 8))
		options := Options{fs: fs, IndexEntries: indexEntries}
		d := mustOpen(t, dir, options)
		l := NewLog(d)
		generators := []*entryGenerator{newEntryGenerator("a"), newEntryGenerator("b"), newEntryGenerator("c")}
		var all []store.Entry
		check := func(what string, d *Disk) (uncovered int) {
			t.Helper()
			got, err := observedReads(d, all)
			if want := expectedReads(all); err != nil || got != want {
				t.Fatalf("flush after %d entries, %d entries, %s: error %v, got\n%s\nwant\n%s", indexEntries, len(all), what, err, got, want)
			}
			return d.Index.Entries()
		}
		largest, flushed := 0, 0
		for n := range commits {
			entries := nextEntries(generators[random.IntN(3)], 1+random.IntN(2))
			all = append(all, entries...)
			commit(l, entries...)
			check("open", d)
			for _, percent := range []int{0, 100} { // a power failure, and a kill
				copied := options
				copied.fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random})
				again := mustOpen(t, dir, copied)
				uncovered := check(fmt.Sprintf("%d%% of unsynced data kept", percent), again)
				if largest = max(largest, uncovered); len(all) >= indexEntries {
					flushed++
				}
				mustClose(t, again)
				for _, each := range []int{1, 0} { // the first start flushes all that it recovers
					copied.IndexEntries = each
					again = mustOpen(t, dir, copied)
					if left := check("the recovered index flushed", again); left > 0 {
						t.Errorf("flush after %d entries: %d of %d recovered entries are not covered", indexEntries, left, uncovered)
					}
					mustClose(t, again)
				}
			}
			if n%4 == 3 {
				mustClose(t, l, d)
				d = mustOpen(t, dir, options)
				if uncovered := check("closed", d); uncovered >= indexEntries {
					t.Errorf("flush after %d entries: %d entries are not covered after Close", indexEntries, uncovered)
				}
				l = NewLog(d)
			}
		}
		mustClose(t, l, d)
		t.Logf("flush after %d entries: %d crashes after a flush; at most %d entries were recovered", indexEntries, flushed, largest)
		if flushed == 0 || largest > 2*indexEntries+4 {
			t.Error("no flush, or too late flushes")
		}
		if x, err := Examine(dir, options, nil); err != nil || x.Wrong != 0 || x.Entries != uint64(len(all)) {
			t.Errorf("got %+v, error %v, want %d entries", x, err, len(all))
		}
	}
}

// Reads during flushes find every durable entry, with its events and its run.
func TestReadsDuringIndexFlush(t *testing.T) {
	const entries = 300
	d := mustOpen(t, "/data", Options{fs: vfs.NewMem(), FreeFloor: 1, IndexEntries: 2})
	l := NewLog(d)
	names := []string{"a", "b"}
	var acked [2]atomic.Uint64
	var reads [2]atomic.Int64
	var all sync.WaitGroup
	for i, name := range names {
		read := make(chan struct{}) // closed after the first read
		closeRead := sync.OnceFunc(func() { close(read) })
		all.Go(func() {
			for s := newEntryGenerator(name); s.n < entries; {
				commit(l, s.next())
				if acked[i].Store(s.n); s.n == entries/2 {
					<-read
				}
			}
		})
		all.Go(func() {
			defer closeRead()
			for last := false; !last; {
				durable := acked[i].Load()
				last = durable == entries
				s := newEntryGenerator(name)
				n, err := checkEntries(d, s.id)
				if err != nil || n < durable {
					t.Errorf("%s: got %d entries, want at least %d, error %v", name, n, durable, err)
					return
				}
				reads[i].Add(1)
				closeRead()
				if durable == 0 {
					continue
				}
				newest := nextEntries(s, int(durable))[durable-1]
				owner, ok, err := d.Run(s.id.Tenant, newest.Events[0].Run)
				if err != nil || !ok || owner.Actor != s.id {
					t.Errorf("%s: run of entry %d: got %+v, %v, error %v", name, durable, owner, ok, err)
				}
				page, err := d.Runs(s.id.Tenant, runs.Filter{Calls: true, System: true}, actor.CallID{}, 2*entries)
				if err != nil || !slices.ContainsFunc(page.All, func(r runs.Summary) bool { return r.Run == owner.Run }) {
					t.Errorf("%s: run of entry %d is not among %d runs, error %v", name, durable, len(page.All), err)
				}
				if outcome, err := d.Outcome(s.id, max(durable/2*2, 2)); durable > 1 && (err != nil || outcome.Call.IsZero()) {
					t.Errorf("%s: got outcome %+v, error %v", name, outcome, err)
				}
			}
		})
	}
	all.Wait()
	if reads[0].Load() < 2 || reads[1].Load() < 2 {
		t.Errorf("got %d and %d reads, want 2 or more", reads[0].Load(), reads[1].Load())
	}
	mustClose(t, l, d)
}
