// SPDX-License-Identifier: Apache-2.0

package history

import "github.com/troupe-run/troupe/actor"

// State is the state of one cell. The specs compare it with the state that they derive
// from events.
type State struct {
	Cell   actor.Address
	Actors []Actor // sorted by ID
}

// Actor is one active actor.
type Actor struct {
	ID     actor.ID
	Epoch  actor.Epoch
	Loaded bool
	Queue  []actor.CallID // calls waiting in the mailbox, sorted by ID
	Bytes  int            // total size of the waiting calls
	Turns  []Turn         // sorted by run
}

// Turn is a run whose turn has started.
type Turn struct {
	Run     actor.CallID
	Due     actor.Time     // deadline; a hold moves it
	Open    []actor.CallID // unanswered calls of the turn, sorted by ID
	OpenDue []actor.Time   // their deadlines, which a hold moves too
}
