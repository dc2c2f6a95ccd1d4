// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

var flips = flag.Int("flips", 8, "number of bits to flip in each file of a store, one at a time")

// fileSet is a directory in memory, read from a real one in order to be
// corrupted.
type fileSet map[string][]byte

func readFiles(t *testing.T, dir string) fileSet {
	t.Helper()
	all := fileSet{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		all[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// open opens a store with these files.
func (f fileSet) open(t *testing.T) (*Disk, error) {
	mem := vfs.NewMem()
	if err := mem.MkdirAll("/data/pebble", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		w, err := mem.Create("/data/"+name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Clone(f[name])); err != nil {
			t.Fatal(err)
		}
		mustClose(t, w)
	}
	return Open("/data", "n1", Options{fs: mem, Fatal: func(line string) { panic(line) }})
}

// Each corruption of each file is harmless or detected. The error of a detected
// corruption names the store. Nothing is lost or changed silently.
func TestCorruptionIsDetectedOrHarmless(t *testing.T) {
	dir := t.TempDir()
	d := mustOpen(t, dir, Options{IndexEntries: 20}) // four flushes of the index
	l := NewLog(d)
	names := []string{"a", "b", "c"}
	const each = 30
	for _, name := range names {
		s := newEntryGenerator(name)
		for range each {
			commit(l, s.next())
		}
		if name != "c" { // the last third stays in the write-ahead log
			if err := d.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, l, d)
	whole := readFiles(t, dir)

	detected, harmless := map[string]int{}, map[string]int{}
	try := func(name, what string, damaged []byte) {
		t.Helper()
		files := maps.Clone(whole)
		if damaged == nil {
			delete(files, name)
		} else {
			files[name] = damaged
		}
		class := strings.TrimLeft(filepath.Base(name), "0123456789")
		class, _, _ = strings.Cut(class, "-")
		d, err := files.open(t)
		if err != nil {
			detected[class]++
			if !strings.HasPrefix(err.Error(), "store /data: ") {
				t.Errorf("%s %s: error does not name the store: %v", name, what, err)
			}
			return
		}
		defer d.Close()
		for _, actorName := range names {
			n, err := checkEntries(d, actor.NewID(actorName, "s-1"))
			if err != nil {
				detected[class]++
				if !strings.Contains(err.Error(), "key") && !strings.Contains(err.Error(), "blob") {
					t.Errorf("%s %s: error names no key: %v", name, what, err)
				}
				return
			}
			if n != each {
				t.Errorf("%s %s: got %d entries of %s and no error, want %d entries", name, what, n, actorName, each)
				return
			}
		}
		harmless[class]++
	}
	random := rand.New(rand.NewPCG(3, 4))
	for _, name := range slices.Sorted(maps.Keys(whole)) {
		content := whole[name]
		try(name, "removed", nil)
		if len(content) == 0 {
			continue
		}
		for range *flips {
			at, bit := random.IntN(len(content)), random.IntN(8)
			flipped := bytes.Clone(content)
			flipped[at] ^= 1 << bit
			try(name, fmt.Sprintf("bit %d of byte %d flipped", bit, at), flipped)
		}
		for i := range 3 {
			at := len(content) * i / 3
			try(name, fmt.Sprintf("cut at %d of %d", at, len(content)), content[:at:at])
		}
	}
	t.Logf("detected %v, harmless %v", detected, harmless)
	for _, class := range []string{"FORMAT", "ANCHOR", ".log", ".sst", "MANIFEST"} {
		if detected[class] == 0 {
			t.Errorf("no damage to %s was detected; files are %v", class, slices.Sorted(maps.Keys(whole)))
		}
	}
}

// Pebble often treats a truncated write-ahead log as the result of a crash. Only the
// anchor then reveals the loss.
func TestAnchorDetectsTruncatedLog(t *testing.T) {
	dir := t.TempDir()
	d := mustOpen(t, dir, Options{WriteBuffer: 1 << 20})
	l, s := NewLog(d), newEntryGenerator("a")
	for range 60 {
		commit(l, s.next())
	}
	mustClose(t, l, d)
	whole := readFiles(t, dir)
	var log string // the longest if there are several: the current one
	for name, content := range whole {
		if strings.HasSuffix(name, ".log") && len(content) >= len(whole[log]) {
			log = name
		}
	}
	byAnchor, cuts := 0, 0
	for at := 0; at < len(whole[log]); at += 4096 {
		files := maps.Clone(whole)
		files[log] = whole[log][:at]
		_, err := files.open(t)
		if err == nil {
			t.Errorf("cut at %d of %d: not detected", at, len(whole[log]))
		} else if strings.Contains(err.Error(), "before its anchor at batch 60: what was committed is lost") {
			byAnchor++
		}
		cuts++
	}
	if t.Logf("%d cuts, %d detected by the anchor only", cuts, byAnchor); byAnchor == 0 {
		t.Error("the anchor detected no cut")
	}
}

// Open and Examine name the file that Pebble cannot open. Examine reports a loss if
// it could not read everything.
func TestCorruptionErrorsNameFile(t *testing.T) {
	const entries = 300
	dir := newTestStore(t, entries)
	whole := readFiles(t, dir)
	var log string
	for name, content := range whole {
		if strings.HasSuffix(name, ".log") && len(content) >= len(whole[log]) {
			log = name
		}
	}
	for name := range whole {
		if strings.Contains(name, "marker.") {
			files := maps.Clone(whole)
			delete(files, name)
			if _, err := files.open(t); err == nil || !strings.Contains(err.Error(), "a marker file, is missing or damaged") {
				t.Errorf("without %s: got %v", name, err)
			}
		}
	}
	corrupt, message := corruptLog(t, whole, log)
	if !strings.Contains(message, "write-ahead log ") || !strings.Contains(message, log) || !strings.Contains(message, fmt.Sprintf("up to %d,", entries)) {
		t.Error(message)
	}
	for name, content := range map[string][]byte{log: corrupt, anchorFile: []byte("?"), secretFile: bytes.Repeat([]byte("?"), secretBytes+secretChecksumBytes)} {
		path := filepath.Join(dir, name)
		old := whole[name]
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		x := examine(t, dir)
		if x.Wrong == 0 || x.Findings[0].Lost == "" || !strings.Contains(x.Findings[0].Where+x.Findings[0].What, filepath.Base(name)) {
			t.Errorf("%s: got findings %+v", name, x.Findings)
		}
		if err := os.WriteFile(path, old, 0o600); err != nil {
			t.Fatal(err)
		}
		if old == nil {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A store whose newest log is empty or unreadable can still be read with
// Damaged. Examine reports the missing batches.
func TestDamagedStoreIsReadable(t *testing.T) {
	from := t.TempDir()
	d := mustOpen(t, from, Options{WriteBuffer: 1 << 20})
	l, s := NewLog(d), newEntryGenerator("a")
	const flushed, all = 200, 500
	for n := range all {
		commit(l, s.next())
		if n == flushed-1 {
			if err := d.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, l, d)
	log := filepath.Base(newestLog(t, from))
	corrupt, _ := corruptLog(t, readFiles(t, from), "pebble/"+log)
	for name, content := range map[string][]byte{"empty": {}, "corrupt": corrupt} {
		dir := filepath.Join(t.TempDir(), name) // opening a store for writing changes it
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, pebbleDir, log), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, "n1", Options{ReadOnly: true}); err == nil {
			t.Fatalf("%s: opened read-only without Damaged", name)
		}
		d, err := Open(dir, "n1", Options{ReadOnly: true, Damaged: true})
		if err != nil {
			t.Fatalf("%s: open with Damaged: %v", name, err)
		}
		if n, err := checkEntries(d, actor.NewID("a", "s-1")); err != nil || n < flushed || n == all {
			t.Errorf("%s: got %d entries, error %v", name, n, err)
		}
		mustClose(t, d)
		if _, err := Open(dir, "n1", Options{Damaged: true}); err == nil {
			t.Errorf("%s: opened for writing", name)
		}
		x := examine(t, dir)
		if !slices.ContainsFunc(x.Findings, func(f store.Finding) bool {
			return strings.HasPrefix(f.Lost, "the batches ") && strings.HasSuffix(f.Lost, fmt.Sprintf(" to %d, which had been acknowledged", all))
		}) {
			t.Errorf("%s: got findings %+v", name, x.Findings)
		}
	}
}

// A failed open keeps a copy of the original log, which a second failed open does
// not overwrite. A successful open keeps no copy.
func TestWALIsPreservedUntilVerified(t *testing.T) {
	dir := newTestStore(t, 300)
	log := newestLog(t, dir)
	whole, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	bad := whole[:len(whole)/2]
	if err := os.WriteFile(log, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	preserved := filepath.Join(dir, preservedDir, filepath.Base(log))
	for range 2 {
		if _, err := Open(dir, "n1", Options{WriteBuffer: 1 << 20}); err == nil || !strings.Contains(err.Error(), "the original log is preserved in kept") {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(preserved); err != nil || !bytes.Equal(got, bad) {
			t.Fatalf("got %d bytes of the preserved log, want %d; error %v", len(got), len(bad), err)
		}
	}
	if now, err := os.ReadFile(log); err == nil && bytes.Equal(now, bad) {
		t.Fatal("failed open left the log unchanged, so the test shows nothing")
	}
	// A log that Pebble rejects at once gives the same error on every attempt.
	dir = newTestStore(t, 300)
	log = newestLog(t, dir)
	corrupt, _ := corruptLog(t, readFiles(t, dir), "pebble/"+filepath.Base(log))
	if err := os.WriteFile(log, corrupt, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Open(dir, "n1", Options{WriteBuffer: 1 << 20}); err == nil || !strings.Contains(err.Error(), "write-ahead log") {
			t.Fatal(err)
		}
	}
	intact := newTestStore(t, 30)
	d := mustOpen(t, intact, Options{WriteBuffer: 1 << 20})
	mustClose(t, d)
	if _, err := os.Stat(filepath.Join(intact, preservedDir)); !os.IsNotExist(err) {
		t.Errorf("an intact store has a preserved log: %v", err)
	}
}

// corruptLog corrupts a log such that Pebble rejects it. Most corruptions make
// Pebble treat the log as truncated, and then the anchor detects the loss. It
// returns the corrupt log and the error of Open.
func corruptLog(t *testing.T, whole fileSet, log string) (content []byte, message string) {
	t.Helper()
	const block = 512
	for from := 8 * block; from+block < len(whole[log]); from += 8 * block {
		files := maps.Clone(whole)
		files[log] = bytes.Clone(whole[log])
		copy(files[log][4*block:], whole[log][from:from+block])
		if _, err := files.open(t); err != nil && strings.Contains(err.Error(), "WAL") {
			return files[log], err.Error()
		}
	}
	t.Fatal("Pebble reads the log despite all corruption")
	return nil, ""
}

func newestLog(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "pebble", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	return slices.Max(logs)
}
