// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/store/storetest"
)

func noClose() error { return nil }

func TestRowsConform(t *testing.T) {
	storetest.Run(t, func() func() (storetest.Store, error) {
		rows := store.Rows{KV: &store.MemoryKV{}}
		return func() (storetest.Store, error) {
			end, err := store.Verify(rows.KV, storetest.Node, store.Mark{})
			return storetest.Store{Log: rows, Reader: rows, End: end, Close: noClose}, err
		}
	})
}
