// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/store"
)

// scarceFS is a file system without a free descriptor while scarce is positive. A failed
// reuse has renamed the file.
type scarceFS struct {
	vfs.FS
	scarce *atomic.Int64
}

func (s scarceFS) taken() bool { return s.scarce.Load() > 0 }

func (s scarceFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if s.taken() {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	return s.FS.Create(name, c)
}

func (s scarceFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if s.taken() {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.ENFILE}
	}
	return s.FS.Open(name, opts...)
}

func (s scarceFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if s.taken() {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	return s.FS.OpenReadWrite(name, c, opts...)
}

func (s scarceFS) OpenDir(name string) (vfs.File, error) {
	if s.taken() {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	return s.FS.OpenDir(name)
}

func (s scarceFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !s.taken() {
		return s.FS.ReuseForWrite(old, name, c)
	}
	if err := s.FS.Rename(old, name); err != nil {
		return nil, err
	}
	return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
}

func (s scarceFS) List(dir string) ([]string, error) {
	if s.taken() {
		return nil, &os.PathError{Op: "open", Path: dir, Err: syscall.EMFILE}
	}
	return s.FS.List(dir)
}

// Each operation that needs a descriptor asks for one, and is repeated until there is one.
func TestOpensWaitForADescriptor(t *testing.T) {
	const c = vfs.WriteCategoryUnspecified
	for name, do := range map[string]func(vfs.FS, string) (vfs.File, error){
		"create":         func(fs vfs.FS, dir string) (vfs.File, error) { return fs.Create(filepath.Join(dir, "new"), c) },
		"open":           func(fs vfs.FS, dir string) (vfs.File, error) { return fs.Open(filepath.Join(dir, "old")) },
		"open to write":  func(fs vfs.FS, dir string) (vfs.File, error) { return fs.OpenReadWrite(filepath.Join(dir, "old"), c) },
		"open directory": func(fs vfs.FS, dir string) (vfs.File, error) { return fs.OpenDir(dir) },
		"reuse": func(fs vfs.FS, dir string) (vfs.File, error) {
			return fs.ReuseForWrite(filepath.Join(dir, "old"), filepath.Join(dir, "new"), c)
		},
		"list": func(fs vfs.FS, dir string) (vfs.File, error) {
			if names, err := fs.List(dir); err != nil || len(names) != 1 {
				t.Errorf("list: %v, %v", names, err)
			}
			return fs.OpenDir(dir)
		},
	} {
		dir, scarce := t.TempDir(), new(atomic.Int64)
		if err := os.WriteFile(filepath.Join(dir, "old"), nil, fileMode); err != nil {
			t.Fatal(err)
		}
		scarce.Store(3)
		var pauses []time.Duration
		fs := descriptorFS{scarceFS{realFS, scarce}, func() { scarce.Add(-1) }, func(d time.Duration) { pauses = append(pauses, d) }}
		f, err := do(fs, dir)
		if err != nil || scarce.Load() != 0 || len(pauses) != 2 {
			t.Errorf("%s: %v after %d pauses, scarce %d", name, err, len(pauses), scarce.Load())
			continue
		}
		_ = f.Close()
		asked := 0
		scarce.Store(1)
		fs.free = func() { asked++ }
		if f, err := fs.Open(dir); err == nil || asked != descriptorAttempts-1 {
			t.Errorf("without end: %v, %v, asked %d times", f, err, asked)
		}
	}
}

// A store that has no descriptor for a while loses nothing and does not end its process.
func TestStoreSurvivesScarceDescriptors(t *testing.T) {
	scarce, asked := new(atomic.Int64), new(atomic.Int64)
	d, err := Open(filepath.Join(t.TempDir(), "data"), "n1", Options{FreeFloor: 1, WriteBuffer: 256 << 10, fs: scarceFS{vfs.NewMem(), scarce},
		Fatal: func(line string) { panic(line) }, Descriptors: func() { asked.Add(1); scarce.Add(-1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for i := range 64 {
		scarce.Store(1)
		if err := d.Apply([]store.Row{{Key: []byte{'x', byte(i)}, Value: make([]byte, 64<<10)}}); err != nil {
			t.Fatal(err)
		}
	}
	scarce.Store(0)
	for i := range 64 {
		if v, ok, err := d.Get([]byte{'x', byte(i)}); err != nil || !ok || len(v) != 64<<10 {
			t.Errorf("row %d: %d bytes, %v, %v", i, len(v), ok, err)
		}
	}
	if asked.Load() == 0 {
		t.Error("no descriptor was asked for")
	}
}
