// SPDX-License-Identifier: Apache-2.0

package nearest

import (
	"strings"
	"testing"
)

// What people type means the name that is a slip of the hand away, and no other.
func TestOf(t *testing.T) {
	names := []string{"url", "headers", "key_env", "model", "max_tokens", "coordinator"}
	for _, c := range []struct{ text, want string }{
		{"url", "url"},
		{"ulr", "url"}, // neighbours exchanged
		{"rul", "url"},
		{"modle", "model"},
		{"mdoel", "model"},
		{"model_", "model"},
		{"hedaers", "headers"},
		{"heders", "headers"},
		{"keyenv", "key_env"},
		{"max_tokns", "max_tokens"},
		{"coordinater", "coordinator"},
		{"ur", "url"},
		{"lru", ""},
		{"x", ""},
		{"", ""},
		{"base_url", ""},
		{strings.Repeat("url", 22), ""},
	} {
		if got := Of(c.text, names); got != c.want {
			t.Errorf("%q: got %q, want %q", c.text, got, c.want)
		}
	}
	if got := Of("url", nil); got != "" {
		t.Errorf("of no names: got %q", got)
	}
}
