// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// eventTextMax is the maximum number of characters of a text on the line of an event. --json prints all.
const eventTextMax = 200

// eventLine returns an event on one line, for people: number, local time, type, and what differs between the events of
// a run. Whole events are printed with --json.
func eventLine(e *runs.Event) string {
	local := func(at actor.Time, layout string) string { return time.Unix(0, int64(at)).Local().Format(layout) }
	var b strings.Builder
	fmt.Fprintf(&b, "%4d  %s  %-20s", e.Seq, local(e.At, "15:04:05.000"), e.Type)
	put := func(there bool, format string, args ...any) {
		if there {
			fmt.Fprintf(&b, " "+format, args...)
		}
	}
	decides := e.Type == runs.PolicyDecision || e.Type == runs.ApprovalDecision
	ofRegistry := e.Type == runs.UserInput && e.Actor.Agent == actor.SystemAgent
	put(e.Step != 0 || e.Index != 0, "%d.%d", e.Step, e.Index)
	put(e.Actor != actor.ID{}, "%s", e.Actor)
	put(e.Name != "", "%s", e.Name)
	put(decides && e.Kind != "" || e.Kind == runs.KindBudget, "%s", e.Kind)
	put((decides || ofRegistry) && e.Principal != "", "by %s", e.Principal)
	put(ofRegistry && e.Key != "", "with key %s", e.Key)
	put(!e.Child.IsZero(), "run %s", e.Child)
	put(e.Approval != "", "%s", e.Approval)
	put(e.Left != 0, "left %s", e.Left)
	put(e.Asked != 0, "asked %s", e.Asked)
	if e.Until != 0 {
		put(true, "until %s", local(e.Until, time.DateTime))
	}
	put(e.Attempt > 1, "attempt %d", e.Attempt)
	put(e.Type == runs.LLMCallStarted && e.Request != "", "request %s", e.Request)
	put(e.Status != 0, "%s", e.Status)
	put(e.Discards != 0, "discards after %d", e.Discards)
	put(e.Text != "", "%s", eventText(e.Text, e.Truncated))
	put(e.Took != 0, "took %s", e.Took)
	put(e.Usage != runs.Usage{}, "tokens %d+%d", e.Usage.Input, e.Usage.Output)
	for _, w := range e.Warnings {
		put(true, "warning: %s", eventText(w, false))
	}
	if r := e.Refusal; r != nil {
		text := r.Error()
		if r.Reason == actor.Unavailable { // its name in records, Internal, would read as a bug
			text = r.Detail
		}
		put(true, "%s", oneLine(text))
	}
	return strings.TrimRight(b.String(), " ")
}

// eventText returns a text on one line, with characters that a terminal does not show as escapes. JSON is not quoted.
func eventText(text string, truncated bool) string {
	shown, end := text, ""
	if n := utf8.RuneCountInString(text); n > eventTextMax {
		shown, end = string([]rune(text)[:eventTextMax]), fmt.Sprintf("… (%d characters)", n)
	} else if truncated {
		end = "…"
	}
	quoted := strconv.Quote(shown)
	shown = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1])
	if v := jsontext.Value(text); strings.HasPrefix(text, "{") && (v.IsValid() || truncated) || strings.HasPrefix(text, "[") && v.IsValid() {
		return shown + end
	}
	return `"` + shown + end + `"`
}
