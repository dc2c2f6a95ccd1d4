// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// What a run has models and external agents do, what of their answers is shown,
// and what clients hear of it.

// outsider is one thing that a run has a model or an external agent do: an ask at
// its place, over all attempts.
type outsider struct {
	step  uint32
	index uint16
	acted bool // an external agent that must not repeat it has begun with it

	attempt uint32       // the last that was sent to it
	by      actor.NodeID // who sent it: an unjournaled actor that has moved counts anew
	heard   bool         // something of this attempt's answer was passed on

	shown uint32 // the attempt of the pieces that stand
	first uint64 // the first of these; 0: none stands
}

func (r *run) outsider(e *history.Event) *outsider {
	for _, o := range r.outside {
		if o.step == e.Step && o.index == e.Index {
			return o
		}
	}
	o := &outsider{step: e.Step, index: e.Index}
	r.outside = append(r.outside, o)
	return o
}

// Once in the Why of a Perform marks an effect that must not be repeated.
const Once = "once"

// outward is what passes between a node and who stands behind it.
func (c *Checker) outward(e *history.Event) {
	r := c.runs[e.Call]
	if r == nil {
		return
	}
	o := r.outsider(e)
	switch e.What {
	case "try":
		if e.N == 1 {
			o.attempt, o.by, o.heard = e.Attempt, e.From.Node, false
		}
		if o.heard && o.attempt == e.Attempt && o.by == e.From.Node && !r.haunted { // an owner of before may still try, unheard
			c.breaks(RetriedUnheard, "%s has %d.%d of run %s tried once more, of which something was passed on", r.actor.id, e.Step, e.Index, r.id)
		}
	case "pass":
		if o.attempt == e.Attempt && o.by == e.From.Node {
			o.heard = true
		}
	case "act":
		if e.Why != Once {
			return
		}
		if o.acted && !r.haunted {
			c.breaks(EffectOncePerAttempt, "%s begins with %d.%d of run %s once more, which it must not", r.actor.id, e.Step, e.Index, r.id)
		}
		o.acted = true
	case "show":
		if o.first != 0 && o.shown < e.Attempt {
			c.breaks(AttemptAnnounced, "%s shows a piece of attempt %d at %d.%d of run %s while one of attempt %d, event %d, stands",
				r.actor.id, e.Attempt, e.Step, e.Index, r.id, o.shown, o.first)
			return
		}
		if o.first == 0 {
			o.shown, o.first = e.Attempt, e.N
		}
	case "take back":
		if o.first > e.N {
			o.first = 0
		}
	}
}

// hearing is a client who reads the stream of a run.
type hearing struct {
	client int
	run    actor.CallID
}

// hears is an event of a run that came to a client, where it begins to listen, or
// that it may not listen any more.
func (c *Checker) hears(e *history.Event) {
	at := hearing{e.Count, e.Call}
	switch before := c.hearings[at]; {
	case e.What == "revoke":
		c.revoked[e.Count] = true
		return
	case e.What == "listen": // with a key that is good
		delete(c.revoked, e.Count)
	case c.revoked[e.Count]:
		c.breaks(RevokedHearNothing, "client %d is told event %d of run %s, and its key is revoked", e.Count, e.N, e.Call)
		return
	case e.N != before+1:
		c.breaks(StreamIsDense, "client %d is told event %d of run %s behind event %d", e.Count, e.N, e.Call, before)
		return
	}
	c.hearings[at] = e.N
}
