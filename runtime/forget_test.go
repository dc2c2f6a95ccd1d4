// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// forget has the cell delete a session, and returns its answer.
func (n *node) forget(name string) *actor.Refusal {
	n.t.Helper()
	answers := len(n.forgot)
	n.step(n.cells[0], Forget{Session{actor.DefaultTenant, name}})
	n.drain()
	if len(n.forgot) != answers+1 {
		n.t.Fatalf("got %d answers, want one", len(n.forgot)-answers)
	}
	return n.forgot[answers].Refusal
}

func retry(c *actor.Call) { c.Attempt = 2 }

// The actors of a deleted session are not found, also after a restart. A repeated call,
// whose run may be deleted, gets no second outcome. Other sessions are as before.
func TestDeletedSessionIsNotFound(t *testing.T) {
	n := newNode(t, 1, agent("a", echo()), agent("b", echo()))
	for _, to := range []string{"a/s-1", "b/s-1", "a/s-2", "a/main"} {
		n.want(n.send(to, "x"), to[:1]+":x")
	}
	if r := n.forget("s-1"); r != nil {
		t.Fatalf("the deletion is refused: %v", r)
	}
	for range 2 {
		n.want(n.send("a/s-1", "x"), "NotFound")
		n.want(n.send("b/s-1", "x", retry), "nothing")
		n.want(n.send("a/s-2", "x"), "a:x")
		n.want(n.send("a/main", "x"), "a:x")
		n.restart(1)
		n.drain()
	}
}

func TestSessionWithOpenRunsIsKept(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(time.Minute)), agent("b", echo()))
	n.want(n.send("a/s-1", "x"), "nothing")
	for range 2 {
		if r := n.forget("s-1"); r == nil || r.Reason != actor.Rejected {
			t.Errorf("got %v, want a refusal as Rejected", r)
		}
		n.want(n.send("b/s-1", "x"), "b:x")
		n.restart(1)
		n.drain()
	}
	if r := n.forget("main"); r == nil || r.Reason != actor.Rejected {
		t.Errorf("got %v, want a refusal as Rejected: main is no session", r)
	}
}

// Between the check of the store and its answer, no entry of the session is appended.
func TestClosedSessionTakesNoMessage(t *testing.T) {
	for what, refusal := range map[string]*actor.Refusal{"deleted": nil, "kept": hasOpenRuns(actor.NewID("b", "s-1"))} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t, 1, agent("a", echo()))
			n.want(n.send("a/s-1", "x"), "a:x")
			c := n.cells[0]
			n.step(c, Forget{Session{actor.DefaultTenant, "s-1"}})
			n.inputs = nil // the answer of the store
			entries := n.entries
			n.want(n.send("a/s-1", "x"), "Unavailable")
			n.want(n.send("a/s-1", "x", retry), "nothing")
			n.deliver(actor.NewID("a", "s-1"), actor.Cancel{Call: actor.CallID{1}, Reason: actor.Stopped})
			n.drain()
			if n.entries != entries {
				t.Errorf("%d entries of a closed session", n.entries-entries)
			}
			if r := n.forget("s-2"); r == nil || r.Reason != actor.Busy {
				t.Errorf("a second deletion: got %v, want a refusal as Busy", r)
			}
			n.step(c, ForgetChecked{Session{actor.DefaultTenant, "s-1"}, n.epoch, refusal})
			want := "a:x"
			if refusal == nil {
				want = "NotFound"
			}
			n.want(n.send("a/s-1", "x"), want)
			if got := n.forgot[len(n.forgot)-1].Refusal; got != refusal {
				t.Errorf("got %v, want %v", got, refusal)
			}
		})
	}
}

// Open work that is found while the session is closed is resumed once the session is kept.
func TestDueActorOfKeptSessionIsLoaded(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(time.Minute)))
	run := n.send("a/s-1", "x")
	n.paused = true
	n.restart(1)
	due := n.inputs[0]
	n.inputs = nil
	c := n.cells[0]
	n.step(c, Forget{Session{actor.DefaultTenant, "s-1"}})
	due()
	n.inputs, n.paused = nil, false
	n.step(c, ForgetChecked{Session{actor.DefaultTenant, "s-1"}, n.epoch, hasOpenRuns(actor.NewID("a", "s-1"))})
	n.drain()
	if act := c.actors.find(actor.NewID("a", "s-1")); act == nil || act.turn(run) == nil {
		t.Errorf("the open run is not resumed")
	}
}

// The answer of the store is ignored once the shard of the session has another epoch: its
// new owner may have appended entries.
func TestDeletionEndsWithTheShard(t *testing.T) {
	n := newNode(t, 1, agent("a", echo()))
	n.want(n.send("a/s-1", "x"), "a:x")
	c := n.cells[0]
	n.paused = true
	n.step(c, Forget{Session{actor.DefaultTenant, "s-1"}})
	n.epoch++
	n.step(c, Owners{n.table(1)})
	n.paused = false
	n.drain()
	if len(n.forgot) != 1 || n.forgot[0].Refusal == nil || n.forgot[0].Refusal.Reason != actor.Unavailable {
		t.Errorf("got %v, want one refusal as Unavailable", n.forgot)
	}
	n.want(n.send("a/s-1", "x"), "a:x")
}
