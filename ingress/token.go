// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// SecretBytes is how long the secret is under which tokens are made.
const SecretBytes = 32

const (
	tokenPrefix   = "troupe-run."
	tokenLabel    = "troupe run token 1\n" // no other use of the secret makes the same bytes
	tokenBytesMax = 512
)

var tokenEncoding = base64.RawURLEncoding.Strict() // one text for each value

// MintToken makes the token with which an external agent speaks for one of its
// runs. It is a function of the secret, the run and the actor alone, so that it
// survives a restart; that the run is over is for the actor to say. It is a
// secret itself, and goes to that agent only.
func MintToken(secret []byte, run actor.CallID, id actor.ID) string {
	if len(secret) != SecretBytes {
		panic("the secret of run tokens has another length")
	}
	claim := append(run[:], id.String()...)
	return tokenPrefix + tokenEncoding.EncodeToString(claim) + "." + tokenEncoding.EncodeToString(tokenMAC(secret, claim))
}

// ReadToken says for which run and actor a token speaks. One that MintToken did
// not make under this secret is refused, in words that do not repeat it and do
// not say what about it is wrong.
func ReadToken(secret []byte, token string) (actor.CallID, actor.ID, *actor.Refusal) {
	refused := actor.Refuse(actor.Rejected, "the run token is not one of this server: send the x-run-token that came with /invoke, as it is")
	if len(secret) != SecretBytes || len(token) > tokenBytesMax || !strings.HasPrefix(token, tokenPrefix) ||
		strings.ContainsAny(token, "\r\n") { // which base64 does not see
		return actor.CallID{}, actor.ID{}, refused
	}
	left, right, _ := strings.Cut(token[len(tokenPrefix):], ".")
	claim, err := tokenEncoding.DecodeString(left)
	if err != nil {
		return actor.CallID{}, actor.ID{}, refused
	}
	mac, err := tokenEncoding.DecodeString(right)
	if err != nil || !hmac.Equal(mac, tokenMAC(secret, claim)) || len(claim) < len(actor.CallID{}) {
		return actor.CallID{}, actor.ID{}, refused
	}
	run := actor.CallID(claim[:16])
	id, err := actor.ParseID(string(claim[16:]))
	if err != nil {
		return actor.CallID{}, actor.ID{}, refused
	}
	return run, id, nil
}

func tokenMAC(secret, claim []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(tokenLabel))
	h.Write(claim)
	return h.Sum(nil)
}
