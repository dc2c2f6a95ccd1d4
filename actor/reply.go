// SPDX-License-Identifier: Apache-2.0

package actor

import "slices"

// Status is how a run ended.
type Status uint8

// The ends of a run. Failed carries a Refusal, the others content.
const (
	Succeeded Status = iota + 1
	Partial          // content with something missing, which Warnings name
	Failed
)

var statusNames = [...]string{Succeeded: "succeeded", Partial: "partial", Failed: "failed"}

// String is the status' name.
func (s Status) String() string { return nameOf(statusNames[:], int(s)) }

// Reply is the one outcome of a call.
type Reply struct {
	Call     CallID // the call that is answered
	Run      CallID // the run that did the work: another one if the request was a repeat
	Status   Status
	Parts    []Part
	Warnings []string
	Refusal  *Refusal // set exactly if Status is Failed
	Budget   uint32   // what is left of the call's budget, for the caller to have back
}

// Clone is the reply once more, which shares nothing with it that could change.
func (r *Reply) Clone() Reply {
	c := *r
	c.Parts, c.Warnings = CloneParts(r.Parts), slices.Clone(r.Warnings)
	if r.Refusal != nil {
		refusal := *r.Refusal
		refusal.Chain = slices.Clone(refusal.Chain)
		c.Refusal = &refusal
	}
	return c
}

// Fail is the reply that refuses the call.
func Fail(call CallID, refusal *Refusal) Reply {
	return Reply{Call: call, Run: call, Status: Failed, Refusal: refusal}
}
