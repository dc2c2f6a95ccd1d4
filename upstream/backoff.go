// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
)

// BackoffConfig configures a Backoff. A zero field means its default.
type BackoffConfig struct {
	// Base is the maximum of the first delay. Each consecutive failure doubles it, up
	// to Max. The delay is drawn from the whole range (full jitter), so callers that
	// failed together do not retry together. The defaults are 500 ms and 30 s.
	Base, Max actor.Duration
	// OpenAfter is the number of consecutive attempts without a usable response that
	// opens the circuit. The default is 5.
	OpenAfter int
	// NoCircuit means that there is no circuit: external agents have one each, in their Health.
	NoCircuit bool
	// OpenFor is the time that the circuit stays open. Each failed probe doubles it,
	// up to OpenMax. The defaults are 1 s and 5 s: the time lost after the upstream has
	// recovered is small against RetryPolicy.Time.
	OpenFor, OpenMax actor.Duration
	// RetryPercent is the number of retries per 100 first attempts; default 10.
	// RetryBurst is the initial and the maximum budget of retries; default 500, so that
	// one restart of an upstream costs none of the requests in progress. Together they
	// keep the load on a failing upstream close to the rate of new requests. Retries
	// after attempts that did not reach the upstream are not counted.
	RetryPercent int
	RetryBurst   int `sim:"1..500"`
}

// Validate returns an error that describes the first invalid field, or nil.
func (c BackoffConfig) Validate() error {
	switch d := c.orDefaults(); {
	case d.Base > d.Max:
		return fmt.Errorf("back-off: base %v exceeds max %v", d.Base, d.Max)
	case d.OpenFor > d.OpenMax:
		return fmt.Errorf("back-off: open for %v exceeds max %v", d.OpenFor, d.OpenMax)
	case d.RetryPercent > 100:
		return fmt.Errorf("back-off: retries of %d %% of requests: want at most 100", d.RetryPercent)
	}
	return nil
}

func (c BackoffConfig) orDefaults() BackoffConfig {
	return BackoffConfig{
		Base: orDefault(c.Base, 500*time.Millisecond), Max: orDefault(c.Max, 30*time.Second),
		OpenAfter: orDefault(c.OpenAfter, 5), NoCircuit: c.NoCircuit,
		OpenFor: orDefault(c.OpenFor, time.Second), OpenMax: orDefault(c.OpenMax, 5*time.Second),
		RetryPercent: orDefault(c.RetryPercent, 10), RetryBurst: orDefault(c.RetryBurst, 500),
	}
}

// Backoff is the health of one upstream, shared by all calls to it: exponential
// back-off, a circuit breaker and a retry budget.
//
//  1. The circuit opens after OpenAfter attempts in a row without a usable response. No attempt
//     is admitted while it is open, and one at a time, the probe, while it is half-open.
//  2. No attempt is admitted before the time that the upstream requested. If it throttles without
//     a time, an attempt waits for its own maximum delay at most.
//  3. Retries never exceed RetryBurst plus RetryPercent of first attempts.
type Backoff struct {
	config      BackoffConfig
	circuit     dispatcher.Breaker
	failures    int        // consecutive failures of any class except Refused
	notBefore   actor.Time // earliest next attempt, as requested by the upstream
	calmUntil   actor.Time // end of the delay that the upstream caused but did not request
	retryCredit int        // remaining retry budget, in hundredths of a retry
}

// NewBackoff returns a Backoff with a closed circuit and a full retry budget.
func NewBackoff(config BackoffConfig) *Backoff {
	config = config.orDefaults()
	b := &Backoff{config: config, retryCredit: 100 * config.RetryBurst}
	if !config.NoCircuit {
		b.circuit = dispatcher.NewBreaker(dispatcher.BreakerConfig{FailuresInARow: config.OpenAfter, OpenFor: config.OpenFor, OpenMax: config.OpenMax, ProbeWait: config.Base})
	}
	return b
}

// Admission is the decision about an attempt. If At and Refusal are zero, the
// attempt starts now. If Refusal is set, the caller returns this refusal. If At
// is set, the caller calls Admit again at that time.
type Admission struct {
	At      actor.Time
	Refusal *actor.Refusal
	Since   actor.Time // time since which the upstream fails; with Refusal 0 if waiting is useless
	// Poll is, with Since, the time until the next request for admission; 0 means
	// Refusal.RetryAfter.
	Poll  actor.Duration
	Probe bool // the attempt is a probe of a half-open circuit; the caller MUST copy Probe to its Report
}

// Waiter describes an attempt that asks for admission.
type Waiter struct {
	// Until is the time until which the attempt waits for an upstream that throttles without
	// a requested time; 0 means without a bound.
	Until actor.Time
	// DelayMax is the maximum of the jitter that is added to a requested time; 0 means that of the
	// BackoffConfig.
	DelayMax actor.Duration
}

// Admit decides whether an attempt may start. It MUST be called before each
// attempt.
func (b *Backoff) Admit(now actor.Time, w Waiter, draw uint64) Admission {
	refusal := b.circuit.Refusal(now)
	switch {
	case refusal != nil:
		return Admission{Refusal: refusal, Since: b.circuit.FailingSince()}
	case now < b.notBefore:
		// Jitter spreads the attempts that wait for the same instant.
		return Admission{At: b.notBefore.Add(jitter(min(b.window(), orDefault(w.DelayMax, b.config.Max)), draw))}
	case now < b.calmUntil && (w.Until == 0 || now < w.Until):
		at := b.calmUntil.Add(jitter(b.window(), draw))
		if w.Until != 0 {
			at = min(at, w.Until)
		}
		return Admission{At: at}
	}
	probe, _ := b.circuit.Start(now)
	return Admission{Probe: probe}
}

// Report is the result of an admitted attempt. If neither Answered nor Failure is
// set, the attempt was aborted and states nothing about the upstream.
type Report struct {
	Answered bool
	Failure  *Failure
	First    bool // first attempt of its exchange
	Probe    bool // copied from Admission
	// By is the time before which a retry must start to be useful; 0 means that no
	// retry is wanted.
	By actor.Time
	// Until is the latest useful start of a retry, for which a delay is shortened; 0
	// means none.
	Until actor.Time
	// Window is the maximum delay before a retry, and before attempts of others if the upstream
	// throttles without a requested time; 0 means that of the BackoffConfig. With Exact the delay
	// is not drawn.
	Window actor.Duration
	Exact  bool
}

// Advice is the decision whether a failed attempt may be repeated, and when.
type Advice struct {
	Retry bool
	At    actor.Time
}

// Report records the result of an attempt and decides about a retry.
func (b *Backoff) Report(now actor.Time, r Report, draw uint64) Advice {
	b.circuit.Record(now, r.evidence(), r.Probe)
	if r.First {
		b.retryCredit = min(b.retryCredit+b.config.RetryPercent, 100*b.config.RetryBurst)
	}
	switch {
	case r.Failure == nil && !r.Answered:
		return Advice{}
	case r.Failure == nil || r.Failure.Class == Refused:
		b.failures = 0
		return Advice{}
	}
	b.failures++
	wait := orDefault(r.Window, b.window())
	if !r.Exact {
		wait = jitter(wait, draw)
	}
	earliest := now.Add(r.Failure.After)
	at := earliest.Add(wait)
	if r.Until != 0 && at > r.Until {
		at = max(earliest, r.Until)
	}
	switch {
	case r.Failure.After > 0:
		b.notBefore = max(b.notBefore, earliest)
	case r.Failure.Class == Throttled: // without Retry-After
		b.calmUntil = max(b.calmUntil, at)
	}
	credit := 100
	if r.Failure.Class == Unreached { // cost the upstream nothing
		credit = 0
	}
	if at >= r.By || r.Until != 0 && (at > r.Until || now >= r.Until) || b.retryCredit < credit {
		return Advice{}
	}
	b.retryCredit -= credit
	return Advice{Retry: true, At: at}
}

// evidence returns what an attempt states about the upstream: one that throttles is healthy.
func (r *Report) evidence() dispatcher.Evidence {
	switch {
	case r.Answered:
		return dispatcher.Succeeded
	case r.Failure == nil:
		return dispatcher.NoEvidence
	case r.Failure.Class == Unreached:
		return dispatcher.Unreached
	case r.Failure.Class == Broken:
		return dispatcher.Failed
	}
	return dispatcher.Reached
}

// window returns the maximum of the next delay.
func (b *Backoff) window() actor.Duration {
	return doubled(b.config.Base, max(b.failures-1, 0), b.config.Max)
}

// doubled returns d doubled n times, at most limit.
func doubled(d actor.Duration, n int, limit actor.Duration) actor.Duration {
	for range n {
		if d >= limit/2 {
			return limit
		}
		d *= 2
	}
	return min(d, limit)
}

// jitter maps a uniformly random number to a duration between 0 and window.
func jitter(window actor.Duration, draw uint64) actor.Duration {
	span, _ := bits.Mul64(draw, uint64(window)+1)
	return actor.Duration(span)
}
