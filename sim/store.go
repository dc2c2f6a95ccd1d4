// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

// sharedStore holds the logs of all nodes. Production code reads it as a store.Reader;
// only disks, corruption and audits know its rows.
type sharedStore struct {
	store.Reader
	kv        store.KV
	crashable CrashableStore // kv as a CrashableStore; nil: kv is in memory
}

// CrashableStore is a real store. Applied rows MUST survive Crash, which is called at
// every crash of a node.
type CrashableStore interface {
	store.KV
	Crash() error
	Close() error
}

// openStore opens an empty store: a real one if open is not nil.
func openStore(open func() (CrashableStore, error)) sharedStore {
	s := sharedStore{kv: &store.MemoryKV{}}
	if open != nil {
		s.crashable = invariant.Must(open())
		s.kv = s.crashable
	}
	s.Reader = store.Rows{KV: s.kv}
	return s
}

// crash ends the process of a node.
func (s *sharedStore) crash() {
	if s.crashable != nil {
		invariant.Must(0, s.crashable.Crash())
	}
}

func (s *sharedStore) close() {
	if s.crashable != nil {
		invariant.Must(0, s.crashable.Close())
	}
}
