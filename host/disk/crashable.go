// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/store"
)

// setDeterministic takes from Pebble what it does by itself, so that what a simulated node
// reads is a function of what was applied.
func setDeterministic(o *pebble.Options) {
	o.MemTableSize = 64 << 20
	o.DisableAutomaticCompactions = true
	o.DisableTableStats = true
	o.L0CompactionThreshold = 1 << 20
	o.L0StopWritesThreshold = 1 << 20
}

// CrashableStore is a store.KV for the simulator: Pebble over a file system in memory that
// loses in a crash what was not synced. Each Apply is synced.
type CrashableStore struct {
	keys
	fs *vfs.MemFS
}

var _ store.KV = (*CrashableStore)(nil)

// OpenCrashableStore opens an empty one.
func OpenCrashableStore() (*CrashableStore, error) {
	t := &CrashableStore{fs: vfs.NewCrashableMem()}
	return t, t.open()
}

func (t *CrashableStore) open() (err error) {
	o := &pebble.Options{FS: t.fs, FormatMajorVersion: pebble.FormatNewest, Logger: silent{}}
	setDeterministic(o)
	t.db, err = pebble.Open("", o)
	return err
}

// Crash loses what was not synced, and opens again what is left.
func (t *CrashableStore) Crash() error {
	left := t.fs.CrashClone(vfs.CrashCloneCfg{})
	if err := t.db.Close(); err != nil {
		return err
	}
	t.fs = left
	return t.open()
}

// Close lets go of the memory.
func (t *CrashableStore) Close() error { return t.db.Close() }

// silent hears nothing, and a failure that cannot be in memory is a panic.
type silent struct{}

func (silent) Infof(string, ...any)              {}
func (silent) Errorf(string, ...any)             {}
func (silent) Fatalf(format string, args ...any) { panic(format) }
