// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestGatewayTargetRequests(t *testing.T) {
	var seen atomic.Pointer[string]
	var mode atomic.Value
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		text := fmt.Sprintf("%s %s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("Authorization"), body)
		seen.Store(&text)
		switch mode.Load() {
		case "busy":
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"code":"agent_busy","scope":"node","detail":"x"}`)
		case "teapot":
			w.WriteHeader(http.StatusTeapot)
		case "break":
			c, _, _ := w.(http.Hijacker).Hijack()
			_ = c.Close()
		}
	}))
	defer srv.Close()
	d, err := NewGatewayTarget(srv.URL, "troupe_k", CallOptions{Agent: "noop", Timeout: time.Second, Sessions: 2})
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Caller(1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, step := range []struct {
		mode string
		want Outcome
	}{
		{"ok", Outcome{}},
		{"busy", Outcome{"agent_busy", "node", 3 * time.Second}},
		{"teapot", Outcome{Code: "status_418"}},
		{"break", Outcome{Code: Broken, RetryAfter: 100 * time.Millisecond}},
		{"ok", Outcome{}}, // on a new connection
	} {
		mode.Store(step.mode)
		if got := c.Call(); got != step.want {
			t.Errorf("%s: got %+v, want %+v", step.mode, got, step.want)
		}
	}
	if got := *seen.Load(); !strings.HasPrefix(got, `POST /v1/agents/noop/messages application/json Bearer troupe_k {"content":"hello","session":"s-`) || !strings.HasSuffix(got, `"timeout_ms":1000}`) {
		t.Error(got)
	}
}

func TestGatewayTargetRejectsInvalidInput(t *testing.T) {
	for _, c := range []struct{ url, key, agent string }{
		{"https://x", "", "noop"}, {"x:8283", "", "noop"}, {"http://x/v1", "", "noop"}, {"http://x", "a\r\nb", "noop"}, {"http://x", "", "a b"}, {"http://x", "", ""},
	} {
		if _, err := NewGatewayTarget(c.url, c.key, CallOptions{Agent: c.agent}); err == nil {
			t.Errorf("%+v: want an error", c)
		}
	}
	if _, err := newCallers(&GatewayTarget{address: "127.0.0.1:1", requests: [][]byte{nil}}, 1); err == nil {
		t.Error("address without a listener: want an error, got none")
	}
}

func TestSessionOrderCoversAllSessions(t *testing.T) {
	for n := range 40 {
		for _, sessions := range []int{1, 2, 3, 7, 10, 15, 105, 256, 1000, 31 * 29 * 23} {
			seen := map[int]bool{}
			turns := newSessionOrder(n, sessions)
			for range sessions {
				seen[turns.next()] = true
			}
			if len(seen) != sessions {
				t.Errorf("caller %d calls %d sessions of %d", n, len(seen), sessions)
			}
		}
	}
}
