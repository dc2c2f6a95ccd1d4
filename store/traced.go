// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/troupe-run/troupe/actor"

// MayTrace reports whether an entry may begin or end a span of a run: it accepts a call with the trace of a client, or
// its events may end or interrupt a run. It is cheap, for a log on which most entries do neither.
func (e *Entry) MayTrace() bool {
	waits := func(a *Asked) bool { return a.Waits() || a.Out().Kind == actor.AskWait }
	switch r := e.Record.(type) {
	case Accepted:
		return r.Call.IsRoot() && r.Call.Trace != ""
	case Asking:
		for i := range r.Asks {
			if waits(&r.Asks[i]) {
				return true
			}
		}
	case Added:
		return waits(&r.Ask)
	case Held, Ended:
		return true
	case Parked:
		return r.Detail != ""
	}
	return false
}

// ClosedAt returns the number of the last event of an entry that ends or interrupts its run; 0 if none does.
func (e *Entry) ClosedAt() (run actor.CallID, seq uint64) {
	if _, accepts := e.Record.(Accepted); accepts || !e.MayTrace() {
		return run, 0
	}
	for _, ev := range e.RunEvents() {
		if ev.Interrupts() || ev.Type.Ends() {
			run, seq = ev.Run, ev.Seq
		}
	}
	return run, seq
}

// TraceOf returns the trace of a client that an entry accepts a root call with; "" if it does not.
func (e *Entry) TraceOf() (run actor.CallID, trace string) {
	if r, ok := e.Record.(Accepted); ok && r.Call.IsRoot() {
		return r.Call.ID, r.Call.Trace
	}
	return run, ""
}
