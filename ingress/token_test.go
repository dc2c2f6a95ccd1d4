// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

func testSecret(b byte) []byte { return bytes.Repeat([]byte{b}, SecretBytes) }

// The format of a token is stable: a token MUST remain valid after an update.
func TestTokenFormatIsStable(t *testing.T) {
	for _, c := range []struct {
		secret  byte
		run, id string
		want    string
	}{
		{0, "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55", "researcher/s-42", "troupe-run.AZDVsnw-ekGPECtvDJ1OVXJlc2VhcmNoZXIvcy00Mg.nrWQtNHDkRA4xxMv3y92qVhz_Izjdeju4rXlRXHNt3A"},
		{7, "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55", "acme/researcher/s-42", "troupe-run.AZDVsnw-ekGPECtvDJ1OVWFjbWUvcmVzZWFyY2hlci9zLTQy.GJj6bUtCU0RBwG8wSAurudHAOdDn2_7xAiSKVaFDAq8"},
	} {
		run, err := actor.ParseCallID(c.run)
		if err != nil {
			t.Fatal(err)
		}
		id, err := actor.ParseID(c.id)
		if err != nil {
			t.Fatal(err)
		}
		if got := MintToken(testSecret(c.secret), run, id); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.run, c.id, got, c.want)
		}
		gotRun, gotID, r := ReadToken(testSecret(c.secret), c.want)
		if r != nil || gotRun != run || gotID != id {
			t.Errorf("%s: %v %v %v", c.want, gotRun, gotID, r)
		}
	}
}

func TestTokenIsBoundToRunAndActor(t *testing.T) {
	run := actor.NewCallID(1, 2, 3)
	good := MintToken(testSecret(1), run, actor.NewID("a", "k"))
	parts := strings.Split(good, ".")
	other := strings.Split(MintToken(testSecret(1), actor.NewCallID(1, 2, 4), actor.NewID("a", "k")), ".")
	elsewhere := strings.Split(MintToken(testSecret(1), run, actor.NewID("b", "k")), ".")
	bad := map[string]string{
		"none":                 "",
		"prefix only":          tokenPrefix,
		"no mac":               parts[0] + "." + parts[1],
		"empty mac":            parts[0] + "." + parts[1] + ".",
		"another run":          parts[0] + "." + other[1] + "." + parts[2],
		"another actor":        parts[0] + "." + elsewhere[1] + "." + parts[2],
		"mac of another token": parts[0] + "." + parts[1] + "." + other[2],
		"another secret":       MintToken(testSecret(2), run, actor.NewID("a", "k")),
		"trailing text":        good + "A",
		"extra part":           good + ".A",
		"spaces":               " " + good,
		"line break":           good[:20] + "\n" + good[20:],
		"padding":              good + "=",
		"other case":           strings.ToUpper(good),
		"API key":              "troupe_" + strings.Repeat("0", 81),
		"long":                 good + strings.Repeat("A", 1<<16),
		"no actor":             signedToken(testSecret(1), run[:]),
		"short run id":         signedToken(testSecret(1), run[:8]),
		"invalid actor":        signedToken(testSecret(1), append(run[:], "a/b/c/d"...)),
	}
	for i := range good { // every proper prefix
		bad["cut at "+good[:i]] = good[:i]
	}
	for i := range good { // every single changed character
		for _, c := range "A-" {
			if changed := good[:i] + string(c) + good[i+1:]; changed != good {
				bad["changed to "+changed] = changed
			}
		}
	}
	for name, token := range bad {
		gotRun, id, r := ReadToken(testSecret(1), token)
		switch {
		case r == nil || r.Reason != actor.Rejected:
			t.Errorf("%s: %v", name, r)
		case !gotRun.IsZero() || id != (actor.ID{}):
			t.Errorf("%s: refused with a run %v or actor %v", name, gotRun, id)
		case len(token) > 20 && strings.Contains(r.Error(), token):
			t.Errorf("%s: the refusal repeats it: %v", name, r)
		}
	}
	if _, _, r := ReadToken(nil, good); r == nil {
		t.Error("a server without a secret accepts a token")
	}
	if _, _, r := ReadToken(testSecret(1), good); r != nil {
		t.Errorf("valid token: %v", r)
	}
}

// signedToken returns a validly signed token for an arbitrary claim.
func signedToken(secret, claim []byte) string {
	return encodeToken(secret, tokenLabel, claim)
}

// The token of an invocation has its number, and neither form of a token can be read as the
// other.
func TestInvocationToken(t *testing.T) {
	run, id, secret := actor.NewCallID(1, 2, 3), actor.NewID("a", "k"), testSecret(1)
	for _, invocation := range []uint32{1, 2, 1<<32 - 1} {
		token := MintInvocationToken(secret, run, invocation, id)
		gotRun, gotID, got, r := ReadInvocationToken(secret, token)
		if r != nil || gotRun != run || gotID != id || got != invocation {
			t.Errorf("invocation %d: got %v %v %d, %v", invocation, gotRun, gotID, got, r)
		}
		if _, _, _, r := ReadInvocationToken(testSecret(2), token); r == nil {
			t.Error("a token of another secret is read")
		}
		if other := MintInvocationToken(secret, run, invocation+1, id); other == token {
			t.Error("two invocations have one token")
		}
	}
	if _, _, got, r := ReadInvocationToken(secret, MintToken(secret, run, id)); r != nil || got != 0 {
		t.Errorf("token without an invocation: got %d, %v", got, r)
	}
}

func FuzzToken(f *testing.F) {
	f.Add(MintToken(testSecret(1), actor.NewCallID(1, 2, 3), actor.NewID("a", "k")))
	f.Add(MintToken(testSecret(2), actor.NewCallID(1, 2, 3), actor.NewID("a", "k")))
	f.Fuzz(func(t *testing.T, token string) {
		run, id, invocation, r := ReadInvocationToken(testSecret(1), token)
		if r == nil && MintToken(testSecret(1), run, id) != token && MintInvocationToken(testSecret(1), run, invocation, id) != token {
			t.Fatalf("%q is a second encoding of a token", token)
		}
	})
}
