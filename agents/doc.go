// SPDX-License-Identifier: Apache-2.0

// Package agents decides what an actor does with its turn: pure transitions, the
// think-act loop, ready-made agents, and definitions in TOML.
//
// There are four ways to an agent. Written top to bottom, an agent is one function, which waits where it asks
// (see [Turn], and the example there):
//
//	func (Planner) Turn(t *agents.Turn) (string, error) {
//		papers, err := t.Call("research", "find papers on "+t.Message(), agents.Within(20*time.Second))
//		if err != nil {
//			return "", err
//		}
//		return "What I found: " + papers, nil
//	}
//
// Written as a transition ([Next]), it is given its state and says what is next.
// Both come to the same actions ([Blocking], [Pure]), and neither holds a thread
// while it waits.
//
// Declared, it is a [Spec]: a prompt, a model, tools, limits. Its turn is the
// think-act loop: the model is asked, the tools it wants are used all at once,
// it is told what came of them, and so on until it answers. External, it is a
// service that is handed the message. [ReadTOML] and [ReadJSON] read specs, in
// files and in requests alike, and [Compile] makes agents of them. Which there
// are, a system actor keeps in its journal ([Registry]), and a world reads it
// from there ([Reader]).
//
// What happens when:
//
//   - A refusal (no such agent, too late, no room) is an error that the agent
//     gets where it asked, a *actor.Refusal for errors.As. If the agent returns
//     it, its own run is refused with it.
//   - Any other error, and a panic, fail the run, and nothing else.
//   - A crash of the process: the function runs again through the answers it
//     had, and goes on. Between two asks it may therefore depend on nothing but
//     its message and those answers: no clock, no chance, no goroutine, no
//     variable that another turn writes. What is slow or impure goes into
//     [Turn.Do], whose result is written down. If it asks something else the
//     second time, the run is parked for a person to look at.
//   - A turn makes at most [StepsMax] steps; the [SameToolMax]th time it asks the
//     same tool for the same thing, it is refused; and what it has gathered is at
//     most [StateBytesMax].
package agents
