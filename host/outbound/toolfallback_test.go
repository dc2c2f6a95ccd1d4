// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// TestOnlyHarmlessFailureNamesFallback checks that a failure names the other tool only if it is known that nothing was
// performed: otherwise both would be.
func TestOnlyHarmlessFailureNamesFallback(t *testing.T) {
	status := func(n int) http.HandlerFunc { return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(n) } }
	dropped := func(w http.ResponseWriter, _ *http.Request) { drop(w, "") }
	begun := func(w http.ResponseWriter, _ *http.Request) {
		drop(w, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
	}
	then := func(handlers ...http.HandlerFunc) func() http.HandlerFunc {
		return func() http.HandlerFunc {
			var n atomic.Int64 // a handler may still run when the next request arrives
			return func(w http.ResponseWriter, r *http.Request) {
				handlers[min(int(n.Add(1)), len(handlers))-1](w, r)
			}
		}
	}
	for _, c := range []struct {
		name                      string
		handler                   func() http.HandlerFunc
		once, idempotent, reading bool // whether a POST that is not idempotent, one that is, and a GET fall back
		unreachable               bool
	}{
		{name: "503", handler: then(status(503)), once: true, idempotent: true, reading: true},
		{name: "429", handler: then(status(429)), once: true, idempotent: true, reading: true},
		{name: "501", handler: then(status(501)), once: true, idempotent: true, reading: true},
		{name: "500", handler: then(status(500)), reading: true},
		{name: "502", handler: then(status(502)), reading: true},
		{name: "500, then 503", handler: then(status(500), status(503)), reading: true},
		{name: "400", handler: then(status(400))},
		{name: "404", handler: then(status(404))},
		{name: "dropped", handler: then(dropped)}, // for a GET that is not idempotent, the outcome is unknown
		{name: "dropped, then 503", handler: then(dropped, status(503))},
		{name: "a response that broke", handler: then(begun)},
		{name: "an answer", handler: then(status(200))},
		{name: "unreachable", unreachable: true, once: true, idempotent: true, reading: true},
	} {
		for _, kind := range []struct {
			d    tools.Declared
			want bool
		}{
			{tools.Declared{}, c.once}, {tools.Declared{Idempotent: true}, c.idempotent}, {tools.Declared{Method: "GET"}, c.reading},
		} {
			handler := status(200)
			if c.handler != nil {
				handler = c.handler()
			}
			f := newToolFixture(t, Config{Patience: upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 2, Delay: time.Millisecond, DelayMax: 2 * time.Millisecond, Time: 50 * time.Millisecond}}}, handler)
			d := kind.d
			d.Fallback = "weather.old"
			if c.unreachable {
				d.URL = "http://127.0.0.1:1/"
			}
			h := f.performUntil(t, t.Context(), d, `{}`, testTimeout)
			if got := h.Refusal.Fallback(); (got == "weather.old") != kind.want {
				t.Errorf("%s, %s idempotent %v: %+v", c.name, d.Method, d.Idempotent, h.Refusal)
			}
			d.Fallback = ""
			if h := f.performUntil(t, t.Context(), d, `{}`, testTimeout); h.Refusal.Fallback() != "" {
				t.Errorf("%s: %+v", c.name, h.Refusal)
			}
		}
	}
}

// TestTimeoutNamesNoFallback checks that a tool that did not answer in time is not followed by another one.
func TestTimeoutNamesNoFallback(t *testing.T) {
	f := newToolFixture(t, Config{}, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body) // a server notices a disconnect only then
		<-r.Context().Done()
	})
	if h := f.performUntil(t, t.Context(), tools.Declared{Fallback: "weather.old"}, `{}`, 50*time.Millisecond); h.Refusal == nil || h.Refusal.Fallback() != "" {
		t.Errorf("%+v", h.Refusal)
	}
}

// TestOpenCircuitOfToolNamesFallback checks that calls while the circuit of a tool is open go to the other one.
func TestOpenCircuitOfToolNamesFallback(t *testing.T) {
	f := newToolFixture(t, Config{Patience: upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 1}}, Backoff: upstream.BackoffConfig{OpenAfter: 1, OpenFor: time.Hour, OpenMax: time.Hour}}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	d := tools.Declared{Fallback: "weather.old"}
	first := f.perform(t, d, `{}`)
	second := f.perform(t, d, `{}`)
	if first.Refusal.Fallback() != "" || second.Refusal == nil || second.Refusal.Reason != actor.Unavailable || second.Refusal.Fallback() != "weather.old" || f.hits.Load() != 1 {
		t.Errorf("%+v, then %+v", first.Refusal, second.Refusal)
	}
}
