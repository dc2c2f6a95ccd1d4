// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

func newKey(t *testing.T, seed byte, scopes ...Scope) (Key, string) {
	t.Helper()
	var random [KeyRandomBytes]byte
	for i := range random {
		random[i] = seed + byte(i)
	}
	k, text, r := NewKey(random, "test key", "", scopes, 1, 0)
	if r != nil {
		t.Fatal(r)
	}
	return k, text
}

func TestKeyMatchesOnlyItsText(t *testing.T) {
	k, text := newKey(t, 1, ScopeRead, ScopeCall)
	if want := "troupe_0102030405060708_"; !strings.HasPrefix(text, want) || len(text) != len(want)+64 {
		t.Errorf("text is %s", text)
	}
	if id, ok := KeyID(text); !ok || id != k.ID || !k.Matches(text) {
		t.Errorf("the key does not match its text: %s", id)
	}
	if k.Principal().User != "key:0102030405060708" || k.Principal().Key != "0102030405060708" {
		t.Error(k.Principal())
	}
	other, _ := newKey(t, 2, ScopeRead)
	if other.Matches(text) {
		t.Error("another key matches its text")
	}
	for i := range text {
		changed := text[:i] + "x" + text[i+1:]
		if k.Matches(changed) {
			t.Errorf("%s matches the key", changed)
		}
	}
	for _, s := range []string{"", "troupe_", text[:len(text)-1], text + "0", "troupe-" + text[7:], strings.Replace(text, "_", "-", 2), k.ID} {
		if id, ok := KeyID(s); ok {
			t.Errorf("%q has the id %s", s, id)
		}
	}
}

// Neither the encoded key nor its printed form may reveal the text.
func TestKeyDoesNotExposeItsText(t *testing.T) {
	k, text := newKey(t, 1, ScopeAdmin)
	secret := text[len(text)-64:]
	for _, shown := range []string{string(k.Encode()), fmt.Sprintf("%v %+v %#v", k, k, k)} {
		if strings.Contains(shown, secret) || strings.Contains(shown, secret[:8]) {
			t.Errorf("%s contains the secret", shown)
		}
	}
}

func TestKeyScopesAndExpiry(t *testing.T) {
	k, _ := newKey(t, 1, ScopeRead, ScopeCall)
	if !reflect.DeepEqual(k.Scopes, []Scope{ScopeCall, ScopeRead}) {
		t.Errorf("scopes are in the order %v", k.Scopes)
	}
	for s, want := range map[Scope]bool{ScopeCall: true, ScopeRead: true, ScopeAgents: false, ScopeAdmin: false, "": false, "run token": false} {
		if k.Allows(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
	admin, _ := newKey(t, 1, ScopeAdmin)
	for _, s := range Scopes() {
		if !admin.Allows(s) {
			t.Errorf("admin does not allow %s", s)
		}
	}
	if k.Expired(actor.Forever) {
		t.Error("a key without an expiry has expired")
	}
	k.Expires = 10
	if k.Expired(9) || !k.Expired(10) {
		t.Error("the key does not expire at its expiry")
	}
}

func TestNewKeyRejectsInvalidInput(t *testing.T) {
	var random [KeyRandomBytes]byte
	for field, c := range map[string]struct {
		name    string
		scopes  []Scope
		expires actor.Time
	}{
		"name":       {"a\nb", []Scope{ScopeRead}, 0},
		"scopes":     {"", nil, 0},
		"expires_at": {"", []Scope{ScopeRead}, 100},
	} {
		if _, text, r := NewKey(random, c.name, "", c.scopes, 100, c.expires); r == nil || r.Reason != actor.Invalid || r.Field != field || text != "" {
			t.Errorf("%s: %v", field, r)
		}
	}
	for _, scopes := range [][]Scope{{"root"}, {ScopeRead, ScopeRead}, {""}, {ScopeRead, "x"}} {
		if _, _, r := NewKey(random, "", "", scopes, 1, 0); r == nil || r.Field != "scopes" {
			t.Errorf("%v: %v", scopes, r)
		}
	}
	if _, _, r := NewKey(random, strings.Repeat("x", KeyNameBytesMax+1), "", []Scope{ScopeRead}, 1, 0); r == nil || r.Field != "name" {
		t.Errorf("oversized name: %v", r)
	}
}

// Keys of earlier versions keep their users, so that a node with them starts.
func TestReservedUsersOfKeys(t *testing.T) {
	var random [KeyRandomBytes]byte
	for _, user := range []string{"local", "default", "troupe.x", "u-0123456789abcdef"} {
		if _, text, r := NewKey(random, "", user, []Scope{ScopeRead}, 1, 0); r == nil || r.Reason != actor.Invalid || r.Field != "user" || !strings.Contains(r.Detail, "choose another name") || text != "" {
			t.Errorf("%s: %v", user, r)
		}
		k, _ := newKey(t, 1, ScopeRead)
		k.User = user
		if back, err := DecodeKey(k.Encode()); err != nil || back.Principal().User != user {
			t.Errorf("stored key of %s: %+v, error %v", user, back, err)
		}
	}
	k, _ := newKey(t, 1, ScopeRead)
	for _, k.User = range []string{"operator", "key:0102030405060709", "a\nb"} {
		if _, err := DecodeKey(k.Encode()); err == nil {
			t.Errorf("stored key of %q: want an error", k.User)
		}
	}
}

func TestKeyRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := [KeyRandomBytes]byte(rapid.SliceOfN(rapid.Byte(), KeyRandomBytes, KeyRandomBytes).Draw(t, "random"))
		scopes := rapid.SliceOfNDistinct(rapid.SampledFrom(Scopes()), 1, 4, rapid.ID).Draw(t, "scopes")
		expires := actor.Time(rapid.Int64Range(0, 1<<62).Draw(t, "expires"))
		k, text, r := NewKey(random, rapid.StringMatching(`[ -~]{0,80}`).Draw(t, "name"), rapid.SampledFrom([]string{"", "alice", "A.b_c-1", "Zo\u00eb <z@example.com>", strings.Repeat("u", actor.PrincipalTextBytesMax)}).Draw(t, "user"), scopes, -1, expires)
		if r != nil {
			t.Fatal(r)
		}
		k.ActAsUser = rapid.Bool().Draw(t, "act as user")
		k.IssuesTokens = rapid.Bool().Draw(t, "issues tokens")
		if slices.Contains(scopes, ScopeChat) {
			k.Scopes, k.User, k.ActAsUser = []Scope{ScopeChat}, "alice", false
		}
		if len(k.Scopes) == 1 && k.Scopes[0] != ScopeAgents && k.Scopes[0] != ScopeOperator && k.Scopes[0] != ScopeAdmin {
			if r := k.LimitTo(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"front", "back", "A.b_c-1"}), 1, 3, rapid.ID).Draw(t, "agents")); r != nil {
				t.Fatal(r)
			}
		}
		back, err := DecodeKey(k.Encode())
		if err != nil || !reflect.DeepEqual(back, k) || !back.Matches(text) || !bytes.Equal(back.Encode(), k.Encode()) {
			t.Fatalf("%+v becomes %+v: %v", k, back, err)
		}
	})
	k, _ := newKey(t, 1, ScopeRead)
	record := string(k.Encode())
	for _, bad := range []string{"", "{}", `[]`, record[:len(record)-1], strings.Replace(record, "0102", "01G2", 1), strings.Replace(record, "read", "write", 1),
		strings.Replace(record, `"name"`, `"names"`, 1), strings.Replace(record, `"digest":"`, `"digest":"00`, 1), strings.Replace(record, "}", `,"expires_at":"tomorrow"}`, 1)} {
		if k, err := DecodeKey([]byte(bad)); err == nil {
			t.Errorf("%s decodes to %+v", bad, k)
		}
	}
}
