// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// simulatedPlace is a node with the given number of workers, each taking 5 ms per
// call. Up to 64 calls of the agent work wait for a free worker, further ones are
// refused if limited is true. Calls to the slow agent are refused after the given time.
func simulatedPlace(workers int, refusal time.Duration, limited bool) Place {
	free := make(chan struct{}, workers)
	var waiting atomic.Int64
	return Place{"simulated", func(a CallOptions) (Target, error) {
		return &fakeTarget{respond: func(int) Outcome {
			if strings.HasPrefix(a.Agent, string(Slow)) {
				sleep(context.Background(), refusal)
				return Outcome{Code: "agent_busy", Scope: "callee", RetryAfter: time.Second}
			}
			if strings.HasPrefix(a.Agent, string(Work)) {
				defer waiting.Add(-1)
				if waiting.Add(1) > 64 && limited {
					return Outcome{Code: "agent_busy", Scope: "node", RetryAfter: time.Second}
				}
			}
			free <- struct{}{}
			sleep(context.Background(), 5*time.Millisecond)
			<-free
			return Outcome{}
		}}, nil
	}}
}

func TestSuiteJudgesFloors(t *testing.T) {
	for _, c := range []struct {
		title   string
		refusal time.Duration
		limited bool
		missed  int
	}{
		{"node within its floors", time.Millisecond, true, 0},
		{"node with slow refusals", 20 * time.Millisecond, true, 1},
		{"node that refuses no work", time.Millisecond, false, 1},
	} {
		var r Report
		var length, last time.Duration
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			p := Suite{Places: []Place{simulatedPlace(2, c.refusal, c.limited)}, Durable: []bool{false},
				Progress: func(_ string, done, of time.Duration) { last = done }}
			var err error
			if r, err = p.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			length = time.Since(start)
			if length < p.Duration() || length > p.Duration()+20*time.Second || last > p.Duration() {
				t.Errorf("took %v, reported %v of %v", length, last, p.Duration())
			}
		})
		// Memory is that of this process, not of the simulated node.
		r.Floors = slices.DeleteFunc(r.Floors, func(f Floor) bool { return strings.Contains(f.Name, "memory is flat") })
		if met, missed := r.CountFloors(); missed != c.missed || met+missed != 6 {
			t.Errorf("%s: unexpected verdict %s", c.title, r.Verdict())
		}
		if peak := r.Parts[0].Peak; peak < 390 || peak > 402 {
			t.Errorf("%s: peak %v, want 400 per second", c.title, peak)
		}
		if o := r.Parts[0].Saturated; o.Unsent < 4*o.Done/2 {
			t.Errorf("%s: %d completed, %d not sent at five times the peak", c.title, o.Done, o.Unsent)
		}
		text := r.Markdown()
		if !strings.HasSuffix(text, r.Verdict()+"\n") || strings.Count(text, "**missed**") != c.missed || !strings.Contains(text, "agent_busy (callee)") {
			t.Errorf("%s: unexpected report %s", c.title, text)
		}
	}
}

func TestSuiteFailsWithoutCompletedCalls(t *testing.T) {
	p := Suite{Durable: []bool{true}, Places: []Place{{"broken", func(CallOptions) (Target, error) {
		return &fakeTarget{respond: func(int) Outcome { return Outcome{Code: "unauthorized"} }}, nil
	}}}}
	synctest.Test(t, func(t *testing.T) {
		if _, err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "unauthorized") {
			t.Error(err)
		}
	})
}
