// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// A principal whose agents never answer cannot use up the exchanges of the node,
// over any number of agents.
func TestSilentAgentsLeaveExchangesForOthers(t *testing.T) {
	arrived := make(chan struct{}, 4)
	ctx, cancel := context.WithCancel(t.Context())
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.HasPrefix(r.URL.Path, "/c/") {
			return
		}
		arrived <- struct{}{}
		<-ctx.Done()
	}))
	t.Cleanup(service.Close)
	o := newOutbound(t, Config{ExchangesMax: 4, Allow: upstream.AllowLoopback()}, &logBuffer{})
	t.Cleanup(o.Close)
	var open sync.WaitGroup
	t.Cleanup(open.Wait)
	t.Cleanup(cancel)
	ask := func(agent, principal string) *actor.Refusal {
		op := invocationOf(upstream.Target{URL: service.URL + "/" + agent}, false, testTimeout)
		op.Name, op.Call.Principal = agent, principal
		return o.Invoke(ctx, op, nil, func(actor.Piece) {}).Refusal
	}
	for _, agent := range []string{"a", "b"} {
		open.Go(func() { ask(agent, "mallory") })
		<-arrived
	}
	if r := ask("c", "mallory"); r == nil || r.Reason != actor.Busy || r.Scope != actor.ScopeCaller || !strings.Contains(r.Detail, "2 requests of this user") {
		t.Errorf("the third request of a user: %+v", r)
	}
	prompt := runtime.Model{Name: upstream.ScriptName, Body: promptOf("hi"), Left: testTimeout}
	for principal, refused := range map[string]bool{"mallory": true, "alice": false} {
		prompt.Call.Principal = principal
		if r := o.Model(ctx, prompt, func(actor.Piece) {}).Refusal; (r != nil) != refused {
			t.Errorf("a prompt of %s: %+v", principal, r)
		}
	}
	cancel()
	open.Wait()
	if r := o.acquire("mallory"); r != nil || len(o.principals) != 1 {
		t.Errorf("after the requests: %+v, %v", r, o.principals)
	}
	o.release("mallory")
}

// A full model refuses with a delay that follows from its queue and its rate: one that
// completes nothing is asked ever less, and never later than the maximum.
func TestDelayOfFullModelGrowsWithItsQueue(t *testing.T) {
	var s statCounter
	at := actor.Time(time.Hour)
	if d := s.acquire(1, at); d != 0 {
		t.Fatalf("got %v", d)
	}
	first := s.acquire(1, at)
	for range 30 {
		at = at.Add(500 * time.Millisecond)
		if d := s.acquire(1, at); d < actor.RetryAfterMin*3/4 || d > actor.RetryAfterMax {
			t.Fatalf("got %v", d)
		}
	}
	if last := s.acquire(1, at); first > actor.RetryAfterMin || last < actor.RetryAfterMax*3/4 {
		t.Errorf("got %v for the first refusal, %v after 15 s without an answer", first, last)
	}
	s.release()
	if d := s.acquire(1, at); d != 0 || s.snapshot("model", "m").Refused != 32 || s.snapshot("model", "m").InProgress != 1 {
		t.Errorf("got %v, %+v", d, s.snapshot("model", "m"))
	}
}
