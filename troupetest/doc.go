// SPDX-License-Identifier: Apache-2.0

// Package troupetest tests agents written with package troupe, without a server, a key or a network.
//
// # A single turn
//
// [Start] delivers a message to an agent. The test expects the asks of its turn and answers them:
//
//	func TestPlanner(tb *testing.T) {
//		t := troupetest.Start(tb, planner, "whales")
//		t.Expect(troupetest.Call("archive")).Refuse(troupe.CodeAgentNotFound, "no archive")
//		t.Expect(troupetest.Call("research").Containing("whales")).Answer("two papers")
//		t.CompletesPartially("Read two papers.", "nothing from the archive")
//	}
//
// Asks that are made together are expected in any order; the turn continues when all are answered. A turn
// that ends is repeated with the same answers, as after a crash. An agent that depends on a clock, a
// variable or the order of a map fails its test there. A test that leaves a turn waiting fails, unless it
// calls [Turn.Cancel].
//
// # A team under faults
//
// [Test] runs a [Team] in the simulator: the agents are the real ones, on the runtime that serves.
// Clients, models, external agents, persons and faults come from a seed: crashes of nodes, network
// partitions, lost writes, failing tools and models. The rules of the runtime are checked after each step,
// and the expectations of the team at the end. The same seed gives the same simulation, so a failure
// is repeated with [Options.First] and one seed.
//
//	func TestTeam(t *testing.T) {
//		troupetest.Test(t, troupetest.Team{
//			Agents: []troupe.Agent{planner, research},
//			Expect: []troupetest.Expect{{Refusals: "Cycle"}},
//		}, troupetest.Options{Seeds: 50})
//	}
//
// Code in Turn.Do and in tools runs for real and for each seed, so it needs no network and its result
// depends on its arguments alone.
package troupetest
