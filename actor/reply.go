// SPDX-License-Identifier: Apache-2.0

package actor

import "slices"

// Status is the final status of a run.
type Status uint8

// The final statuses. A Failed run has a Refusal, the others have content.
const (
	Succeeded Status = iota + 1
	Partial          // content is incomplete; Warnings name the missing parts
	Failed
)

var statusNames = [...]string{Succeeded: "succeeded", Partial: "partial", Failed: "failed"}

// String returns the name of the status.
func (s Status) String() string { return nameOf(statusNames[:], int(s)) }

// Reply is the single outcome of a call.
type Reply struct {
	Call       CallID // call that is answered
	Run        CallID // run that did the work; differs from Call for a repeated request
	Status     Status
	Parts      []Part
	Warnings   []string
	Refusal    *Refusal // set exactly if Status is Failed
	Budget     uint32   // unused budget of the call, returned to the caller
	Purse      *Purse   // unspent part of the call's, returned to the caller
	Usage      Usage    // of the run
	Tree       Usage    // of the run and of the runs below it, as far as their answers arrived
	Extensions Extensions
}

// Clone returns a copy that shares no mutable memory with r.
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

// Fail returns the reply that refuses the call.
func Fail(call CallID, refusal *Refusal) Reply {
	return Reply{Call: call, Run: call, Status: Failed, Refusal: refusal}
}
