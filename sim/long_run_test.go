// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A run has few actors at first, so that some seeds do little in their first tenth. Together, seeds do not.
func TestLongRunIsBusyThroughout(t *testing.T) {
	var sum Summary
	var tenth [tenths]int
	for seed := range uint64(4) {
		r := RunSeed(Options{Seed: seed + 1, Long: true})
		if r.Violation != nil {
			t.Fatal(r.Violation)
		}
		sum.Add(r)
		for i, n := range r.Stats.TenthSteps {
			tenth[i] += n
		}
	}
	var thin []string
	for _, short := range sum.LongShortfalls() {
		if !strings.HasSuffix(short, "of which one is under 5 %") {
			t.Error(short)
			continue
		}
		thin = append(thin, short)
	}
	if len(thin) > 2 { // it is one in a dozen
		t.Errorf("most seeds have an idle tenth: %q", thin)
	}
	if slices.Min(tenth[:])*thinTenthDivisor < sum.Total.Steps {
		t.Errorf("%d steps, by tenth %v, want at least one in %d in each", sum.Total.Steps, tenth, thinTenthDivisor)
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
