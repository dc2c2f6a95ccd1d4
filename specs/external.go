// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// What a run has models and external agents do, what of their answers is shown,
// and what clients hear of it.

// externalEffect is one thing that a run has a model or an external agent do: an ask at
// its place, over all attempts.
type externalEffect struct {
	step  uint32
	index uint16
	begun bool // an external agent that must not repeat it has begun with it

	attempt   uint32       // the last that was sent to it
	sender    actor.NodeID // who sent it: an unjournaled actor that has moved counts anew
	forwarded bool         // something of this attempt's answer was passed on

	shownAttempt uint32 // the attempt of the pieces that stand
	firstShown   uint64 // the first of these; 0: none stands
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

// observeExternal is what passes between a node and who stands behind it.
func (c *Checker) observeExternal(e *history.Event) {
	r := c.runs[e.Call]
	if r == nil {
		return
	}
	o := r.external(e)
	switch e.What {
	case "try":
		if e.N == 1 {
			o.attempt, o.sender, o.forwarded = e.Attempt, e.From.Node, false
		}
		if o.forwarded && o.attempt == e.Attempt && o.sender == e.From.Node && !r.readmitted { // an owner of before may still try, unheard
			c.fail(RetriedUnheard, "%s has %d.%d of run %s tried once more, of which something was passed on", r.actor.id, e.Step, e.Index, r.id)
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
			c.fail(EffectOncePerAttempt, "%s begins with %d.%d of run %s once more, which it must not", r.actor.id, e.Step, e.Index, r.id)
		}
		o.begun = true
	case "show":
		if o.firstShown != 0 && o.shownAttempt < e.Attempt {
			c.fail(AttemptAnnounced, "%s shows a piece of attempt %d at %d.%d of run %s while one of attempt %d, event %d, stands",
				r.actor.id, e.Attempt, e.Step, e.Index, r.id, o.shownAttempt, o.firstShown)
			return
		}
		if o.firstShown == 0 {
			o.shownAttempt, o.firstShown = e.Attempt, e.N
		}
	case "take back":
		if o.firstShown > e.N {
			o.firstShown = 0
		}
	}
}

// clientStream is a client who reads the stream of a run.
type clientStream struct {
	client int
	run    actor.CallID
}

// observeStream is an event of a run that came to a client, where it begins to listen, or
// that it may not listen any more.
func (c *Checker) observeStream(e *history.Event) {
	at := clientStream{e.Count, e.Call}
	switch before := c.streamPositions[at]; {
	case e.What == "revoke":
		c.revoked[e.Count] = true
		return
	case e.What == "listen": // with a key that is good
		delete(c.revoked, e.Count)
	case c.revoked[e.Count]:
		c.fail(RevokedHearNothing, "client %d is told event %d of run %s, and its key is revoked", e.Count, e.N, e.Call)
		return
	case e.N != before+1:
		c.fail(StreamIsDense, "client %d is told event %d of run %s behind event %d", e.Count, e.N, e.Call, before)
		return
	}
	c.streamPositions[at] = e.N
}
