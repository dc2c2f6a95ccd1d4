// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/simulate"
)

// Two agents call each other, so every call ends in a cycle.
func ExampleRun() {
	asks := func(other string) actor.Behavior {
		return agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) { return t.Call(other, t.Message()) }))
	}
	team := &simulate.Team{
		Agents: []actor.Definition{agents.Define("left", "1", "", asks("right")), agents.Define("right", "1", "", asks("left"))},
		Asks:   []simulate.Ask{{Agent: "left", Message: "who has the answer?"}},
		Expect: []simulate.Expect{{Refusals: "Cycle", AtMost: 0}},
	}
	r, err := simulate.Run(team, simulate.Options{Seeds: 2, Faultless: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.OK(), r.Failures[0].Property)
	fmt.Println(r.Total.Succeeded, "client requests succeeded")
	// Output:
	// false at most 0 Cycle refusals in a simulation
	// 0 client requests succeeded
}
