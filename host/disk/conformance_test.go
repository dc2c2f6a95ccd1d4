// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/store/storetest"
)

func TestDiskConforms(t *testing.T) {
	for _, entries := range []int{0, 2} {
		t.Run(fmt.Sprintf("flush after %d", entries), func(t *testing.T) {
			storetest.Run(t, func() func() (storetest.Store, error) {
				options := Options{FreeFloor: 1, fs: vfs.NewMem(), IndexEntries: entries}
				return func() (storetest.Store, error) {
					d, err := Open("data", storetest.Node, options)
					if err != nil {
						return storetest.Store{}, err
					}
					return storetest.Store{Log: d, Reader: d, End: d.End(), Close: d.Close}, nil
				}
			})
		})
	}
}
