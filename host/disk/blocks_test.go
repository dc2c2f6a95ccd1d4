// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"testing"
)

// between returns the middle of two keys, whatever their lengths.
func TestBetweenBisectsKeys(t *testing.T) {
	for _, c := range []struct{ low, high, want string }{
		{"a", "c", "b"},
		{"a", "b", "a\x80"},
		{"\x00", "\xff", "\x7f\x80"},
		{"\xfe", "\xff", "\xfe\x80"},
		{"az", "az", "az"},
	} {
		if got := between([]byte(c.low), []byte(c.high), 2); !bytes.Equal(got, []byte(c.want)) {
			t.Errorf("%q, %q: got %q, want %q", c.low, c.high, got, c.want)
		}
	}
}
