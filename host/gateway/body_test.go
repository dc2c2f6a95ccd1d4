// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
)

// testPrincipals returns a set of keys, one of each scope, and their texts.
func testPrincipals(t *testing.T, scopes ...ingress.Scope) (*Keys, []string) {
	t.Helper()
	var all []ingress.Key
	var texts []string
	for i, scope := range scopes {
		key, text := newTestKey(t, byte(i+1), 0, scope)
		all, texts = append(all, key), append(texts, text)
	}
	keys := new(Keys)
	keys.Set(all)
	return keys, texts
}

// headOf returns the head of a request with a body of n bytes, or a chunked one if n is -1.
func headOf(method, path, key string, n int) string {
	length := fmt.Sprintf("Content-Length: %d", n)
	if n < 0 {
		length = "Transfer-Encoding: chunked"
	}
	return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer " + key + "\r\n" + length + "\r\n\r\n"
}

// A key that lacks the scope of a route is refused before the body arrives, on every route
// with a body, whether or not keys are required on loopback.
func TestScopeIsCheckedBeforeBody(t *testing.T) {
	keys, texts := testPrincipals(t, ingress.ScopeRead)
	for name, b := range map[string]*bareGateway{
		"loopback": startBareGateway(t, Config{Keys: keys}, nil),
		"outside":  startBareGateway(t, Config{Keys: keys}, func(l net.Listener) net.Listener { return offLoopbackListener{l} }),
	} {
		for _, r := range b.server.routes() {
			if r.method != http.MethodPost && r.method != http.MethodPut || r.scope == scopeReadOrRun || r.scope == ingress.ScopeRead { // the key may use them

				continue
			}
			want := http.StatusForbidden
			if r.scope == scopeRunToken {
				want = http.StatusUnauthorized
			}
			for _, n := range []int{2, 1_000_000, -1} {
				status, body, closes, _ := b.sendRaw(t, headOf(r.method, strings.NewReplacer("{id}", "a", "{skill}", "a").Replace(r.path), texts[0], n))
				if status != want || !closes {
					t.Errorf("%s: %s with a body of %d bytes: got %d %s, closes: %v, want %d", name, r.name(), n, status, body, closes, want)
				}
			}
		}
	}
}

// heapBytes returns the memory in use after a collection.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// Unfinished bodies of one principal take its share of memory only. The requests of
// another principal are answered in the meantime, also those with a large body.
func TestUnfinishedBodiesAreBounded(t *testing.T) {
	const unfinished, bytesMax = 300, 128 << 20
	for name, body := range map[string]struct {
		size int64
		head string
	}{
		"with a length": {1_000_000, "Content-Length: 1000000\n\n"},
		"chunked":       {BodyBytesMax, "Transfer-Encoding: chunked\n\nf4240\n"},
	} {
		t.Run(name, func(t *testing.T) {
			keys, texts := testPrincipals(t, ingress.ScopeCall, ingress.ScopeCall)
			d := startGatewayWith(t, Config{Keys: keys})
			requireKeys(d)
			before := heapBytes()
			f := &flood{testGateway: d, authorization: "Bearer " + texts[0]}
			f.holdUnanswered(unfinished, int(bodiesEach/body.size), func() int64 { return d.server.bodies.Taken() / body.size }, func(int) string {
				return "POST /v1/agents/helper/messages\nContent-Type: application/json\n" + body.head + strings.Repeat(" ", 100_000)
			})
			grown := heapBytes() - before
			t.Logf("%d unfinished bodies: memory grew by %d MiB", unfinished, grown>>20)
			if grown > bytesMax {
				t.Errorf("memory grew by %d MiB, want at most %d", grown>>20, bytesMax>>20)
			}
			for _, content := range []string{"say small", "say " + strings.Repeat("large ", 100_000)} {
				began := time.Now()
				status, _, body := d.do("POST", "/v1/agents/helper/messages", fmt.Sprintf(`{"content":%q}`, content), "Authorization", "Bearer "+texts[1])
				if took := time.Since(began); status != 200 || took > floodAnswered {
					t.Errorf("%d bytes of another principal: got %d %.200s after %v", len(content), status, body, took)
				}
			}
		})
	}
}

// A refused body names the share, and the share is free again when the bodies are gone,
// however their connections ended.
func TestBodySharesAreReturned(t *testing.T) {
	keys, texts := testPrincipals(t, ingress.ScopeCall)
	d := startGatewayWith(t, Config{Keys: keys})
	requireKeys(d)
	const path = "/v1/agents/helper/messages"
	large := fmt.Sprintf(`{"content":"say %s"}`, strings.Repeat("x", 500_000))
	for name, end := range map[string]func(net.Conn) error{
		"reset":      func(c net.Conn) error { return errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()) },
		"closed":     net.Conn.Close,
		"half":       func(c net.Conn) error { return c.(*net.TCPConn).CloseWrite() },
		"terminated": func(c net.Conn) error { _, err := io.WriteString(c, "\r\n\r\n"); return errors.Join(err, c.Close()) },
	} {
		for _, n := range []int{1_000_000, -1} {
			var held []net.Conn
			for status := 0; status == 0; {
				c, err := net.Dial("tcp", d.address)
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, c)
				raw := headOf("POST", path, texts[0], n)
				if n < 0 {
					raw += "f4240\r\n"
				}
				if _, err := io.WriteString(c, raw); err != nil {
					t.Fatal(err)
				}
				if len(held) > 100 {
					t.Fatalf("%s: 100 bodies of 1 MB are admitted", name)
				}
				if len(held) > 60 { // of the 67 that the share has room for
					status, _, _ = d.tryLarge(path, large, texts[0])
				}
			}
			if status, headers, body := d.tryLarge(path, large, texts[0]); status != http.StatusTooManyRequests || headers.Get("Retry-After") == "" || !strings.Contains(body, "bodies of requests") {
				t.Errorf("%s: got %d %s", name, status, body)
			}
			for _, c := range held {
				if err := end(c); err != nil {
					t.Fatal(err)
				}
			}
			for deadline := time.Now().Add(20 * time.Second); ; {
				if status, _, body := d.tryLarge(path, large, texts[0]); status == 0 {
					break
				} else if time.Now().After(deadline) {
					t.Fatalf("%s: the share is not free: %d %s", name, status, body)
				}
			}
			for _, c := range held {
				_ = c.Close()
			}
		}
	}
}

// tryLarge sends a message and returns status 0 if it is answered.
func (d *testGateway) tryLarge(path, body, key string) (status int, headers http.Header, text string) {
	c, err := net.Dial("tcp", d.address)
	if err != nil {
		d.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, headOf("POST", path, key, len(body))+body); err != nil {
		d.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		d.Fatal(err)
	}
	b, err := io.ReadAll(response.Body)
	if err != nil {
		d.Fatal(err)
	}
	if response.StatusCode == http.StatusOK {
		return 0, nil, ""
	}
	return response.StatusCode, response.Header, string(b)
}

// The share of a body whose connection ended without an error of fasthttp is free after
// the time to receive a body.
func TestShareOfLostBodyIsReturned(t *testing.T) {
	for until, want := range map[time.Duration]bool{-time.Second: true, time.Hour: false} {
		b := newBodies()
		for i := range bodiesEach / BodyBytesMax {
			if !b.admit(new(fasthttp.RequestHeader), "a", BodyBytesMax, false, time.Now().Add(until)) {
				t.Fatalf("body %d is refused", i)
			}
		}
		if got := b.admit(new(fasthttp.RequestHeader), "a", 1, false, time.Now()); got != want {
			t.Errorf("bodies that end %v from now: another is admitted: %v, want %v", until, got, want)
		}
	}
}

// A key that names users takes one share for all of them.
func TestNamedUsersTakeShareOfTheirKey(t *testing.T) {
	key := newCaller("service", ingress.ScopeCall)
	for _, user := range []string{"alice", "bob", "service"} {
		named, p := key.actingFor(user, userHeader)
		if p != nil {
			t.Fatalf("%s: %v", user, p)
		}
		if named.User != user || named.shareKey() != "service" {
			t.Errorf("user %s takes a share as %s, want service", named.User, named.shareKey())
		}
	}
}
