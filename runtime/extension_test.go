// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

// Fields that this version does not know pass through the actors of a call tree, with the
// calls downwards and with the reasons of holds upwards. They survive a snapshot and a
// restart.
func TestUnknownFieldsPassThroughActors(t *testing.T) {
	draw := func(t *rapid.T) (x actor.Extensions) {
		for range rapid.IntRange(0, 3).Draw(t, "fields") {
			x = x.With(rapid.Uint64().Draw(t, "tag"), rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value"))
		}
		return x
	}
	rapid.Check(t, func(rt *rapid.T) {
		own := draw(rt)
		hold := actor.Hold{Reason: actor.HoldReason(rapid.Uint8Range(1, 255).Draw(rt, "reason")), Subject: "q-1", Extensions: draw(rt)}
		n := newNode(t, 1, agent("a", calling("b")), agent("b", calling("c")), agent("c", waiting(time.Minute)))
		calls, held, open := map[string]actor.Call{}, map[string]actor.Hold{}, map[string]actor.Hold{}
		n.drop = func(env actor.Envelope) bool {
			switch m := env.Body.(type) {
			case actor.Request:
				calls[env.To.Agent] = m.Call
			case actor.Held:
				held[env.To.Agent] = m.For
			case actor.Open:
				open[env.To.Agent] = m.For
			}
			return false
		}
		root := n.send("a", "go", func(c *actor.Call) { c.Extensions = own })
		for _, callee := range []string{"b", "c"} {
			if got := calls[callee].Extensions; got != own.Inherited() {
				t.Fatalf("call of %s: got extensions %x, want %x", callee, got, own.Inherited())
			}
		}
		if want := (actor.Hold{Reason: actor.HoldSignal, Subject: "go"}); held["a"] != want || held["b"] != want {
			t.Fatalf("got reasons %+v, want %+v", held, want)
		}
		b := calls["b"].To
		n.step(n.cells[0], Deliver{actor.Envelope{From: n.cells[0].Self(), To: b, Epoch: n.epoch, Durable: true,
			Body: actor.Held{Call: calls["c"].ID, N: 1000, Until: n.now.Add(30 * time.Second), For: hold}}})
		n.drain()
		if held["a"] != hold {
			t.Fatalf("got reason %+v, want %+v", held["a"], hold)
		}
		n.limits.SnapshotBytes = 1
		n.restart(1)
		n.advance(time.Second)
		if open["a"] != hold {
			t.Fatalf("after a restart: got reason %+v, want %+v", open["a"], hold)
		}
		n.restart(1)
		n.drain()
		saved := n.log[actor.NewID("a", "")]
		journal := invariant.Must(store.Fold(saved))
		if run := journal.Run(root); run == nil || run.Call.Extensions != own {
			t.Fatalf("after a restart: got %+v, want the call with extensions %x", run, own)
		}
	})
}
