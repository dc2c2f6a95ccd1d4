// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// testIndexEntries is the number of entries between flushes of the index in newTestStore.
const testIndexEntries = 8

// newTestStore returns a directory with a store of this many entries, one in each batch.
func newTestStore(t *testing.T, entries int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	d := mustOpen(t, dir, Options{IndexEntries: testIndexEntries})
	l := NewLog(d)
	s := newEntryGenerator("alice")
	for range entries {
		commit(l, s.next())
	}
	mustClose(t, l, d)
	return dir
}

func examine(t *testing.T, dir string) store.Examination {
	t.Helper()
	x, err := Examine(dir, Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestExamineContinuesPastDamage(t *testing.T) {
	dir := newTestStore(t, 20)
	whole := examine(t, dir)
	if whole.Wrong != 0 || whole.Entries != 20 || whole.Actors != 1 {
		t.Fatalf("%+v", whole)
	}
	d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	for _, batch := range []uint64{3, 7} {
		if err := d.db.Set(partKey(batch), []byte("?"), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, d)
	x := examine(t, dir)
	for _, batch := range []uint64{3, 7} {
		if !slices.ContainsFunc(x.Findings, func(f store.Finding) bool {
			return f.Where == string(partKey(batch)) && f.Lost == "the state of alice/s-1 and the events of its runs from there on"
		}) {
			t.Errorf("batch %d: no finding of the loss in %+v", batch, x.Findings)
		}
	}
	if x.End != whole.End || x.Entries != 18 {
		t.Errorf("got %d entries up to %+v, want the other 18, up to %+v", x.Entries, x.End, whole.End)
	}
	if _, err := Examine(t.TempDir(), Options{}, nil); err == nil || !strings.Contains(err.Error(), "holds no store") {
		t.Errorf("empty directory: got %v", err)
	}
	dir = newTestStore(t, 1)
	d = mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	defer mustClose(t, d)
	if _, err := Examine(dir, Options{}, nil); err == nil || !strings.Contains(err.Error(), "in use by") {
		t.Errorf("store in use: got %v", err)
	}
}

// partKey returns the key of the first part of a batch of n1.
func partKey(batch uint64) []byte { return fmt.Appendf(nil, "l/n1/%016x/%08x", batch, 0) }

// An examination finds each damaged and each missing row. Opening the store, or reading
// the data that needs the row, fails. An error about a damaged row names its key.
func TestDamagedRowIsNamed(t *testing.T) {
	from := filepath.Join(t.TempDir(), "data")
	d := mustOpen(t, from, Options{IndexEntries: testIndexEntries})
	l, alice, bob, carol := NewLog(d), newEntryGenerator("alice"), newEntryGenerator("bob"), newEntryGenerator("carol")
	commit(l, nextEntries(carol, 2)...)
	for range 20 {
		commit(l, alice.next())
	}
	saved, err := d.Load(alice.id)
	if err != nil {
		t.Fatal(err)
	}
	j, err := store.Fold(saved)
	if err != nil {
		t.Fatal(err)
	}
	commit(l, store.Entry{Actor: alice.id, Shard: 'a', Epoch: 1, N: alice.n, Record: store.Snapshot{Journal: store.EncodeJournal(&j)}, WasDue: alice.due, Due: alice.due})
	commit(l, nextEntries(bob, 5)...)
	commit(l, append(nextEntries(bob, 1), nextEntries(carol, 1)...)...) // after the watermark
	mustClose(t, l, d)
	if x := examine(t, from); x.Wrong != 0 || x.Entries != 29 {
		t.Fatalf("%+v", x)
	}
	const scope = "t/default/s/s-1/"
	for _, c := range []struct {
		name, key string
		missing   string // error if the row is missing; empty: none
	}{
		{"part of the log", string(partKey(23)), "batch 23 of n1 is missing"},
		{"part after the watermark", string(partKey(24)), "before its anchor at batch 24: what was committed is lost"},
		{"index row", scope + "i/carol/0000000000000001", "holds entry 3, want entry 1"},
		{"index row of the last flush", scope + "i/bob/0000000000000001", ""}, // the log from the flush before is read
		{"snapshot", scope + "a/alice", scope + "a/alice: is missing"},
		{"watermark", "w/n1", ""}, // rows of the index name the last batch that they cover
	} {
		for _, missing := range []bool{false, true} {
			want := c.key
			if missing {
				want = c.missing
			}
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
			d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
			if _, ok, err := d.Get([]byte(c.key)); !ok || err != nil {
				t.Fatalf("%s: no key %s, error %v", c.name, c.key, err)
			}
			if err := d.db.Set([]byte(c.key), []byte("?"), pebble.Sync); err != nil {
				t.Fatal(err)
			}
			if missing {
				if err := d.db.Delete([]byte(c.key), pebble.Sync); err != nil {
					t.Fatal(err)
				}
			}
			mustClose(t, d)
			x := examine(t, dir)
			if lost := slices.ContainsFunc(x.Findings, func(f store.Finding) bool { return f.Lost != "" }); c.name == "watermark" && lost {
				t.Errorf("watermark, missing %v: nothing is lost, got %+v", missing, x.Findings)
			}
			if x.Wrong == 0 || !missing && !slices.ContainsFunc(x.Findings, func(f store.Finding) bool { return strings.Contains(f.Where+f.What, c.key) }) {
				t.Errorf("%s, missing %v: no finding names %s: %+v", c.name, missing, c.key, x.Findings)
			}
			d, err := Open(dir, "n1", Options{WriteBuffer: 1 << 20})
			for _, s := range []*entryGenerator{alice, bob, carol} {
				var saved store.Saved
				if err == nil {
					saved, err = d.Load(s.id)
				}
				if n := uint64(len(saved.Entries)); err == nil && s != alice && n != s.n {
					t.Errorf("%s, missing %v: %s has %d entries, want %d", c.name, missing, s.id, n, s.n)
				}
			}
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, missing %v: got %v, want %q", c.name, missing, err, want)
			}
			if d != nil {
				mustClose(t, d)
			}
		}
	}
}

func TestBackupDuringCommitsHoldsDurableEntries(t *testing.T) {
	dir := t.TempDir()
	d := mustOpen(t, filepath.Join(dir, "data"), Options{WriteBuffer: 1 << 20})
	l := NewLog(d)
	s := newEntryGenerator("alice")
	var backups []string
	var counts []uint64
	for n := range 60 {
		commit(l, s.next())
		if n%20 == 19 {
			to := filepath.Join(dir, "backup", string(rune('a'+len(backups))))
			more := s.next()
			l.Commit([]store.Entry{more}, nil) // in flight while the copy is made
			if err := Backup(d, l, to); err != nil {
				t.Fatal(err)
			}
			backups, counts = append(backups, to), append(counts, more.N)
		}
	}
	if err := Backup(d, l, backups[0]); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("backup over another: got %v", err)
	}
	mustClose(t, l, d)
	for i, from := range backups {
		to := filepath.Join(dir, "restored", filepath.Base(from))
		x, err := Restore(from, to, Options{WriteBuffer: 1 << 20}, nil)
		if err != nil || x.Wrong != 0 {
			t.Fatalf("restore: findings %+v, error %v", x.Findings, err)
		}
		if _, err := Restore(from, to, Options{WriteBuffer: 1 << 20}, nil); err == nil || !strings.Contains(err.Error(), "is not empty") {
			t.Errorf("restore over a store: got %v", err)
		}
		d := mustOpen(t, to, Options{WriteBuffer: 1 << 20})
		n, err := checkEntries(d, actor.NewID("alice", "s-1"))
		if err != nil || n < counts[i]-1 || n > counts[i] {
			t.Errorf("backup %d: got %d entries, want %d or one less; error %v", i, n, counts[i], err)
		}
		mustClose(t, d)
	}
	// A damaged backup is not restored.
	d = mustOpen(t, backups[1], Options{WriteBuffer: 1 << 20})
	if err := d.db.Delete(partKey(2), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	if _, err := Restore(backups[1], filepath.Join(dir, "never"), Options{WriteBuffer: 1 << 20}, nil); err == nil || !strings.Contains(err.Error(), "findings, the first at "+string(partKey(2))) {
		t.Errorf("restore of a damaged backup: got %v", err)
	}
}

// A store stays locked from its examination to the end of the copy, so no
// process can change it in between.
func TestRestoreLocksSource(t *testing.T) {
	from, dir := newTestStore(t, 20), filepath.Join(t.TempDir(), "copy")
	files := 0
	fs := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && strings.HasPrefix(op.Path, dir) {
			files++
			if d, err := Open(from, "n1", Options{FreeFloor: 1, WriteBuffer: 1 << 20}); err == nil {
				t.Errorf("source could be opened while %s was copied", filepath.Base(op.Path))
				mustClose(t, d)
			}
		}
		return nil
	}))
	if _, err := Restore(from, dir, Options{fs: privateFS{fs, os.Chmod}}, nil); err != nil || files < 3 {
		t.Fatalf("got %d files, error %v", files, err)
	}
	if x := examine(t, dir); x.Wrong != 0 || x.Entries != 20 {
		t.Errorf("%+v", x)
	}
}

// A store on a read-only file system is read like any other.
func TestReadOnReadOnlyFileSystem(t *testing.T) {
	from, dir := newTestStore(t, 20), filepath.Join(t.TempDir(), "copy")
	var writes atomic.Int64
	fs := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose && strings.HasPrefix(op.Path, from) {
			writes.Add(1)
			return &os.PathError{Op: "write", Path: op.Path, Err: syscall.EROFS}
		}
		return nil
	}))
	x, err := Examine(from, Options{fs: fs}, nil)
	if err != nil || x.Wrong != 0 || x.Entries != 20 || writes.Load() != 0 {
		t.Errorf("got %d write attempts, %+v, error %v", writes.Load(), x, err)
	}
	if d := mustOpen(t, from, Options{ReadOnly: true, fs: fs}); d.End().Pos == 0 {
		t.Error("store is empty")
	}
	if x, err := Restore(from, dir, Options{fs: fs}, nil); err != nil || x.Wrong != 0 {
		t.Errorf("got %+v, error %v", x, err)
	}
	d := mustOpen(t, from, Options{WriteBuffer: 1 << 20})
	if _, err := d.Secret(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	private := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && strings.HasSuffix(op.Path, secretFile) {
			return os.ErrPermission
		}
		return nil
	}))
	if x, err := Examine(from, Options{fs: private}, nil); err != nil || x.Wrong != 0 {
		t.Errorf("secret of another user: got %+v, error %v", x, err)
	}
	if x := examine(t, dir); x.Wrong != 0 || x.Entries != 20 {
		t.Errorf("%+v", x)
	}
}

// A copy that failed halfway can be retried at the same place.
func TestFailedCopyCanBeRetried(t *testing.T) {
	from, at := newTestStore(t, 20), t.TempDir()
	var failing atomic.Value // prefix of the failing files; atomic because the disk has its own goroutines
	failing.Store("-")
	fs := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasPrefix(op.Path, failing.Load().(string)) {
			return syscall.ENOSPC
		}
		return nil
	}))
	d := mustOpen(t, from, Options{fs: fs})
	l := NewLog(d)
	backup, restored := filepath.Join(at, "backup"), filepath.Join(at, "restored")
	for _, c := range []struct {
		to   string
		copy func() error
	}{
		{backup, func() error { return Backup(d, l, backup) }},
		{restored, func() error { _, err := Restore(backup, restored, Options{fs: fs}, nil); return err }},
	} {
		for _, file := range []string{filepath.Join(c.to, "FORMAT"), filepath.Join(c.to, "ANCHOR")} {
			failing.Store(file)
			if err := c.copy(); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%s: got %v, want ENOSPC", file, err)
			}
		}
		failing.Store("-")
		if err := c.copy(); err != nil {
			t.Errorf("%s: retry failed: %v", c.to, err)
		}
	}
	mustClose(t, l, d)
}

// A copy needs free space at its target, but not at its source.
func TestCopyChecksFreeSpaceOfTarget(t *testing.T) {
	at, fullDir := t.TempDir(), ""
	var mu sync.Mutex
	d := mustOpen(t, filepath.Join(at, "data"), Options{freeSpace: func(dir string) uint64 {
		mu.Lock()
		defer mu.Unlock()
		if dir == fullDir {
			return 100 << 20
		}
		return 300 << 20
	}})
	l := NewLog(d)
	for dir, want := range map[string]bool{"data": true, "backup": false} {
		mu.Lock()
		fullDir = filepath.Join(at, dir)
		mu.Unlock()
		if err := Backup(d, l, filepath.Join(at, "backup")); (err == nil) != want {
			t.Errorf("no free space in %s: got %v", dir, err)
		}
		if err := os.RemoveAll(filepath.Join(at, "backup")); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l, d)
}

// A Commit that panics on a closed log releases the log's lock.
func TestCommitAfterCloseReleasesLock(t *testing.T) {
	d := mustOpen(t, t.TempDir(), Options{WriteBuffer: 1 << 20})
	l, s := NewLog(d), newEntryGenerator("alice")
	mustClose(t, l)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("closed log accepted entries")
			}
		}()
		l.Commit([]store.Entry{s.next()}, nil)
	}()
	unlocked := make(chan struct{})
	go func() { l.Backlog(); close(unlocked) }()
	select {
	case <-unlocked:
	case <-time.After(20 * time.Second):
		t.Fatal("log is still locked")
	}
	mustClose(t, d)
}

// Examine continues behind a damaged block of a table. It names the file of the block
// and counts the other entries.
func TestExamineContinuesBehindDamagedBlock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	l, s := NewLog(d), newEntryGenerator("alice")
	const entries = 400
	for range entries {
		commit(l, s.next())
	}
	mustClose(t, l)
	if err := d.db.Flush(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	tables, err := filepath.Glob(filepath.Join(dir, pebbleDir, "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatalf("got tables %v, error %v", tables, err)
	}
	whole, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for at := 1000; at < len(whole); at += len(whole) / 7 {
		damaged := slices.Clone(whole)
		damaged[at] ^= 4
		if err := os.WriteFile(tables[0], damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		x := examine(t, dir)
		if x.Unreadable == 0 {
			continue // not a block of keys
		}
		seen++
		if x.Wrong == 0 || x.Entries+x.Events+x.Runs+x.Batches < entries {
			t.Errorf("byte %d of %d: %d entries, %d events, %d runs, %d batches", at, len(whole), x.Entries, x.Events, x.Runs, x.Batches)
		}
		if !slices.ContainsFunc(x.Findings, func(f store.Finding) bool {
			return strings.HasPrefix(f.Where, "keys from ") && strings.Contains(f.What, strings.TrimSuffix(filepath.Base(tables[0]), ".sst"))
		}) {
			t.Errorf("byte %d of %d: no finding names the file: %+v", at, len(whole), x.Findings)
		}
	}
	if seen < 4 {
		t.Errorf("%d damages made keys unreadable, want 4 or more", seen)
	}
}

// openCountFS counts how often tables are opened.
type openCountFS struct {
	vfs.FS
	tables int
}

func (o *openCountFS) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		o.tables++
	}
	return o.FS.Open(name, options...)
}

// Examine opens a table with a damaged index a few times, although the table has rows of
// many actors. Pebble opens such a table again for each read and each estimate of a size.
func TestExamineRarelyOpensDamagedTable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	l := NewLog(d)
	for i := range 40 {
		s := newEntryGenerator(fmt.Sprintf("agent-%02d", i))
		for range 10 {
			commit(l, s.next())
		}
	}
	mustClose(t, l)
	if err := d.db.Flush(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	tables, err := filepath.Glob(filepath.Join(dir, pebbleDir, "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatalf("got tables %v, error %v", tables, err)
	}
	whole, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for at := len(whole) - 1; at > len(whole)-2000; at -= 40 {
		damaged := slices.Clone(whole)
		damaged[at] ^= 4
		if err := os.WriteFile(tables[0], damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		counted := &openCountFS{FS: realFS}
		x, err := Examine(dir, Options{fs: counted}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if x.Unreadable > 0 {
			seen++
		}
		if counted.tables > 100 {
			t.Errorf("byte %d of %d: tables opened %d times for %d unreadable ranges, want at most 100", at, len(whole), counted.tables, x.Unreadable)
		}
	}
	if seen < 4 {
		t.Errorf("%d damages made keys unreadable, want 4 or more", seen)
	}
}
