// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"cmp"
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

// Scope is a permission that an API key grants to its holder.
type Scope string

// The scopes. Each scope grants only itself. Exception: ScopeAdmin grants all
// scopes.
const (
	ScopeCall     Scope = "call"     // send messages to agents; signal and cancel runs
	ScopeRead     Scope = "read"     // read agents, runs and their events
	ScopeChat     Scope = "chat"     // talk to some agents, and see of them what a customer may
	ScopeAgents   Scope = "agents"   // create, register and delete agents
	ScopeOperator Scope = "operator" // with ScopeRead and ScopeCall: do so in the namespaces of other users; read figures of the whole deployment
	ScopeAdmin    Scope = "admin"    // everything, including API keys
)

// DefaultScopes returns the scopes of a key that is created without a list of
// scopes for a user, or for none if user is empty. The first key can create others, unless it
// is that of a user.
func DefaultScopes(first bool, user string) []Scope {
	if first && user == "" {
		return []Scope{ScopeAdmin}
	}
	return []Scope{ScopeCall, ScopeRead}
}

// Scopes returns all scopes in their canonical order.
func Scopes() []Scope {
	return []Scope{ScopeCall, ScopeRead, ScopeChat, ScopeAgents, ScopeOperator, ScopeAdmin}
}

// Bounds of keys.
const (
	KeyNameBytesMax = 80
	KeyAgentsMax    = 16 // agents that a limited key names

	keyIDBytes     = 8
	keySecretBytes = 32
	keyPrefix      = "troupe_"
	keyTextBytes   = len(keyPrefix) + 2*keyIDBytes + 1 + 2*keySecretBytes

	// KeyRandomBytes is the number of random bytes that NewKey takes.
	KeyRandomBytes = keyIDBytes + keySecretBytes
)

// Key is an API key as a server stores it. It holds enough to verify the key's
// text, and not enough to reconstruct it.
type Key struct {
	ID      string
	Name    string
	User    string            // user that the key acts for; empty: the key is a user of its own
	Digest  [sha256.Size]byte // SHA-256 of the whole text
	Scopes  []Scope           // without duplicates, in the order of Scopes
	Created actor.Time        // time at which the registry accepted the key
	Expires actor.Time        // 0 means never

	// ActAsUser lets each request name the user that it acts for. Otherwise requests act
	// for User.
	ActAsUser bool

	// IssuesTokens reports whether the key has issued a client token.
	IssuesTokens bool

	// Agents are the only agents that requests with the key call and find, without duplicates and
	// in order; all if empty. What these agents call in turn is their own.
	Agents []string

	CreatedBy    string // user that created the key; empty for a key of an earlier version
	CreatedByKey string // ID of that user's key, if any
}

// keyRecord is the JSON form in which the registry stores a Key.
type keyRecord struct {
	ID      string  `json:"key_id"`
	Name    string  `json:"name"`
	User    string  `json:"user,omitzero"`
	ActAs   bool    `json:"act_as_user,omitzero"`
	Digest  string  `json:"digest"`
	Scopes  []Scope `json:"scopes"`
	Created string  `json:"created_at,omitzero"`
	Expires string  `json:"expires_at,omitzero"`
	By      string  `json:"created_by,omitzero"`
	ByKey   string  `json:"created_by_key_id,omitzero"`

	Agents []string `json:"agents,omitempty"`
	Issues bool     `json:"issues_tokens,omitzero"`
}

// NewKey returns a new key and the text that its holder presents: "troupe_", the
// key's id, "_" and 256 bits in hex. The text exists only in the returned value
// and cannot be recovered from the key.
func NewKey(random [KeyRandomBytes]byte, name, user string, scopes []Scope, now, expires actor.Time) (Key, string, *actor.Refusal) {
	id := hex.EncodeToString(random[:keyIDBytes])
	text := keyPrefix + id + "_" + hex.EncodeToString(random[keyIDBytes:])
	k := Key{ID: id, Name: name, User: user, Digest: sha256.Sum256([]byte(text)), Scopes: sortScopes(scopes), Expires: expires}
	if r := k.Check(); r != nil {
		return Key{}, "", r
	}
	if user != "" {
		if err := cmp.Or(actor.CheckNewUser(user), actor.CheckUserScripts(user)); err != nil {
			return Key{}, "", invalid("user", "%v", err)
		}
	}
	if len(k.Scopes) != len(scopes) {
		return Key{}, "", invalid("scopes", "contains a duplicate")
	}
	if k.Expired(now) {
		return Key{}, "", invalid("expires_at", "want a time in the future")
	}
	return k, text, nil
}

// Check returns a refusal that names the first invalid field, or nil.
func (k *Key) Check() *actor.Refusal {
	if _, err := hex.DecodeString(k.ID); err != nil || len(k.ID) != 2*keyIDBytes || strings.ToLower(k.ID) != k.ID {
		return invalid("key_id", "want %d lower-case hex digits", 2*keyIDBytes)
	}
	if len(k.Name) > KeyNameBytesMax || strings.ContainsFunc(k.Name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return invalid("name", "want at most %d printable ASCII characters", KeyNameBytesMax)
	}
	if k.User != "" {
		if err := actor.CheckUser(k.User); err != nil {
			return invalid("user", "%v", err)
		}
	}
	for _, s := range k.Scopes {
		if !slices.Contains(Scopes(), s) {
			return invalid("scopes", "unknown scope %.40q: want some of %v", string(s), Scopes())
		}
	}
	if len(k.Scopes) == 0 || !slices.Equal(k.Scopes, sortScopes(k.Scopes)) {
		return invalid("scopes", "want some of %v, without duplicates", Scopes())
	}
	return nil
}

// LimitTo limits the key to agents, in any order.
func (k *Key) LimitTo(agents []string) *actor.Refusal {
	k.Agents = slices.Compact(slices.Sorted(slices.Values(agents)))
	if len(k.Agents) != len(agents) {
		return invalid("agents", "contains a duplicate")
	}
	return k.checkLimits()
}

// checkLimits checks the agents to which the key is limited. The scopes that reach beyond calls and
// reads would lift the limit: their holder could make an agent or a key of its own. A key with the scope
// chat is one customer's.
func (k *Key) checkLimits() *actor.Refusal {
	if r := checkAgents(k.Agents); r != nil {
		return r
	}
	chats := slices.Contains(k.Scopes, ScopeChat)
	for _, s := range k.Scopes {
		switch {
		case chats && len(k.Scopes) > 1:
			return invalid("scopes", "the scope %s stands alone", ScopeChat)
		case len(k.Agents) > 0 && s != ScopeCall && s != ScopeRead && s != ScopeChat:
			return invalid("scopes", "a key that is limited to agents has the scope %s, or %s and %s, and this one asks for %s", ScopeChat, ScopeCall, ScopeRead, s)
		}
	}
	switch {
	case chats && len(k.Agents) == 0:
		return invalid("agents", "a key with the scope %s names the agents that its user may talk to", ScopeChat)
	case chats && k.User == "":
		return invalid("user", "a key with the scope %s acts for one user: without a user it would share the conversations of all such keys", ScopeChat)
	case chats && k.ActAsUser:
		return invalid("act_as_user", "a key with the scope %s acts for one user", ScopeChat)
	}
	return nil
}

// checkAgents checks the names of the agents to which a key or a token is limited.
func checkAgents(agents []string) *actor.Refusal {
	if len(agents) > KeyAgentsMax {
		return invalid("agents", "%d names, at most %d allowed", len(agents), KeyAgentsMax)
	}
	for i, name := range agents {
		if err := actor.CheckName(name); err != nil {
			return invalid("agents", "%v", err)
		}
		if i > 0 && agents[i-1] >= name {
			return invalid("agents", "want names in order, without duplicates")
		}
	}
	return nil
}

// Chats reports whether the principal has the scope chat and no other.
func Chats(by *actor.Principal) bool {
	return len(by.Scopes) == 1 && by.Scopes[0] == string(ScopeChat)
}

// sortScopes returns the scopes without duplicates, in the order of Scopes.
// Unknown scopes follow at the end.
func sortScopes(scopes []Scope) (out []Scope) {
	for _, s := range append(Scopes(), scopes...) {
		if slices.Contains(scopes, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Allows reports whether the principal has the scope.
func Allows(by actor.Principal, s Scope) bool {
	return slices.Contains(by.Scopes, string(s)) || slices.Contains(by.Scopes, string(ScopeAdmin))
}

// Allows reports whether the key grants the scope.
func (k *Key) Allows(s Scope) bool { return Allows(k.Principal(), s) }

// Expired reports whether the key has expired.
func (k *Key) Expired(now actor.Time) bool { return k.Expires != 0 && now >= k.Expires }

// Matches reports whether text is the key's own text. Its running time does not
// depend on the key.
func (k *Key) Matches(text string) bool {
	var buf [keyTextBytes + 1]byte // a longer text never matches: the extra byte changes its digest
	digest := sha256.Sum256(buf[:copy(buf[:], text)])
	return subtle.ConstantTimeCompare(digest[:], k.Digest[:]) == 1
}

// KeyID returns the id contained in the text of a key. It checks only the form of
// the text, not the secret part.
func KeyID(text string) (id string, ok bool) {
	if len(text) != keyTextBytes || !strings.HasPrefix(text, keyPrefix) {
		return "", false
	}
	id, rest := text[len(keyPrefix):len(keyPrefix)+2*keyIDBytes], text[len(keyPrefix)+2*keyIDBytes:]
	return id, rest[0] == '_'
}

// Principal returns the principal of requests with the key. It is in the namespace of the
// key's user. A key without a user shares its user with no other, because actor.CheckUser
// refuses actor.KeyUserPrefix, but its namespace with all such keys.
func (k *Key) Principal() actor.Principal {
	user := k.User
	if user == "" {
		user = actor.KeyUserPrefix + k.ID
	}
	p := actor.NewPrincipal(user, k.ID, ScopeNames(k.Scopes)...)
	p.Tenant = actor.Namespace(k.User)
	return p
}

// ScopeNames returns the scopes as a principal holds them.
func ScopeNames(scopes []Scope) []string {
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	return names
}

// Encode returns the key as it is sent to the registry.
func (k *Key) Encode() []byte {
	out := keyRecord{ID: k.ID, Name: k.Name, User: k.User, ActAs: k.ActAsUser, Digest: hex.EncodeToString(k.Digest[:]), Scopes: k.Scopes}
	out.Created, out.Expires = formatTime(k.Created), formatTime(k.Expires)
	out.By, out.ByKey, out.Agents, out.Issues = k.CreatedBy, k.CreatedByKey, k.Agents, k.IssuesTokens
	return invariant.Must(json.Marshal(out))
}

// DecodeKey parses the output of Encode.
func DecodeKey(b []byte) (k Key, err error) {
	var in keyRecord
	if err := json.Unmarshal(b, &in, json.RejectUnknownMembers(true)); err != nil {
		return Key{}, fmt.Errorf("API key: %w", err)
	}
	k.ID, k.Name, k.User, k.ActAsUser, k.Scopes = in.ID, in.Name, in.User, in.ActAs, in.Scopes
	k.CreatedBy, k.CreatedByKey, k.Agents, k.IssuesTokens = in.By, in.ByKey, in.Agents, in.Issues
	if r := cmp.Or(k.Check(), k.checkLimits()); r != nil {
		return Key{}, fmt.Errorf("API key %.40q: %w", in.ID, r)
	}
	digest, err := hex.DecodeString(in.Digest)
	if err != nil || len(digest) != len(k.Digest) {
		return Key{}, fmt.Errorf("API key %s: digest: want %d hex digits", in.ID, 2*len(k.Digest))
	}
	copy(k.Digest[:], digest)
	for _, at := range []struct {
		text string
		dst  *actor.Time
	}{{in.Created, &k.Created}, {in.Expires, &k.Expires}} {
		if at.text == "" {
			continue
		}
		if *at.dst, err = runs.ParseTime(at.text); err != nil {
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
