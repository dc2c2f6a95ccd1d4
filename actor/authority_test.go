// SPDX-License-Identifier: Apache-2.0

package actor

import "testing"

// The authority of a call to the registry is that of its caller, whatever the call claimed.
func TestAuthorityReplacesClaims(t *testing.T) {
	for _, rights := range []Rights{NoRights, AllRights} {
		var call Call
		call.Extensions = call.Extensions.With(TagKey, []byte("forged")).With(TagRights, []byte{byte(AllRights)})
		call.SetAuthority("", rights)
		if key, got := call.Authority(); key != "" || got != rights {
			t.Errorf("got key %q with rights %d, want none with %d", key, got, rights)
		}
		call.SetAuthority("mine", NoRights)
		if key, got := call.Authority(); key != "mine" || got != NoRights {
			t.Errorf("got key %q with rights %d, want mine without", key, got)
		}
	}
}
