// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

const (
	signingPeriod  = 30 * 24 * time.Hour // time for which a key signs
	signedLeeway   = time.Minute         // that a signed identity outlives its call, for clocks that differ
	signedLifeMax  = time.Hour
	signingLabel   = "troupe identity key 1\n" // no other use of the secret derives the same keys
	signedAlgoName = "EdDSA"
)

// Signer signs identities, so that a service need not trust the network between. Its keys follow from the
// secret of the store and the time: each signs for signingPeriod. KeySet also has the keys of the periods before
// and after. So a service with a copy of the key set knows the next key before it signs, and can still verify
// what the last key has signed. All nodes of a store have the same keys.
type Signer struct{ Secret []byte }

// SignedIdentity is who asks, and the one call of one tool to which that is bound.
type SignedIdentity struct {
	User, Session, Agent, Run string

	Tool      string
	URL       string // of the service, whose origin is the audience
	Call      string // its ID, the same if it is repeated
	Arguments []byte // in canonical JSON
	Left      actor.Duration
}

// key returns the key that signs at a time, and its ID.
func (s Signer) key(at actor.Time, periods int64) (ed25519.PrivateKey, string) {
	mac := hmac.New(sha256.New, s.Secret)
	fmt.Fprintf(mac, "%s%d", signingLabel, int64(at)/int64(signingPeriod)+periods)
	key := ed25519.NewKeyFromSeed(mac.Sum(nil))
	sum := sha256.Sum256(key.Public().(ed25519.PublicKey))
	return key, hex.EncodeToString(sum[:8])
}

// Sign returns the identity as a JWT of RFC 7519.
func (s Signer) Sign(call *SignedIdentity, now actor.Time) string {
	key, id := s.key(now, 0)
	hash := sha256.Sum256(call.Arguments)
	life := min(call.Left, signedLifeMax) + signedLeeway
	encode := func(v any) string {
		return base64.RawURLEncoding.EncodeToString(invariant.Must(json.Marshal(v, json.Deterministic(true))))
	}
	text := encode(struct {
		Alg  string `json:"alg"`
		Kid  string `json:"kid"`
		Type string `json:"typ"`
	}{signedAlgoName, id, "JWT"}) + "." + encode(struct {
		Issuer    string `json:"iss"`
		Audience  string `json:"aud"`
		Subject   string `json:"sub"`
		Issued    int64  `json:"iat"`
		Expires   int64  `json:"exp"`
		ID        string `json:"jti"`
		Tool      string `json:"tool"`
		Session   string `json:"session"`
		Agent     string `json:"agent"`
		Run       string `json:"run"`
		Arguments string `json:"args_sha256"`
	}{"troupe", originOf(call.URL), call.User, seconds(now), seconds(now.Add(life)), call.Call, call.Tool, call.Session, call.Agent, call.Run, hex.EncodeToString(hash[:])})
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(text)))
}

func seconds(t actor.Time) int64 { return int64(t) / int64(time.Second) }

// originOf returns scheme, host and port of a URL, in lower case and without the port of the scheme.
func originOf(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		rest = rest[:at]
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil {
		return ""
	}
	host := strings.ToLower(u.Host)
	if u.Port() == (map[string]string{"http": "80", "https": "443"})[strings.ToLower(u.Scheme)] {
		host = strings.TrimSuffix(host, ":"+u.Port())
	}
	return strings.ToLower(u.Scheme) + "://" + host
}

// KeySet returns the public keys as a JWK set of RFC 7517 and RFC 8037.
func (s Signer) KeySet(now actor.Time) []byte {
	type jwk struct {
		Type  string `json:"kty"`
		Curve string `json:"crv"`
		X     string `json:"x"`
		ID    string `json:"kid"`
		Alg   string `json:"alg"`
		Use   string `json:"use"`
	}
	var out struct {
		Keys []jwk `json:"keys"`
	}
	for _, periods := range []int64{0, 1, -1} {
		key, id := s.key(now, periods)
		out.Keys = append(out.Keys, jwk{"OKP", "Ed25519", base64.RawURLEncoding.EncodeToString(key.Public().(ed25519.PublicKey)), id, signedAlgoName, "sig"})
	}
	return invariant.Must(json.Marshal(out))
}
