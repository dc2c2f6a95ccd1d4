// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

func maxActive(n int) func(*actor.Definition) {
	return func(d *actor.Definition) { d.MaxActive = n }
}

func ifBusy(p actor.BusyPolicy) func(*actor.Call) { return func(c *actor.Call) { c.SetBusy(p) } }

// All sessions of an agent together have as many running turns as its max_active, or as the
// limit of the node. A further message is refused and can be sent again. Two principals send in turn.
func TestActiveTurnsAreBounded(t *testing.T) {
	for name, c := range map[string]struct{ agent, limit, cells, want int }{
		"of the agent": {4, 99, 1, 4}, "of the node": {0, 3, 1, 3}, "share of a cell": {4, 99, 2, 2}, "at least one per cell": {1, 99, 2, 1},
		"share of the first cell": {5, 99, 2, 3},
	} {
		n := newNode(t, c.cells, agent("a", sleeping(time.Minute), maxActive(c.agent)), agent("b", echo()), agent("caller", calling("a/called")))
		n.limits.MaxActivePerAgent = c.limit
		n.restart(c.cells)
		cell := n.cells[0]
		key := func(i int) string { // of an actor of the first cell
			for ; ; i += 1000 {
				if k := fmt.Sprint("s", i); int(n.shard(actor.NewID("a", k)))%c.cells == 0 {
					return k
				}
			}
		}
		for i := range c.want {
			n.send("a/"+key(i), "x", func(c *actor.Call) { c.Principal = fmt.Sprint("user ", i%2) })
		}
		refused := n.send("a/"+key(c.want), "x")
		n.want(refused, "Busy")
		if r := n.replies[refused].Refusal; r.RetryAfter <= 0 || r.Scope != actor.ScopeCallee || !strings.Contains(r.Detail, "max_active") {
			t.Errorf("%s: got %v", name, r)
		}
		n.want(n.send("b/s", "x"), "b:x")
		queued := n.send("a/"+key(0), "x")
		if n.want(queued, "nothing"); cell.active.busy("a", n.now) != c.want {
			t.Errorf("%s: %d turns are active, want %d", name, cell.active.busy("a", n.now), c.want)
		}
		n.restart(c.cells) // the open runs are resumed
		n.drain()
		n.want(n.send("a/"+key(c.want), "x"), "Busy")
		n.advance(2 * time.Minute)
		n.want(queued, "nothing") // its client waited in the cell before
		if n := n.cells[0].active.busy("a", n.now); n != 0 {
			t.Errorf("%s: %d turns are active, want none", name, n)
		}
		n.want(n.send("a/"+key(c.want), "x", func(c *actor.Call) { c.Left = time.Hour }), "nothing")
		n.advance(2 * time.Minute)
	}
}

// One principal has the default number of turns, and all principals a quarter more. The limit that an
// agent sets is for all, and one principal has three quarters of it.
func TestActiveTurnsAreDivided(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Minute)), agent("limited", sleeping(time.Minute), maxActive(12)))
	n.limits.MaxActivePerAgent = 9
	n.restart(1)
	of := func(user string) func(*actor.Call) { return func(c *actor.Call) { c.Principal = user } }
	for i := range 9 {
		n.send(fmt.Sprint("a/m", i), "x", of("mallory"))
	}
	refused := n.send("a/m9", "x", of("mallory"))
	n.want(refused, "Busy")
	if r := n.replies[refused].Refusal; r.RetryAfter <= 0 || !strings.Contains(r.Detail, "9 turns of this user") {
		t.Errorf("got %v", r)
	}
	n.want(n.send("a/m0", "x", of("mallory"), ifBusy(actor.BusyInterrupt)), "nothing") // in place of a turn
	for i := range 2 {
		n.want(n.send(fmt.Sprint("a/b", i), "x", of("bob")), "nothing")
	}
	n.want(n.send("a/b2", "x", of("bob")), "Busy")
	for i := range 9 {
		n.want(n.send(fmt.Sprint("limited/m", i), "x", of("mallory")), "nothing")
	}
	refused = n.send("limited/m9", "x", of("mallory"))
	n.want(refused, "Busy")
	if r := n.replies[refused].Refusal; r.RetryAfter <= 0 || !strings.Contains(r.Detail, "9 turns of this user") || !strings.Contains(r.Detail, "max_active is 12") {
		t.Errorf("got %v", r)
	}
	for i := range 3 {
		n.want(n.send(fmt.Sprint("limited/b", i), "x", of("bob")), "nothing")
	}
	n.want(n.send("limited/b3", "x", of("bob")), "Busy")
	n.advance(2 * time.Minute)
	n.want(n.send("a/m9", "x", of("mallory")), "nothing")
	n.advance(2 * time.Minute)
}

// The cells of a node together run as many turns of an agent as its limit states, or one each.
func TestSharesOfCellsAddUpToLimit(t *testing.T) {
	for cells := 1; cells <= 5; cells++ {
		n := newNode(t, cells)
		for limit := 1; limit <= 12; limit++ {
			sum := 0
			for _, c := range n.cells {
				sum += c.share(limit)
			}
			if want := max(limit, cells); sum != want {
				t.Errorf("limit %d in %d cells: %d turns, want %d", limit, cells, sum, want)
			}
		}
	}
}

// A call of another agent is refused like the message of a client, so that its caller can react.
func TestActiveTurnsRefuseCalls(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Minute), maxActive(1)), agent("caller", calling("a/other")))
	n.send("a/s", "x")
	n.want(n.send("caller/s", "x"), "caller(Busy)")
}

// A turn that waits for a person does not count, and resumes although others have taken its
// place.
func TestHeldTurnsAreNotActive(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(time.Minute), maxActive(1)))
	first := n.send("a/1", "x")
	second := n.send("a/2", "x")
	for i, run := range []actor.CallID{first, second} {
		n.send(fmt.Sprint("a/", i+1), "yes", signalTo(run))
		if got := n.runs[run].Text; got != "went yes" {
			t.Errorf("got %q, want %q", got, "went yes")
		}
	}
}

// Agents of the runtime itself are not bounded.
func TestSystemAgentsAreNotBounded(t *testing.T) {
	n := newNode(t, 1, agent("troupe", sleeping(time.Minute), func(d *actor.Definition) { d.System = true }))
	n.limits.MaxActivePerAgent = 1
	n.restart(1)
	for i := range 3 {
		n.want(n.send(fmt.Sprint("troupe/", i), "x"), "nothing")
	}
}

// A message that shall not wait is refused while a client's run is open, and only then.
func TestBusySessionRejectsMessage(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(10*time.Second)), agent("caller", calling("a")))
	n.send("caller/s", "x")
	run := n.send("a/s", "queued behind a call", ifBusy(actor.BusyReject))
	n.want(run, "nothing")
	refused := n.send("a/s", "x", ifBusy(actor.BusyReject))
	n.want(refused, "Rejected")
	if r := n.replies[refused].Refusal; r.Field != actor.BusyField || !strings.Contains(r.Detail, run.String()) || r.RetryAfter != 0 {
		t.Errorf("got %+v, want one that names the open run", r)
	}
	n.want(n.send("a/other", "x", ifBusy(actor.BusyReject)), "nothing")
	n.advance(time.Minute)
	n.want(run, "slept")
	n.want(n.send("a/s", "x", ifBusy(actor.BusyReject)), "nothing")
}

// A message that interrupts ends the open runs of clients, running or queued. A call of another
// agent continues.
func TestMessageInterruptsRuns(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(10*time.Second)), agent("caller", calling("a")))
	call := n.send("caller/s", "x")
	first, second := n.send("a/s", "x"), n.send("a/s", "x")
	third := n.send("a/s", "x", ifBusy(actor.BusyInterrupt))
	n.want(first, "Stopped")
	n.want(second, "Stopped")
	n.advance(15 * time.Second)
	n.want(call, "caller(slept)")
	n.want(third, "nothing")
	key := func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} }
	fourth := n.send("a/s", "x", ifBusy(actor.BusyInterrupt), key)
	n.want(third, "Stopped")
	if r := n.replies[third].Refusal; !strings.Contains(r.Detail, fourth.String()) {
		t.Errorf("got %v, want a refusal that names the message %s", r, fourth)
	}
	again := n.send("a/s", "x", ifBusy(actor.BusyInterrupt), key) // interrupts nothing
	n.advance(time.Minute)
	n.want(fourth, "slept")
	n.want(again, "slept")
}

// A message that is refused has interrupted nothing. It may take the place of a turn that it
// interrupts.
func TestRefusedMessageInterruptsNothing(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(time.Minute), maxActive(1), interleaved), agent("b", sleeping(time.Minute), maxActive(1), interleaved))
	held := n.send("a/1", "x")
	n.agents[0].Behavior = sleeping(time.Minute)
	n.step(n.cells[0], Agents{Definitions: []actor.Definition{agent("a", sleeping(time.Minute), maxActive(1), interleaved, func(d *actor.Definition) { d.Hash = actor.HashOf([]byte("later")) }), n.agents[1]}})
	n.send("a/2", "x")
	n.want(n.send("a/1", "x", ifBusy(actor.BusyInterrupt)), "Busy")
	n.send("a/1", "yes", signalTo(held))
	if got := n.runs[held].Text; got != "went yes" {
		t.Errorf("the run was interrupted by a message that was refused: %q", got)
	}
	run := n.send("b/1", "x")
	n.want(n.send("b/1", "x", ifBusy(actor.BusyInterrupt)), "nothing")
	n.want(run, "Stopped")
}

// After many sessions, an agent holds no memory for their turns.
func TestActiveTurnsAreReleased(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(time.Minute)))
	for i := range 500 {
		n.send(fmt.Sprint("a/", i), "x")
	}
	n.advance(2 * time.Minute)
	if all := n.cells[0].active.of("a"); len(all) > 0 || cap(all) > activeRetainedMax {
		t.Errorf("%d turns of %d", len(all), cap(all))
	}
}
