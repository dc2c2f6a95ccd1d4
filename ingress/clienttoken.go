// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"cmp"
	"crypto/hmac"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Bounds of client tokens.
const (
	ClientTokenMinutesMax     = 24 * 60
	ClientTokenMinutesDefault = 60

	clientTokenPrefix   = "troupe_token."
	clientTokenLabel    = "troupe client token 1\n" // no other use of the secret signs the same bytes
	clientTokenBytesMax = 4 << 10
	originBytesMax      = 200
)

// ClientToken lets a program that its user can read, such as a page in a browser, talk to some agents
// for a short time. It is signed by the secret of the server and stored nowhere.
type ClientToken struct {
	Key     string     `json:"k"` // ID of the API key that issued it; the token is valid no longer than the key
	User    string     `json:"u"`
	Agents  []string   `json:"a"` // the only ones that it calls and finds, in order
	Origin  string     `json:"o,omitzero"`
	Expires actor.Time `json:"e"`
}

// NewClientToken returns the token that a request asks for, without its key.
func NewClientToken(body []byte, now actor.Time) (t ClientToken, r *actor.Refusal) {
	var in struct {
		User    string   `json:"user"`
		Agents  []string `json:"agents"`
		Origin  string   `json:"origin"`
		Minutes *int64   `json:"minutes"`
	}
	if r := Decode(body, &in); r != nil {
		return t, r
	}
	minutes := int64(ClientTokenMinutesDefault)
	if in.Minutes != nil {
		minutes = *in.Minutes
	}
	t = ClientToken{User: in.User, Agents: slices.Compact(slices.Sorted(slices.Values(in.Agents))), Origin: in.Origin,
		Expires: now.Add(actor.Duration(minutes) * actor.Duration(time.Minute))}
	switch {
	case in.User == "":
		return t, invalid("user", "is missing: a token acts for one user")
	case len(in.Agents) == 0:
		return t, invalid("agents", "is missing: a token names the agents that its user may talk to")
	case minutes < 1 || minutes > ClientTokenMinutesMax:
		return t, invalid("minutes", "want 1 to %d", ClientTokenMinutesMax)
	}
	if err := cmp.Or(actor.CheckNewUser(t.User), actor.CheckUserScripts(t.User)); err != nil {
		return t, invalid("user", "%v", err)
	}
	if r := checkAgents(t.Agents); r != nil {
		return t, r
	}
	if t.Origin != "" && !isOrigin(t.Origin) {
		return t, invalid("origin", "want the origin of a page as browsers send it, such as https://shop.example")
	}
	return t, nil
}

// isOrigin reports whether a text has the form of an Origin header of a page: a scheme, a host in lower
// case and a port that is not the scheme's own.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && len(text) <= originBytesMax && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && strings.ToLower(text) == text &&
		text == u.Scheme+"://"+u.Host && !strings.HasSuffix(u.Host, ":") && !(u.Scheme == "http" && u.Port() == "80") && !(u.Scheme == "https" && u.Port() == "443") &&
		!strings.ContainsAny(text, "*\\ ")
}

// Mint returns the text of the token. It is a secret of its user.
func (t *ClientToken) Mint(secret []byte) string {
	if len(secret) != SecretBytes {
		panic("ingress: wrong length of the secret of client tokens")
	}
	claim := invariant.Must(json.Marshal(t))
	return clientTokenPrefix + tokenEncoding.EncodeToString(claim) + "." + tokenEncoding.EncodeToString(tokenMAC(secret, clientTokenLabel, claim))
}

// ReadClientToken returns the token with a text; false if the server with this secret has issued none.
// The caller MUST check its expiry, origin and key.
func ReadClientToken(secret []byte, text string) (t ClientToken, ok bool) {
	if len(secret) != SecretBytes || len(text) > clientTokenBytesMax || !IsClientToken(text) || strings.ContainsAny(text, "\r\n") { // base64 ignores these
		return t, false
	}
	left, right, _ := strings.Cut(text[len(clientTokenPrefix):], ".")
	claim, err := tokenEncoding.DecodeString(left)
	if err != nil {
		return t, false
	}
	mac, err := tokenEncoding.DecodeString(right)
	if err != nil || !hmac.Equal(mac, tokenMAC(secret, clientTokenLabel, claim)) || json.Unmarshal(claim, &t, json.RejectUnknownMembers(true)) != nil {
		return ClientToken{}, false
	}
	return t, true
}

// IsClientToken reports whether text has the form of a client token.
func IsClientToken(text string) bool { return strings.HasPrefix(text, clientTokenPrefix) }

// Expired reports whether the token has expired.
func (t *ClientToken) Expired(now actor.Time) bool { return now >= t.Expires }

// Admits reports whether the token permits requests of pages with an origin. Programs and a page of the
// server itself send none with some requests.
func (t *ClientToken) Admits(origin string) bool {
	return t.Origin == "" || origin == "" || origin == t.Origin
}

// Principal returns the principal of requests with the token.
func (t *ClientToken) Principal() actor.Principal {
	p := actor.NewPrincipal(t.User, t.Key, string(ScopeChat))
	p.Tenant = actor.Namespace(t.User)
	return p
}
