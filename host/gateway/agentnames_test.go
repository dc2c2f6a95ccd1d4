// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"math"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// namedAgents returns n agents with display names.
func namedAgents(n int) (all []actor.Definition) {
	for i := range n {
		def := agents.Define(fmt.Sprint("agent-", i), "1", "Is not called.", nil)
		def.Spec = fmt.Appendf(nil, `{"name":"Agent %d"}`, i)
		all = append(all, def)
	}
	return all
}

// The search for an agent by name decodes no specs, so its allocations do not depend on
// the number of agents.
func TestSearchByNameIsIndexed(t *testing.T) {
	allocations := func(n int, name string) float64 {
		d := startGateway(t, namedAgents(n)...)
		least := math.Inf(1)
		for range 5 { // goroutines of earlier tests may allocate too
			least = min(least, testing.AllocsPerRun(100, func() { d.server.findAgent(&fasthttp.RequestCtx{}, name) }))
		}
		return least
	}
	for _, name := range []string{"unknown", "Agent 3"} {
		if few, many := allocations(4, name), allocations(256, name); many > few+4 {
			t.Errorf("%s: got %v allocations with 4 agents and %v with 256", name, few, many)
		}
	}
}

// A name is found as soon as an agent has it, and no longer once none has.
func TestNameFollowsItsAgent(t *testing.T) {
	d := startGateway(t)
	find := func(name, want string) {
		t.Helper()
		found, p := d.server.findAgent(&fasthttp.RequestCtx{}, name)
		if (p == nil) != (want != "") || found.Name != want {
			t.Errorf("%s: got agent %q, problem %v, want %q", name, found.Name, p, want)
		}
	}
	put := func(name string) {
		t.Helper()
		if status, _, body := d.do("POST", "/v1/agents", `{"agent_id":"writer","name":"`+name+`","model":"none"}`); status != 200 && status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	find("Scribe", "")
	put("Scribe")
	find("Scribe", "writer")
	put("Author")
	find("Author", "writer")
	find("Scribe", "")
}
