// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failFS is a file system on which every change fails.
type failFS struct {
	vfs.FS
	err error
}

func (f failFS) Create(string, vfs.DiskWriteCategory) (vfs.File, error) { return nil, f.err }
func (f failFS) ReuseForWrite(string, string, vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, f.err
}
func (f failFS) OpenReadWrite(string, vfs.DiskWriteCategory, ...vfs.OpenOption) (vfs.File, error) {
	return nil, f.err
}
func (f failFS) OpenDir(string) (vfs.File, error)   { return failFile{nil, f.err}, nil }
func (f failFS) Link(string, string) error          { return f.err }
func (f failFS) Rename(string, string) error        { return f.err }
func (f failFS) MkdirAll(string, os.FileMode) error { return f.err }

type failFile struct {
	vfs.File
	err error
}

func (f failFile) Write([]byte) (int, error)          { return 0, f.err }
func (f failFile) WriteAt([]byte, int64) (int, error) { return 0, f.err }
func (f failFile) Sync() error                        { return f.err }
func (f failFile) SyncData() error                    { return f.err }
func (f failFile) SyncTo(int64) (bool, error)         { return false, f.err }
func (f failFile) Close() error                       { return f.err }

// Each failed change of a file of the store is fatal, also those that Pebble does not
// make today. A file outside of the store is not, nor is a table without space.
func TestGuardCoversEveryChange(t *testing.T) {
	const c = vfs.WriteCategoryUnspecified
	file := func(use func(vfs.File) error) func(guardFS, string) error {
		return func(g guardFS, name string) error { return use(guardFile{failFile{nil, g.FS.(failFS).err}, g, name}) }
	}
	for operation, do := range map[string]func(g guardFS, name string) error{
		"create":    func(g guardFS, name string) error { _, err := g.Create(name, c); return err },
		"reuse":     func(g guardFS, name string) error { _, err := g.ReuseForWrite("old", name, c); return err },
		"open":      func(g guardFS, name string) error { _, err := g.OpenReadWrite(name, c); return err },
		"link":      func(g guardFS, name string) error { return g.Link("old", name) },
		"rename":    func(g guardFS, name string) error { return g.Rename("old", name) },
		"mkdir":     func(g guardFS, name string) error { return g.MkdirAll(name, 0o700) },
		"write":     file(func(f vfs.File) error { _, err := f.Write(nil); return err }),
		"write at":  file(func(f vfs.File) error { _, err := f.WriteAt(nil, 0); return err }),
		"sync":      file(func(f vfs.File) error { return f.Sync() }),
		"sync data": file(func(f vfs.File) error { return f.SyncData() }),
		"sync to":   file(func(f vfs.File) error { _, err := f.SyncTo(1); return err }),
		"close":     file(func(f vfs.File) error { return f.Close() }),
		"sync of a directory": func(g guardFS, name string) error {
			dir, err := g.OpenDir(name)
			return errors.Join(err, dir.Sync())
		},
	} {
		for _, test := range []struct {
			name  string
			err   error
			fatal bool
		}{
			{"/store/pebble/000001.log", syscall.EIO, true},
			{"/store/pebble/000001.log", syscall.ENOSPC, true},
			{"/store/pebble/000001.sst", syscall.EIO, true},
			{"/store/pebble/000001.sst", syscall.ENOSPC, false},
			{"/store/pebble/000001.sst", syscall.EDQUOT, false},
			{"/copy/pebble/000001.log", syscall.EIO, false},
			{"/storehouse/000001.log", syscall.EIO, false},
			{"/store/pebble/000001.log", os.ErrClosed, false},
		} {
			line := ""
			func() {
				d := &Disk{dir: filepath.FromSlash("/store"), options: Options{Fatal: func(text string) { line = text; panic(text) }}}
				defer func() { _ = recover() }()
				if err := do(guardFS{failFS{nil, test.err}, d}, filepath.FromSlash(test.name)); !errors.Is(err, test.err) {
					t.Errorf("%s of %s: got %v, want %v", operation, test.name, err, test.err)
				}
			}()
			if fatal := line != ""; fatal != test.fatal || fatal && !strings.Contains(line, "000001") {
				t.Errorf("%s of %s, %v: fatal %v %q, want %v", operation, test.name, test.err, fatal, line, test.fatal)
			}
		}
	}
}

// Once a marker exists, a power failure cannot lose the MANIFEST that its name
// refers to.
func TestMarkerFollowsManifest(t *testing.T) {
	const dir = "/data/pebble"
	fs := vfs.NewCrashableMem()
	if err := fs.MkdirAll(dir, dirMode); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/", "/data"} { // the directory itself is durable
		if err := syncDir(fs, name); err != nil {
			t.Fatal(err)
		}
	}
	g := guardFS{fs, &Disk{dir: "/data"}}
	for _, name := range []string{"MANIFEST-000001", "marker.manifest.000001.MANIFEST-000001"} {
		f, err := g.Create(g.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, f)
	}
	names, err := fs.CrashClone(vfs.CrashCloneCfg{}).List(dir)
	if err != nil || !slices.Equal(names, []string{"MANIFEST-000001"}) {
		t.Errorf("after a power failure: files %v, error %v, want the MANIFEST alone", names, err)
	}
}
