// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// This file checks the requests of runs to models and external agents, the fragments of their
// answers shown to clients, and the event streams of clients.

// externalEffect is one request of a run to a model or an external agent: an ask at its position
// in the run, across all attempts.
type externalEffect struct {
	step  uint32
	index uint16
	begun bool // the external agent has begun the request, which must not be repeated

	attempt   uint32       // last attempt sent
	sender    actor.NodeID // sender of that attempt; a volatile actor that has moved restarts its attempt numbers
	forwarded bool         // part of the answer of this attempt was forwarded

	shownAttempt uint32 // attempt of the fragments currently shown
	shownTry     int    // attempt of the upstream, within that attempt
	firstShown   uint64 // number of the first event that shows these fragments; 0 if there is none
	retracted    uint64 // number of the last event that retracts fragments; readers of the log see it after a crash too
}

func (r *run) external(e *history.Event) *externalEffect {
	for _, o := range r.externals {
		if o.step == e.Step && o.index == e.Index {
			return o
		}
	}
	o := &externalEffect{step: e.Step, index: e.Index}
	r.externals = append(r.externals, o)
	return o
}

// Once in the Why of a Perform marks an effect that must not be repeated.
const Once = "once"

// observeExternal checks an exchange between a node and a model or external agent.
func (c *Checker) observeExternal(e *history.Event) {
	r := c.runs[e.Call]
	if r == nil {
		return
	}
	o := r.external(e)
	switch e.What {
	case "try":
		if e.Why == Once && e.N > 1 {
			c.Premises.RetriedUnheard++
		}
		if e.N == 1 {
			o.attempt, o.sender, o.forwarded = e.Attempt, e.From.Node, false
		}
		// Another sender is a former owner of the actor, which may still retry.
		if e.Why == Once && o.forwarded && o.attempt == e.Attempt && o.sender == e.From.Node && !r.readmitted {
			c.fail(RetriedUnheard, "%s retries request %d.%d of run %s, which must not be repeated, after part of the response was forwarded", r.actor.id, e.Step, e.Index, r.id)
		}
	case "pass":
		if o.attempt == e.Attempt && o.sender == e.From.Node {
			o.forwarded = true
		}
	case "act":
		if e.Why != Once {
			return
		}
		if o.begun && !r.readmitted {
			c.fail(EffectOncePerAttempt, "%s begins request %d.%d of run %s again, which must not be repeated", r.actor.id, e.Step, e.Index, r.id)
		}
		o.begun = true
	case "show":
		if e.N < o.retracted {
			return // it became visible after the step that retracts it
		}
		if o.firstShown != 0 && (o.shownAttempt < e.Attempt || o.shownAttempt == e.Attempt && o.shownTry < e.Count) {
			c.fail(AttemptAnnounced, "%s shows a fragment of attempt %d.%d at %d.%d of run %s while one of attempt %d.%d, event %d, is still shown",
				r.actor.id, e.Attempt, e.Count, e.Step, e.Index, r.id, o.shownAttempt, o.shownTry, o.firstShown)
			return
		}
		if o.shownAttempt != 0 && (o.shownAttempt != e.Attempt || o.shownTry != e.Count) {
			c.Premises.AttemptAnnounced++
		}
		if o.firstShown == 0 {
			o.shownAttempt, o.shownTry, o.firstShown = e.Attempt, e.Count, e.N
		}
	case "take back":
		if o.firstShown > e.N {
			o.firstShown = 0
		}
		o.retracted = max(o.retracted, uint64(e.Count))
	}
}

// clientStream identifies the event stream of one run to one client.
type clientStream struct {
	client int
	run    actor.CallID
}

// observeStream handles an event delivered to a client, the position at which a client
// subscribes, or the revocation of its key.
func (c *Checker) observeStream(e *history.Event) {
	at := clientStream{e.Count, e.Call}
	switch before := c.streamPositions[at]; {
	case e.What == "revoke":
		c.revoked[e.Count] = true
		c.Premises.RevokedHearNothing++
		return
	case e.What == "listen": // with a valid key
		delete(c.revoked, e.Count)
		if e.N > 0 {
			c.Premises.StreamIsDense++
		}
	case c.revoked[e.Count]:
		c.fail(RevokedHearNothing, "client %d receives event %d of run %s after its key was revoked", e.Count, e.N, e.Call)
		return
	case e.N != before+1:
		c.fail(StreamIsDense, "client %d receives event %d of run %s after event %d", e.Count, e.N, e.Call, before)
		return
	}
	c.streamPositions[at] = e.N
}
