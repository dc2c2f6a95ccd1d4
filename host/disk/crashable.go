// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/store"
)

// setDeterministic disables the background work of Pebble, so that the reads of
// a simulated node depend only on the applied batches.
func setDeterministic(o *pebble.Options) {
	o.MemTableSize = 64 << 20
	o.DisableAutomaticCompactions = true
	o.DisableTableStats = true
	o.L0CompactionThreshold = 1 << 20
	o.L0StopWritesThreshold = 1 << 20
}

// CrashableStore is a store.KV for the simulator: Pebble over an in-memory file
// system that loses unsynced data in a crash. Each Apply is synced.
type CrashableStore struct {
	keys
	fs *vfs.MemFS
}

var _ store.KV = (*CrashableStore)(nil)

// OpenCrashableStore returns an empty store.
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

// Crash discards unsynced data and opens the store again.
func (t *CrashableStore) Crash() error {
	left := t.fs.CrashClone(vfs.CrashCloneCfg{})
	if err := t.db.Close(); err != nil {
		return err
	}
	t.fs = left
	return t.open()
}

// Close closes the store. Its content is lost.
func (t *CrashableStore) Close() error { return t.db.Close() }

// silent is a Pebble logger that discards everything. It panics on a fatal
// error, which cannot happen in memory.
type silent struct{}

func (silent) Infof(string, ...any)              {}
func (silent) Errorf(string, ...any)             {}
func (silent) Fatalf(format string, args ...any) { panic(format) }
