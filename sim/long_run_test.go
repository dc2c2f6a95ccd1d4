// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strings"
	"testing"
	"time"
)

func TestLongRunIsBusyThroughout(t *testing.T) {
	var sum Summary
	r := RunSeed(Options{Seed: 4, Long: true})
	if r.Violation != nil {
		t.Fatal(r.Violation)
	}
	sum.Add(r)
	for _, short := range sum.LongShortfalls() {
		if !strings.HasPrefix(short, "a run has ") { // this prefix marks a requirement on the mean of many runs
			t.Errorf("seed %d: %s; %d steps, by tenth %v", r.Seed, short, r.Stats.Steps, r.Stats.TenthSteps)
		}
	}
	if at, _, err := DecodeChoices(EncodeChoices(Options{Seed: 3, Long: true, Registry: "off"}, nil)); err != nil || !at.Long || at.Registry != "off" {
		t.Errorf("decoded options: got %+v, error %v, want a long run without a registry", at, err)
	}
}

// The summary reports runs whose statistics do not meet the requirements of a long
// run.
func TestSummaryReportsIdleLongRuns(t *testing.T) {
	for _, c := range []struct {
		name string
		idle func(*Plan)
		want string
	}{
		{"no client for minutes", func(p *Plan) { p.ArrivalInterval, p.Steps = 3*time.Minute, 0 }, "without a client's request"},
		{"all work at the start", func(p *Plan) { p.Calls = 40 }, "of which one is under 5 %"},
		{"short span", func(p *Plan) { p.Span = 10 * time.Minute }, "lasts"},
		{"few steps", func(p *Plan) { p.Steps, p.Busy, p.ArrivalInterval, p.Span = 0, false, 25*time.Second, 10*time.Minute }, "steps on average"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := New(Options{Seed: 3, Long: true, Faultless: true})
			defer w.Close()
			c.idle(&w.plan)
			if v := w.Run(); v != nil {
				t.Fatal(v)
			}
			var sum Summary
			sum.Add(Result{Stats: w.Stats})
			if short := strings.Join(sum.LongShortfalls(), "; "); !strings.Contains(short, c.want) {
				t.Errorf("shortfalls: got %q, want one with %s", short, c.want)
			}
		})
	}
}
