// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

func TestReopenKeepsCommittedEntries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := newEntryGenerator("alice")
	var end store.Mark
	for range 4 {
		d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
		if d.End() != end {
			t.Fatalf("log ends at %+v, want %+v", d.End(), end)
		}
		l := NewLog(d)
		for range 25 {
			commit(l, s.next())
		}
		mustClose(t, l)
		end = l.Synced(0).End
		mustClose(t, d)
	}
	d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	if n, err := checkEntries(d, s.id); n != 100 || err != nil {
		t.Errorf("got %d entries, error %v, want 100", n, err)
	}
	if end, err := d.VerifyAll(); err != nil || end != d.End() || end.Pos != 100 {
		t.Errorf("VerifyAll: got %+v, error %v", end, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got permissions %v of the directory, error %v, want 0700", info.Mode(), err)
	}
}

func TestReadOnlyOpenChangesNothing(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, "", Options{ReadOnly: true}); err == nil || !strings.Contains(err.Error(), "holds no store") {
		t.Errorf("empty directory: got %v", err)
	}
	if _, err := Open(filepath.Join(dir, "nowhere"), "", Options{ReadOnly: true}); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("missing directory: got %v", err)
	}
	d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	l, s := NewLog(d), newEntryGenerator("alice")
	commit(l, s.next(), s.next(), s.next())
	mustClose(t, l, d)

	before := listing(t, filepath.Join(dir, "pebble"))
	d, err := Open(dir, "", Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := checkEntries(d, s.id); n != 3 || err != nil || d.Node() != "n1" {
		t.Errorf("got %d entries of node %s, error %v", n, d.Node(), err)
	}
	page, err := d.Runs(actor.DefaultTenant, runs.Filter{}, actor.CallID{}, 9)
	if newest := page.All; err != nil || len(newest) != 2 || newest[0].Run.Compare(newest[1].Run) <= 0 {
		t.Errorf("got runs %v, error %v, want the newest first", newest, err)
	}
	if err := d.Apply([]store.Row{store.FormatRow()}); err == nil {
		t.Error("Apply succeeded on a read-only store")
	}
	mustClose(t, d)
	if after := listing(t, filepath.Join(dir, "pebble")); after != before {
		t.Errorf("read-only open changed the directory:\n%s\n%s", before, after)
	}
}

func listing(t *testing.T, dir string) string {
	var b strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		content, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		b.WriteString(e.Name() + " " + actor.HashOf(content).String()[:8] + "\n")
	}
	return b.String()
}

func TestLockExcludesSecondProcess(t *testing.T) {
	dir := t.TempDir()
	d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	for _, options := range []Options{{}, {ReadOnly: true}} {
		_, err := Open(dir, "n1", options)
		if held, ok := errors.AsType[InUseError](err); !ok || held.PID != os.Getpid() || !strings.Contains(err.Error(), "is in use by process ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("second open: got %v", err)
		}
	}
	mustClose(t, d)
	mustClose(t, mustOpen(t, dir, Options{WriteBuffer: 1 << 20}))
}

// A directory that is not a store of this node and format is refused and left
// unchanged.
func TestOpenRefusesForeignDirectory(t *testing.T) {
	foreign := func(t *testing.T, dir string) {
		db, err := pebble.Open(dir, &pebble.Options{Logger: silent{}})
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, db)
	}
	file := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	ours := func(change func(t *testing.T, dir string)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
			l, s := NewLog(d), newEntryGenerator("alice")
			commit(l, s.next())
			mustClose(t, l, d)
			change(t, dir)
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		prepare func(*testing.T, string)
		want    string
	}{
		"pebble":      {foreign, "holds a foreign Pebble or RocksDB store"},
		"other files": {file("thesis.doc", "x"), "holds other files (thesis.doc) and no FORMAT"},
		"newer": {ours(file("FORMAT", formatLine(4, "n1"))),
			"file FORMAT: is of format 4, this program reads format 3: use a newer program; nothing was changed"},
		"newer, different wording": {ours(file("FORMAT", sumFormat("troupe store 31, cluster c of n1"))), "is of format 31"},
		"newer, no checksum":       {ours(file("FORMAT", "troupe store 3 of node n1\n")), "file FORMAT: is damaged"},
		"older":                    {ours(file("FORMAT", formatLine(1, "n1"))), "file FORMAT: is of format 1, this program reads format 3: use the program that wrote it; nothing was changed"},
		"another node":             {ours(file("FORMAT", formatLine(3, "n2"))), "file FORMAT: belongs to node n2, not n1"},
		"malformed":                {ours(file("FORMAT", "hello\n")), `file FORMAT: is damaged: is no line such as "troupe store 3 of node NAME" with its checksum`},
		"no format":                {ours(remove("FORMAT")), "holds other files (ANCHOR, pebble) and no FORMAT"},
		"no anchor":                {ours(remove("ANCHOR")), "ANCHOR is missing"},
		"anchor truncated":         {ours(file("ANCHOR", "x")), "anchor: slot 0 is cut off"},
		"no keys":                  {ours(remove("pebble")), "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.prepare(t, dir)
			before := listing(t, dir)
			_, err := Open(dir, "n1", Options{WriteBuffer: 1 << 20})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "store "+dir+": ") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if after := listing(t, dir); after != before && name != "no keys" {
				t.Errorf("failed open changed the directory:\n%s\n%s", before, after)
			}
		})
	}
}

// The format is also stored under a key. A store of another format is therefore
// refused even if its FORMAT file was replaced.
func TestOpenChecksFormatKey(t *testing.T) {
	dir := t.TempDir()
	d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	if err := d.Apply([]store.Row{{Key: []byte(store.FormatKey), Value: []byte("7")}}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	if _, err := Open(dir, "n1", Options{WriteBuffer: 1 << 20}); err == nil || !strings.Contains(err.Error(), `store of format "7", this program reads format 3`) {
		t.Errorf("got %v", err)
	}
}

func TestFullDiskRefusesNewWork(t *testing.T) {
	dir := t.TempDir()
	free := uint64(100 << 20)
	options := Options{freeSpace: func(string) uint64 { return free }}
	const want = "storage full: 100 MiB free, the minimum is 256 MiB"
	free = 63 << 20
	if _, err := Open(dir, "n1", options); err == nil || !strings.Contains(err.Error(), "storage full: 63 MiB free, the minimum is 64 MiB") {
		t.Errorf("open: got %v", err)
	}
	free = 300 << 20
	mustClose(t, mustOpen(t, dir, options))
	free = 100 << 20 // an existing store can still be opened and read
	d := mustOpen(t, dir, options)
	l, s := NewLog(d), newEntryGenerator("alice")
	free = 100 << 20
	if err := l.Full(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Full: got %v", err)
	}
	if err := d.Apply([]store.Row{store.FormatRow()}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Apply: got %v", err)
	}
	commit(l, s.next()) // open work may complete
	mustClose(t, l, d)
	d = mustOpen(t, dir, options)
	if saved, err := d.Load(s.id); err != nil || len(saved.Entries) != 1 || saved.Entries[0].N != s.n {
		t.Errorf("entry committed to the full disk: got %+v, %v", saved.Entries, err)
	}
	l = NewLog(d)
	free = 300 << 20
	if err := l.Full(); err != nil {
		t.Errorf("Full with enough space: got %v", err)
	}
	mustClose(t, l, d)
}

// A crash between any two files of a new store leaves a directory in which the
// store can be created.
func TestCrashDuringCreationIsRecoverable(t *testing.T) {
	for _, left := range [][]string{{}, {"LOCK"}, {"LOCK", "HOLDER", "FORMAT.new"}, {"LOCK", "FORMAT"}, {"FORMAT", "ANCHOR.new"}, {"FORMAT", "ANCHOR"}} {
		whole := t.TempDir()
		mustClose(t, mustOpen(t, whole, Options{WriteBuffer: 1 << 20}))
		dir := t.TempDir()
		for _, name := range left {
			content, _ := os.ReadFile(filepath.Join(whole, name))
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d, err := Open(dir, "n1", Options{WriteBuffer: 1 << 20})
		if err != nil {
			t.Errorf("files %v: %v", left, err)
			continue
		}
		mustClose(t, d)
	}
}

// A folder whose store is elsewhere is locked like one with a store. Its lock keeps a store in it from being opened.
func TestLockedFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "data")
	lock, err := LockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := LockFolder(dir); !errors.As(err, new(InUseError)) || !strings.Contains(err.Error(), dir) {
			t.Errorf("a second lock: %v", err)
		}
	}
	if _, err := Open(dir, "n1", Options{WriteBuffer: 1 << 20}); !errors.As(err, new(InUseError)) {
		t.Errorf("a store in the folder: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := LockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
