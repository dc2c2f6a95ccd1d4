// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// checkFraming detects each fault itself, whether or not fasthttp would let it
// pass.
func TestCheckFraming(t *testing.T) {
	const host = "Host: localhost\r\n"
	for _, c := range []struct{ method, protocol, raw, want string }{
		{"GET", "HTTP/1.1", host + "\r\n", ""},
		{"POST", "HTTP/1.1", host + "Content-Length: 12\r\n\r\n", ""},
		{"POST", "HTTP/1.1", host + "Transfer-Encoding:chunked\r\nExpect: 100-continue\r\n\r\n", ""},
		{"DELETE", "HTTP/1.0", host + "Content-Length: 000\r\n\r\n", ""},
		{"GET", "HTTP/2.0", host + "\r\n", "protocol"},
		{"GET", "HTTP/1.1", "Host: localhost\n\r\n", "not end with CR LF"},
		{"GET", "HTTP/1.1", host + "A: b", "not end with CR LF"},
		{"GET", "HTTP/1.1", host + "\n", "not end with CR LF"},
		{"GET", "HTTP/1.1", host + " a: b\r\n\r\n", "folded"},
		{"GET", "HTTP/1.1", host + "\ta: b\r\n\r\n", "folded"},
		{"GET", "HTTP/1.1", host + strings.Repeat("A: b\r\n", HeadersMax) + "\r\n", "at most 100 headers"},
		{"GET", "HTTP/1.1", host + "a b\r\n\r\n", "malformed header line"},
		{"GET", "HTTP/1.1", host + "a : b\r\n\r\n", "malformed header line"},
		{"GET", "HTTP/1.1", host + ": b\r\n\r\n", "malformed header line"},
		{"GET", "HTTP/1.1", host + "\u00e4: b\r\n\r\n", "malformed header line"},
		{"GET", "HTTP/1.1", host + "a: b\x00\r\n\r\n", "control characters"},
		{"GET", "HTTP/1.1", host + "a: b\rc: d\r\n\r\n", "control characters"},
		{"GET", "HTTP/1.1", host + "a: b\x7f\r\n\r\n", "control characters"},
		{"POST", "HTTP/1.1", host + "Content_Length: 1\r\n\r\n", "is ambiguous"},
		{"POST", "HTTP/1.1", host + "x_run_token: 1\r\n\r\n", "is ambiguous"},
		{"GET", "HTTP/1.1", host + host + "\r\n", "is a duplicate"},
		{"POST", "HTTP/1.1", host + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "one Content-Length or one Transfer-Encoding"},
		{"POST", "HTTP/1.1", host + "Content-Length: +1\r\n\r\n", "decimal"},
		{"POST", "HTTP/1.1", host + "Content-Length:\r\n\r\n", "decimal"},
		{"POST", "HTTP/1.1", host + "Content-Length: 1234567890123456789\r\n\r\n", "decimal"},
		{"POST", "HTTP/1.1", host + "Transfer-Encoding: identity\r\n\r\n", "want chunked"},
		{"POST", "HTTP/1.1", host + "Transfer-Encoding: CHUNKED\r\n\r\n", "want chunked"},
		{"POST", "HTTP/1.0", host + "Transfer-Encoding: chunked\r\n\r\n", "want chunked"},
		{"POST", "HTTP/1.1", host + "Transfer-Encoding: chunked\r\nTrailer: a\r\n\r\n", "trailers are not supported"},
		{"POST", "HTTP/1.1", host + "Expect: 100-Continue\r\n\r\n", "100-continue"},
		{"GET", "HTTP/1.1", "a: b\r\n\r\n", "Host header is missing"},
		{"GET", "HTTP/1.0", "", "Host header is missing"},
		{"GET", "HTTP/1.1", host + "Content-Length: 1\r\n\r\n", "must not have a body"},
		{"FROB", "HTTP/1.1", host + "Transfer-Encoding: chunked\r\n\r\n", "must not have a body"},
	} {
		_, p := checkFraming([]byte(c.method), []byte(c.protocol), []byte(c.raw))
		if (p == nil) != (c.want == "") || p != nil && !strings.Contains(p.Detail, c.want) {
			t.Errorf("%s %s %q: %+v, want %s", c.method, c.protocol, c.raw, p, c.want)
		}
	}
}

// Every trailer is refused, including a harmless one.
func TestTrailersAreRefused(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	for _, trailer := range []string{"X-A: b", "Idempotency-Key: k", "X-Run-Token: t", "Origin: http://localhost", "Sec-Fetch-Site: none", "User-Agent: a", "Accept: text/event-stream"} {
		status, body, closes, _ := b.sendRaw(t, b.named(post+"Accept: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"+trailer+"\r\n\r\n"))
		if status != http.StatusBadRequest || !strings.Contains(body, "trailers are not supported") || !closes {
			t.Errorf("%s: %d %s", trailer, status, body)
		}
	}
}

// A web page cannot reach the API through a browser, whatever name resolves to
// this address.
func TestHostAndOriginChecks(t *testing.T) {
	plain := startBareGateway(t, Config{}, nil)
	named := startBareGateway(t, Config{Hosts: []string{"troupe.example", "port.example:8443"}, Origins: []string{"https://console.example"}}, nil)
	outside := startBareGateway(t, Config{Keys: newTestKeys(t)}, func(l net.Listener) net.Listener { return offLoopbackListener{l} })
	for _, c := range []struct {
		at      *bareGateway
		host    string
		headers string
		want    int
	}{
		{plain, "127.0.0.1", "", 200}, {plain, "127.0.0.1:8283", "", 200}, {plain, "localhost", "", 200}, {plain, "LocalHost:1", "", 200}, {plain, "[::1]", "", 200}, {plain, "[::1]:8283", "", 200}, {plain, "127.9.9.9", "", 200},
		{plain, "evil.example", "", 403}, {plain, "localhost.evil.example", "", 403}, {plain, "127.0.0.1.evil.example:80", "", 403}, {plain, "evil-localhost", "", 403}, {plain, "localhost.", "", 403},
		{plain, "0.0.0.0", "", 403}, {plain, "192.0.2.1", "", 403}, {plain, "2130706433", "", 403}, {plain, "0x7f000001", "", 403}, {plain, "0177.0.0.1", "", 403}, {plain, "127.1", "", 403}, {plain, "[::]", "", 403}, {plain, "xn--localhost-9ya", "", 403},
		{plain, "troupe.example", "", 403},
		{plain, "user@localhost", "", 400}, {plain, "localhost:evil", "", 400}, {plain, "localhost:80:80", "", 400}, {plain, "localhost, evil.example", "", 400}, {plain, "localhost evil", "", 400}, {plain, "[::1", "", 400}, {plain, "::1", "", 400},
		{plain, "[localhost]", "", 400}, {plain, "[127.0.0.1]", "", 400}, {plain, "localhost:0", "", 400}, {plain, "localhost:65536", "", 400}, {plain, "localhost:", "", 400}, {plain, "localhost:+1", "", 400}, {plain, "l\xc3\xb6calhost", "", 400}, {plain, "localhost/", "", 400},
		{named, "troupe.example", "", 200}, {named, "Troupe.Example:443", "", 200}, {named, "port.example:8443", "", 200}, {named, "localhost", "", 200}, {named, "port.example", "", 403}, {named, "evil.example", "", 403}, {named, "a.troupe.example", "", 403},
		{outside, "any.example", "", 200}, {outside, "user@any.example", "", 400},

		{plain, "localhost:8283", "Origin: http://localhost:8283", 200}, {plain, "localhost", "Origin: http://localhost:8283", 403}, {plain, "localhost:8283", "Origin: https://localhost:8283", 403},
		{plain, "localhost", "Origin: null", 403}, {plain, "localhost", "Origin: http://evil.example", 403}, {plain, "localhost", "Origin: http://localhost.evil.example", 403}, {plain, "localhost", "Origin: http://evil-localhost", 403},
		{plain, "localhost", "Origin: http://localhost/", 403}, {plain, "localhost", "Origin: localhost", 403}, {plain, "localhost", "Origin: file://", 403}, {plain, "localhost", "Origin: https://console.example", 403},
		{plain, "localhost", "Sec-Fetch-Site: cross-site", 403}, {plain, "localhost", "Sec-Fetch-Site: same-site", 403}, {plain, "localhost", "Sec-Fetch-Site: same-origin", 200}, {plain, "localhost", "Sec-Fetch-Site: none", 200},
		{plain, "localhost", "Origin: http://localhost\r\nSec-Fetch-Site: cross-site", 403},
		{named, "troupe.example", "Origin: https://console.example\r\nSec-Fetch-Site: cross-site", 200}, {named, "troupe.example", "Origin: https://console.example.evil.example", 403}, {named, "troupe.example", "Origin: http://console.example", 403},
		{outside, "any.example", "Origin: http://evil.example", 403}, {outside, "any.example", "Origin: http://any.example", 200},
	} {
		head := "GET /healthz HTTP/1.1\r\nHost: " + c.host + "\r\n"
		if c.headers != "" {
			head += c.headers + "\r\n"
		}
		if status, body, _, _ := c.at.sendRaw(t, head+"\r\n"); status != c.want {
			t.Errorf("%q %q: %d %s, want %d", c.host, c.headers, status, body, c.want)
		}
	}
}

// Only unencoded JSON is accepted: a page cannot send it to another origin
// without a preflight request. A form is accepted unless a browser has sent it.
func TestMediaTypeChecks(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	for media, want := range map[string]int{
		"application/json": 400, "application/json; charset=utf-8": 400, "Application/JSON": 400, "application/json;": 400, // the body, an empty object, is invalid
		"application/x-www-form-urlencoded": 400, // the default of curl -d
		"text/plain":                        415, "application/x-www-form-urlencoded\r\nOrigin: http://localhost": 415, "application/x-www-form-urlencoded\r\nReferer: x": 415,
		"application/x-www-form-urlencoded\r\nCookie: a=b": 415, "application/x-www-form-urlencoded\r\nSec-Fetch-Mode: navigate": 415, "multipart/form-data; boundary=a": 415, "text/json": 415, "application/jsonx": 415, "application/json, text/plain": 415,
		"text/plain; a=application/json": 415, "application/problem+json": 415, "*/*": 415, "": 415, "json": 415, "application /json": 415,
	} {
		for _, path := range []string{"/v1/agents/a/messages", "/v1/runs/0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55:signal"} {
			head := "POST " + path + " HTTP/1.1\r\nHost: " + b.address + "\r\n"
			if media != "" {
				head += "Content-Type: " + strings.ReplaceAll(media, "localhost", b.address) + "\r\n"
			}
			if status, body, _, _ := b.sendRaw(t, head+"Content-Length: 2\r\n\r\n{}"); status != want {
				t.Errorf("%s to %s: %d %s, want %d", media, path, status, body, want)
			}
		}
	}
	for _, coding := range []string{"gzip", "br", "identity", "deflate", "zstd", "x"} {
		if status, body, _, _ := b.sendRaw(t, b.named(post)+"Content-Encoding: "+coding+"\r\nContent-Length: 2\r\n\r\n{}"); status != http.StatusUnsupportedMediaType {
			t.Errorf("%s: %d %s", coding, status, body)
		}
	}
}

// readUntilClosed returns the remaining bytes, up to the end of the connection.
func readUntilClosed(t *testing.T, c net.Conn) string {
	t.Helper()
	received, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection stays open after %.200q", received)
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return string(received)
}

// A client that sends slowly or not at all is disconnected, and others are served
// in the meantime. The timeouts are those of the server.
func TestSlowRequestsAreDisconnected(t *testing.T) {
	const slow = 300 * time.Millisecond
	b := startBareGateway(t, Config{HeadTimeout: slow, BodyTimeout: slow, IdleTimeout: slow, WriteTimeout: slow}, nil)
	incomplete := map[string]string{
		"nothing":              "",
		"partial method":       "GE",
		"partial target":       "GET /heal",
		"partial head":         get,
		"partial header":       get + "A: b",
		"head without its end": get + "A: b\r\n\r",
		"no body":              post + "Content-Length: 10\r\n\r\n",
		"partial body":         post + "Content-Length: 10\r\n\r\n{",
		"no chunk":             post + "Transfer-Encoding: chunked\r\n\r\n",
		"partial chunk":        post + "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
		"no last chunk":        post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
		"no trailer":           post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
		"Expect header":        post + "Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
	}
	var open []net.Conn
	for range 20 {
		for _, raw := range incomplete {
			c := b.dial(t)
			if _, err := io.WriteString(c, b.named(raw)); err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
		}
	}
	if status, body, _, _ := b.sendRaw(t, get+"\r\n"); status != 200 {
		t.Errorf("other client: %d %s", status, body)
	}
	for _, c := range open {
		if received := readUntilClosed(t, c); strings.Contains(received, " 200 ") {
			t.Errorf("incomplete request was answered: %s", received)
		}
	}
	idle := b.dial(t)
	if _, err := io.WriteString(idle, get+"\r\n"); err != nil {
		t.Fatal(err)
	}
	if received := readUntilClosed(t, idle); !strings.HasPrefix(received, "HTTP/1.1 200 ") || strings.Contains(received, "408") {
		t.Errorf("idle connection: %s", received)
	}
	// Single bytes do not extend the timeout, which covers the whole head.
	drip := b.dial(t)
	ticker := time.NewTicker(slow / 10)
	go func() {
		defer ticker.Stop()
		for range ticker.C {
			if _, err := io.WriteString(drip, "x"); err != nil {
				return
			}
		}
	}()
	readUntilClosed(t, drip)
}

// smallBufferListener sets a small send buffer on each connection.
type smallBufferListener struct{ net.Listener }

func (l smallBufferListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return c, c.(*net.TCPConn).SetWriteBuffer(4 << 10)
}

// A client that sends requests without reading the answers is disconnected.
func TestUnreadAnswersAreDisconnected(t *testing.T) {
	b := startBareGateway(t, Config{WriteTimeout: 300 * time.Millisecond}, func(l net.Listener) net.Listener { return smallBufferListener{l} })
	c := b.dial(t)
	if err := c.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	many := []byte(strings.Repeat(get+"\r\n", 1000))
	for {
		_, err := c.Write(many)
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			return
		}
		if err != nil {
			t.Fatalf("the connection was not reset: %v", err)
		}
	}
}

// The number of connections is bounded in total and for each address. A
// connection over a limit is refused at once. After another connection has
// closed, a new one is accepted.
func TestConnectionLimits(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		status int
	}{
		"from one address": {Config{PerAddress: 3}, http.StatusTooManyRequests},
		"in total":         {Config{Connections: 3}, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBareGateway(t, c.config, nil)
			var held []net.Conn
			for range 3 {
				held = append(held, b.dial(t))
				requireServed(t, held[len(held)-1])
			}
			for range 5 {
				response, err := http.ReadResponse(bufio.NewReader(b.dial(t)), nil)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(response.Body)
				if response.StatusCode != c.status || response.Header.Get("Retry-After") != "1" || !response.Close || !strings.Contains(string(body), `"code":"agent_busy"`) {
					t.Errorf("%d %v %s", response.StatusCode, response.Header, body)
				}
			}
			// The server frees the slot when it closes its side.
			if _, err := io.WriteString(held[0], "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			readUntilClosed(t, held[0])
			deadline := time.Now().Add(20 * time.Second)
			for {
				fresh := b.dial(t)
				if _, err := io.WriteString(fresh, get+"\r\n"); err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
					t.Fatal(err)
				}
				response, err := http.ReadResponse(bufio.NewReader(fresh), nil)
				if err == nil && response.StatusCode == 200 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("no slot was freed: %v %v", response, err)
				}
			}
			requireServed(t, held[1])
		})
	}
}

// requireServed sends a request on a connection that stays open.
func requireServed(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, get+"\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || response.StatusCode != 200 {
		t.Fatalf("%v %v", response, err)
	}
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Fatal(err)
	}
}

func TestClientPrefix(t *testing.T) {
	for at, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1/32", "[::ffff:192.0.2.1]:80": "192.0.2.1/32", "127.0.0.1:1": "127.0.0.1/32",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64", "[::1]:80": "::/64",
	} {
		if got := ClientPrefix(remoteAddr(at)); got.String() != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
}

// remoteAddr is a connection with only a remote address.
type remoteAddr string

func (f remoteAddr) RemoteAddr() net.Addr {
	at, err := net.ResolveTCPAddr("tcp", string(f))
	if err != nil {
		panic(fmt.Sprint(f, err))
	}
	return at
}
