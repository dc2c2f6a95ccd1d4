// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
)

func TestSharesAreBounded(t *testing.T) {
	s := New[string](Bounds{10, 4, 3})
	for i, c := range []struct {
		key        string
		n          int64
		privileged bool
		want       actor.Scope
	}{
		{"a", 4, false, actor.NoScope}, {"a", 1, false, actor.ScopeCaller}, // the share of a is taken
		{"b", 3, false, actor.NoScope}, {"c", 1, false, actor.ScopeNode}, // the rest is reserved
		{"b", 2, false, actor.ScopeCaller}, {"a", 3, true, actor.NoScope}, {"a", 1, true, actor.ScopeNode},
	} {
		if got := s.Take(c.key, c.n, c.privileged); got != c.want {
			t.Errorf("take %d of %s: got %s, want %s", i, c.key, got, c.want)
		}
	}
	s.Give("b", 3)
	s.Give("a", 3)
	if got := s.Take("c", 3, false); got != actor.NoScope {
		t.Errorf("after Give: got %s", got)
	}
	s.Give("a", 4)
	s.Give("c", 3)
	if s.Taken() != 0 || s.Keys() != 0 {
		t.Errorf("got %d taken by %d keys, want nothing", s.Taken(), s.Keys())
	}
}
