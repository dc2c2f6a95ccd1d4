// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Fallbacks. A request whose model is not available goes to the next model of a list, unless a piece of
// an answer was forwarded: the client would read parts of two answers.

// FallbacksMax is the maximum number of models that may answer in place of one.
const FallbacksMax = 4

// BeforeOthers returns the limits of a request after which the given number of other models can be asked. Each
// of them has the same part of the time left until the head of its response. The request is not
// repeated, unless retries are wanted.
func (p AttemptLimits) BeforeOthers(left actor.Duration, others int, retries bool) AttemptLimits {
	if others == 0 {
		return p
	}
	p.Head = min(p.orDefaults().Head, max(left/actor.Duration(others+1), 1))
	if !retries {
		p.Retry.Tries = 1
	}
	return p
}

// Impatient is a Pacer for a request after which other models can be asked: what would wait because of
// other requests is refused.
type Impatient struct{ Pacer }

// Admit implements Pacer.
func (i Impatient) Admit(now actor.Time, w Waiter, draw uint64) Admission {
	a := i.Pacer.Admit(now, w, draw)
	if a.At > now {
		return Admission{Refusal: actor.RefuseBusy(actor.ScopeCallee, a.At.Sub(now), "has asked for a delay")}
	}
	a.Since = 0 // do not wait for its recovery
	return a
}

// IsAway reports whether the upstream could not answer, and another one may.
func (o *Outcome) IsAway() bool {
	if o.Refusal == nil {
		return false
	}
	if n := len(o.Attempts); n > 0 && o.Attempts[n-1].Status == 429 { // also without quota
		return true
	}
	return o.Refusal.Reason == actor.Unavailable || o.Refusal.Reason == actor.Busy && o.Refusal.Scope == actor.ScopeCallee
}

// PassOver returns the piece which shows that the next model is asked.
func (o *Outcome) PassOver(next string) actor.Piece {
	refusal := *o.Refusal
	refusal.RetryAfter = 0
	refusal.Detail = actor.Refuse(refusal.Reason, "%s; model %s is asked", refusal.Detail, next).Detail
	return actor.Piece{Retry: &refusal}
}

// fallbackPrefix begins the encoding of a completion that a fallback has answered.
const fallbackPrefix = `{"fallback":"`

// FallbackOf returns Completion.Fallback of an encoded completion without decoding it.
func FallbackOf(completion []byte) string {
	rest, ok := strings.CutPrefix(string(completion[:min(len(completion), len(fallbackPrefix)+actor.NameBytesMax+1)]), fallbackPrefix)
	name, _, closed := strings.Cut(rest, `"`)
	if !ok || !closed {
		return ""
	}
	return name
}
