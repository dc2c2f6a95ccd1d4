// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/store/storetest"
)

// besideOf returns the name of the log beside the one under test; empty if there is one log.
func besideOf(logs int) actor.NodeID {
	if logs == 1 {
		return ""
	}
	return "n0"
}

func noClose() error { return nil }

// Rows conform for any number of entries between flushes of the index. A store that is
// opened again recovers the index from the log.
func TestRowsConform(t *testing.T) { testRows(t, 1) }

// So do rows with another log beside.
func TestRowsBesideAnotherLogConform(t *testing.T) { testRows(t, 2) }

func testRows(t *testing.T, logs int) {
	storetest.Run(t, func(t *rapid.T) func() (storetest.Store, error) {
		kv := &store.MemoryKV{}
		config := store.IndexConfig{Entries: rapid.SampledFrom([]int{1, 3, 0}).Draw(t, "entries between flushes")}
		return func() (storetest.Store, error) {
			end, err := store.Verify(kv, storetest.Node, store.Mark{})
			if err != nil {
				return storetest.Store{}, err
			}
			index, err := store.RecoverIndex(kv, config, kv.Apply)
			rows := store.Rows{KV: kv, Index: index, Logs: logs}
			return storetest.Store{Log: rows, Reader: rows, End: end, Beside: besideOf(logs), Close: noClose}, err
		}
	})
}
