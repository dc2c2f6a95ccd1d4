// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// BackoffConfig says how an upstream that fails is spared. The zero value is
// usable: each 0 stands for the default named.
type BackoffConfig struct {
	// Base is the longest first wait; each failure in a row doubles it, up to
	// Max. The wait itself is drawn from all of it, so that those who failed
	// together do not come back together. 500 ms, 30 s.
	Base, Max actor.Duration
	// OpenAfter failures in a row to bring a usable answer open the circuit. 5.
	OpenAfter int
	// OpenFor is how long nobody goes then; each probe that fails doubles it, up
	// to OpenMax. 5 s, 2 min.
	OpenFor, OpenMax actor.Duration
	// RetryPercent of requests may be asked again, over RetriesSaved that are in
	// hand from the start: a sick upstream gets little more than what is new. 10, 10.
	RetryPercent, RetryBurst int
}

// Validate names what is wrong.
func (c BackoffConfig) Validate() error {
	switch d := c.orDefaults(); {
	case d.Base > d.Max:
		return fmt.Errorf("back-off: base %v is over max %v", d.Base, d.Max)
	case d.OpenFor > d.OpenMax:
		return fmt.Errorf("back-off: open for %v is over max %v", d.OpenFor, d.OpenMax)
	case d.RetryPercent > 100:
		return fmt.Errorf("back-off: %d %% of requests asked again: want at most 100", d.RetryPercent)
	}
	return nil
}

func (c BackoffConfig) orDefaults() BackoffConfig {
	return BackoffConfig{
		Base: orDefault(c.Base, 500*time.Millisecond), Max: orDefault(c.Max, 30*time.Second),
		OpenAfter: orDefault(c.OpenAfter, 5),
		OpenFor:   orDefault(c.OpenFor, 5*time.Second), OpenMax: orDefault(c.OpenMax, 2*time.Minute),
		RetryPercent: orDefault(c.RetryPercent, 10), RetryBurst: orDefault(c.RetryBurst, 10),
	}
}

// Backoff is what all calls to one upstream know of its health.
//
//		closed ─ OpenAfter broken in a row ─▶ open ─ time ─▶ half-open ─ one probe ─▶ closed
//		                                       ▲                            │
//		                                       └──────── broken again ──────┘
//
//	 1. While it is open nobody goes; while it is half-open one goes.
//	 2. Nobody goes before the instant that the upstream asked for.
//	 3. Retries never outnumber RetriesSaved plus RetryPercent of first attempts.
type Backoff struct {
	config       BackoffConfig
	failures     int // failures in a row
	brokenInARow int // of them, in a row, without a usable answer
	opens        int // times in a row that the circuit opened
	open         bool
	openUntil    actor.Time // while open: nobody goes before
	notBefore    actor.Time // nobody goes before: the upstream asked for it
	probing      bool       // half-open, and one is out
	retryCredit  int        // hundredths of a retry
}

// NewBackoff trusts the upstream.
func NewBackoff(config BackoffConfig) *Backoff {
	config = config.orDefaults()
	return &Backoff{config: config, retryCredit: 100 * config.RetryBurst}
}

// Pass says whether an attempt may go. It goes if both At and Refusal are zero;
// else it asks again at At, or gives up.
type Pass struct {
	At      actor.Time
	Refusal *actor.Refusal
	Probe   bool // it goes to find out; say so when it comes back
}

// Admit is asked before each attempt.
func (b *Backoff) Admit(now actor.Time, draw uint64) Pass {
	switch {
	case b.open && now < b.openUntil:
		return Pass{Refusal: b.refuse(b.openUntil.Sub(now))}
	case b.open && b.probing:
		return Pass{Refusal: b.refuse(b.config.Base)}
	case b.open:
		b.probing = true
		return Pass{Probe: true}
	case now < b.notBefore:
		// Those who wait do not all come at the first instant.
		return Pass{At: b.notBefore.Add(jitter(b.window(), draw))}
	}
	return Pass{}
}

func (b *Backoff) refuse(wait actor.Duration) *actor.Refusal {
	refusal := actor.Refuse(actor.Unavailable, "left alone after %d failures in a row", b.brokenInARow)
	refusal.RetryAfter = wait
	return refusal
}

// Report is what became of an attempt that was admitted. Neither Answered nor a
// Failure: it was given up, and tells nothing.
type Report struct {
	Answered bool
	Failure  *Failure
	First    bool // of its exchange
	Probe    bool // as its Pass said
	// By is when it has to try again to be of use; 0: it does not want to.
	By actor.Time
}

// Advice says whether an attempt that failed may be followed by another, and when.
type Advice struct {
	Again bool
	At    actor.Time
}

// Report takes what became of an attempt, and advises on the next.
func (b *Backoff) Report(now actor.Time, r Report, draw uint64) Advice {
	if r.Probe {
		b.probing = false
	}
	if r.First {
		b.retryCredit = min(b.retryCredit+b.config.RetryPercent, 100*b.config.RetryBurst)
	}
	switch {
	case r.Failure == nil && !r.Answered:
		return Advice{}
	case r.Failure == nil || r.Failure.Class == Refused:
		b.failures, b.brokenInARow, b.opens, b.open = 0, 0, 0, false
		return Advice{}
	case r.Failure.Class == Throttled:
		b.brokenInARow, b.opens, b.open = 0, 0, false // it is well enough to say so
	default:
		b.countBroken(now, r.Probe)
	}
	b.failures++
	wait := jitter(b.window(), draw)
	switch {
	case r.Failure.After > 0:
		b.notBefore = max(b.notBefore, now.Add(r.Failure.After))
	case r.Failure.Class == Throttled: // it did not say how long
		b.notBefore = max(b.notBefore, now.Add(wait))
	}
	at := now.Add(r.Failure.After).Add(wait)
	if at >= r.By || b.retryCredit < 100 {
		return Advice{}
	}
	b.retryCredit -= 100
	return Advice{Again: true, At: at}
}

// countBroken opens the circuit after too many in a row, or if a probe found it sick.
func (b *Backoff) countBroken(now actor.Time, probe bool) {
	b.brokenInARow++
	if probe || !b.open && b.brokenInARow >= b.config.OpenAfter {
		b.open = true
		b.openUntil = now.Add(doubled(b.config.OpenFor, b.opens, b.config.OpenMax))
		b.opens++
	}
}

// window is what the next wait is drawn from.
func (b *Backoff) window() actor.Duration {
	return doubled(b.config.Base, max(b.failures-1, 0), b.config.Max)
}

// doubled is d doubled n times, at most limit.
func doubled(d actor.Duration, n int, limit actor.Duration) actor.Duration {
	for range n {
		if d >= limit/2 {
			return limit
		}
		d *= 2
	}
	return min(d, limit)
}

// jitter is a span from 0 to window, by a number drawn from all there are.
func jitter(window actor.Duration, draw uint64) actor.Duration {
	span, _ := bits.Mul64(draw, uint64(window)+1)
	return actor.Duration(span)
}
