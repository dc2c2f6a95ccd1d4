// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/upstream"
)

// judgedCircuit is the circuit of an external agent as the documentation defines it.
type judgedCircuit struct {
	config    dispatcher.BreakerConfig
	failures  []judgedEnd // and successes, since the circuit was closed
	unreached int         // consecutive invocations that could not connect
	open      bool
	byRate    bool
	openFor   actor.Duration
	until     actor.Time
	probe     *exchangeJudge
	probeAt   actor.Time
}

// judgedEnd is the end of an invocation that counts for the failure rate.
type judgedEnd struct {
	at     actor.Time
	failed bool
}

// The circuit of an external agent as documented.
const (
	promisedRateWindow  = 30 * time.Second
	promisedRateSlot    = 3 * time.Second
	promisedAgentOpen   = 5 * time.Second
	promisedAgentOpened = time.Minute
	promisedProbeMax    = time.Minute
)

// forbids returns the reason why no invocation may start now, or "".
func (c *judgedCircuit) forbids(now actor.Time) string {
	switch {
	case !c.open:
		return ""
	case now < c.until:
		return fmt.Sprintf("the circuit of the agent is open for another %v", c.until.Sub(now))
	case c.probe != nil && now < c.probeAt.Add(promisedProbeMax):
		return "another invocation probes the agent"
	}
	return ""
}

// started records that an invocation sends its first request.
func (c *judgedCircuit) started(j *exchangeJudge) {
	if c.open {
		c.probe, c.probeAt = j, j.now()
		j.probes = true
	}
}

// reached records a sign of life.
func (c *judgedCircuit) reached() {
	if !c.open || !c.byRate {
		c.close()
	}
}

func (c *judgedCircuit) close() {
	if c.open {
		c.failures = nil
	}
	c.unreached, c.open, c.openFor = 0, false, 0
}

// ended records the end of an invocation.
func (c *judgedCircuit) ended(j *exchangeJudge, e dispatcher.Evidence) {
	now, probed := j.now(), j.probes
	if probed {
		c.probe = nil
	}
	switch e {
	case dispatcher.NoEvidence:
		return
	case dispatcher.Reached:
		c.reached()
		return
	case dispatcher.Succeeded:
		if !c.open || !c.byRate || probed {
			c.close()
			c.failures = append(c.failures, judgedEnd{now, false})
		}
		return
	case dispatcher.Unreached:
		c.unreached++
	default:
		c.unreached = 0
	}
	c.failures = append(c.failures, judgedEnd{now, true})
	calls, failed := 0, 0
	for _, end := range c.failures {
		if now/actor.Time(promisedRateSlot)-end.at/actor.Time(promisedRateSlot) < actor.Time(promisedRateWindow/promisedRateSlot) {
			calls++
			if end.failed {
				failed++
			}
		}
	}
	row, rate := c.unreached >= c.config.UnreachedInARow, calls >= c.config.Calls && 2*failed >= calls
	switch {
	case c.open && !probed, !c.open && !row && !rate:
		return
	case !c.open:
		c.byRate, c.openFor = !row, promisedAgentOpen
	default:
		c.openFor = min(2*c.openFor, promisedAgentOpened)
	}
	c.open, c.until = true, now.Add(c.openFor)
}

// evidence returns what the end of the exchange states about its agent.
func (j *exchangeJudge) evidence(o *upstream.Outcome, aborted bool) dispatcher.Evidence {
	a := j.last()
	switch {
	case a == nil:
		return dispatcher.NoEvidence
	case o.Refusal == nil:
		return dispatcher.Succeeded
	case aborted && j.now() >= j.deadline && j.now().Sub(j.contact) >= promisedSilenceIsBroken:
		return dispatcher.Failed
	case aborted:
		return dispatcher.NoEvidence
	}
	switch v, class := a.conn.served.verdict, a.class(); {
	case class == 0: // forged input: the judge does not know how it reads
		return o.Evidence
	case class == upstream.Unreached:
		return dispatcher.Unreached
	case class == upstream.Broken, class == upstream.Refused && a.status != 200 && v.agent == actor.Unavailable:
		return dispatcher.Failed
	}
	return dispatcher.Reached
}

// recordHealth records the end of an invocation for the health of its agent.
func (j *exchangeJudge) recordHealth(o *upstream.Outcome, aborted bool) {
	h, a := j.health, j.last()
	e := j.evidence(o, aborted)
	h.circuit.ended(j, e)
	switch {
	case a == nil:
	case a.status != 0:
		h.reached()
	case e == dispatcher.Unreached:
		if h.unreached = j.now(); h.unreachedSince == 0 || j.attempts[0].at < h.unreachedSince {
			h.unreachedSince = j.attempts[0].at
		}
	}
}

// headArrived records the head of a response. That of a probe shows that the agent can be reached.
func (j *exchangeJudge) headArrived(in upstream.Head) {
	page := func(h upstream.Header) bool {
		return strings.EqualFold(h.Name, "content-type") && strings.HasPrefix(h.Value, "text/html")
	}
	if j.health != nil && j.probes && len(j.attempts) == 1 && in.Status == 200 && !slices.ContainsFunc(in.Headers, page) {
		j.health.reached()
	}
}
