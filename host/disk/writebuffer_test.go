// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/troupe-run/troupe/store"
)

// The memory of write buffers is bounded by the option for any amount of writes.
func TestWriteBufferBoundsMemory(t *testing.T) {
	const buffer, value = 1 << 20, 16 << 10
	d := mustOpen(t, t.TempDir(), Options{FreeFloor: 1, WriteBuffer: buffer})
	content := make([]byte, value)
	rand.Read(content) //nolint:errcheck // never fails
	most := uint64(0)
	for i := range 12 * buffer / value {
		if err := d.Apply([]store.Row{{Key: fmt.Appendf(nil, "t/default/b/%08d", i), Value: content}}); err != nil {
			t.Fatal(err)
		}
		most = max(most, d.db.Metrics().MemTable.Size)
	}
	if most == 0 || most > 3*buffer {
		t.Errorf("got %d bytes of write buffers, want at most %d", most, 3*buffer)
	}
}
