// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// An account grants what is left of a day, takes back the rest, and keeps its state over calls. What it cannot read, or does
// not know, changes nothing.
func TestAccount(t *testing.T) {
	def := agents.Account(actor.Purse{Tokens: 100, Micros: actor.NoLimit})
	if !def.System {
		t.Error("users can call accounts")
	}
	of := func(day, tokens int64) *actor.Purse {
		return &actor.Purse{Tokens: tokens, Micros: actor.NoLimit, Day: day}
	}
	broken := []actor.StateItem{{Name: "drawn", Value: []byte("x")}}
	var state []actor.StateItem
	for _, c := range []struct {
		name, operation string
		amount          *actor.Purse
		state           []actor.StateItem // nil: that of the call before
		answer          int64             // tokens
		refused         actor.Reason
	}{
		{"a draw", "draw", of(5, 70), nil, 70, 0},
		{"what is left", "draw", of(5, 70), nil, 30, 0},
		{"the rest comes back", "return", of(5, 20), nil, 80, 0},
		{"and is drawn again", "draw", of(5, 70), nil, 20, 0},
		{"another operation", "reset", of(5, 70), nil, 0, actor.Invalid},
		{"no amount", "draw", nil, nil, 0, actor.Invalid},
		{"an amount of no day", "draw", of(0, 70), nil, 0, actor.Invalid},
		{"a state that is none", "draw", of(5, 70), broken, 0, actor.Unavailable},
		{"nothing was changed by these", "draw", of(5, 70), nil, 0, 0},
		{"the next day", "draw", of(6, 70), nil, 70, 0},
	} {
		begin := actor.Begin{Call: actor.Call{Operation: c.operation, Purse: c.amount}, ActorState: state}
		if c.state != nil {
			begin.ActorState = c.state
		}
		action, err := def.Behavior.Begin(begin).Next(nil)
		if err != nil || action.Done == nil {
			t.Fatalf("%s: %+v, %v", c.name, action, err)
		}
		if r := action.Done.Refusal; r != nil || c.refused != 0 {
			if r == nil || r.Reason != c.refused || len(action.StateUpdates) > 0 {
				t.Errorf("%s: %v, %d updates", c.name, r, len(action.StateUpdates))
			}
			continue
		}
		got, err := actor.DecodePurse(action.Done.Parts[0].Bytes)
		if err != nil || got.Tokens != c.answer {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
		state = action.StateUpdates
	}
}
