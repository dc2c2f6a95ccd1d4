// SPDX-License-Identifier: Apache-2.0

package runs

import "testing"

func TestSessionCursor(t *testing.T) {
	var c SessionCursor
	for _, p := range []Position{{"n2", 7, 1}, {"n1", 45, 1}, {"n1", 45, 2}} {
		c = c.After(p)
	}
	if got, want := c.String(), "n1:45.2,n2:7.1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if parsed, err := ParseSessionCursor(c.String()); err != nil || parsed.String() != c.String() {
		t.Errorf("got %v, error %v", parsed, err)
	}
	if got := c.At("n3"); got != (Position{Node: "n3"}) {
		t.Errorf("got %v", got)
	}
	if c, err := ParseSessionCursor(""); len(c) > 0 || err != nil {
		t.Errorf("got %v, error %v", c, err)
	}
	for _, text := range []string{"1", "n1", "n1:", "n1:1", "n1:01.1", "n1:1.", "n1:1.1,", "n2:1.1,n1:1.1", "n1:1.1,n1:2.1", "n1:1.4294967296", "n1:9223372036854775808.1", "a/b:1.1", "n1:+1.1", " n1:1.1"} {
		if c, err := ParseSessionCursor(text); err == nil {
			t.Errorf("%q is read as %v", text, c)
		}
	}
}
