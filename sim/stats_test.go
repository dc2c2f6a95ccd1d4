// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
)

// TestSummaryPrintsMissingFirst checks that zero counts are returned as missing and
// are printed before all others.
func TestSummaryPrintsMissingFirst(t *testing.T) {
	var sum Summary
	sum.Total.Published[runs.RunDone] = 3
	sum.Total.Refusals[actor.Busy][actor.ScopeCaller] = 1
	sum.Total.Points[Passivated] = 1
	var out strings.Builder
	missing := sum.Print(&out)
	for _, want := range []string{"event Crash", "fault NetworkLoss", "refusal Busy node", "refusal Cycle", "published run_failed", "point call sent again"} {
		if !slices.Contains(missing, want) {
			t.Errorf("%q is not reported as missing", want)
		}
	}
	for _, never := range []string{"refusal Busy", "refusal Cycle node", "refusal NoDevice", "refusal Busy caller"} {
		if slices.Contains(missing, never) {
			t.Errorf("%q is reported as missing", never)
		}
	}
	if slices.Contains(missing, "published run_done") || slices.Contains(missing, "point actor passivated") {
		t.Errorf("counted rows are reported as missing: %q", missing)
	}
	if zero, seen := strings.LastIndex(out.String(), " 0\n  "), strings.Index(out.String(), "actor passivated"); zero > seen || seen < 0 {
		t.Errorf("rows with a zero count are not first:\n%s", out.String())
	}
}

func TestPointOf(t *testing.T) {
	for _, c := range []struct {
		e    history.Event
		want Point
		ok   bool
	}{
		{history.Event{Kind: history.Deactivate, Why: "idle"}, Passivated, true},
		{history.Event{Kind: history.Deactivate, Why: "lost"}, ActorLost, true},
		{history.Event{Kind: history.Send, What: "request", Attempt: 2}, CallResent, true},
		{history.Event{Kind: history.Send, What: "request", Attempt: 1}, 0, false},
		{history.Event{Kind: history.Drop, What: "outcome", Why: "late"}, LateOutcome, true},
		{history.Event{Kind: history.Drop, What: "piece", Why: "late"}, LatePiece, true},
		{history.Event{Kind: history.Drop, What: "answered", Why: "late"}, LateDropped, true},
		{history.Event{Kind: history.Drop, What: "request", Why: "epoch"}, OldEpochDropped, true},
		{history.Event{Kind: history.Drop, What: "request", Why: "full"}, FullDropped, true},
		{history.Event{Kind: history.Perform, What: "try", N: 2}, UpstreamRetried, true},
		{history.Event{Kind: history.Perform, What: "tool", Attempt: 2}, EffectRetried, true},
		{history.Event{Kind: history.Perform, What: "tool", Attempt: 1}, 0, false},
		{history.Event{Kind: history.Perform, What: "take back"}, PiecesRetracted, true},
	} {
		if p, ok := pointOf(&c.e); ok != c.ok || ok && p != c.want {
			t.Errorf("pointOf(%s) = %q, %v; want %q, %v", c.e, p, ok, c.want, c.ok)
		}
	}
}

// Each point has a name of its own.
func TestPointNames(t *testing.T) {
	seen := map[string]bool{}
	for p := range points {
		name := Point(p).String()
		if name == "" || seen[name] {
			t.Errorf("point %d has the name %q", p, name)
		}
		seen[name] = true
	}
}
