// SPDX-License-Identifier: Apache-2.0

// Package program passes the agents and tools of a program to package troupetest, in the form of the
// runtime, which package troupe does not export. Package troupe sets its variable.
package program

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// Program has the agents and tools of a program.
type Program struct {
	Agents []actor.Definition
	Tools  *tools.Registry // the tools of the program and call_agent
	Local  []tools.Tool    // the tools of the program
}

// Troupe are functions of package troupe.
var Troupe struct {
	// New returns the program with a []troupe.Agent and a []troupe.Tool.
	New func(agents, tools any) (Program, error)
	// Refusal returns the refusal of an error that an agent or a tool returns; nil if it is none.
	Refusal func(err error) *actor.Refusal
	// EncodeState returns the items of a state with a version, as JSON.
	EncodeState func(version int, state []byte) []actor.StateItem
	// DecodeState returns the state in items as JSON; nil if there is none.
	DecodeState func(items []actor.StateItem) []byte
}
