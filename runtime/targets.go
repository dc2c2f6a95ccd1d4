// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// targets are the addresses at which the external agent of a turn is invoked.
type targets struct {
	cell *Cell
	turn *turn
}

// of returns the address at which an external agent is invoked: the address of its last
// registration. An agent that has registered at another address gets its open runs there.
func (s targets) of(out *actor.Ask) []byte {
	if def := s.cell.definitions.current(s.turn.act.id.Agent); def != nil && def.Kind == actor.External && def.Target != nil {
		return def.Target
	}
	return inlineBytes(out.Parts)
}

// moves invokes an external agent at its new address if it has registered there while an
// invocation did not reach the former one. It reports whether it did.
func (s targets) moves(i int, answer *actor.Answer) bool {
	c, t := s.cell, s.turn
	a := &t.run.Last()[i]
	if !a.Invoking() || t.run.Parked != "" || answer.Refusal == nil || answer.Refusal.Reason != actor.Unavailable && answer.Refusal.Reason != actor.Busy {
		return false
	}
	if len(t.rawAsks) == 0 || bytes.Equal(t.sends[i].target, s.of(a.Out())) {
		return false // without asks the invocation is that of a former cell, whose address is unknown
	}
	shown := store.Shown{Ask: &store.ShownAsk{Kind: a.Out().Kind, Attempt: 2 + a.Retries, Discards: a.StreamedAfter}}
	t.act.record(c, store.Retried{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, Attempt: a.Attempt + 1}, shown)
	t.sends[i].attempt = a.Attempt
	repeats{c, t}.begin()
	t.perform(c, i)
	return true
}
