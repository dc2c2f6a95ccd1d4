// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
)

// bareGateway is a gateway without a node. A request that reaches the node
// panics.
type bareGateway struct {
	server  *Server
	address string
	log     *logBuffer
}

// logBuffer collects log output.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *logBuffer) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *logBuffer) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// offLoopbackListener reports an address off loopback.
type offLoopbackListener struct{ net.Listener }

func (offLoopbackListener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8283}
}

func startBareGateway(t *testing.T, config Config, wrap func(net.Listener) net.Listener) *bareGateway {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bareGateway{address: l.Addr().String(), log: new(logBuffer)}
	b.server = New(nil, slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})), config)
	if wrap != nil {
		l = wrap(l)
	}
	served := make(chan error, 1)
	go func() { served <- b.server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(b.server.Shutdown(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bareGateway) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// named returns a raw request with the address of the gateway as its Host, so that
// it needs no key.
func (b *bareGateway) named(raw string) string {
	return strings.Replace(raw, "Host: localhost\r\n", "Host: "+b.address+"\r\n", 1)
}

// sendRaw writes raw bytes on a new connection and returns the first answer. If
// the server closes the connection, rest holds the remaining bytes.
func (b *bareGateway) sendRaw(t *testing.T, raw string) (status int, body string, closes bool, rest string) {
	t.Helper()
	c := b.dial(t)
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("%.200q: %v", raw, err)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !response.Close {
		return response.StatusCode, string(text), false, ""
	}
	more, err := io.ReadAll(r)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%.200q: the connection stays open: %v", raw, err)
	}
	return response.StatusCode, string(text), true, string(more)
}

const (
	post   = "POST /v1/agents/a/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	get    = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
	canary = "GET /canary HTTP/1.1\r\nHost: localhost\r\n\r\n"
)

// ambiguousRequests returns requests that parsers may delimit differently, or that
// every parser should reject. The tests append the canary to each of them.
func ambiguousRequests() map[string]string {
	all := map[string]string{
		"both lengths":                 post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"both lengths, other order":    post + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
		"both, zero length":            post + "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
		"both, coding in lower case":   post + "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
		"both, length after chunks":    post + "Transfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n",
		"equal lengths":                post + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
		"different lengths":            post + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
		"lengths in two cases":         post + "Content-Length: 0\r\ncontent-length: 44\r\n\r\n",
		"two codings":                  post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"different codings":            post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		"chunked in HTTP/1.0":          "POST /v1/agents/a/messages HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n",
		"no Host":                      "GET /healthz HTTP/1.1\r\nA: b\r\n\r\n",
		"no Host in HTTP/1.0":          "GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"no headers in HTTP/1.0":       "GET /healthz HTTP/1.0\r\n\r\n",
		"no colon":                     get + "Content-Length 4\r\n\r\n",
		"no name":                      get + ": x\r\n\r\n",
		"first header is folded":       "GET /healthz HTTP/1.1\r\n Host: localhost\r\n\r\n",
		"body of a GET":                get + "Content-Length: 44\r\n\r\n",
		"chunked GET":                  get + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"body of a HEAD":               strings.Replace(get, "GET", "HEAD", 1) + "Content-Length: 44\r\n\r\n",
		"body of a DELETE":             strings.Replace(get, "GET", "DELETE", 1) + "Content-Length: 44\r\n\r\n",
		"body of an OPTIONS":           strings.Replace(get, "GET", "OPTIONS", 1) + "Content-Length: 44\r\n\r\n",
		"body of an unknown method":    strings.Replace(get, "GET", "FROB", 1) + "Content-Length: 44\r\n\r\n",
		"announced trailer":            post + "Transfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n0\r\nX-A: b\r\n\r\n",
		"trailer":                      post + "Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: b\r\n\r\n",
		"trailer of a header in use":   post + "Transfer-Encoding: chunked\r\n\r\n0\r\nIdempotency-Key: b\r\n\r\n",
		"trailer repeats a header":     post + "Idempotency-Key: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nIdempotency-Key: b\r\n\r\n",
		"trailer with a token":         post + "Transfer-Encoding: chunked\r\n\r\n0\r\nX-Run-Token: b\r\n\r\n",
		"trailer of a standard header": post + "Transfer-Encoding: chunked\r\n\r\n0\r\nUser-Agent: b\r\n\r\n",
		"trailer with a length":        post + "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 4\r\n\r\n",
		"chunks end without CR":        post + "Transfer-Encoding: chunked\r\n\r\n0\r\n\n",
		"chunk without CR":             post + "Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
		"chunk's end is missing":       post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
		"chunk longer than its size":   post + "Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
		"line feed in an extension":    post + "Transfer-Encoding: chunked\r\n\r\n2;a\nb\r\n{}\r\n0\r\n\r\n",
		"carriage return in extension": post + "Transfer-Encoding: chunked\r\n\r\n2;a\rb\r\n{}\r\n0\r\n\r\n",
		"chunks with a canary":         post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"line feeds end the head":      "GET /healthz HTTP/1.1\r\nHost: localhost\n\n",
		"line feed ends a header":      "GET /healthz HTTP/1.1\r\nHost: localhost\nA: b\r\n\r\n",
		"line feed ends last header":   "GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: b\n\r\n",
		"last line is a line feed":     "GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: b\r\n\n",
		"carriage returns only":        "GET /healthz HTTP/1.1\r\nHost: localhost\rA: b\r\n\r\n",
		"two carriage returns":         "GET /healthz HTTP/1.1\r\nHost: localhost\r\r\n\r\n",
		"hidden line after a CR":       get + "A: b\rTransfer-Encoding: chunked\r\n\r\n",
		"hidden line after an LF":      get + "A: b\nContent-Length: 44\r\n\r\n",
		"space in a name":              get + "Content Length: 44\r\n\r\n",
		"name not in ASCII":            get + "Content-Length\xc2\xa0: 44\r\n\r\n",
		"quoted name":                  get + "\"Content-Length\": 44\r\n\r\n",
		"name in brackets":             get + "(Content-Length): 44\r\n\r\n",
		"underscore for a dash":        post + "Content_Length: 44\r\nContent-Length: 0\r\n\r\n",
		"underscore, coding":           post + "Transfer_Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
		"unknown expectation":          post + "Expect: 200-ok\r\nContent-Length: 44\r\n\r\n",
		"tab for a space":              "GET\t/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"two spaces":                   "GET  /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"two spaces, later":            "GET /healthz  HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"no protocol":                  "GET /healthz\r\nHost: localhost\r\n\r\n",
		"no target":                    "GET HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"no method":                    " /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"method with a bracket":        "G(T /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"NUL in the target":            "GET /heal\x00thz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"carriage return in target":    "GET /heal\rthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"text after the protocol":      "GET /healthz HTTP/1.1 x\r\nHost: localhost\r\n\r\n",
		"too many headers":             get + strings.Repeat("A: b\r\n", HeadersMax) + "\r\n",
		"head too long":                get + "A: " + strings.Repeat("x", HeaderBytesMax) + "\r\n\r\n",
		"HTTP/2 preface":               "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"line feed after the target":   "GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n",
		"line feed, HTTP/1.0":          "GET /healthz HTTP/1.0\nHost: localhost\r\n\r\n",
		"line feed before a body":      strings.Replace(post, "\r\n", "\n", 1) + "Content-Length: 2\r\n\r\n{}",
		"TLS client hello":             "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
	}
	for _, v := range []string{"+5", "-1", "-0", "0x5", "5,5", "5, 5", "5 5", "5;a", "5.0", "1e1", "", " ", "5h", "\u0665", "_5", "1_0", "0b1", "99999999999999999999", "18446744073709551616", "9223372036854775808", "'5'", "\"5\"", "NaN", "5\t5"} {
		all[fmt.Sprintf("length %q", v)] = post + "Content-Length: " + v + "\r\n\r\n{}   "
	}
	for _, v := range []string{"identity", "gzip", "deflate", "gzip, chunked", "chunked, gzip", "chunked, chunked", "chunked, identity", "Chunked", "CHUNKED", "\"chunked\"", "'chunked'",
		"chunked;q=1", "chunked; a", "xchunked", "chunkedx", "chunked,", ",chunked", ",", "", " ", "chunke", "chunked\tx", "cow", "\u1e61hunked", "chunked, ", "trailers", "compress", "x-gzip"} {
		all[fmt.Sprintf("coding %q", v)] = post + "Transfer-Encoding: " + v + "\r\n\r\n0\r\n\r\n"
	}
	for _, v := range []string{"HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.7", "HTTP/9.9", "http/1.1", "HTTP/1.1x", "HTTP/1", "HTTP/11", "HTTP/01.1", "HTTP/1.01", "HTTP/1,1", "HTTPS/1.1", "HTTP/-1.1", "ICY/1.1", "HTTP /1.1", "XTTP/1.1"} {
		all["protocol "+v] = "GET /healthz " + v + "\r\nHost: localhost\r\n\r\n"
	}
	for c := range byte(0x20) {
		if c == '\t' || c == '\n' {
			continue
		}
		all[fmt.Sprintf("control %#02x in a value", c)] = get + "A: b" + string(c) + "c\r\n\r\n"
		all[fmt.Sprintf("control %#02x in a name", c)] = get + "A" + string(c) + "b: c\r\n\r\n"
	}
	all["control 0x7f in a value"] = get + "A: b\x7f\r\n\r\n"
	for _, name := range []string{"Content-Length", "Transfer-Encoding", "Host", "X"} {
		for what, before := range map[string]string{"space": " :", "tab": "\t:", "spaces": "  :", "space inside": " x:"} {
			all[what+" before the colon of "+name] = strings.Replace(post, "Host:", "A:", 1) + "Host: localhost\r\n" + name + before + " 0\r\n\r\n"
		}
		for what, fold := range map[string]string{"a space": "\r\n ", "a tab": "\r\n\t", "spaces": "\r\n   ", "a line feed": "\n "} {
			all[name+" folded by "+what] = post + name + ":" + fold + "0\r\n\r\n"
		}
	}
	for _, name := range singletonHeaders {
		all["twice "+name] = post + name + ": 0\r\n" + name + ": 0\r\n\r\n"
	}
	for _, v := range []string{"G", "-1", "+2", "0x2", " 2", "2 ;a", "", "ffffffffffffffff1", "8000000000000000", "7fffffffffffffff", "ffffffffffffffff", "2,", "2h", "٢"} {
		all[fmt.Sprintf("chunk size %q", v)] = post + "Transfer-Encoding: chunked\r\n\r\n" + v + "\r\n{}\r\n0\r\n\r\n"
	}
	return all
}

// An ambiguously framed request is refused and its connection closed. The bytes
// that follow it are not interpreted.
func TestRequestSmugglingIsRefused(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	all := ambiguousRequests()
	if len(all) < 150 {
		t.Errorf("got %d cases, want at least 150", len(all))
	}
	for name, raw := range all {
		t.Run(name, func(t *testing.T) {
			status, body, closes, rest := b.sendRaw(t, b.named(raw)+canary)
			if status < 400 || status > 499 || !strings.Contains(body, `"code":`) && !strings.HasPrefix(raw, "HEAD") {
				t.Errorf("%d %s", status, body)
			}
			if !closes || rest != "" {
				t.Errorf("the connection stays in use: %d %s, then %q", status, body, rest)
			}
		})
	}
	if logged := b.log.String(); strings.Contains(logged, "canary") {
		t.Errorf("a canary was handled:\n%s", logged)
	}
	// A canary on its own is handled and logged, so the check above can fail.
	if status, _, _, _ := b.sendRaw(t, canary); status != http.StatusNotFound || !strings.Contains(b.log.String(), "/canary") {
		t.Errorf("canary on its own: %d", status)
	}
}

// A well-framed request is served, and so is its successor on the connection.
func TestWellFramedRequestsAreServed(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	for name, raw := range map[string]string{
		"plain":              get + "\r\n",
		"spaces in a value":  get + "A:  b c \t\r\n\r\n",
		"value not in ASCII": get + "A: gr\xc3\xbc\xc3\x9fe \xff\r\n\r\n",
		"empty value":        get + "A:\r\n\r\n",
		"zero length":        get + "Content-Length: 0\r\n\r\n",
		"empty lines first":  "\r\n\r\n" + get + "\r\n",
		"many headers":       get + strings.Repeat("A: b\r\n", HeadersMax-1) + "\r\n",
		"repeated lists":     get + "Accept: a\r\nAccept: b\r\nTraceparent: a\r\nTraceparent: b\r\n\r\n",
		"an upgrade":         get + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := b.dial(t)
			if _, err := io.WriteString(c, raw+get+"\r\n"); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(c)
			for i := range 2 {
				response, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if body, err := io.ReadAll(response.Body); response.StatusCode != 200 || err != nil {
					t.Errorf("answer %d: %d %s %v", i, response.StatusCode, body, err)
				}
			}
		})
	}
}

// A bare line feed after a request line is found wherever the reads divide it.
func TestBareLineFeedIsFoundAcrossReads(t *testing.T) {
	for text, want := range map[string]bool{
		"GET / HTTP/1.1\nHost: a\r\n\r\n": true, "GET / HTTP/1.0\nHost: a\r\n\r\n": true, "a\nbGET / HTTP/1.1\n": true,
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n": false, "{\n}\n": false, "HTTP/1.2\n": false, "\n": false,
	} {
		for split := 1; split < len(text); split++ {
			c := &connection{Conn: &piecewiseConn{pieces: []string{text[:split], text[split:]}}}
			if _, err := io.ReadAll(c); err != nil || c.bareLineFeed != want {
				t.Errorf("%q, split at %d: %v %v, want %v", text, split, c.bareLineFeed, err, want)
			}
		}
	}
}

// piecewiseConn is a connection whose reads return one piece each.
type piecewiseConn struct {
	net.Conn
	pieces []string
}

func (c *piecewiseConn) SetReadDeadline(time.Time) error { return nil }

func (c *piecewiseConn) Read(b []byte) (int, error) {
	if len(c.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.pieces[0])
	c.pieces = c.pieces[1:]
	return n, nil
}

// A request with an unacceptable head is refused without reading its body. The
// client gets no 100 Continue.
func TestRefusedBodyIsNotRead(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	for name, raw := range map[string]string{
		"form of a page":  "POST /v1/agents/a/messages HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000000\r\n\r\na=",
		"compressed":      post + "Content-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n",
		"foreign":         "POST /v1/agents/a/messages HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n",
		"both lengths":    post + "Content-Length: 1000000\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n",
		"large":           post + "Content-Length: 10737418240\r\n\r\n",
		"large chunk":     post + "Transfer-Encoding: chunked\r\n\r\nfffffffffff\r\n",
		"other protocol":  strings.Replace(post, "/1.1", "/1.2", 1) + "Content-Length: 1000000\r\n\r\n",
		"expect continue": post + "Content-Encoding: gzip\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
		"no chunks":       post + "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			status, body, closes, _ := b.sendRaw(t, b.named(raw))
			if status < 400 || status > 499 || status == http.StatusRequestTimeout || strings.Contains(raw, "gzip") && status != 415 || !closes || !strings.Contains(body, `"code":`) {
				t.Errorf("%d %s, closes: %v", status, body, closes)
			}
		})
	}
}

// A request that its head suffices to refuse gets no 100 Continue.
func TestRefusedExpectationGetsNoContinue(t *testing.T) {
	key, text := newTestKey(t, 1, 0, ingress.ScopeRead)
	keys := new(Keys)
	keys.Set([]ingress.Key{key})
	local := startBareGateway(t, Config{Keys: keys}, nil)
	outside := startBareGateway(t, Config{Keys: keys}, func(l net.Listener) net.Listener { return offLoopbackListener{l} })
	read := "Authorization: Bearer " + text + "\r\n"
	const tail = "Expect: 100-continue\r\nContent-Length: 10\r\n\r\n"
	for name, c := range map[string]struct {
		at     *bareGateway
		raw    string
		status int
	}{
		"too long":              {local, post + strings.Replace(tail, "10\r", "1048577\r", 1), 413},
		"media type":            {local, strings.Replace(post, "application/json", "text/plain", 1) + tail, 415},
		"encoding":              {local, post + "Content-Encoding: gzip\r\n" + tail, 415},
		"origin":                {local, post + "Origin: http://evil.example\r\n" + tail, 403},
		"proxied without a key": {local, post + "X-Forwarded-For: 203.0.113.9\r\n" + tail, 401},
		"invalid key":           {local, post + "Authorization: Bearer troupe_x_y\r\n" + tail, 401},
		"key lacks the scope":   {local, post + read + tail, 403},
		"no token":              {outside, strings.Replace(post, "/messages", ":invoke", 1) + tail, 401},
		"no key off loopback":   {outside, post + tail, 401},
		"scope, off loopback":   {outside, post + read + tail, 403},
		"scope of keys":         {outside, strings.Replace(post, "/v1/agents/a/messages", "/v1/keys", 1) + read + tail, 403},
		"scope of a signal":     {outside, strings.Replace(post, "/v1/agents/a/messages", "/v1/runs/x:signal", 1) + read + tail, 403},
	} {
		t.Run(name, func(t *testing.T) {
			status, body, closes, _ := c.at.sendRaw(t, c.at.named(c.raw))
			if status != c.status || !closes || !strings.Contains(body, `"code":`) {
				t.Errorf("%d %s, closes: %v, want %d", status, body, closes, c.status)
			}
		})
	}
	if status, body, _, _ := local.sendRaw(t, local.named(post+tail)); status != http.StatusContinue {
		t.Errorf("acceptable head: %d %s, want 100", status, body)
	}
}

// No handler is reachable by two spellings of a path.
func TestPathsHaveOneSpelling(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	targets := []string{"*", "healthz", "http://localhost/healthz", "http://evil.example/healthz", "HTTP://localhost/healthz", "https://localhost/healthz", "ftp://localhost/healthz",
		"//evil.example/healthz", "//healthz", "///healthz", "/healthz/", "/healthz//", "/./healthz", "/../healthz", "/v1/../healthz", "/v1/./../healthz", "/v1/runs/..", "/v1/runs/.", "/..", "/.",
		"/healthz#x", "/healthz#", "/healthz;a=b", "/;/healthz", "/healthz;", "/..;/healthz", "/healthz?a=%62", "/healthz?a+b", "/healthz?a b", "/healthz?\"", "/healthz?a=/..", "/healthz?a[]=1", "/healthz?a?b",
		"/healthz\\", "\\healthz", "/\\healthz", "/v1\\..\\healthz", "/healthz\u00e9", "/\xff", "/healthz\xc0\xaf", "/\u2025/healthz", "/\uff0fhealthz", "/healthz'", "/healthz\"", "/<healthz>", "/{healthz}", "/healthz|", "/healthz^", "/healthz`", "/~healthz", "/healthz$", "/healthz,", "/healthz!", "/healthz(", "/healthz@", "/healthz*",
		"user@localhost", "localhost:80", "/@localhost/healthz", "/healthz%", "/healthz%0", "/healthz%zz", "/%u0068ealthz"}
	for _, path := range []string{"/healthz", "/v1/runs/%2e%2e%2fadmin"} {
		for i := 1; i < len(path); i++ {
			targets = append(targets, fmt.Sprintf("%s%%%02x%s", path[:i], path[i], path[i+1:]), fmt.Sprintf("%s%%%02X%s", path[:i], path[i], path[i+1:]), fmt.Sprintf("%s%%25%02x%s", path[:i], path[i], path[i+1:]))
		}
	}
	for _, e := range []string{"%00", "%0a", "%0d%0a", "%2e", "%2E", "%2f", "%2F", "%5c", "%5C", "%252e%252e", "%252f", "%c0%af", "%c0%ae", "%e0%80%af", "%ff", "%20", "%09", "%3f", "%23", "%3b", "%u002f"} {
		targets = append(targets, "/v1/runs/"+e+"/events", "/"+e+"healthz", "/healthz"+e, "/v1/runs"+e+"x", "/v1/agents/a"+e+"b/messages")
	}
	for _, target := range targets {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			status, body, _, _ := b.sendRaw(t, method+" "+target+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if status != http.StatusBadRequest {
				t.Errorf("%s %s: %d %s", method, target, status, body)
			}
		}
	}
	for _, c := range []struct {
		target string
		want   int
	}{{"/" + strings.Repeat("a", TargetBytesMax), 414}, {"/healthz?a=" + strings.Repeat("a", TargetBytesMax), 414}, {"/" + strings.Repeat("a", TargetBytesMax-1), 404}, {"/Healthz", 404}, {"/healthz", 200}, {"/healthz?", 200}, {"/healthz?a=b&c", 200},
		{"/v1/runs/" + strings.Repeat("a", 65), 400}, {"/v1/runs/" + strings.Repeat("a", 2000), 400}} {
		if status, body, _, _ := b.sendRaw(t, "GET "+c.target+" HTTP/1.1\r\nHost: "+b.address+"\r\n\r\n"); status != c.want {
			t.Errorf("%.80s: %d %s", c.target, status, body)
		}
	}
	if status, _, _, _ := b.sendRaw(t, "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n"); status != http.StatusBadRequest {
		t.Errorf("CONNECT: %d", status)
	}
}

// An unsupported method is answered with 405 and an Allow header that lists the
// supported methods.
func TestMethodNotAllowed(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	for _, method := range []string{"HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FROB", "get", "GETGET"} {
		c := b.dial(t)
		if _, err := io.WriteString(c, method+" /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
		if err != nil || response.StatusCode != http.StatusMethodNotAllowed || response.Header.Get("Allow") != "GET" {
			t.Errorf("%s: %v %v", method, response, err)
		}
		_ = response.Body.Close()
	}
}

// The 405 problem lists exactly the supported methods.
func TestAllowedMethodsAreListed(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	status, body, _, _ := b.sendRaw(t, "PATCH /v1/agents HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
	if status != http.StatusMethodNotAllowed || !strings.Contains(body, "supports GET, POST\"") {
		t.Errorf("%d %s", status, body)
	}
}

// Every head that fasthttp parses is either rejected or has a single meaning.
func FuzzValidateHead(f *testing.F) {
	for _, raw := range ambiguousRequests() {
		f.Add([]byte(raw))
	}
	f.Add([]byte(get + "\r\n"))
	f.Add([]byte(post + "Content-Length: 2\r\n\r\n{}"))
	s := New(nil, slog.New(slog.DiscardHandler), Config{})
	s.onLoopback.Store(true)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var h fasthttp.RequestHeader
		if h.Read(bufio.NewReaderSize(bytes.NewReader(raw), HeaderBytesMax)) != nil {
			return
		}
		p, _ := s.validateHead(&h)
		if p != nil {
			if p.Status < 400 || p.Status > 499 || p.Detail == "" {
				t.Fatalf("%q: %+v", raw, p)
			}
			return
		}
		// net/http is an independent parser and must find the same request.
		other, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(bytes.TrimLeft(raw, "\r\n"))))
		if err != nil {
			t.Fatalf("%q is accepted, but net/http rejects it: %v", raw, err)
		}
		chunked := len(other.TransferEncoding) > 0
		switch {
		case other.Method != string(h.Method()), other.RequestURI != string(h.RequestURI()), other.Host != string(h.Host()):
			t.Fatalf("%q: net/http reads %s %s of %s, fasthttp %s %s of %s", raw, other.Method, other.RequestURI, other.Host, h.Method(), h.RequestURI(), h.Host())
		case chunked != (h.ContentLength() == -1), !chunked && other.ContentLength != max(0, int64(h.ContentLength())):
			t.Fatalf("%q: net/http reads a body of %d bytes, %v; fasthttp %d", raw, other.ContentLength, other.TransferEncoding, h.ContentLength())
		}
	})
}
