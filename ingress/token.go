// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// SecretBytes is the length in bytes of the secret that signs run tokens.
const SecretBytes = 32

const (
	tokenPrefix   = "troupe-run."
	tokenLabel    = "troupe run token 1\n" // domain separation: no other use of the secret signs the same bytes
	tokenBytesMax = 512
)

var tokenEncoding = base64.RawURLEncoding.Strict() // strict: each value has one encoding

// MintToken returns the token that authorizes an external agent to act for one of
// its runs. It depends only on the secret, the run and the actor, and so remains
// valid across restarts. It does not expire: the gateway and the actor reject what
// it is used for once its run has ended. The token is itself a secret and MUST be
// sent to that agent only.
func MintToken(secret []byte, run actor.CallID, id actor.ID) string {
	if len(secret) != SecretBytes {
		panic("ingress: wrong length of the run token secret")
	}
	claim := append(run[:], id.String()...)
	return tokenPrefix + tokenEncoding.EncodeToString(claim) + "." + tokenEncoding.EncodeToString(tokenMAC(secret, claim))
}

// ReadToken returns the run and actor for which a token was minted. It refuses
// any other token. The refusal neither repeats the token nor names the fault in
// it.
func ReadToken(secret []byte, token string) (actor.CallID, actor.ID, *actor.Refusal) {
	refused := actor.Refuse(actor.Rejected, "invalid run token: send the x-run-token header of the /invoke request unchanged")
	if len(secret) != SecretBytes || len(token) > tokenBytesMax || !IsRunToken(token) ||
		strings.ContainsAny(token, "\r\n") { // base64 ignores these
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

// IsRunToken reports whether text has the form of a run token.
func IsRunToken[T ~string | ~[]byte](text T) bool {
	return len(text) >= len(tokenPrefix) && string(text[:len(tokenPrefix)]) == tokenPrefix
}

// ServerMark returns the text by which the servers with a secret recognize requests that one of
// them has sent. It authorizes nothing.
func ServerMark(secret []byte) string {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("troupe egress mark 1\n"))
	return tokenEncoding.EncodeToString(h.Sum(nil)[:16])
}

func tokenMAC(secret, claim []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(tokenLabel))
	h.Write(claim)
	return h.Sum(nil)
}
