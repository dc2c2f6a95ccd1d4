// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/store/storetest"
)

func noClose() error { return nil }

// Rows conform for any number of entries between flushes of the index. A store that is
// opened again recovers the index from the log.
func TestRowsConform(t *testing.T) {
	storetest.Run(t, func(t *rapid.T) func() (storetest.Store, error) {
		kv := &store.MemoryKV{}
		config := store.IndexConfig{Entries: rapid.SampledFrom([]int{1, 3, 0}).Draw(t, "entries between flushes")}
		return func() (storetest.Store, error) {
			end, err := store.Verify(kv, storetest.Node, store.Mark{})
			if err != nil {
				return storetest.Store{}, err
			}
			index, err := store.RecoverIndex(kv, config, kv.Apply)
			rows := store.Rows{KV: kv, Index: index}
			return storetest.Store{Log: rows, Reader: rows, End: end, Close: noClose}, err
		}
	})
}
