// SPDX-License-Identifier: Apache-2.0

// Package agentstest drives one turn of an agent by hand: what it asks is expected and answered by a test, without a runtime.
//
//	t := agentstest.Start(tb, agents.Define("planner", "1", "", agents.Blocking(Planner{})), "whales")
//	t.Expect(agentstest.Call("research").Saying("whales")).Answer("two papers")
//	t.Expect(agentstest.Wait("approved")).Answer("")
//	t.Completes("Read two papers.")
//
// All agents are driven in the same way, whether they are written top to bottom,
// as a transition, or declared in TOML ([Declared]); of the last kind the test
// plays the model, too. What a turn asks at once is expected in any order. The
// turn goes on when all of it has its answer.
//
// A turn that ends is then run a second time through the same answers, as it is
// after a crash: if it asks for anything else, the test fails. So does one that
// leaves a turn waiting, unless it says [Turn.GiveUp].
package agentstest
