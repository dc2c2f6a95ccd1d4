// SPDX-License-Identifier: Apache-2.0

// Package agentstest runs one turn of an agent without a runtime. A test expects
// and answers the asks of the turn.
//
//	t := agentstest.Start(tb, agents.Define("planner", "1", "", agents.Blocking(Planner{})), "whales")
//	t.Expect(agentstest.Call("research").Containing("whales")).Answer("two papers")
//	t.Expect(agentstest.Wait("approved")).Answer("")
//	t.Completes("Read two papers.")
//
// Blocking agents, transitions and declared agents ([Declared]) are all tested in
// the same way. The test also plays the model of a declared agent. Asks issued
// together can be expected in any order. The turn continues when all of them are
// answered.
//
// A turn that ends is replayed with the same answers, as after a crash. If the
// replay makes any other ask, the test fails. A test also fails if its turn still
// waits at the end of the test. Exception: the test has called [Turn.Cancel].
//
// It is for the agents in this module. Programs with agents of package troupe use package troupetest,
// which runs their turns here; this package has no promise of compatibility.
package agentstest
