// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

func TestFallbackIsReadFromCompletion(t *testing.T) {
	for _, name := range []string{"", "other", strings.Repeat("a", actor.NameBytesMax)} {
		b := upstream.Completion{Text: `{"fallback":"x"`, Finish: upstream.FinishStop, Fallback: name}.Encode()
		if got := upstream.FallbackOf(b); got != name {
			t.Errorf("%s: got %q", b, got)
		}
		if c, err := upstream.DecodeCompletion(b); err != nil || c.Fallback != name {
			t.Errorf("%s: got %+v %v", b, c, err)
		}
	}
	for _, text := range []string{"", "{", `{"fallback":"`, `{"fallback":"a`, `{"fallback":"` + strings.Repeat("a", 1000) + `"}`, `{"text":"","fallback":"a"}`} {
		if got := upstream.FallbackOf([]byte(text)); got != "" {
			t.Errorf("%s: got %q", text, got)
		}
	}
}

func TestUnavailableModelIsAway(t *testing.T) {
	status := func(n int) []upstream.Attempt { return []upstream.Attempt{{Status: 200}, {Status: n}} }
	for name, c := range map[string]struct {
		upstream.Outcome
		away bool
	}{
		"an answer":             {upstream.Outcome{Attempts: status(200)}, false},
		"unreachable":           {upstream.Outcome{Refusal: actor.Refuse(actor.Unavailable, "x")}, true},
		"throttled":             {upstream.Outcome{Refusal: actor.RefuseBusy(actor.ScopeCallee, 0, "x"), Attempts: status(429)}, true},
		"without quota":         {upstream.Outcome{Refusal: actor.Refuse(actor.ModelRejected, "x"), Attempts: status(429)}, true},
		"a full node":           {upstream.Outcome{Refusal: actor.RefuseBusy(actor.ScopeNode, 0, "x")}, false},
		"a user at the limit":   {upstream.Outcome{Refusal: actor.RefuseBusy(actor.ScopeCaller, 0, "x")}, false},
		"a wrong key":           {upstream.Outcome{Refusal: actor.Refuse(actor.ModelAuth, "x"), Attempts: status(401)}, false},
		"no such model":         {upstream.Outcome{Refusal: actor.Refuse(actor.ModelNotFound, "x"), Attempts: status(404)}, false},
		"a rejected prompt":     {upstream.Outcome{Refusal: actor.Refuse(actor.ModelRejected, "x"), Attempts: status(400)}, false},
		"a forbidden address":   {upstream.Outcome{Refusal: actor.Refuse(actor.Rejected, "x")}, false},
		"no time":               {upstream.Outcome{Refusal: actor.Refuse(actor.Deadline, "x")}, false},
		"no longer wanted":      {upstream.Outcome{Refusal: actor.Refuse(actor.Stopped, "x")}, false},
		"throttled, then wrong": {upstream.Outcome{Refusal: actor.Refuse(actor.ModelAuth, "x"), Attempts: []upstream.Attempt{{Status: 429}, {Status: 401}}}, false},
	} {
		if c.IsAway() != c.away {
			t.Errorf("%s: %v", name, c.IsAway())
		}
	}
}

func TestLimitsBeforeOthers(t *testing.T) {
	limits := upstream.AttemptLimits{Head: 50 * time.Second, Idle: time.Second, Retry: upstream.RetryPolicy{Tries: 3}}
	for _, c := range []struct {
		left    actor.Duration
		others  int
		retries bool
		head    actor.Duration
		tries   int
	}{
		{time.Minute, 0, false, 50 * time.Second, 3},
		{time.Minute, 1, false, 30 * time.Second, 1},
		{time.Minute, 1, true, 30 * time.Second, 3},
		{time.Hour, 1, false, 50 * time.Second, 1},
		{time.Minute, 2, false, 20 * time.Second, 1},
		{-time.Minute, 2, false, 1, 1},
	} {
		if got := limits.BeforeOthers(c.left, c.others, c.retries); got.Head != c.head || got.Retry.Tries != c.tries || got.Idle != time.Second {
			t.Errorf("%+v: got %+v", c, got)
		}
	}
	if got := (upstream.AttemptLimits{}).BeforeOthers(time.Hour, 1, false); got.Head != 2*time.Minute {
		t.Errorf("got %+v", got)
	}
}

// TestImpatientRequestDoesNotWaitForOthers checks that a circuit that others have opened, and a delay that they were
// asked for, refuse the request at once.
func TestImpatientRequestDoesNotWaitForOthers(t *testing.T) {
	now := actor.Time(time.Hour)
	throttled := upstream.NewBackoff(upstream.BackoffConfig{})
	throttled.Admit(now, upstream.Waiter{}, 0)
	throttled.Report(now, upstream.Report{First: true, Failure: &upstream.Failure{Class: upstream.Throttled, Refusal: actor.RefuseBusy(actor.ScopeCallee, 0, "x"), After: time.Minute}}, 0)
	if a := (upstream.Impatient{Pacer: throttled}).Admit(now, upstream.Waiter{}, 0); a.Refusal == nil || a.Refusal.Reason != actor.Busy || a.Since != 0 || a.At != 0 || a.Refusal.RetryAfter < time.Minute {
		t.Errorf("got %+v", a)
	}
	open := upstream.NewBackoff(upstream.BackoffConfig{OpenAfter: 1})
	open.Admit(now, upstream.Waiter{}, 0)
	open.Report(now, upstream.Report{First: true, Failure: &upstream.Failure{Class: upstream.Unreached, Refusal: actor.Refuse(actor.Unavailable, "x")}}, 0)
	if a := (upstream.Impatient{Pacer: open}).Admit(now, upstream.Waiter{}, 0); a.Refusal == nil || a.Refusal.Reason != actor.Unavailable || a.Since != 0 {
		t.Errorf("got %+v", a)
	}
	if a := (upstream.Impatient{Pacer: open}).Admit(now.Add(time.Minute), upstream.Waiter{}, 0); a.Refusal != nil || !a.Probe {
		t.Errorf("after a minute: got %+v", a)
	}
}
