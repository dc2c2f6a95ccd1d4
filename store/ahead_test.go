// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// manyKV is a KV that counts its reads.
type manyKV struct {
	MemoryKV
	gets, many int
}

func (k *manyKV) Get(key []byte) ([]byte, bool, error) {
	k.gets++
	return k.MemoryKV.Get(key)
}

// GetMany implements ManyGetter.
func (k *manyKV) GetMany(keys [][]byte) (map[string][]byte, error) {
	k.many++
	values := map[string][]byte{}
	for _, key := range keys {
		if value, ok, _ := k.MemoryKV.Get(key); ok {
			values[string(key)] = value
		}
	}
	return values, nil
}

// An actor whose entries are in many batches is loaded with few reads if each has a cost of its own.
func TestPartsAreReadAhead(t *testing.T) {
	const batches = 100
	id := actor.NewID("alice", "s-1")
	kv := &manyKV{}
	rows := Rows{KV: kv, Index: NewIndex(IndexConfig{})}
	w := NewWriter(WriterConfig{Node: "n1"})
	for n := uint64(1); n <= batches; n++ {
		w.Append([]Entry{{Actor: id, N: n, Record: Buried{Call: actor.NewCallID(1, 1, n), At: 1, Until: 2}}})
		b, ok := w.Next()
		if !ok {
			t.Fatal("no batch")
		}
		if err := rows.Append(&b); err != nil {
			t.Fatal(err)
		}
		w.Written(b.No)
		w.Synced(b.No)
	}
	kv.gets, kv.many = 0, 0
	saved, err := rows.Load(id)
	if err != nil || len(saved.Entries) != batches {
		t.Fatalf("%d entries, error %v", len(saved.Entries), err)
	}
	if kv.many != (batches+aheadMax-1)/aheadMax || kv.gets > 4 {
		t.Errorf("%d single reads and %d of several keys", kv.gets, kv.many)
	}
}
