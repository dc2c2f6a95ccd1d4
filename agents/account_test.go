// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// An account grants what is left of a day, takes back the rest, and keeps its state over calls. What it cannot read, or does
// not know, changes nothing.
func TestAccount(t *testing.T) {
	def := agents.Account(actor.Purse{Tokens: 100, Micros: actor.NoLimit}, 0)
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

// An account counts the messages of a day. One that is refused, and the rest of a purse that comes back, count nothing, and
// without the limit the number is forgotten.
func TestAccountCountsMessages(t *testing.T) {
	limited, free := agents.Account(actor.Purse{Tokens: 100, Micros: actor.NoLimit}, 2), agents.Account(actor.Purse{Tokens: 100, Micros: actor.NoLimit}, 0)
	state := map[string][]byte{}
	day := actor.EndOfDay(5).Add(-time.Hour)
	for i, c := range []struct {
		by        actor.Definition
		operation string
		day       int64
		refused   bool
		count     string
	}{
		{limited, "draw", 5, false, "1"}, {limited, "return", 5, false, "1"}, {limited, "draw", 5, false, "2"}, {limited, "draw", 5, true, "2"},
		{limited, "return", 5, false, "2"}, {limited, "draw", 5, true, "2"}, {limited, "draw", 6, false, "1"}, {free, "draw", 7, false, ""},
		{free, "draw", 7, false, ""}, {limited, "draw", 7, false, "1"},
	} {
		begin := actor.Begin{At: day, Call: actor.Call{Operation: c.operation, Purse: &actor.Purse{Tokens: 10, Micros: actor.NoLimit, Day: c.day}}}
		for _, name := range []string{"drawn", "messages"} {
			if value := state[name]; len(value) > 0 {
				begin.ActorState = append(begin.ActorState, actor.StateItem{Name: name, Value: value})
			}
		}
		action, err := c.by.Behavior.Begin(begin).Next(nil)
		if err != nil {
			t.Fatal(err)
		}
		r := action.Done.Refusal
		if (r != nil) != c.refused {
			t.Errorf("step %d: %v", i, r)
		}
		if c.refused && (r.Reason != actor.Budget || r.RetryAfter != time.Hour || !strings.HasPrefix(r.Detail, "the user has sent 2 messages on 1970-01-05 (UTC), which is the limit (user_messages_per_day")) {
			t.Errorf("step %d: %+v", i, r)
		}
		for _, item := range action.StateUpdates {
			state[item.Name] = item.Value
		}
		if got := string(state["messages"]); got != c.count {
			t.Errorf("step %d: %q messages, want %q", i, got, c.count)
		}
	}
	broken := actor.Begin{Call: actor.Call{Operation: "draw", Purse: &actor.Purse{Day: 5}}, ActorState: []actor.StateItem{{Name: "messages", Value: []byte("many")}}}
	if action, err := limited.Behavior.Begin(broken).Next(nil); err != nil || action.Done.Refusal == nil || action.Done.Refusal.Reason != actor.Unavailable {
		t.Errorf("%+v %v", action.Done, err)
	}
}
