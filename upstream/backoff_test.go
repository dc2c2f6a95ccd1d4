// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

const (
	lowest  = 0
	middle  = 1 << 63
	highest = 1<<64 - 1
)

var (
	broken    = &upstream.Failure{Class: upstream.Broken, Refusal: actor.Refuse(actor.Unavailable, "broken")}
	refused   = &upstream.Failure{Class: upstream.Refused, Refusal: actor.Refuse(actor.Rejected, "no")}
	throttled = &upstream.Failure{Class: upstream.Throttled, Refusal: actor.Refuse(actor.Busy, "later"), After: 3 * time.Second}
)

func TestBackoffDoublesWithFullJitter(t *testing.T) {
	b := upstream.NewBackoff(upstream.BackoffConfig{OpenAfter: 100})
	for i, want := range []time.Duration{500, 1000, 2000, 4000, 8000, 16000, 30000, 30000} {
		want *= time.Millisecond
		draw, share := uint64(highest), want
		switch i % 3 {
		case 1:
			draw, share = middle, want/2
		case 2:
			draw, share = lowest, 0
		}
		got := b.Report(1000, upstream.Report{Failure: broken, By: actor.Forever}, draw)
		if wait := got.At.Sub(1000); !got.Retry || wait != share {
			t.Errorf("after %d failures: got delay %v, want %v", i+1, wait, share)
		}
	}
	b.Report(1000, upstream.Report{Answered: true}, 0)
	if got := b.Report(1000, upstream.Report{Failure: broken, By: actor.Forever}, highest); got.At.Sub(1000) != 500*time.Millisecond {
		t.Errorf("delay %v after an answer, want 500ms", got.At.Sub(1000))
	}
}

func TestBackoffHonoursRetryAfter(t *testing.T) {
	b := upstream.NewBackoff(upstream.BackoffConfig{})
	advice := b.Report(0, upstream.Report{Failure: throttled, By: actor.Forever}, lowest)
	if advice.At != actor.Time(3*time.Second) {
		t.Errorf("retry at %v, want 3s", time.Duration(advice.At))
	}
	if p := b.Admit(actor.Time(time.Second), upstream.Waiter{}, highest); p.Refusal != nil || p.At != actor.Time(3500*time.Millisecond) {
		t.Errorf("admitted before the requested time: %+v", p)
	}
	sooner := &upstream.Failure{Class: upstream.Throttled, Refusal: throttled.Refusal, After: time.Second}
	b.Report(0, upstream.Report{Failure: sooner}, lowest)
	if p := b.Admit(actor.Time(2*time.Second), upstream.Waiter{}, lowest); p.At != actor.Time(3*time.Second) {
		t.Errorf("a shorter delay replaced the longer one: %+v", p)
	}
	if p := b.Admit(actor.Time(3*time.Second), upstream.Waiter{}, highest); p != (upstream.Admission{}) {
		t.Errorf("not admitted after the requested time: %+v", p)
	}
	if advice := b.Report(0, upstream.Report{Failure: throttled, By: actor.Time(3 * time.Second)}, lowest); advice.Retry {
		t.Error("retry after By")
	}
}

func TestThrottledWithoutRetryAfterDelaysAll(t *testing.T) {
	b := upstream.NewBackoff(upstream.BackoffConfig{})
	b.Report(0, upstream.Report{Failure: &upstream.Failure{Class: upstream.Throttled, Refusal: throttled.Refusal}}, middle)
	if p := b.Admit(0, upstream.Waiter{}, lowest); p.At != actor.Time(250*time.Millisecond) {
		t.Errorf("got admission %+v, want At 250ms", p)
	}
	if p := b.Admit(actor.Time(250*time.Millisecond), upstream.Waiter{}, lowest); p != (upstream.Admission{}) {
		t.Errorf("got admission %+v, want immediate", p)
	}
}

func TestCircuitBreakerStates(t *testing.T) {
	b := upstream.NewBackoff(upstream.BackoffConfig{OpenAfter: 3, OpenFor: 5 * time.Second, OpenMax: 2 * time.Minute})
	second := func(n int) actor.Time { return actor.Time(time.Duration(n) * time.Second) }
	state := func(now actor.Time) string {
		p := b.Admit(now, upstream.Waiter{}, lowest)
		switch {
		case p.Probe:
			return "probe"
		case p.Refusal != nil:
			return "open for " + p.Refusal.RetryAfter.String()
		case p.At > now:
			return "wait"
		}
		return "go"
	}
	for _, c := range []struct {
		at    int
		what  *upstream.Report
		state string
	}{
		{0, nil, "go"},
		{0, &upstream.Report{Failure: broken}, "go"},
		{0, &upstream.Report{Failure: broken}, "go"},
		{0, &upstream.Report{}, "go"}, // cancelled: no information
		{0, &upstream.Report{Failure: refused}, "go"},
		{1, &upstream.Report{Failure: broken}, "go"},
		{1, &upstream.Report{Failure: broken}, "go"},
		{1, &upstream.Report{Failure: broken}, "open for 5s"},
		{2, &upstream.Report{Failure: broken}, "open for 4s"}, // started before the circuit opened
		{5, nil, "open for 1s"},
		{6, nil, "probe"},
		{6, nil, "open for 500ms"},
		{7, &upstream.Report{Failure: broken, Probe: true}, "open for 10s"},
		{17, nil, "probe"},
		{18, &upstream.Report{Probe: true}, "probe"}, // the cancelled probe is replaced
		{19, &upstream.Report{Failure: broken, Probe: true}, "open for 20s"},
		{39, nil, "probe"},
		{40, &upstream.Report{Answered: true, Probe: true}, "go"},
		{41, &upstream.Report{Failure: broken}, "go"},
		{41, &upstream.Report{Failure: broken}, "go"},
		{41, &upstream.Report{Failure: broken}, "open for 5s"},
	} {
		if c.what != nil {
			b.Report(second(c.at), *c.what, lowest)
		}
		if got := state(second(c.at)); got != c.state {
			t.Fatalf("at %d s, after %+v: got %s, want %s", c.at, c.what, got, c.state)
		}
	}
}

func TestRetryBudgetLimitsRetries(t *testing.T) {
	b := upstream.NewBackoff(upstream.BackoffConfig{OpenAfter: 1 << 30, RetryBurst: 10})
	retries := 0
	for range 1000 {
		if b.Report(0, upstream.Report{Failure: broken, First: true, By: actor.Forever}, lowest).Retry {
			retries++
		}
	}
	if retries != 109 { // the initial 10; the credit of the first attempt exceeds the maximum and is lost
		t.Errorf("%d retries of 1000 requests, want 10 plus a tenth of 999", retries)
	}
}

func TestBackoffInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := upstream.BackoffConfig{OpenAfter: rapid.IntRange(1, 4).Draw(t, "after"), RetryBurst: rapid.IntRange(1, 3).Draw(t, "saved")}
		b := upstream.NewBackoff(config)
		var now, requested actor.Time
		out, probes, firsts, retries := 0, 0, 0, 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
			draw := rapid.Uint64().Draw(t, "draw")
			if rapid.Bool().Draw(t, "admit") {
				p := b.Admit(now, upstream.Waiter{}, draw)
				if admitted := p.Refusal == nil && p.At == 0; admitted && now < requested {
					t.Fatalf("admitted at %v, want not before %v", now, requested)
				} else if admitted {
					out++
				}
				if p.Probe {
					probes++
				}
				if p.Refusal != nil && p.Refusal.RetryAfter <= 0 {
					t.Fatalf("refusal without RetryAfter: %v", p.Refusal)
				}
				if probes > 1 {
					t.Fatal("two concurrent probes")
				}
				continue
			}
			if out == 0 {
				continue
			}
			out--
			r := upstream.Report{First: rapid.Bool().Draw(t, "first"), By: actor.Forever, Probe: probes > 0 && rapid.Bool().Draw(t, "probe")}
			if r.Probe {
				probes--
			}
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				r.Answered = true
			case 1:
				r.Failure = broken
			case 2:
				r.Failure = throttled
				requested = max(requested, now.Add(throttled.After))
			}
			advice := b.Report(now, r, draw)
			if r.First {
				firsts++
			}
			if advice.Retry {
				retries++
				if advice.At < now || r.Failure == nil {
					t.Fatalf("invalid advice %+v after %+v at %v", advice, r, now)
				}
			}
			if retries > config.RetryBurst+(firsts+9)/10 {
				t.Fatalf("%d retries after %d first attempts", retries, firsts)
			}
		}
	})
}

func TestBackoffConfigValidate(t *testing.T) {
	for _, c := range []struct {
		config upstream.BackoffConfig
		want   string
	}{
		{upstream.BackoffConfig{}, ""},
		{upstream.BackoffConfig{Base: time.Minute}, "base 1m0s exceeds max 30s"},
		{upstream.BackoffConfig{OpenFor: time.Hour}, "open for 1h0m0s exceeds max 5s"},
		{upstream.BackoffConfig{RetryPercent: 101}, "101 %"},
	} {
		if err := c.config.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got error %v, want %q", c.config, err, c.want)
		}
	}
}
