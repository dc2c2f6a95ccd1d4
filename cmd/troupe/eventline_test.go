// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// An event is one line for people: columns, local time without nanoseconds, arguments without escapes, and long texts cut.
func TestEventsAreReadableLines(t *testing.T) {
	at := actor.Time(time.Date(2026, 11, 28, 13, 3, 40, 399573089, time.Local).UnixNano())
	long := strings.Repeat("ab", 150)
	for _, c := range []struct {
		event runs.Event
		want  string
	}{
		{runs.Event{Seq: 6, Type: runs.ToolCallCreated, Step: 1, Index: 2, Name: "pay", Text: `{"to":"anna"}`}, `   6  13:03:40.399  tool_call_created    1.2 pay {"to":"anna"}`},
		{runs.Event{Seq: 1, Type: runs.UserInput, Actor: actor.NewID("a", "s"), Text: "two\nlines with \"marks\" and \\"}, `   1  13:03:40.399  user_input           a/s "two\nlines with "marks" and \"`},
		{runs.Event{Seq: 1, Type: runs.UserInput, Actor: actor.NewID("a", "s"), Text: "\u202eevil\x1b[2J"}, `   1  13:03:40.399  user_input           a/s "\u202eevil\x1b[2J"`},
		{runs.Event{Seq: 12, Type: runs.ToolDispatched, Step: 1, Name: "pay", Attempt: 1, Left: time.Minute}, `  12  13:03:40.399  tool_dispatched      1.0 pay left 1m0s`},
		{runs.Event{Seq: 12, Type: runs.ToolDispatched, Step: 1, Name: "pay", Attempt: 2, Left: time.Minute}, `  12  13:03:40.399  tool_dispatched      1.0 pay left 1m0s attempt 2`},
		{runs.Event{Seq: 5, Type: runs.LLMCallDone, Step: 1, Name: "big", Status: actor.Succeeded, Took: 2 * time.Millisecond, Usage: runs.Usage{Input: 20, Output: 7}}, `   5  13:03:40.399  llm_call_done        1.0 big succeeded took 2ms tokens 20+7`},
		{runs.Event{Seq: 9, Type: runs.RunDone, Status: actor.Succeeded, Text: long}, `   9  13:03:40.399  run_done             succeeded "` + long[:200] + `… (300 characters)"`},
		{runs.Event{Seq: 9, Type: runs.RunFailed, Refusal: actor.RefuseUnavailable(0, "model big cannot\nbe reached")}, `   9  13:03:40.399  run_failed           model big cannot\nbe reached`},
	} {
		c.event.At = at
		if got := eventLine(&c.event); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}
