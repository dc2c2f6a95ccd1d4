// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

func TestSharesAreBounded(t *testing.T) {
	s := newShares[string](10, 4, 3)
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
		if got := s.take(c.key, c.n, c.privileged); got != c.want {
			t.Errorf("take %d of %s: got %s, want %s", i, c.key, got, c.want)
		}
	}
	s.give("b", 3)
	s.give("a", 3)
	if got := s.take("c", 3, false); got != actor.NoScope {
		t.Errorf("after give: got %s", got)
	}
	s.give("a", 4)
	s.give("c", 3)
	if s.taken != 0 || len(s.by) != 0 {
		t.Errorf("got %d taken by %v, want nothing", s.taken, s.by)
	}
}

func numbersOf[K comparable](s *shares[K]) string {
	return fmt.Sprintf("%d | %d | %d", s.max, s.each, s.reserved)
}

// The page has the numbers of all shares.
func TestLimitsPageListsShares(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	b := New(nil, slog.New(slog.DiscardHandler), Config{})
	for divided, numbers := range map[string]string{
		"refused connections whose client may still be sending | addresses":                                             numbersOf(b.lingering.shares),
		"connections over a limit whose client may still be sending | addresses":                                        numbersOf(b.excess.shares),
		"bytes of request bodies longer than 8 KiB, from the end of the head to the answer | users and external agents": numbersOf(b.bodies.shares),
	} {
		if row := "| " + divided + " | " + numbers + " |"; !strings.Contains(string(page), row) {
			t.Errorf("docs/limits.md lacks the row %s", row)
		}
	}
}
