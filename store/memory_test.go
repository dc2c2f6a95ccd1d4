// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/store/storetest"
)

func TestMemoryConforms(t *testing.T) {
	storetest.Run(t, func(*rapid.T) func() (storetest.Store, error) {
		return openMemory(&store.Memory{})
	})
}

func TestMemoryBesideAnotherLogConforms(t *testing.T) {
	storetest.Run(t, func(*rapid.T) func() (storetest.Store, error) {
		return openMemory(&store.Memory{Logs: 2})
	})
}

// Every second result is lost, and every second of these batches is stored nevertheless.
func TestInterruptedMemoryConforms(t *testing.T) {
	storetest.Run(t, func(*rapid.T) func() (storetest.Store, error) {
		appends := 0
		return openMemory(&store.Memory{Interrupts: func(*store.Batch) (lost, stored bool) {
			appends++
			return appends%2 == 0, appends%4 == 0
		}})
	})
}

func openMemory(m *store.Memory) func() (storetest.Store, error) {
	return func() (storetest.Store, error) {
		return storetest.Store{Log: resuming{m}, Reader: m, End: m.End(storetest.Node), Beside: besideOf(max(1, m.Logs)), Close: noClose}, nil
	}
}

// resuming is a Log that resumes each Append until its result is known.
type resuming struct{ *store.Memory }

func (r resuming) Append(b *store.Batch) error {
	err := r.Memory.Append(b)
	for errors.As(err, new(store.Unknown)) {
		err = store.Resume(r.Memory, b)
	}
	return err
}

// entryOf returns an entry of an actor that has no other.
func entryOf(name string, shard uint16) store.Entry {
	return store.Entry{Actor: actor.NewID(name, "s"), Shard: shard, Epoch: 2, N: 1, Record: store.Rebased{At: 1}}
}

func nextBatch(t *testing.T, w *store.Writer, entries ...store.Entry) *store.Batch {
	t.Helper()
	w.Append(entries)
	b, ok := w.Next()
	if !ok {
		t.Fatal("the writer has no batch")
	}
	return &b
}

func TestMemoryFencesWholeBatch(t *testing.T) {
	m := &store.Memory{Holds: func(node actor.NodeID, s store.ShardEpoch) bool { return node == "n1" && s.Shard != 8 }}
	b := nextBatch(t, store.NewWriter(store.WriterConfig{Node: "n1"}), entryOf("a", 7), entryOf("b", 8))
	var fenced store.Fenced
	if err := m.Append(b); !errors.As(err, &fenced) || !reflect.DeepEqual(fenced.Shards, []store.ShardEpoch{{Shard: 8, Epoch: 2}}) {
		t.Errorf("got error %v, want fenced in shard 8", err)
	}
	if saved, err := m.Load(actor.NewID("a", "s")); err != nil || len(saved.Entries) != 0 || m.End("n1") != (store.Mark{}) {
		t.Errorf("a fenced batch is stored in part: got %+v, error %v, end %+v", saved, err, m.End("n1"))
	}
}

func TestResumeStoresBatchOnce(t *testing.T) {
	for _, stored := range []bool{false, true} {
		lost := true
		m := &store.Memory{Interrupts: func(*store.Batch) (bool, bool) { return lost, stored }}
		w := store.NewWriter(store.WriterConfig{Node: "n1"})
		b := nextBatch(t, w, entryOf("a", 7))
		if err := m.Append(b); !errors.As(err, new(store.Unknown)) {
			t.Fatalf("got error %v, want an unknown result", err)
		}
		lost = false
		if err := store.Resume(m, b); err != nil || m.End("n1") != b.Mark() {
			t.Errorf("stored %v: got error %v, end %+v, want %+v", stored, err, m.End("n1"), b.Mark())
		}
		if err := m.Append(b); err == nil {
			t.Errorf("stored %v: the batch was stored twice", stored)
		}
		next := nextBatch(t, w, entryOf("b", 7))
		if err := m.Append(next); err != nil {
			t.Errorf("stored %v: next batch: %v", stored, err)
		}
		if _, err := m.Settle(b); err == nil {
			t.Errorf("stored %v: a batch was settled after the next one", stored)
		}
	}
}
