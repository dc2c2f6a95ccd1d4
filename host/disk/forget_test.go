// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// forgettingOptions flush the index often, so that logs can be cut.
func forgettingOptions(fs vfs.FS) Options {
	return Options{fs: fs, FreeFloor: 1, IndexEntries: 4}
}

// readsOf returns the journals of actors with the outcomes that they retain.
func readsOf(t *testing.T, d *Disk, ids ...actor.ID) string {
	t.Helper()
	var b bytes.Buffer
	for _, id := range ids {
		saved, err := d.Load(id)
		if errors.As(err, new(store.Gone)) {
			fmt.Fprintln(&b, id, "gone")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		j, err := store.Fold(saved)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, id, j.N, len(j.Runs), j.Due())
		for _, e := range j.Evicted {
			outcome, err := d.Outcome(id, e.N)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s %s\n", e.Call, actor.TextOf(outcome.Reply.Parts))
		}
		for i := range j.Ended {
			fmt.Fprintf(&b, "%s %s\n", j.Ended[i].Call, actor.TextOf(j.Ended[i].Reply.Parts))
		}
	}
	return b.String()
}

// A log that is cut, and whose session is deleted, reads the same after it was closed,
// after its process was killed, and after a power failure at each step. Doctor finds nothing.
func TestForgettingSurvivesCrashes(t *testing.T) {
	fs := vfs.NewCrashableMem()
	d := mustOpen(t, "/data", forgettingOptions(fs))
	l := NewLog(d)
	a, b := newEntryGenerator("a"), newEntryGenerator("b")
	b.id.Key = "s-2"
	for range 8 {
		commit(l, a.next())
		commit(l, b.next())
	}
	want := readsOf(t, d, a.id, b.id)
	crashes := 0
	check := func(what, want string) {
		t.Helper()
		if got := readsOf(t, d, a.id, b.id); got != want {
			t.Errorf("%s: got\n%.400s\nwant\n%.400s", what, got, want)
		}
		crashes++
		left := fs.CrashClone(vfs.CrashCloneCfg{})
		for range 2 { // the second time after it was opened
			if x, err := Examine("/data", forgettingOptions(left), nil); err != nil || x.Wrong > 0 {
				t.Errorf("%s: error %v, %+v", what, err, x.Findings)
			}
			r := mustOpen(t, "/data", forgettingOptions(left))
			if got := readsOf(t, r, a.id, b.id); got != want {
				t.Errorf("%s, recovered: got\n%.400s\nwant\n%.400s", what, got, want)
			}
			if _, err := r.VerifyAll(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			mustClose(t, r)
		}
	}
	check("before", want)
	for _, batch := range []uint64{3, 8} {
		if err := l.Cut(0, batch, 0); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprint("cut of batch ", batch), want)
	}
	if err := l.Forget("default", "s-1", uint16('a'), 1, 9); err != nil {
		t.Fatal(err)
	}
	gone := a.id.String() + " gone\n" + readsOf(t, d, b.id)
	check("forgotten", gone)
	for more := true; more; {
		var err error
		if more, err = d.Erase("n1", l.Synced(0).End.Batch); err != nil {
			t.Fatal(err)
		}
		check("erased", gone)
	}
	if crashes < 6 {
		t.Errorf("%d crashes, want one at each step", crashes)
	}
	if err := l.Forget("default", "s-1", uint16('a'), 1, 9); !errors.As(err, new(store.Gone)) {
		t.Errorf("deleted again: got error %v", err)
	}
	end := l.Synced(0).End.Batch
	commit(l, nextEntries(b, 4)...) // flushes the index
	if err := l.Cut(0, end, 0); err != nil {
		t.Fatal(err)
	}
	check("cut behind the deletion", fmt.Sprintln(a.id, 0, 0, 0)+readsOf(t, d, b.id))
	mustClose(t, l, d)
}

// The entry of a deletion is durable, its process ends, and the next one completes it.
func TestEraseContinuesAfterStart(t *testing.T) {
	fs := vfs.NewMem()
	d := mustOpen(t, "/data", forgettingOptions(fs))
	l, s := NewLog(d), newEntryGenerator("a")
	commit(l, nextEntries(s, 14)...)
	if err := l.Forget("default", "s-1", uint16('a'), 1, 9); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l, d)
	d = mustOpen(t, "/data", forgettingOptions(fs))
	l = NewLog(d)
	if err := l.Erase(); err != nil {
		t.Fatal(err)
	}
	if page, err := d.Runs("default", runs.Filter{}, actor.CallID{}, 9); err != nil || len(page.All) > 0 {
		t.Errorf("got %d runs of a deleted session, error %v", len(page.All), err)
	}
	mustClose(t, l, d)
	x, err := Examine("/data", forgettingOptions(fs), nil)
	if err != nil || x.Wrong > 0 || x.Runs != 0 || x.Entries != 0 || x.Blobs != 0 {
		t.Errorf("error %v, %+v", err, x)
	}
}

// A power failure at any point of a purge, and before it, loses nothing of other sessions,
// and the next process owes the purge until one has ended.
func TestPurgeSurvivesCrashes(t *testing.T) {
	fs := vfs.NewCrashableMem()
	d := mustOpen(t, "/data", forgettingOptions(fs))
	l, a, b := NewLog(d), newEntryGenerator("a"), newEntryGenerator("b")
	b.id.Key = "s-2"
	commit(l, append(nextEntries(a, 14), nextEntries(b, 14)...)...)
	want := readsOf(t, d, b.id)
	if err := l.Forget("default", "s-1", uint16('a'), 1, 9); err != nil {
		t.Fatal(err)
	}
	owed := func(what string, wantOwed bool) {
		t.Helper()
		left := fs.CrashClone(vfs.CrashCloneCfg{})
		r := mustOpen(t, "/data", forgettingOptions(left))
		if r.PurgeOwed() != wantOwed {
			t.Errorf("%s: a purge is owed: %v", what, !wantOwed)
		}
		for range 2 {
			if got := readsOf(t, r, b.id); got != want {
				t.Errorf("%s: got\n%.400s\nwant\n%.400s", what, got, want)
			}
			if err := r.Purge(t.Context()); err != nil || r.PurgeOwed() {
				t.Errorf("%s: error %v, a purge is still owed: %v", what, err, r.PurgeOwed())
			}
		}
		mustClose(t, r)
		if x, err := Examine("/data", forgettingOptions(left), nil); err != nil || x.Wrong > 0 {
			t.Errorf("%s: error %v, %+v", what, err, x.Findings)
		}
	}
	owed("before the deletion of rows", false)
	if err := l.Erase(); err != nil {
		t.Fatal(err)
	}
	owed("after the deletion of rows", true)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := d.Purge(stopped); err == nil || !d.PurgeOwed() {
		t.Errorf("a stopped purge: error %v, owed %v", err, d.PurgeOwed())
	}
	owed("after a stopped purge", true)
	if err := d.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	owed("after a purge", false)
	end := l.Synced(0).End.Batch
	commit(l, nextEntries(b, 4)...)
	want = readsOf(t, d, b.id)
	if err := l.Cut(0, end, 0); err != nil {
		t.Fatal(err)
	}
	owed("after a cut", true)
	mustClose(t, l, d)
}

// Ranges are disjoint, in order, bounded, and cover all that was added.
func TestStaleRanges(t *testing.T) {
	var s stale
	var rows []store.Row
	for i := range 500 {
		rows = append(rows, store.Row{Key: fmt.Appendf(nil, "l/n1/%04d", i*7919%5000), Delete: true})
	}
	rows = append(rows, store.Row{Key: []byte("t/a/s/1/"), To: []byte("t/a/s/10"), Delete: true}, store.Row{Key: []byte("t/a/s/1/b"), Delete: true})
	s.add(rows)
	if len(s.ranges) != staleRangesMax {
		t.Errorf("got %d ranges, want %d", len(s.ranges), staleRangesMax)
	}
	for i := 1; i < len(s.ranges); i++ {
		if bytes.Compare(s.ranges[i-1].to, s.ranges[i].from) >= 0 {
			t.Errorf("range %d ends at %s, the next begins at %s", i-1, s.ranges[i-1].to, s.ranges[i].from)
		}
	}
	for _, row := range rows {
		covered := false
		for _, r := range s.ranges {
			covered = covered || bytes.Compare(r.from, row.Key) <= 0 && bytes.Compare(row.Key, r.to) < 0 && (row.To == nil || bytes.Compare(row.To, r.to) <= 0)
		}
		if !covered {
			t.Errorf("key %s is in no range", row.Key)
		}
	}
	if last := s.ranges[len(s.ranges)-1]; string(last.from) < "t/" {
		t.Errorf("the last range begins at %s: a log and a session were merged", last.from)
	}
}

// A backup of a log that was cut, and its restored copy, open and hold the same.
func TestBackupOfCutLog(t *testing.T) {
	dir := t.TempDir()
	d := mustOpen(t, dir+"/data", Options{IndexEntries: 4})
	l, s := NewLog(d), newEntryGenerator("a")
	for range 12 {
		commit(l, s.next())
	}
	if err := l.Cut(0, 6, 0); err != nil {
		t.Fatal(err)
	}
	want := readsOf(t, d, s.id)
	if err := Backup(d, l, dir+"/copy"); err != nil {
		t.Fatal(err)
	}
	if x, err := Restore(dir+"/copy", dir+"/restored", Options{WriteBuffer: 1 << 20}, nil); err != nil || x.Wrong > 0 {
		t.Fatalf("error %v, %+v", err, x.Findings)
	}
	r := mustOpen(t, dir+"/restored", Options{WriteBuffer: 1 << 20})
	if got := readsOf(t, r, s.id); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	mustClose(t, r, l, d)
}

// A store from before a Cut, under an anchor from after the Cut, is refused.
func TestOlderStoreUnderNewerAnchorIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	d := mustOpen(t, "/data", forgettingOptions(fs))
	l, s := NewLog(d), newEntryGenerator("a")
	for range 8 {
		commit(l, s.next())
	}
	if err := l.Cut(0, 4, 0); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l, d)
	d = mustOpen(t, "/data", forgettingOptions(fs))
	origin, err := store.Origin(d, "n1")
	if err != nil || origin.Batch != 4 || d.anchor.last.Origin != origin {
		t.Errorf("the chain begins at %+v, error %v, the anchor names %+v", origin, err, d.anchor.last.Origin)
	}
	other, err := d.MarkAt("n1", 5)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Apply([]store.Row{{Key: []byte("l/n1/"), To: partKey(6), Delete: true}, store.OriginRow("n1", other)}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	if _, err := Open("/data", "n1", forgettingOptions(fs)); err == nil {
		t.Error("a log that lost its first batches was opened")
	}
	if x, err := Examine("/data", forgettingOptions(fs), nil); err != nil || x.Wrong == 0 {
		t.Errorf("error %v, no finding", err)
	}
}
