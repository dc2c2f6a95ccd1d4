// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// checkPrivate checks that a directory and everything below it is accessible to
// its owner only. It returns the number of files.
func checkPrivate(t *testing.T, dir string) (files int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an open store deletes tables after compactions
		}
		if err != nil {
			return err
		}
		want := os.FileMode(0o600)
		if info.IsDir() {
			want = 0o700
		} else {
			files++
		}
		// A table that a compaction is creating has no mode yet.
		for tries := 0; info.Mode().Perm() == 0 && tries < 10_000; tries++ {
			runtime.Gosched()
			if info, err = os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s: mode %04o, want %04o", path, info.Mode().Perm(), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// withUmask sets the umask of the process until the test ends.
func withUmask(t *testing.T, umask int) {
	old := syscall.Umask(umask)
	t.Cleanup(func() { syscall.Umask(old) })
}

// A store, its backup and its restored copy are accessible to their owner only,
// whatever the umask is.
func TestStoreIsPrivate(t *testing.T) {
	for _, umask := range []int{0, 0o077, 0o777} {
		base := t.TempDir()
		withUmask(t, umask)
		dir, backup, restored := filepath.Join(base, "data"), filepath.Join(base, "backup"), filepath.Join(base, "restored")
		for range 2 { // a new store, and the same one reopened
			d := mustOpen(t, dir, Options{FreeFloor: 1, tune: func(o *pebble.Options) { o.MemTableSize = 64 << 10 }})
			l, s := NewLog(d), newEntryGenerator("alice")
			n, err := checkEntries(d, s.id)
			if err != nil {
				t.Fatal(err)
			}
			for s.n < n {
				s.next()
			}
			for range 300 {
				commit(l, s.next())
			}
			if _, err := d.Secret(); err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				if err := Backup(d, l, backup); err != nil {
					t.Fatal(err)
				}
			}
			if n := checkPrivate(t, dir); n < 10 {
				t.Errorf("got %d files, want tables and logs among them", n)
			}
			mustClose(t, l, d)
		}
		if _, err := Restore(backup, restored, Options{FreeFloor: 1, WriteBuffer: 1 << 20}, nil); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{dir, backup, restored} {
			if n := checkPrivate(t, dir); n < 8 {
				t.Errorf("%s: got %d files", dir, n)
			}
		}
	}
}

// A folder that other users can read, with the files of an earlier version in
// it, is narrowed with a warning.
func TestWideFolderIsNarrowed(t *testing.T) {
	dir := newTestStore(t, 20)
	for name, use := range map[string]func(target string, options Options) error{
		"store":   func(target string, options Options) error { mustClose(t, mustOpen(t, target, options)); return nil },
		"restore": func(target string, options Options) error { _, err := Restore(dir, target, options, nil); return err },
		"backup": func(target string, options Options) error {
			d := mustOpen(t, dir, options)
			l := NewLog(d)
			defer mustClose(t, l, d)
			return Backup(d, l, target)
		},
	} {
		target := dir
		if name != "store" {
			target = t.TempDir()
		}
		err := filepath.WalkDir(target, func(path string, entry fs.DirEntry, err error) error {
			if entry.IsDir() {
				return os.Chmod(path, 0o755)
			}
			return os.Chmod(path, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		options := Options{FreeFloor: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		if err := use(target, options); err != nil {
			t.Fatal(err)
		}
		checkPrivate(t, target)
		if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "level=WARN") || !strings.Contains(s, target) || !strings.Contains(s, "0755") {
			t.Errorf("%s: log %q, want one warning that names the folder and its mode", name, s)
		}
		log.Reset()
		mustClose(t, mustOpen(t, target, options))
		if log.Len() > 0 {
			t.Errorf("log of a private folder: %q", log.String())
		}
	}
}

// A wide folder of another user is refused and left as it is.
func TestWideFolderOfAnotherUserIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	foreign := privateFS{FS: realFS.FS, chmod: func(string, os.FileMode) error { return syscall.EPERM }}
	_, err := Open(dir, "n1", Options{fs: foreign, FreeFloor: 1})
	if err == nil || !strings.HasPrefix(err.Error(), "store "+dir+": ") || !strings.Contains(err.Error(), "mode 0755") || !strings.Contains(err.Error(), "chmod 700 "+dir) {
		t.Errorf("got %v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 1 { // LOCK
		t.Errorf("files %v, error %v", names, err)
	}
}

// A read-only open changes no mode.
func TestReadOnlyOpenKeepsModes(t *testing.T) {
	dir := newTestStore(t, 20)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, dir, Options{ReadOnly: true}))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
}
