// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/troupe-run/troupe/actor"
)

// The user with the most bytes loses its idle actors, the one unused longest first.
func TestResidentsLeave(t *testing.T) {
	for name, c := range map[string]struct {
		used  string // user, key and bytes of each use in order; * marks a busy actor
		limit int
		want  string // keys in the order in which they leave memory
	}{
		"all fit":                             {"a1:10 a2:10 b1:10", 30, ""},
		"unused longest":                      {"a1:10 a2:10 a3:10", 15, "a1 a2"},
		"a use makes it the newest":           {"a1:10 a2:10 a1:10", 10, "a2"},
		"of the user with the most":           {"a1:10 b1:10 b2:10 b3:10", 30, "b1"},
		"down to an equal share":              {"a1:10 a2:10 b1:10 b2:10 b3:10 b4:10", 30, "b1 b2 a1"},
		"a smaller one may be older":          {"b1:1 a1:50 a2:50", 51, "a1"},
		"an actor may shrink":                 {"b1:20 a1:50 a1:5", 20, "b1"},
		"busy ones stay":                      {"a1:50* a2:10 b1:10", 20, "a2 b1"},
		"busy ones count to their user":       {"a1:50* a2:10 b1:55", 70, "a2 b1"},
		"one becomes idle":                    {"a1:50* a2:10 a1:50", 45, "a2 a1"},
		"larger than all memory, and its own": {"a1:100 b1:10", 50, "a1"},
		"users of one size, by name":          {"b1:10 a1:10", 10, "a1"},
	} {
		var r residents
		actors := map[string]*activation{}
		for _, use := range strings.Fields(c.used) {
			key, size, _ := strings.Cut(use, ":")
			size, busy := strings.CutSuffix(size, "*")
			act := actors[key]
			if act == nil {
				act = &activation{id: actor.ID{Tenant: key[:1], Agent: "agent", Key: key}, activeState: &activeState{}}
				actors[key] = act
			}
			var bytes int
			if _, err := fmt.Sscan(size, &bytes); err != nil {
				t.Fatal(err)
			}
			r.update(act, bytes, !busy)
		}
		var left []string
		for act := r.excess(c.limit); act != nil; act = r.excess(c.limit) {
			left = append(left, act.id.Key)
			r.remove(act)
			delete(actors, act.id.Key)
		}
		if got := strings.Join(left, " "); got != c.want {
			t.Errorf("%s: %q left memory, want %q", name, got, c.want)
		}
		for _, act := range actors {
			r.remove(act)
		}
		if r.bytes != 0 || len(r.users) != 0 || len(r.idle) != 0 {
			t.Errorf("%s: without actors there remain %d bytes, %d users and %d users with idle actors", name, r.bytes, len(r.users), len(r.idle))
		}
	}
}

// A user whose busy actors fill half of the memory gets no further run, and others do.
func TestResidentsAdmit(t *testing.T) {
	const unit = 1 << 20
	var r residents
	resident := func(tenant string, bytes int, idle bool) *activation {
		act := &activation{id: actor.ID{Tenant: tenant, Agent: "agent", Key: fmt.Sprint(bytes)}, activeState: &activeState{}}
		r.update(act, bytes, idle)
		return act
	}
	resident("mallory", 45*unit, false)
	other, idle, bob := resident("mallory", unit, true), resident("mallory", 7*unit, true), resident("bob", 90*unit, true)
	for name, c := range map[string]struct {
		act     *activation
		nested  bool
		bytes   int
		refused bool
	}{
		"fits":                       {other, false, 4, false},
		"exceeds the share":          {other, false, 5, true},
		"the idle actor counts":      {idle, false, 0, true},
		"a call of a run":            {idle, true, 48, false},
		"a call exceeds all memory":  {idle, true, 49, true},
		"first of a user, too large": {bob, false, 100, false},
	} {
		call := actor.Call{Parts: []actor.Part{{Size: uint64(c.bytes * unit)}}}
		if c.nested {
			call.Chain = []actor.ID{actor.NewID("a", "s")}
			call.Parent = actor.NewCallID(1, 2, 3)
		}
		got := r.admit(c.act, &call, 100*unit, 1)
		if (got != nil) != c.refused || got != nil && (got.Reason != actor.Busy || got.Scope != actor.ScopeCaller) {
			t.Errorf("%s: got %v, want a refusal: %v", name, got, c.refused)
		}
	}
}

// A user who fills the memory of a cell displaces its own sessions. All of them can still be used.
func TestFloodOfSessionsLeavesOthersInMemory(t *testing.T) {
	n := newNode(t, 1, agent("count", counter()))
	n.limits.ActorBytesMax = 64 << 10
	n.restart(1)
	n.drain()
	of := func(tenant string) func(*actor.Call) {
		return func(c *actor.Call) { c.To.Tenant = tenant }
	}
	n.want(n.send("count/s", "one", of("bob")), "1")
	for i := range 200 {
		n.want(n.send(fmt.Sprint("count/s", i), strings.Repeat("x", 1000), of("mallory")), "1")
	}
	c := n.cells[0]
	if c.residents.bytes > 64<<10 || c.actors.count > 60 {
		t.Errorf("%d actors with %d bytes are in memory, want at most %d bytes", c.actors.count, c.residents.bytes, 64<<10)
	}
	if c.actors.find(actor.ID{Tenant: "bob", Agent: "count", Key: "s"}) == nil {
		t.Error("the session of the other user left memory")
	}
	n.want(n.send("count/s0", "again", of("mallory")), "2")
}

// Nothing refers to the state of an actor that has left memory, although its timer is not due.
func TestStateOfActorsThatLeaveIsFreed(t *testing.T) {
	for name, leave := range map[string]func(n *node){
		"memory":   func(n *node) { n.send("count/large", strings.Repeat("x", 2000)) },
		"deletion": func(n *node) { n.step(n.cells[0], Forget{Session{actor.DefaultTenant, "s"}}) },
		"move":     func(n *node) { n.step(n.cells[0], Owners{}) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1, agent("count", counter()))
			n.limits.ActorBytesMax = 3000
			n.restart(1)
			n.drain()
			n.want(n.send("count/s", "one"), "1")
			c, id := n.cells[0], actor.NewID("count", "s")
			act := c.actors.find(id)
			state := weak.Make(act.activeState)
			leave(n)
			timed := slices.ContainsFunc(c.timers, func(x timer) bool { return x.act == act })
			if c.actors.find(id) == act || !timed {
				t.Fatal("the actor is in memory, or has no timer")
			}
			goruntime.GC()
			if state.Value() != nil {
				t.Error("the state is still in memory")
			}
			goruntime.KeepAlive(n)
			goruntime.KeepAlive(act)
		})
	}
}
