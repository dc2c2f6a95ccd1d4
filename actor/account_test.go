// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAccount(t *testing.T) {
	of := func(day, tokens, micros int64) *Purse { return &Purse{tokens, micros, day} }
	budget := of(0, 100, NoLimit)
	var a Account
	for _, step := range []struct {
		name          string
		draw, rest    *Purse
		granted       *Purse
		drawn, onADay int64
	}{
		{"a part", of(7, 60, 5), nil, of(7, 60, 5), 60, 7},
		{"what is left", of(7, 60, 5), nil, of(7, 40, 5), 100, 7},
		{"nothing is left", of(7, 60, 5), nil, of(7, 0, 5), 100, 7},
		{"the rest comes back", nil, of(7, 10, NoLimit), nil, 90, 7},
		{"more was spent", nil, of(7, -30, 0), nil, 120, 7},
		{"in debt", of(7, 1, 5), nil, of(7, 0, 5), 120, 7},
		{"the next day", of(8, 60, 5), nil, of(8, 60, 5), 60, 8},
		{"the rest of the day before", nil, of(7, 20, 0), nil, 60, 8},
		{"a tree that began the day before", of(7, 10, 5), nil, of(8, 10, 5), 70, 8},
		{"a clock was ahead", of(400, 1, 0), nil, of(400, 1, 0), 1, 400},
		{"and is no longer", of(8, 70, 5), nil, of(8, 70, 5), 70, 8},
		{"more than was drawn", nil, of(8, 1000, 0), nil, 0, 8},
	} {
		if step.rest != nil {
			a.Return(step.rest)
		} else if got, _ := a.Draw(step.draw, budget, 0); *got != *step.granted {
			t.Errorf("%s: got %+v", step.name, got)
		}
		if a.Drawn.Tokens != step.drawn || a.Drawn.Day != step.onADay {
			t.Errorf("%s: drawn %+v", step.name, a.Drawn)
		}
	}
}

// What trees spend in a day is never more than its budget, however they draw, and all of it can be drawn again.
func TestAccountKeepsBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Int64Range(0, 1000).Draw(t, "budget")
		messages, begun := rapid.Int64Range(0, 12).Draw(t, "messages"), int64(0)
		var a Account
		var open []*Purse
		spent := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "end") {
				p := open[0]
				open = open[1:]
				used := rapid.Int64Range(0, p.Tokens).Draw(t, "used")
				spent += used
				a.Return(&Purse{p.Tokens - used, NoLimit, p.Day})
				continue
			}
			granted, ok := a.Draw(&Purse{rapid.Int64Range(0, 400).Draw(t, "want"), NoLimit, 3}, &Purse{Tokens: budget, Micros: NoLimit}, messages)
			if begun++; ok != (messages == 0 || begun <= messages) {
				t.Fatalf("message %d of %d: admitted %v", begun, messages, ok)
			}
			if ok {
				open = append(open, granted)
			}
		}
		held := int64(0)
		for _, p := range open {
			held += p.Tokens
		}
		if spent+held > budget || a.Drawn.Tokens != spent+held {
			t.Fatalf("%d spent and %d held of %d, drawn %d", spent, held, budget, a.Drawn.Tokens)
		}
	})
}

func TestDayOf(t *testing.T) {
	at := func(text string) Time {
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return Time(parsed.UnixNano())
	}
	for text, want := range map[string]int64{"1970-01-01T00:00:00Z": 1, "1970-01-01T23:59:59Z": 1, "1970-01-02T00:00:00Z": 2, "2026-11-30T23:59:59Z": 20788, "2026-12-01T01:00:00+02:00": 20788} {
		if got := DayOf(at(text)); got != want {
			t.Errorf("%s: got %d", text, got)
		}
	}
	if DayOf(0) != 1 || DayOf(-1) != 1 {
		t.Error("a day is never 0, which is none")
	}
}
