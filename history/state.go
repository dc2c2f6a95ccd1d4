// SPDX-License-Identifier: Apache-2.0

package history

import "github.com/troupe-run/troupe/actor"

// State is the whole truth about one cell, as a value: what the specs derived
// from events is compared with it.
type State struct {
	Cell   actor.Address
	Actors []Actor // by ID
}

// Actor is one activation.
type Actor struct {
	ID     actor.ID
	Epoch  actor.Epoch
	Loaded bool
	Queue  []actor.CallID // waiting for the turn, by id
	Bytes  int            // what they weigh
	Turns  []Turn         // by run
}

// Turn is a run that has begun.
type Turn struct {
	Run  actor.CallID
	Open []actor.CallID // its calls that are not answered, by id
}
