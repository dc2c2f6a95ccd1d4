// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// keyFor makes a key of a test, and its text.
func keyFor(t *testing.T, seed byte, expires actor.Time, scopes ...ingress.Scope) (ingress.Key, string) {
	t.Helper()
	random := [ingress.KeyRandomBytes]byte{seed}
	key, text, r := ingress.NewKey(random, "", scopes, 0, expires)
	if r != nil {
		t.Fatal(r)
	}
	return key, text
}

func someKeys(t *testing.T) *Keys {
	key, _ := keyFor(t, 1, 0, ingress.ScopeRead)
	k := new(Keys)
	k.Set([]ingress.Key{key})
	return k
}
