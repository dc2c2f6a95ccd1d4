// SPDX-License-Identifier: Apache-2.0

// Package simulate puts a team of agents into imagined worlds: with the faults of real ones, and with stand-ins for all that is outside.
//
// The agents are the real ones, as TOML or Go has them, and so is the runtime
// below them. Models, external agents, tools, people and clients are played by
// rules ([Rule]), or, where there is none, by whatever the seed draws. A world is
// a function of its seed: what goes wrong in one goes wrong in it again.
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
// troupe sim --project does the same for a team that is declared in files alone.
package simulate
