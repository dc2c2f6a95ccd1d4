// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// BreakerConfig configures a Breaker. A limit of 0 means no limit. The struct tag sim of a field is
// the range from which the simulator draws its value.
type BreakerConfig struct {
	// FailuresInARow is the number of consecutive failures that opens the circuit. UnreachedInARow is the
	// number of consecutive calls that could not connect which opens it.
	FailuresInARow  int
	UnreachedInARow int `sim:"1..3"`
	// Calls is the number of calls within RateWindow from which the circuit opens when at least
	// half of them failed.
	Calls int `sim:"2..10"`
	// OpenFor is the time that the circuit stays open. Each failed probe doubles it, up to OpenMax.
	OpenFor, OpenMax actor.Duration
	// ProbeWait is the retry delay of calls that are refused because of a probe.
	ProbeWait actor.Duration
	// ProbeMax is the time after which a probe without a result admits another one.
	ProbeMax actor.Duration
}

// AgentBreaker returns the configuration for an external agent.
func AgentBreaker() BreakerConfig {
	return BreakerConfig{UnreachedInARow: 3, Calls: 10, OpenFor: 5 * time.Second, OpenMax: time.Minute, ProbeWait: time.Second, ProbeMax: time.Minute}
}

// The window of the failure rate. A call counts for RateWindow, to within a slot.
const (
	RateWindow = 30 * time.Second
	rateSlots  = 10
	slotTime   = RateWindow / rateSlots
)

// Evidence is what the end of a call states about its callee.
type Evidence uint8

// The kinds of evidence.
const (
	NoEvidence Evidence = iota // cancelled, or out of time before the callee could be blamed
	Reached                    // the callee refused the call for its input or its own load: no failure, and no success either
	Succeeded
	Failed    // no usable answer, an error of the callee, or silence until the timeout
	Unreached // no connection
)

// Circuit is the state of a Breaker.
type Circuit uint8

// The states.
const (
	Closed   Circuit = iota
	Open             // calls are refused
	HalfOpen         // one call at a time is admitted as a probe, others are refused
)

// String returns the name of the state.
func (c Circuit) String() string { return [...]string{"closed", "open", "half_open"}[c] }

// Breaker is the circuit breaker of one callee. It is not stored: after a restart the circuit is
// closed.
//
//		closed ─ failures in a row, or their rate ─▶ open ─ time ─▶ half-open ─ a probe succeeds ─▶ closed
//		                                              ▲                 │
//		                                              └─ a probe fails ─┘
//
//	 1. While the circuit is open no call starts. While it is half-open one call starts at a time.
//	 2. A circuit that opened because of failures in a row closes with any sign of life. A circuit that
//	    opened because of the rate of failures closes only when a probe succeeds.
//	 3. Its size is constant.
type Breaker struct {
	config       BreakerConfig
	failures     int // consecutive failures, Unreached among them
	unreached    int // consecutive calls that could not connect
	failingSince actor.Time
	slots        [rateSlots]slotCount
	slot         int64 // number of the newest slot since the epoch

	open       bool
	byRate     bool // the rate opened the circuit
	calls      uint32
	failed     uint32         // with byRate: failed calls of calls, when the circuit opened
	openFor    actor.Duration // duration of the last opening; 0 while the circuit is closed
	openUntil  actor.Time
	opened     uint64 // openings of a closed circuit
	probing    bool
	probeUntil actor.Time
}

// slotCount counts the calls that ended within one slot of the window.
type slotCount struct{ calls, failed uint32 }

// NewBreaker returns a Breaker with a closed circuit.
func NewBreaker(config BreakerConfig) Breaker { return Breaker{config: config} }

// Circuit returns the state of the circuit.
func (b *Breaker) Circuit(now actor.Time) Circuit {
	switch {
	case !b.open:
		return Closed
	case now < b.openUntil:
		return Open
	}
	return HalfOpen
}

// Opened returns the number of times that the closed circuit opened.
func (b *Breaker) Opened() uint64 { return b.opened }

// FailingSince returns the time of the first of the consecutive failures, or 0.
func (b *Breaker) FailingSince() actor.Time { return b.failingSince }

// Refusal returns the refusal of a call that may not start now, or nil.
func (b *Breaker) Refusal(now actor.Time) *actor.Refusal {
	wait := b.openUntil.Sub(now)
	switch {
	case !b.open:
		return nil
	case wait > 0:
	case b.probing && (b.config.ProbeMax == 0 || now < b.probeUntil):
		wait = b.config.ProbeWait
	default:
		return nil
	}
	if b.byRate {
		return actor.RefuseUnavailable(wait, "circuit open: %d of %d calls within %v failed", b.failed, b.calls, RateWindow)
	}
	return actor.RefuseUnavailable(wait, "circuit open after %d consecutive failures", b.failures)
}

// Start starts a call unless Refusal has a refusal for it. The caller MUST pass probe to Record.
func (b *Breaker) Start(now actor.Time) (probe bool, refusal *actor.Refusal) {
	if refusal := b.Refusal(now); refusal != nil {
		return false, refusal
	}
	if b.open {
		b.probing, b.probeUntil = true, now.Add(b.config.ProbeMax)
	}
	return b.open, nil
}

// Record records the end of a call, or with probe false any other sign of life.
func (b *Breaker) Record(now actor.Time, e Evidence, probe bool) {
	if probe {
		b.probing = false
	}
	switch e {
	case NoEvidence:
		return
	case Reached, Succeeded:
		if b.open && b.byRate && !(probe && e == Succeeded) {
			return
		}
		if b.open { // what failed before says no more than that
			b.slots = [rateSlots]slotCount{}
		}
		b.failures, b.unreached, b.failingSince, b.openFor, b.open = 0, 0, 0, 0, false
		if e == Succeeded {
			b.count(now, 0)
		}
		return
	}
	if b.failures++; b.failures == 1 {
		b.failingSince = now
	}
	if b.unreached++; e != Unreached {
		b.unreached = 0
	}
	calls, failed := b.count(now, 1)
	switch reaches := func(n, limit int) bool { return limit > 0 && n >= limit }; {
	case b.open:
		if probe {
			b.reopen(now)
		}
	case reaches(b.failures, b.config.FailuresInARow), reaches(b.unreached, b.config.UnreachedInARow):
		b.byRate = false
		b.reopen(now)
	case reaches(int(calls), b.config.Calls) && 2*failed >= calls:
		b.byRate, b.calls, b.failed = true, calls, failed
		b.reopen(now)
	}
}

// reopen opens the circuit, for twice as long each time.
func (b *Breaker) reopen(now actor.Time) {
	if !b.open {
		b.open, b.opened = true, b.opened+1
	}
	b.openFor = min(max(2*b.openFor, b.config.OpenFor), b.config.OpenMax)
	b.openUntil = now.Add(b.openFor)
}

// count counts a call, and returns the calls and the failed calls within the window.
func (b *Breaker) count(now actor.Time, failed uint32) (calls, failures uint32) {
	slot := int64(now) / int64(slotTime)
	for range min(slot-b.slot, rateSlots) {
		b.slot++
		b.slots[b.slot%rateSlots] = slotCount{}
	}
	b.slot = max(b.slot, slot) // if it is more than a window later, all slots are empty
	at := &b.slots[b.slot%rateSlots]
	at.calls, at.failed = at.calls+1, at.failed+failed
	for i := range b.slots {
		calls, failures = calls+b.slots[i].calls, failures+b.slots[i].failed
	}
	return calls, failures
}
