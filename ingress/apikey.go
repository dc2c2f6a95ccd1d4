// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// Scope is what an API key allows its holder to do.
type Scope string

// The scopes. Each stands for itself, but for ScopeAdmin, which is all of them.
const (
	ScopeCall   Scope = "call"   // send messages to agents; signal and cancel runs
	ScopeRead   Scope = "read"   // see agents, runs, their events, and figures
	ScopeAgents Scope = "agents" // create, register and delete agents
	ScopeAdmin  Scope = "admin"  // everything, and API keys
)

// Scopes lists them.
func Scopes() []Scope { return []Scope{ScopeCall, ScopeRead, ScopeAgents, ScopeAdmin} }

// Bounds of keys.
const (
	KeyNameBytesMax = 80

	keyIDBytes     = 8
	keySecretBytes = 32
	keyPrefix      = "troupe_"
	keyTextBytes   = len(keyPrefix) + 2*keyIDBytes + 1 + 2*keySecretBytes

	// KeyRandomBytes is how much chance NewKey takes.
	KeyRandomBytes = keyIDBytes + keySecretBytes
)

// Key is an API key as a server knows it: enough to recognise its text, and not
// enough to write it.
type Key struct {
	ID      string
	Name    string
	Digest  [sha256.Size]byte // of the whole text
	Scopes  []Scope           // each once, in the order of Scopes
	Created actor.Time        // when the registry took it in
	Expires actor.Time        // 0: never
}

// keyRecord is a Key as the registry keeps it.
type keyRecord struct {
	ID      string  `json:"key_id"`
	Name    string  `json:"name"`
	Digest  string  `json:"digest"`
	Scopes  []Scope `json:"scopes"`
	Created string  `json:"created_at,omitzero"`
	Expires string  `json:"expires_at,omitzero"`
}

// NewKey makes a key, and the text that its holder presents: troupe_, the key's
// id, _ and 256 bits. The text is nowhere but in what is returned here.
func NewKey(random [KeyRandomBytes]byte, name string, scopes []Scope, now, expires actor.Time) (Key, string, *actor.Refusal) {
	id := hex.EncodeToString(random[:keyIDBytes])
	text := keyPrefix + id + "_" + hex.EncodeToString(random[keyIDBytes:])
	k := Key{ID: id, Name: name, Digest: sha256.Sum256([]byte(text)), Scopes: sortScopes(scopes), Expires: expires}
	if r := k.Check(); r != nil {
		return Key{}, "", r
	}
	if len(k.Scopes) != len(scopes) {
		return Key{}, "", invalid("scopes", "names a scope twice")
	}
	if k.Expired(now) {
		return Key{}, "", invalid("expires_at", "is not later than now")
	}
	return k, text, nil
}

// Check says what no key can be.
func (k *Key) Check() *actor.Refusal {
	if _, err := hex.DecodeString(k.ID); err != nil || len(k.ID) != 2*keyIDBytes || strings.ToLower(k.ID) != k.ID {
		return invalid("key_id", "want %d lower-case hex digits", 2*keyIDBytes)
	}
	if len(k.Name) > KeyNameBytesMax || strings.ContainsFunc(k.Name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return invalid("name", "want at most %d printable ASCII characters", KeyNameBytesMax)
	}
	for _, s := range k.Scopes {
		if !slices.Contains(Scopes(), s) {
			return invalid("scopes", "%.40q is none; want some of %v", string(s), Scopes())
		}
	}
	if len(k.Scopes) == 0 || !slices.Equal(k.Scopes, sortScopes(k.Scopes)) {
		return invalid("scopes", "want some of %v, each once and in this order", Scopes())
	}
	return nil
}

// sortScopes is each of the scopes once; those that are none come last.
func sortScopes(scopes []Scope) (out []Scope) {
	for _, s := range append(Scopes(), scopes...) {
		if slices.Contains(scopes, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Allows tells whether the holder may do what the scope is about.
func (k *Key) Allows(s Scope) bool {
	return slices.Contains(k.Scopes, s) || slices.Contains(k.Scopes, ScopeAdmin)
}

// Expired tells whether the key's time is over.
func (k *Key) Expired(now actor.Time) bool { return k.Expires != 0 && now >= k.Expires }

// Matches tells whether a text is the key's own, in a time that says nothing of it.
func (k *Key) Matches(text string) bool {
	var room [keyTextBytes + 1]byte // what is longer is nobody's, whatever else it says
	digest := sha256.Sum256(room[:copy(room[:], text)])
	return subtle.ConstantTimeCompare(digest[:], k.Digest[:]) == 1
}

// KeyID finds the id in what may be the text of a key; the rest of it is not looked at.
func KeyID(text string) (id string, ok bool) {
	if len(text) != keyTextBytes || !strings.HasPrefix(text, keyPrefix) {
		return "", false
	}
	id, rest := text[len(keyPrefix):len(keyPrefix)+2*keyIDBytes], text[len(keyPrefix)+2*keyIDBytes:]
	return id, rest[0] == '_'
}

// Principal is in whose name a holder of the key acts.
func (k *Key) Principal() string { return "key:" + k.ID }

// Encode writes the key as the registry is told of it.
func (k *Key) Encode() []byte {
	out := keyRecord{ID: k.ID, Name: k.Name, Digest: hex.EncodeToString(k.Digest[:]), Scopes: k.Scopes}
	out.Created, out.Expires = formatTime(k.Created), formatTime(k.Expires)
	return invariant.Must(json.Marshal(out))
}

// DecodeKey reads what Encode writes.
func DecodeKey(b []byte) (k Key, err error) {
	var in keyRecord
	if err := json.Unmarshal(b, &in, json.RejectUnknownMembers(true)); err != nil {
		return Key{}, fmt.Errorf("API key: %w", err)
	}
	k.ID, k.Name, k.Scopes = in.ID, in.Name, in.Scopes
	if r := k.Check(); r != nil {
		return Key{}, fmt.Errorf("API key %.40q: %w", in.ID, r)
	}
	digest, err := hex.DecodeString(in.Digest)
	if err != nil || len(digest) != len(k.Digest) {
		return Key{}, fmt.Errorf("API key %s: digest: want %d hex digits", in.ID, 2*len(k.Digest))
	}
	copy(k.Digest[:], digest)
	for _, at := range []struct {
		text string
		into *actor.Time
	}{{in.Created, &k.Created}, {in.Expires, &k.Expires}} {
		if at.text == "" {
			continue
		}
		if *at.into, err = runs.ParseTime(at.text); err != nil {
			return Key{}, fmt.Errorf("API key %s: %w", in.ID, err)
		}
	}
	return k, nil
}

func formatTime(t actor.Time) string {
	if t == 0 {
		return ""
	}
	return runs.FormatTime(t)
}
