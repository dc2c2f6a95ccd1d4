// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// Unmatched effects are effects of a former invocation that the agent has not asked for again. The end of the
// run would hide them, so the run is parked and shows them to a person.

// endedText follows the name of the agent in the reason of a run whose agent ended without its former
// requests. A person who retries such a run accepts that. The rest of a reason quotes agents, so no decision
// depends on it.
const endedText = " was invoked again and ended without the requests that it made before"

// startedText returns the beginning of the reason of a parked run whose agent was invoked again.
func startedText(agent string) string { return unmatchedText + "agent " + agent }

// parksEnd parks the run of a repeated invocation that ends, or cannot be made, while an effect of the
// former one is unmatched. It reports whether it did. An agent with retry = "safe" may end: it knows what it has done.
func (r repeats) parksEnd(i int, answer *actor.Answer) bool {
	c, t := r.cell, r.turn
	asks := t.run.Last()
	if !asks[i].Invoking() || t.run.Parked != "" {
		return false
	}
	performed := r.performed()
	if len(performed) == 0 {
		return false
	}
	what := ""
	switch refusal := answer.Refusal; {
	case refusal == nil || isOwnRefusal(refusal):
		if t.repetition.accepted || isSafe(&asks[i]) {
			return false
		}
		what = endedText + ". A retry invokes it once more, and accepts that"
		if refusal != nil {
			what += "; it reported: " + actor.FitText(refusal.Detail, requestTextMax)
		}
	case refusal.Reason == actor.Stopped || refusal.Reason == actor.Unknown:
		return false
	default:
		what = " cannot be invoked again: " + actor.FitText(refusal.Detail, requestTextMax)
	}
	detail := startedText(t.act.id.Agent) + what
	for _, a := range performed {
		text, _ := requestTexts(shownRequestOf(a), shownRequest{})
		if len(detail)+len(text) > actor.TextBytesMax-100 {
			detail += "\nand more"
			break
		}
		detail += "\nperformed: " + text
	}
	t.park(c, detail)
	r.drop(func() *actor.Refusal {
		return actor.Refuse(actor.Unknown, "run %s is parked: %s", t.run.Call.ID, detail)
	})
	return true
}

// performed returns the missing asks that had an effect, or may have had one. One that still waits
// for a person has had none, and ends with the run.
func (r repeats) performed() (all []*store.Asked) {
	asks, again := r.turn.run.Last(), &r.turn.repetition
	for i := range min(again.recorded, len(asks)) {
		if a := &asks[i]; again.isMissing(asks, i) && !a.Waits() && hasEffect(&a.Ask, a.Out()) && mayHaveActed(a) {
			all = append(all, a)
		}
	}
	return all
}

// isOwnRefusal reports whether an agent reported the refusal itself: it was invoked.
func isOwnRefusal(r *actor.Refusal) bool {
	switch r.Reason {
	case actor.Unavailable, actor.Busy, actor.Deadline, actor.Stopped, actor.Unknown, actor.NotFound:
		return false
	}
	return true
}

// isSafe reports whether an invoked agent was registered with retry = "safe".
func isSafe(a *store.Asked) bool {
	target, err := upstream.DecodeTarget(inlineBytes(a.Out().Parts))
	return err == nil && target.Safe
}

// shownRequest is a request as the reason of a parked run shows it.
type shownRequest struct{ name, arguments, key string }

func shownRequestOf(a *store.Asked) shownRequest {
	return shownRequest{a.Ask.Name, string(inlineBytes(a.Ask.Parts)), a.CallbackKey.Key}
}

func shownRequestIn(call *actor.Call) shownRequest {
	ask := callbackAsk(call)
	if call.Operation == signals.OpAddTool {
		ask, _ = addedToolAsk(call) // decoded before
	}
	return shownRequest{ask.Name, string(inlineBytes(ask.Parts)), call.Idempotency.Key}
}

// Bounds of the arguments that the reason of a parked run shows of one request, in bytes.
const (
	requestTextMax = 1200
	requestKeyMax  = 128
	sharedTextMax  = 200 // of what both requests begin with, before the first difference
)

// requestTexts returns the texts of two requests. Both are cut at the same places, around their
// first difference.
func requestTexts(a, b shownRequest) (first, second string) {
	from := 0
	if longest := max(len(a.arguments), len(b.arguments)); longest > requestTextMax {
		for from < min(len(a.arguments), len(b.arguments)) && a.arguments[from] == b.arguments[from] {
			from++
		}
		from = min(max(from-sharedTextMax, 0), longest-requestTextMax)
	}
	return a.text(from), b.text(from)
}

// text returns the request with the part of its arguments that begins at from.
func (r shownRequest) text(from int) string {
	shown := r.arguments[min(from, len(r.arguments)):]
	shown = strings.ToValidUTF8(shown[:min(requestTextMax, len(shown))], "")
	text := r.name + " "
	if from > 0 {
		text += "…"
	}
	if text += shown; from+requestTextMax < len(r.arguments) {
		text += "…"
	}
	if len(shown) < len(r.arguments) {
		text += fmt.Sprintf(" (cut: %d of %d bytes)", len(shown), len(r.arguments))
	}
	if r.key != "" {
		text += " (idempotency_key " + actor.FitText(r.key, requestKeyMax) + ")"
	}
	return text
}
