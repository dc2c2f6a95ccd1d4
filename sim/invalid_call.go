// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// invalidCalls are mistakes in a client's call that its cell MUST refuse with the reason.
// No gateway makes them: they are the last check before a run begins.
var invalidCalls = [...]struct {
	name   string
	make   func(w *Simulation, call *actor.Call)
	reason actor.Reason
}{
	{"with a chain", func(_ *Simulation, call *actor.Call) {
		call.Chain, call.Parent = []actor.ID{actor.NewID("ana", "s0")}, actor.CallID{1}
	}, actor.Invalid},
	{"without an answer", func(_ *Simulation, call *actor.Call) { call.Kind = actor.OneWay }, actor.Invalid},
	{"larger than a message", func(w *Simulation, call *actor.Call) {
		call.Parts = []actor.Part{{Media: actor.MediaText, Bytes: oversized(w, w.plan.Limits.MessageBytesMax+1)}}
	}, actor.Invalid},
	{"of an unknown agent", func(_ *Simulation, call *actor.Call) { call.To.Agent = "phantom" }, actor.NotFound},
}

// oversized returns a text of n bytes, which its reader MUST NOT change: a simulation fills it once.
func oversized(w *Simulation, n int) []byte {
	if len(w.filler) < n {
		w.filler = bytes.Repeat([]byte{'m'}, n)
	}
	return w.filler[:n:n]
}

// sendInvalidCall sends a call with one mistake through a node. It MUST be refused, and no
// run may begin.
func (w *Simulation) sendInvalidCall(n *node, to actor.ID) {
	m := &invalidCalls[w.entropy.Int(len(invalidCalls))]
	call := actor.Call{ID: w.newCallID(), To: to, Kind: actor.Waiting, Lane: actor.Normal, Attempt: 1, Origin: actor.Human,
		Principal: "client", Operation: actor.HandleMessageFull, Left: 5 * time.Second, Parts: actor.Text("never")}
	call.Root = call.ID
	m.make(w, &call)
	w.log.note(w.now, "%s receives a call %s", n.id, m.name)
	w.submitCall(n, call, func(reply *actor.Reply) {
		if reply == nil {
			return
		}
		if reply.Refusal == nil || reply.Refusal.Reason != m.reason {
			w.fail(CodecRoundTrip, fmt.Sprintf("a call %s: want a refusal as %s, got %+v", m.name, m.reason, reply))
		}
		if _, begun, err := w.store.Run(to.Tenant, call.ID); err == nil && begun {
			w.fail(CodecRoundTrip, fmt.Sprintf("a refused call %s has begun run %s", m.name, call.ID))
		}
	})
}
