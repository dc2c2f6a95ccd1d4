// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// SecretBytes is the length in bytes of the secret that signs run tokens.
const SecretBytes = 32

const (
	tokenPrefix   = "troupe-run."
	tokenLabel    = "troupe run token 1\n" // domain separation: no other use of the secret signs the same bytes
	tokenLabel2   = "troupe run token 2\n" // of tokens with an invocation
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
	return encodeToken(secret, tokenLabel, append(run[:], id.String()...))
}

// MintInvocationToken is MintToken for one invocation of the agent, numbered from 1. An agent
// that is invoked again gets another token, and its former one makes no more requests.
func MintInvocationToken(secret []byte, run actor.CallID, invocation uint32, id actor.ID) string {
	if len(secret) != SecretBytes {
		panic("ingress: wrong length of the run token secret")
	}
	return encodeToken(secret, tokenLabel2, append(binary.BigEndian.AppendUint32(run[:], invocation), id.String()...))
}

func encodeToken(secret []byte, label string, claim []byte) string {
	return tokenPrefix + tokenEncoding.EncodeToString(claim) + "." + tokenEncoding.EncodeToString(tokenMAC(secret, label, claim))
}

// ReadToken returns the run and actor for which a token was minted. It refuses
// any other token. The refusal neither repeats the token nor names the fault in
// it.
func ReadToken(secret []byte, token string) (actor.CallID, actor.ID, *actor.Refusal) {
	run, id, _, refusal := ReadInvocationToken(secret, token)
	return run, id, refusal
}

// ReadInvocationToken is ReadToken with the invocation of the token, 0 if it has none.
func ReadInvocationToken(secret []byte, token string) (actor.CallID, actor.ID, uint32, *actor.Refusal) {
	fail := func() (actor.CallID, actor.ID, uint32, *actor.Refusal) {
		return actor.CallID{}, actor.ID{}, 0, actor.Refuse(actor.Rejected, "invalid run token: send the x-run-token header of the /invoke request unchanged")
	}
	if len(secret) != SecretBytes || len(token) > tokenBytesMax || !IsRunToken(token) ||
		strings.ContainsAny(token, "\r\n") { // base64 ignores these
		return fail()
	}
	left, right, _ := strings.Cut(token[len(tokenPrefix):], ".")
	claim, err := tokenEncoding.DecodeString(left)
	if err != nil {
		return fail()
	}
	mac, err := tokenEncoding.DecodeString(right)
	if err != nil || len(claim) < len(actor.CallID{}) {
		return fail()
	}
	run, name, invocation := actor.CallID(claim[:16]), claim[16:], uint32(0)
	switch {
	case hmac.Equal(mac, tokenMAC(secret, tokenLabel, claim)):
	case len(name) >= 4 && hmac.Equal(mac, tokenMAC(secret, tokenLabel2, claim)):
		invocation, name = binary.BigEndian.Uint32(name), name[4:]
	default:
		return fail()
	}
	id, err := actor.ParseID(string(name))
	if err != nil {
		return fail()
	}
	return run, id, invocation, nil
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

func tokenMAC(secret []byte, label string, claim []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(label))
	h.Write(claim)
	return h.Sum(nil)
}
