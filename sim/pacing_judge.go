// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// pacingJudge is what one process may know about an upstream from its attempts. It
// forbids attempts before the time that the upstream requested, and while the circuit
// is open.
type pacingJudge struct {
	w            *Simulation
	notBefore    actor.Time
	broken       int  // consecutive attempts without a usable response
	opened       int  // times that the circuit opened since the last usable response
	circuitless  bool // the upstream is an external agent
	open         bool
	openUntil    actor.Time
	probe        *upstreamConn // the attempt that may close the circuit
	unsure       bool          // an attempt had forged input; ends with the next known response
	unsureCredit bool          // an attempt of an unknown class may have cost a retry
	throttled    actor.Time    // end of the longest delay that a throttled attempt may cause
	burst        int           // maximum of the retry budget
	credit       int           // retry budget, in hundredths of a retry
}

func newPacingJudge(w *Simulation) *pacingJudge {
	burst := w.plan.Backoff.RetryBurst
	if burst == 0 {
		burst = promisedRetryBurst
	}
	return &pacingJudge{w: w, burst: burst, credit: 100 * burst}
}

// first records the end of the first attempt of an exchange, which earns a tenth of a
// retry.
func (p *pacingJudge) first() { p.credit = min(p.credit+10, 100*p.burst) }

// spend records a retry. An attempt that did not reach the upstream costs nothing.
func (p *pacingJudge) spend(class upstream.Class) (ok bool) {
	switch class {
	case upstream.Unreached:
		return true
	case 0: // unknown: it may have reached the upstream or not
		p.unsureCredit = true
	}
	p.credit -= 100
	return p.credit >= 0 || p.unsureCredit
}

// The circuit as documented.
const (
	promisedBrokenMax  = 5
	promisedOpenFor    = time.Second
	promisedOpenForMax = 5 * time.Second
	promisedDelayMax   = 15 * time.Second
)

// forbids returns the reason why no attempt may start now, or "".
func (p *pacingJudge) forbids(now actor.Time) string {
	switch {
	case now < p.notBefore:
		return fmt.Sprintf("the upstream requested a delay that ends in %v", p.notBefore.Sub(now))
	case p.unsure || !p.open:
		return ""
	case now < p.openUntil:
		return fmt.Sprintf("the circuit is open for another %v after %d failures", p.openUntil.Sub(now), p.broken)
	case p.probe != nil:
		return "another attempt probes the upstream"
	}
	return ""
}

// admits reports whether it is certain that an attempt may start.
func (p *pacingJudge) admits(now actor.Time) bool {
	return !p.unsure && !p.open && now >= max(p.notBefore, p.throttled)
}

// sent records the start of an attempt.
func (p *pacingJudge) sent(conn *upstreamConn) {
	if p.open && !p.unsure {
		p.probe = conn
	}
}

// head records the head of a response. The probe of a canned response may have closed
// the circuit, depending on its content type.
func (p *pacingJudge) head(conn *upstreamConn) {
	if p.probe != conn || p.probe == nil {
		return
	}
	if conn.served.verdict != nil || conn.served.forged {
		p.unsure, p.probe = true, nil
		return
	}
	p.close()
}

// close closes the circuit: the upstream responds.
func (p *pacingJudge) close() {
	p.broken, p.opened, p.open, p.probe, p.unsure = 0, 0, false, nil, false
}

// aborted records an attempt that ended before its response. A long silence counts as a
// failure.
func (p *pacingJudge) aborted(conn *upstreamConn, silent bool) {
	if silent {
		p.failed(conn, upstream.Broken, 0)
	} else if p.probe == conn {
		p.probe = nil
	}
}

// failed records a failed attempt.
func (p *pacingJudge) failed(conn *upstreamConn, class upstream.Class, after actor.Duration) {
	probed := p.probe == conn && conn != nil
	if probed {
		p.probe = nil
	}
	if after > 0 && class != upstream.Refused {
		p.notBefore = max(p.notBefore, p.w.now.Add(after))
	}
	if class == upstream.Throttled {
		p.throttled = p.w.now.Add(after + promisedDelayMax)
	}
	switch class {
	case 0:
		p.unsure = true
	case upstream.Refused, upstream.Throttled:
		p.close()
	default:
		if p.broken++; !p.circuitless && (probed || !p.open && p.broken >= promisedBrokenMax) {
			wait := promisedOpenFor
			for range p.opened {
				wait = min(2*wait, promisedOpenForMax)
			}
			p.open, p.openUntil = true, p.w.now.Add(wait)
			p.opened++
		}
	}
}
