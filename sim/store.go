// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

// sharedStore holds the logs of all nodes, as rows or as entries. Production code reads
// it as a store.Reader; only disks, corruption and audits know its rows.
type sharedStore struct {
	store.Reader
	log       store.Log
	kv        store.KV       // rows; nil if it holds entries
	index     *store.Index   // of the rows
	memory    *store.Memory  // entries; nil if it holds rows
	crashable CrashableStore // kv as a CrashableStore; nil: in memory
	fences    bool           // the next append to memory is fenced
	loses     bool           // the result of the next append to memory is lost
	keeps     bool           // that batch is stored nevertheless
}

// CrashableStore is a real store. Applied rows MUST survive Crash, which is called at
// every crash of a node.
type CrashableStore interface {
	store.KV
	Crash() error
	Close() error
}

// openStore opens an empty store: of entries, or of rows, in a real one if open is not
// nil.
func (w *Simulation) openStore(open func() (CrashableStore, error)) {
	s := &w.store
	if w.plan.Entries {
		s.memory = &store.Memory{
			Holds:      func(n actor.NodeID, e store.ShardEpoch) bool { return !s.fences && w.holds(n, e) },
			Interrupts: func(*store.Batch) (lost, stored bool) { return s.loses, s.keeps },
		}
		s.Reader, s.log = s.memory, s.memory
		return
	}
	s.kv = &store.MemoryKV{}
	if open != nil {
		s.crashable = invariant.Must(open())
		s.kv = s.crashable
	}
	s.index = store.NewIndex(w.plan.Index)
	rows := store.Rows{KV: lentRows{s.kv}, Index: s.index}
	s.Reader, s.log = rows, fencedRows{rows, w.holds}
}

// lentRows is a KV whose rows change after the callback that they are passed to, as those
// of a real store may.
type lentRows struct{ store.KV }

// Scan implements store.KV.
func (k lentRows) Scan(from, to []byte, each func(key, value []byte) bool) error {
	return k.KV.Scan(from, to, lend(each))
}

// ScanBack implements store.KV.
func (k lentRows) ScanBack(from, to []byte, each func(key, value []byte) bool) error {
	return k.KV.ScanBack(from, to, lend(each))
}

func lend(each func(key, value []byte) bool) func(key, value []byte) bool {
	var lent []byte
	return func(key, value []byte) bool {
		lent = append(append(lent[:0], key...), value...)
		more := each(lent[:len(key):len(key)], lent[len(key):])
		overwrite(lent)
		return more
	}
}

// overwrite fills a buffer with bytes that are no text.
func overwrite(b []byte) {
	for i := range b {
		b[i] = 0xfe
	}
}

// holds reports whether a node claims a shard under an epoch.
func (w *Simulation) holds(id actor.NodeID, s store.ShardEpoch) bool {
	at := slices.IndexFunc(w.nodes, func(n *node) bool { return n.id == id })
	return w.claims.holds(w.nodes[at], w.claims.groupOf(s.Shard), s.Epoch)
}

// fencedRows adds the claims of shards to a log of rows.
type fencedRows struct {
	store.Rows
	holds func(actor.NodeID, store.ShardEpoch) bool
}

// Append implements store.Log.
func (r fencedRows) Append(b *store.Batch) error {
	for i, s := range b.Shards {
		if !r.holds(b.Node, s) {
			return store.Fenced{Shards: b.Shards[i : i+1]}
		}
	}
	return r.Rows.Append(b)
}

// verify checks the log of a node from its anchor, and returns its end.
func (s *sharedStore) verify(node actor.NodeID, anchor store.Mark) (store.Mark, error) {
	if s.memory != nil {
		return s.memory.End(node), nil
	}
	return store.Verify(s.kv, node, anchor)
}

// verifyAll is like verify, but checks the log from its start.
func (s *sharedStore) verifyAll(node actor.NodeID, anchor store.Mark) (store.Mark, error) {
	if s.memory != nil {
		return s.memory.End(node), nil
	}
	return store.VerifyAll(s.kv, node, anchor)
}

// recoverIndex replaces the index by one that is recovered from the logs, as at the start of
// a process.
func (w *Simulation) recoverIndex() error {
	s := &w.store
	if s.memory != nil {
		return nil
	}
	index, err := store.RecoverIndex(s.kv, w.plan.Index, s.kv.Apply)
	if err == nil {
		*s.index = *index
	}
	return err
}

// recovered returns the store as a process that started now would find it.
func (s *sharedStore) recovered(config store.IndexConfig) (store.Reader, error) {
	if s.memory != nil {
		return s.memory, nil
	}
	index, err := store.RecoverIndex(s.kv, config, nil)
	return store.Rows{KV: s.kv, Index: index}, err
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
