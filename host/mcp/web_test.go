// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/tools"
)

// A server over HTTP that ends in a call has an unknown outcome. One that is down was not called. One
// that is back is used again.
func TestHTTPServerEndsAndReturns(t *testing.T) {
	at, lines := reports(t)
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return testServer(at) }, &sdk.StreamableHTTPOptions{Stateless: true})
	listen := func(address string) *http.Server {
		t.Helper()
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		h := &http.Server{Addr: l.Addr().String(), Handler: handler}
		t.Cleanup(func() { h.Close() })
		go func() { _ = h.Serve(l) }()
		return h
	}
	h := listen("127.0.0.1:0")
	b := start(t, t.TempDir(), map[string]Config{"s": {URL: "http://" + h.Addr}})
	done := make(chan tools.Result, 1)
	go func() { done <- b.call(t.Context(), "s.block", "") }()
	wantLine(t, lines, "started")
	h.Close()
	b.want(<-done, actor.Unknown, "may have performed the call")
	up := func() { // an attempt may have begun before the listener was back
		for l := (*link)(nil); l == nil; {
			l, _ = b.all[0].session(t.Context(), true)
		}
	}
	h = listen(h.Addr)
	up()
	h.Close()
	// A request on a connection that was open before may have been sent, so its outcome is unknown. Each
	// such call uses one connection up: the session before had at most three.
	r := b.call(t.Context(), "s.fail", "")
	for range 3 {
		if r.Refusal == nil || r.Refusal.Reason != actor.Unknown {
			break
		}
		b.want(r, actor.Unknown, "may have performed the call")
		r = b.call(t.Context(), "s.fail", "")
	}
	b.want(r, actor.Unavailable, "the MCP server")
	listen(h.Addr)
	up()
	b.want(b.call(t.Context(), "s.echo", "back"), 0, "back")
}

func TestCancellationReachesHTTPServer(t *testing.T) {
	at, lines := reports(t)
	s := testServer(at)
	h := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(h.Close)
	b := start(t, t.TempDir(), map[string]Config{"s": {URL: h.URL}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan tools.Result, 1)
	go func() { done <- b.call(ctx, "s.block", "") }()
	wantLine(t, lines, "started")
	cancel()
	b.want(<-done, actor.Unknown, "may have performed")
	wantLine(t, lines, "cancelled")
}

// Requests to a server are subject to the rules of the egress, carry its headers and follow no
// redirect. Responses are bounded.
func TestRequestsOverHTTP(t *testing.T) {
	var authorized, followed atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	t.Cleanup(other.Close)
	large := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for part := []byte(strings.Repeat(" ", 1<<16)); ; {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}))
	t.Cleanup(large.Close)
	redirects := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirects.Close)
	served := testServer("")
	mcp := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return served }, nil)
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer sesame" && r.Header.Get("X-Team") == "blue" {
			authorized.Add(1)
		}
		mcp.ServeHTTP(w, r)
	}))
	t.Cleanup(good.Close)
	t.Setenv("TROUPE_AUTH_GOOD", "Bearer sesame")
	secret := map[string]tools.Header{"Authorization": {Env: "TROUPE_AUTH_GOOD"}, "X-Team": {Value: "blue"}}
	host := strings.TrimPrefix(good.URL, "http://")

	open := func(config outbound.Config, servers map[string]Config) *testbed {
		t.Helper()
		b := open(t, t.TempDir(), servers)
		transport, err := outbound.NewTransport(config)
		if err != nil {
			t.Fatal(err)
		}
		b.options.Transport, b.options.Auth = transport, config.Auth
		b.Start(func(context.Context, []tools.Tool) error { return nil })
		return b
	}
	b := open(outbound.Config{Allow: []string{"127.0.0.0/8"}, Auth: map[string]string{"TROUPE_AUTH_GOOD": host}}, map[string]Config{
		"good": {URL: good.URL, Headers: secret}, "large": {URL: large.URL}, "moved": {URL: redirects.URL}, "thief": {URL: other.URL, Headers: secret}})
	b.want(b.call(t.Context(), "good.echo", "in"), 0, "in")
	if authorized.Load() < 2 {
		t.Errorf("got %d requests with the headers", authorized.Load())
	}
	b.waitForLog("the response has more than")
	log := b.waitForLog("may not send the secret TROUPE_AUTH_GOOD")
	if followed.Load() != 0 || strings.Contains(log, "sesame") {
		t.Errorf("%d requests elsewhere, log\n%s", followed.Load(), log)
	}
	b.Close()

	b = open(outbound.Config{}, map[string]Config{"near": {URL: good.URL}})
	b.waitForLog("which is not allowed")
}
