// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
)

// One key takes its share, many keys take what is not reserved, and an administrator the rest. What ends is
// free again.
func TestSharesOfRegistryCalls(t *testing.T) {
	r := registryCalls{shares.New[string](RegistryShares)}
	take := func(key string, admin bool) (n int, refused *actor.Refusal) {
		for ; refused == nil; n++ {
			refused = r.take(key, admin)
		}
		return n - 1, refused
	}
	if n, refused := take("a", false); n != 32 || refused.Scope != actor.ScopeCaller {
		t.Errorf("the first key has %d, then %v", n, refused)
	}
	if n, refused := take("b", false); n != 32 || refused.Scope != actor.ScopeCaller {
		t.Errorf("the second key has %d, then %v", n, refused)
	}
	for i := range 3 {
		if n, refused := take(fmt.Sprint("c", i), false); n != 0 || refused.Scope != actor.ScopeNode {
			t.Errorf("a further key has %d, then %v", n, refused)
		}
	}
	if n, refused := take("admin", true); n != 32 || refused.Scope != actor.ScopeNode {
		t.Errorf("an administrator has %d, then %v", n, refused)
	}
	r.Give("a", 1)
	r.Give("admin", 1)
	if n, _ := take("admin", true); n != 2 {
		t.Errorf("%d places are free after two ends", n)
	}
}
