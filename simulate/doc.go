// SPDX-License-Identifier: Apache-2.0

// Package simulate tests a team of agents in the simulator, with injected faults
// and with stubs for all external services.
//
// The agents are the real ones, in TOML or Go, and the runtime is the one that
// serves. Models, external agents, tools, people and clients are stubs. The stubs follow
// rules ([Rule]). Where no rule applies, the seed decides. A simulation is a function of
// its seed, so a failure can be reproduced by its seed.
//
//	func TestTheTeam(t *testing.T) {
//		team, err := simulate.Load("team") // agents/*.toml and sim.toml
//		if err != nil {
//			t.Fatal(err)
//		}
//		team.Agents = append(team.Agents, agents.Define("desk", "1", "", agents.Blocking(Desk{})))
//		simulate.Test(t, team, simulate.Options{Seeds: 50})
//	}
//
// troupe sim --project does the same for a team of declared agents. Programs with agents of package troupe
// use package troupetest, which runs their teams here; this package has no promise of compatibility.
package simulate
