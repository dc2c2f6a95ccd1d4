// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// quickRetries are retries without a noticeable delay.
var quickRetries = upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 3, Delay: time.Millisecond, DelayMax: 2 * time.Millisecond}}

// toolFixture is an Outbound with a server of tools on 127.0.0.1.
type toolFixture struct {
	*Outbound
	url  string
	log  *logBuffer
	hits atomic.Int64
}

func newToolFixture(t *testing.T, config Config, handler http.HandlerFunc) *toolFixture {
	t.Helper()
	f := &toolFixture{log: &logBuffer{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.hits.Add(1)
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	config.Allow = upstream.AllowLoopback()
	f.Outbound = newOutbound(t, config, f.log)
	t.Cleanup(f.Outbound.Close)
	return f
}

var effectID = actor.EffectID{Run: callID, Step: 3, Index: 1}

// perform calls a tool and checks that no secret is in its answer or in the log.
func (f *toolFixture) perform(t *testing.T, d tools.Declared, arguments string) *result {
	t.Helper()
	return f.performUntil(t, t.Context(), d, arguments, testTimeout)
}

func (f *toolFixture) performUntil(t *testing.T, ctx context.Context, d tools.Declared, arguments string, left time.Duration) *result {
	t.Helper()
	if d.Name == "" {
		d.Name = "weather.get"
	}
	if d.Kind == "" {
		d.Kind, d.Via = tools.KindServer, tools.ViaHTTP
	}
	if d.URL == "" {
		d.URL = f.url + "/w"
	}
	call := actor.Call{ID: callID, Root: rootID, To: actor.NewID("a", "s"), Principal: "u-1", Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	h := &result{Answer: f.Tool(ctx, effectID, runtime.Tool{Name: d.Name, Input: []byte(arguments), Context: tools.ExecutionContext{Call: call}, Left: left, Declared: &d})}
	checkNoSecrets(t, h, f.log)
	return h
}

// check compares a result with a media type and bytes, or a refusal with its reason and a
// part of its detail.
func (h *result) check(t *testing.T, want string, reason actor.Reason) {
	t.Helper()
	switch {
	case h.Refusal != nil:
		if h.Refusal.Reason != reason || !strings.Contains(h.Refusal.Detail, want) || !strings.Contains(h.Refusal.Detail, "weather.get") {
			t.Errorf("got %v %q, want %v %q", h.Refusal.Reason, h.Refusal.Detail, reason, want)
		}
	case len(h.Parts) != 1 || h.Parts[0].Media+" "+string(h.Parts[0].Bytes) != want || reason != 0:
		t.Errorf("got %.300s, want %q %v", h.allText(), want, reason)
	}
}

// drop closes the connection of a request.
func drop(w http.ResponseWriter, before string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(conn, before)
	conn.Close()
}

func TestToolIsPerformed(t *testing.T) {
	f := newToolFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `[%q,%q,%q]`, r.Method+" "+r.RequestURI+" "+string(body), r.Header.Get("Idempotency-Key")+" "+r.Header.Get("Traceparent"),
			fmt.Sprint(r.Header.Get("Authorization") == authCanary, r.Header.Get("X-Unit"), r.Header.Get("Content-Type"), r.Header.Get("Cookie")))
	})
	f.perform(t, tools.Declared{Headers: map[string]tools.Header{"Authorization": {Env: "TROUPE_AUTH_A"}, "X-Unit": {Value: "C"}}}, `{"city":"Graz"}`).check(t,
		`application/json ["POST /w {\"city\":\"Graz\"}","`+callID.String()+`.3.1 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","trueCapplication/json"]`, 0)
	f.perform(t, tools.Declared{Method: "GET", URL: f.url + "/w/{city}?x={x}"}, `{"city":"a/b","n":1}`).check(t,
		`application/json ["GET /w/a%2Fb?n=1 ","`+callID.String()+`.3.1 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","false"]`, 0)
	for _, arguments := range []string{`{"city":"../.."}`, `{"city":"..\\x"}`, `{"city":"` + strings.Repeat("x", 10_000) + `"}`, `{}`} {
		hits := f.hits.Load()
		if h := f.perform(t, tools.Declared{URL: f.url + "/w/{city}"}, arguments); h.Refusal == nil || h.Refusal.Reason != actor.Invalid || f.hits.Load() != hits {
			t.Errorf("%.40s: got %v", arguments, h.allText())
		}
	}
	f.perform(t, tools.Declared{URL: "http://{city}/w"}, `{"city":"127.0.0.1"}`).check(t, "no argument may choose them", actor.Invalid)
	if s := f.Stats(); s[len(s)-1].Kind != "tool" && s[0].Kind != "tool" {
		t.Errorf("no tool in %+v", s)
	}
}

// Each response of a server yields a result or a refusal with a reason.
func TestToolResponses(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	t.Cleanup(other.Close)
	write := func(status int, media, body string, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if w.Header()["Content-Type"] = nil; media != "" {
				w.Header().Set("Content-Type", media)
			}
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { drop(w, text) }
	}
	flood := func(media string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			block := make([]byte, 1<<20)
			for i := range 200 {
				if _, err := w.Write(block); err != nil {
					return
				}
				if i == 150 {
					t.Errorf("%s: 150 MB were read", media)
				}
			}
		}
	}
	for _, c := range []struct {
		name       string
		handler    http.HandlerFunc
		want       string
		reason     actor.Reason // of a tool that is not idempotent
		retries    bool         // of an idempotent tool
		idempotent actor.Reason // reason of an idempotent tool, if another
	}{
		{name: "JSON", handler: write(200, "application/json", `{"a":1}`), want: `application/json {"a":1}`},
		{name: "201", handler: write(201, "application/json", `1`), want: `application/json 1`},
		{name: "204", handler: write(204, "", ""), want: `text/plain `},
		{name: "empty", handler: write(200, "image/png", ""), want: `text/plain `},
		{name: "text", handler: write(200, "text/plain; charset=utf-8", "warm"), want: `text/plain warm`},
		{name: "binary", handler: write(200, "image/png", "\x89PNG"), want: `text/plain [image/png, 4 bytes]`},
		{name: "no type", handler: write(200, "", "x"), want: `text/plain x`},
		{name: "duplicate names", handler: write(200, "application/json", `{"a":1,"a":2}`), want: `application/json {"a":2}`},
		{name: "invalid JSON", handler: write(200, "application/json", "<html>"), want: "text/plain <html>"},
		{name: "compressed", handler: write(200, "application/json", "\x1f\x8b", "Content-Encoding", "gzip"), want: `unexpected content coding "gzip"`, reason: actor.Unknown, retries: true},
		{name: "200 MB of text", handler: flood("text/plain"), want: "text/plain " + strings.Repeat("\x00", upstream.ToolResultBytesMax)},
		{name: "200 MB of bytes", handler: flood("application/zip"), want: "text/plain [application/zip, more than 1048560 bytes]"},
		{name: "400", handler: write(400, "application/json", `{"error":"no city"}`), want: `answers 400: {"error":"no city"}`, reason: actor.Rejected},
		{name: "404", handler: write(404, "text/plain", "no such city\n"), want: "answers 404: no such city", reason: actor.Rejected},
		{name: "404 with an image", handler: write(404, "image/png", "xyz"), want: `answers 404 with 3 bytes of "image/png"`, reason: actor.Rejected},
		{name: "409", handler: write(409, "", ""), want: "answers 409", reason: actor.Rejected},
		{name: "429", handler: write(429, "text/plain", "slow down"), want: "answers 429: slow down", reason: actor.Busy, retries: true},
		{name: "408", handler: write(408, "", ""), want: "answers 408", reason: actor.Unavailable, retries: true},
		{name: "500", handler: write(500, "text/plain", "oops"), want: "answers 500: oops", reason: actor.Unavailable, retries: true},
		{name: "501", handler: write(501, "", ""), want: "answers 501", reason: actor.Unavailable},
		{name: "503", handler: write(503, "", ""), want: "answers 503", reason: actor.Unavailable, retries: true},
		{name: "redirect to another host", handler: write(302, "", "", "Location", other.URL+"/x"), want: "a redirect to another host, \"" + other.URL, reason: actor.Rejected},
		{name: "redirect to another path", handler: write(308, "", "", "Location", "/elsewhere"), want: `a redirect to "/elsewhere" of the same host: redirects are not followed`, reason: actor.Rejected},
		{name: "304", handler: write(304, "", ""), want: "answers 304, which is no result", reason: actor.Rejected},
		{name: "garbage", handler: raw("\x00\x01garbage\r\n\r\n"), want: "connection lost", reason: actor.Unknown, retries: true, idempotent: actor.Unavailable},
		{name: "no response", handler: raw(""), want: "connection lost", reason: actor.Unknown, retries: true, idempotent: actor.Unavailable},
		{name: "cut in the head", handler: raw("HTTP/1.1 200 OK\r\nContent-Ty"), want: "connection lost", reason: actor.Unknown, retries: true, idempotent: actor.Unavailable},
		{name: "cut in the body", handler: raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{}"), want: "connection lost", reason: actor.Unknown, retries: true},
		{name: "cut in a chunk", handler: raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}"), want: "connection lost", reason: actor.Unknown, retries: true},
		{name: "cut in an error", handler: raw("HTTP/1.1 500 X\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\noops"), want: "answers 500: oops", reason: actor.Unavailable, retries: true},
		{name: "huge head", handler: raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100<<10) + "\r\n\r\n"), want: "connection lost", reason: actor.Unknown, retries: true, idempotent: actor.Unavailable},
	} {
		for _, idempotent := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, " idempotent ", idempotent), func(t *testing.T) {
				f := newToolFixture(t, Config{Patience: quickRetries}, c.handler)
				h := f.perform(t, tools.Declared{Idempotent: idempotent}, `{}`)
				attempts, reason := int64(1), c.reason
				if idempotent && c.retries {
					attempts = 3
				}
				if idempotent && c.idempotent != 0 {
					reason = c.idempotent
				}
				h.check(t, c.want, reason)
				if f.hits.Load() != attempts {
					t.Errorf("got %d requests, want %d", f.hits.Load(), attempts)
				}
				if once := "; it may have been performed"; c.name == "500" && strings.Contains(h.Refusal.Detail, once) == idempotent {
					t.Errorf("got %q", h.Refusal.Detail)
				}
			})
		}
	}
}

func TestToolRetryAfter(t *testing.T) {
	for _, status := range []int{429, 503, 500} {
		f := newToolFixture(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
		})
		if r := f.perform(t, tools.Declared{}, `{}`).Refusal; r == nil || r.RetryAfter != 7*time.Second || (r.Scope == actor.ScopeCallee) != (status == 429) {
			t.Errorf("%d: got %+v", status, r)
		}
	}
}

// A refused error quotes at most 1 KiB of text.
func TestToolErrorIsQuotedInPart(t *testing.T) {
	f := newToolFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(400)
		secret := r.Header.Get("X-Key")
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<10-len(secret)/2)+secret+strings.Repeat("y", 1<<20))
	})
	h := f.perform(t, tools.Declared{Headers: map[string]tools.Header{"X-Key": {Env: "TROUPE_AUTH_A"}}}, `{}`)
	h.check(t, "answers 400: xxx", actor.Rejected)
	if n := len(h.Refusal.Detail); n < 1000 || n > 1100 || strings.Contains(h.Refusal.Detail, authCanary[:len(authCanary)/2]) {
		t.Errorf("got %d bytes: %q", n, h.Refusal.Detail)
	}
}

// A tool whose response has begun was performed.
func TestToolWithoutResponseEndsAtDeadline(t *testing.T) {
	for before, reason := range map[string]actor.Reason{"": actor.Deadline, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nx": actor.Unknown} {
		ended := make(chan struct{})
		f := newToolFixture(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			defer conn.Close()
			_, _ = io.WriteString(conn, before)
			_, _ = io.Copy(io.Discard, conn) // until the client closes the connection
			close(ended)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		h := f.performUntil(t, ctx, tools.Declared{}, `{}`, testTimeout)
		cancel()
		h.check(t, "timeout", reason)
		<-ended
		if h.Refusal == nil || reason == actor.Deadline && h.Refusal.Operation != "invoke tool weather.get" {
			t.Errorf("%q: got %+v", before, h.Refusal)
		}
		h = f.performUntil(t, t.Context(), tools.Declared{URL: f.url + "/b"}, `{}`, time.Nanosecond)
		h.check(t, "timeout", actor.Deadline)
	}
}

// A tool that is not idempotent is asked once, also over a connection that was in use
// before: the transport repeats such requests with an Idempotency-Key by itself.
func TestUnsafeToolIsNotRepeatedOnReusedConnection(t *testing.T) {
	var last atomic.Bool
	f := newToolFixture(t, Config{Patience: quickRetries}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if last.Load() {
			drop(w, "")
		}
	})
	f.perform(t, tools.Declared{}, `{}`).check(t, "text/plain ", 0)
	last.Store(true)
	f.perform(t, tools.Declared{}, `{}`).check(t, "the request may have been processed", actor.Unknown)
	if f.hits.Load() != 2 {
		t.Errorf("got %d requests, want 2", f.hits.Load())
	}
}

func TestToolRetriesKeepIdempotencyKey(t *testing.T) {
	keys := make(chan string, 3)
	f := newToolFixture(t, Config{Patience: quickRetries}, func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("Idempotency-Key")
		if len(keys) < 3 {
			drop(w, "")
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "third")
	})
	f.perform(t, tools.Declared{Idempotent: true}, `{}`).check(t, "text/plain third", 0)
	for range 3 {
		if key := <-keys; key != callID.String()+".3.1" {
			t.Errorf("got key %q", key)
		}
	}
}

// A refused connection is tried again for all tools, as nothing was sent.
func TestToolRetriesRefusedConnection(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := closed.Addr().String()
	closed.Close()
	f := newToolFixture(t, Config{Patience: quickRetries}, func(w http.ResponseWriter, _ *http.Request) {})
	connects := 0
	connect := f.dialer.connect
	to := strings.TrimPrefix(f.url, "http://")
	f.dialer.connect = func(ctx context.Context, host string, at netip.AddrPort) (net.Conn, error) {
		if connects++; connects == 3 {
			return (&net.Dialer{}).DialContext(ctx, "tcp", to)
		}
		return connect(ctx, host, at)
	}
	f.perform(t, tools.Declared{URL: "http://" + address + "/w"}, `{}`).check(t, "text/plain ", 0)
	if connects != 3 || f.hits.Load() != 1 {
		t.Errorf("got %d connections and %d requests, want 3 and 1", connects, f.hits.Load())
	}
}

func TestToolSecretsNeedBinding(t *testing.T) {
	f := newToolFixture(t, Config{Auth: upstream.Bindings{"TROUPE_AUTH_A": "agents.example, http://127.0.0.1/api", "TROUPE_AUTH_B": "127.0.0.1"}}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "" {
			t.Errorf("%s: got a secret", r.RequestURI)
		}
	})
	header := func(env string) map[string]tools.Header { return map[string]tools.Header{"X-Key": {Env: env}} }
	for _, c := range []struct{ url, env, want string }{
		{f.url + "/w", "TROUPE_AUTH_A", "may not send the secret TROUPE_AUTH_A"},
		{f.url + "/api/{x}", "TROUPE_AUTH_A", "may not send the secret TROUPE_AUTH_A"}, // the binding has port 80
		{f.url + "/{x}", "KEY", "want the name of a variable like TROUPE_AUTH_"},
		{f.url + "/api/{x}/../../w", "TROUPE_AUTH_A", "the path segment . or .."},
	} {
		h := f.perform(t, tools.Declared{URL: c.url, Headers: header(c.env)}, `{"x":"api"}`)
		h.check(t, c.want, actor.Rejected)
	}
	f.perform(t, tools.Declared{Headers: header("TROUPE_AUTH_B")}, `{}`).check(t, "TROUPE_AUTH_B is not set", actor.Unavailable)
	if f.hits.Load() != 0 {
		t.Errorf("got %d requests, want none", f.hits.Load())
	}
	for url, want := range map[string]bool{"http://127.0.0.1/api": true, "http://127.0.0.1/api/{x}?y={x}": true, "http://127.0.0.1/api{x}": false, "http://127.0.0.1/{x}": false, "http://127.0.0.1{x}": false} {
		if err := f.PermitTool(&tools.Declared{URL: url, Headers: header("TROUPE_AUTH_A")}); (err == nil) != want {
			t.Errorf("%s: got %v", url, err)
		}
	}
	if err := f.PermitTool(&tools.Declared{URL: "http://127.0.0.1/{"}); err == nil || !strings.Contains(err.Error(), "url: ") {
		t.Errorf("got %v", err)
	}
}

func TestToolEgress(t *testing.T) {
	f := newToolFixture(t, Config{}, func(http.ResponseWriter, *http.Request) {})
	f.perform(t, tools.Declared{URL: "http://169.254.169.254/latest"}, `{}`).check(t, "link-local, which is not allowed", actor.Rejected)
	f.perform(t, tools.Declared{Kind: tools.KindClient}, `{}`).check(t, "no active client", actor.NoDevice)
	f.perform(t, tools.Declared{Kind: tools.KindServer, Via: "smoke"}, `{}`).check(t, "performs no tools via", actor.Unavailable)
}

func TestToolConcurrency(t *testing.T) {
	release := make(chan struct{})
	arrived := make(chan struct{}, 16)
	var open, most atomic.Int64
	f := newToolFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), open.Add(1)))
		arrived <- struct{}{}
		<-release
		open.Add(-1)
	})
	d := tools.Declared{Concurrency: 3} // one user holds two
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() { f.perform(t, d, `{}`).check(t, "text/plain ", 0) })
		<-arrived
	}
	for range 3 * userQueueFactor {
		calls.Go(func() { f.perform(t, d, `{}`).check(t, "text/plain ", 0) })
	}
	queued := func() int {
		f.tools.mu.Lock()
		defer f.tools.mu.Unlock()
		return f.tools.known["weather.get"].queue.Waiting()
	}
	for queued() < 3*userQueueFactor {
		goruntime.Gosched()
	}
	h := f.perform(t, d, `{}`)
	h.check(t, "at its limit of concurrent requests (3), and 9 of this user wait", actor.Busy)
	if h.Refusal == nil || h.Refusal.RetryAfter <= 0 || h.Refusal.Scope != actor.ScopeCaller {
		t.Errorf("got %+v", h.Refusal)
	}
	close(release)
	calls.Wait()
	if most.Load() != 2 || f.hits.Load() != 2+3*userQueueFactor {
		t.Errorf("got %d requests at once, %d in total", most.Load(), f.hits.Load())
	}
	for _, s := range f.Stats() {
		if s.Kind == "tool" && (s.Name != "weather.get" || s.Attempts != 2+3*userQueueFactor || s.Refused != 1 || s.Failures != 0 || s.InProgress != 0 || s.Took <= 0) {
			t.Errorf("got %+v", s)
		}
	}
}

// The tools that are remembered are bounded; those in use stay.
func TestToolSetIsBounded(t *testing.T) {
	s := toolSet{known: map[string]*tool{}}
	used, _ := s.retain("used", "u", upstream.BackoffConfig{})
	for i := range 2 * tools.ToolsMax {
		other, _ := s.retain(fmt.Sprint(i), "u", upstream.BackoffConfig{})
		s.release(other)
	}
	if again, _ := s.retain("used", "u", upstream.BackoffConfig{}); again != used || len(s.known) != tools.ToolsMax || s.known[fmt.Sprint(2*tools.ToolsMax-1)] == nil {
		t.Errorf("got %d tools", len(s.known))
	}
	_, a := s.retain("used", "u", upstream.BackoffConfig{})
	if _, b := s.retain("used", "other", upstream.BackoffConfig{}); a == b {
		t.Error("another address has the same back-off")
	}
}

func TestToolSendsEachHeaderOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	lines := make(chan string, 64)
	go func() {
		defer close(lines)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for r := bufio.NewReader(conn); ; {
			line, err := r.ReadString('\n')
			if err != nil || line == "\r\n" {
				_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
				return
			}
			lines <- strings.ToLower(line)
		}
	}()
	f := newToolFixture(t, Config{}, nil)
	f.perform(t, tools.Declared{URL: "http://" + listener.Addr().String() + "/", Headers: map[string]tools.Header{"USER-AGENT": {Value: "u"}, "Accept": {Value: "x/y"}}}, `{}`).check(t, "text/plain ", 0)
	names := map[string]int{}
	for line := range lines {
		name, value, _ := strings.Cut(line, ":")
		if name == "x-troupe-egress" && strings.TrimSpace(value) != "1" {
			t.Errorf("the server sends %q", line)
		}
		names[name]++
	}
	for _, name := range []string{"host", "user-agent", "content-length", "accept", "content-type", "idempotency-key", "traceparent", "x-troupe-egress"} {
		if names[name] != 1 {
			t.Errorf("%s: sent %d times", name, names[name])
		}
		delete(names, name)
	}
	delete(names, "post / http/1.1\r\n")
	if len(names) > 0 {
		t.Errorf("further headers: %v", names)
	}
}
