// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/troupe-run/troupe/store"
)

// A CrashableStore and a store.MemoryKV hold the same keys after the same
// batches, also after crashes.
func TestCrashableStoreMatchesMemory(t *testing.T) {
	crashable, err := OpenCrashableStore()
	if err != nil {
		t.Fatal(err)
	}
	defer crashable.Close()
	memory := &store.MemoryKV{}
	random := rand.New(rand.NewPCG(5, 6))
	generators := []*entryGenerator{newEntryGenerator("a"), newEntryGenerator("b"), newEntryGenerator("c")}
	w := store.NewWriter(store.WriterConfig{Node: "n1"})
	var end store.Mark
	for range 300 {
		for range 1 + random.IntN(3) {
			w.Append([]store.Entry{generators[random.IntN(3)].next()})
		}
		b, _ := w.Next()
		for _, kv := range []store.KV{crashable, memory} {
			if err := kv.Apply(b.Rows); err != nil {
				t.Fatal(err)
			}
		}
		w.Written(b.No)
		w.Synced(b.No)
		end = b.Mark()
		if random.IntN(30) == 0 {
			if err := crashable.Crash(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if a, b := dump(t, crashable), dump(t, memory); !bytes.Equal(a, b) {
		t.Errorf("content differs: %d bytes in Pebble, %d in memory", len(a), len(b))
	}
	if got, err := store.VerifyAll(crashable, "n1", end); err != nil || got != end {
		t.Errorf("got %+v, error %v, want %+v", got, err, end)
	}
}

func dump(t *testing.T, kv store.KV) []byte {
	t.Helper()
	all, err := contentOf(kv)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// contentOf returns all keys and values of a store.
func contentOf(kv store.KV) (all []byte, err error) {
	err = kv.Scan([]byte{0}, []byte{0xff}, func(k, v []byte) bool {
		all = append(append(append(append(all, k...), '='), v...), '\n')
		return true
	})
	return all, err
}

func BenchmarkCrashableStoreOpenClose(b *testing.B) {
	for range b.N {
		t, err := OpenCrashableStore()
		if err != nil {
			b.Fatal(err)
		}
		mustClose(b, t)
	}
}

func BenchmarkCrashableStoreApply(b *testing.B) {
	t, err := OpenCrashableStore()
	if err != nil {
		b.Fatal(err)
	}
	defer t.Close()
	w, s := store.NewWriter(store.WriterConfig{Node: "n1"}), newEntryGenerator("a")
	for range b.N {
		w.Append([]store.Entry{s.next(), s.next()})
		batch, _ := w.Next()
		if err := t.Apply(batch.Rows); err != nil {
			b.Fatal(err)
		}
		w.Written(batch.No)
		w.Synced(batch.No)
	}
}
