// SPDX-License-Identifier: Apache-2.0

// Package agents defines agents and the turns of their actors. An agent is a
// blocking function, a pure transition, or the spec of a declared or external
// agent.
//
// There are four ways to write an agent. A blocking agent is one function that
// runs from top to bottom and waits at each ask (see the example of [Turn]):
//
//	func (Planner) Turn(t *agents.Turn) (string, error) {
//		papers, err := t.Call("research", "find papers on "+t.Message(), agents.Within(20*time.Second))
//		if err != nil {
//			return "", err
//		}
//		return "What I found: " + papers, nil
//	}
//
// A transition ([Next]) is a pure function from a state to the next action. Both
// forms produce the same actions ([Blocking], [Pure]). Neither holds a thread while
// it waits.
//
// A declared agent is a [Spec]: a prompt, a model, tools and limits. Its turn is the
// think-act loop: the model is prompted, its tool calls run concurrently, and their
// results are added to the next prompt, until the model answers. An external agent
// is a service that receives the message. [ReadTOML] and [ReadJSON] parse specs in
// files and in requests. [Compile] turns a spec into an agent. A system actor keeps
// the catalog of agents in its journal ([Registry]), and each node reads it from
// there ([CatalogReader]).
//
// Failures:
//
//   - A refused ask (no such agent, deadline exceeded, no capacity) returns an error
//     in which errors.As finds an *actor.Refusal. If the agent returns that error,
//     its own run ends with the same refusal.
//   - Any other error, and a panic, fails the run and nothing else.
//   - After a crash of the process the function is replayed with the answers it
//     had, and then continues. Between two asks it MUST depend only on its message
//     and those answers: no clock, no randomness, no goroutine, no variable that
//     another turn writes. Slow or impure code belongs in [Turn.Do], whose result
//     is persisted. If the replay makes other asks, the run is parked for a person
//     to inspect.
//   - A turn makes at most [StepsMax] steps. The [SameToolMax]-th ask for one tool
//     with the same input is refused. The data of a turn is limited to
//     [StateBytesMax].
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package agents
