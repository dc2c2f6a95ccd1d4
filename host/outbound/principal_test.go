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
