// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/store/storetest"
)

func TestDiskConforms(t *testing.T) {
	storetest.Run(t, func(t *rapid.T) func() (storetest.Store, error) {
		options := Options{FreeFloor: 1, fs: vfs.NewMem(), IndexEntries: rapid.SampledFrom([]int{0, 2}).Draw(t, "entries between flushes")}
		return func() (storetest.Store, error) {
			d, err := Open("data", storetest.Node, options)
			if err != nil {
				return storetest.Store{}, err
			}
			return storetest.Store{Log: d, Reader: d, End: d.End(), Close: d.Close}, nil
		}
	})
}
