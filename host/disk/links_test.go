// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// readers are the operations that only read the store in dir.
var readers = map[string]func(t *testing.T, dir string) error{
	"Examine": func(t *testing.T, dir string) error {
		x, err := Examine(dir, Options{}, nil)
		if err == nil && x.Wrong > 0 {
			err = errors.New(x.Findings[0].What)
		}
		return err
	},
	"Open to read": func(t *testing.T, dir string) error {
		d, err := Open(dir, "", Options{ReadOnly: true})
		if err == nil {
			_, secretErr := d.Secret()
			err = errors.Join(ignoreAbsent(secretErr), d.Close())
		}
		return err
	},
	"Restore": func(t *testing.T, dir string) error {
		_, err := Restore(dir, filepath.Join(t.TempDir(), "restored"), Options{FreeFloor: 1, WriteBuffer: 1 << 20}, nil)
		return err
	},
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// openToWrite opens a store as a server does.
func openToWrite(_ *testing.T, dir string) error {
	d, err := Open(dir, "n1", Options{FreeFloor: 1, WriteBuffer: 1 << 20, Ballast: 1 << 20})
	if err == nil {
		_, secretErr := d.Secret()
		err = errors.Join(secretErr, NewLog(d).Close(), d.Close())
	}
	return err
}

// describeTree returns a line for the folder and for each file in it, with everything that
// an operation could change.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		content := []byte(nil)
		if info.Mode().IsRegular() {
			content, err = os.ReadFile(path)
		}
		fmt.Fprintf(&b, "%s %s %s %.6s\n", path, info.Mode(), info.ModTime(), actor.HashOf(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// An operation that only reads a store leaves no file behind and changes neither a file
// nor a mode, whether or not a server has used the store before.
func TestReadersWriteNothing(t *testing.T) {
	for name, read := range readers {
		for _, used := range []bool{true, false} {
			dir := newTestStore(t, 20)
			if !used {
				if err := os.Remove(filepath.Join(dir, lockFile)); err != nil {
					t.Fatal(err)
				}
			}
			err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
				if entry.IsDir() {
					return os.Chmod(path, 0o755)
				}
				return os.Chmod(path, 0o644)
			})
			if err != nil {
				t.Fatal(err)
			}
			before := describeTree(t, dir)
			if err := read(t, dir); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if after := describeTree(t, dir); after != before {
				t.Errorf("%s of a store with LOCK=%v has changed it:\n%.2000s\nbefore:\n%.2000s", name, used, after, before)
			}
		}
	}
}

// A link in place of any file of a store is refused by name, and the file that it names
// stays as it is. So is a named pipe, without waiting for its other end.
func TestLinksAndPipesAreRefused(t *testing.T) {
	operations := map[string]func(t *testing.T, dir string) error{"Open": openToWrite}
	for name, read := range readers {
		operations[name] = read
	}
	for _, file := range []string{lockFile, formatFile, anchorFile, secretFile, ballastFile, holderFile, pebbleDir, preservedDir, "pebble/MANIFEST-000001"} {
		for kind, replace := range map[string]func(victim, name string) error{
			"symbolic link": os.Symlink,
			"named pipe":    func(_, name string) error { return syscall.Mkfifo(name, 0o600) },
		} {
			for operation, do := range operations {
				dir, outside := newTestStore(t, 4), t.TempDir()
				victim, name := filepath.Join(outside, "victim"), filepath.Join(dir, file)
				if err := os.WriteFile(victim, []byte("troupe: not yours\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				err := os.Rename(name, filepath.Join(outside, "moved"))
				if ignoreAbsent(err) != nil {
					t.Fatal(err)
				}
				if err == nil && kind == "symbolic link" && file != lockFile { // the link is to a valid file
					victim = filepath.Join(outside, "moved")
				}
				if err := replace(victim, name); err != nil {
					t.Fatal(err)
				}
				before := describeTree(t, outside)
				done := make(chan error, 1)
				go func() { done <- do(t, dir) }()
				select {
				case err := <-done:
					if err == nil || !strings.Contains(err.Error(), filepath.Base(file)) || !strings.Contains(err.Error(), "is a "+kind) {
						t.Errorf("%s with %s as %s: got error %v, want one that names the file", operation, file, kind, err)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("%s with %s as %s waits", operation, file, kind)
				}
				if after := describeTree(t, outside); after != before {
					t.Errorf("%s with %s as %s: the folder outside has changed:\n%s\nbefore:\n%s", operation, file, kind, after, before)
				}
			}
		}
	}
}

// A store without LOCK excludes no writer. If one has opened it in the meantime, the content that was read
// is not used.
func TestReaderNoticesWriter(t *testing.T) {
	dir, to := newTestStore(t, 20), filepath.Join(t.TempDir(), "restored")
	if err := os.Remove(filepath.Join(dir, lockFile)); err != nil {
		t.Fatal(err)
	}
	copied := &Disk{dir: to, options: Options{FreeFloor: 1}.withDefaults(to)}
	_, err := examineWith(dir, Options{}, nil, func(d *Disk, _ store.Examination) error {
		if err := openToWrite(t, dir); err != nil {
			t.Fatal(err)
		}
		return copied.copyFrom(dir, d.checkUnused)
	})
	if err == nil || !strings.Contains(err.Error(), "was opened by another process while it was read") {
		t.Errorf("got error %v", err)
	}
	if names, err := os.ReadDir(to); err != nil || len(names) > 0 {
		t.Errorf("got files %v, error %v, want none", names, err)
	}
}
