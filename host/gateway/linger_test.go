// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// unhurried accepts connections on which a lingering close never reaches its deadline,
// however slow this machine is. The bound in bytes remains.
type unhurried struct{ net.Listener }

func (l unhurried) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &unhurriedConn{TCPConn: c.(*net.TCPConn)}, nil
}

type unhurriedConn struct {
	*net.TCPConn
	lingers atomic.Bool
}

func (c *unhurriedConn) CloseWrite() error {
	c.lingers.Store(true)
	return c.TCPConn.CloseWrite()
}

func (c *unhurriedConn) SetReadDeadline(at time.Time) error {
	if c.lingers.Load() {
		at = time.Time{}
	}
	return c.TCPConn.SetReadDeadline(at)
}

// A client that writes its whole request before it reads receives the answer to a
// request that is refused early.
func TestEarlyRefusalReachesWritingClient(t *testing.T) {
	patient := func(l net.Listener) net.Listener { return unhurried{l} }
	local := startBareGateway(t, Config{}, patient)
	outside := startBareGateway(t, Config{Keys: newTestKeys(t)}, func(l net.Listener) net.Listener { return offLoopbackListener{unhurried{l}} })
	busy := startBareGateway(t, Config{PerAddress: 1}, patient)
	requireServed(t, busy.dial(t))
	const messages, json = "POST /v1/agents/a/messages HTTP/1.1\r\nHost: localhost\r\n", "Content-Type: application/json\r\n"
	sized := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n", n) }
	chunk := func(n int) string { return fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", n) }
	for name, c := range map[string]struct {
		at     *bareGateway
		head   string
		body   int
		status int
	}{
		"body one byte too long":  {local, messages + json + sized(1<<20+1), 1<<20 + 1, http.StatusRequestEntityTooLarge},
		"body too long":           {local, messages + json + sized(8<<20), 8 << 20, http.StatusRequestEntityTooLarge},
		"chunk too long":          {local, messages + json + chunk(8<<20), 8 << 20, http.StatusRequestEntityTooLarge},
		"no key":                  {outside, messages + json + sized(8<<20), 8 << 20, http.StatusUnauthorized},
		"no key, legal body":      {outside, messages + json + sized(1<<20), 1 << 20, http.StatusUnauthorized},
		"foreign origin":          {local, messages + json + "Origin: http://evil.example\r\n" + sized(1<<20), 1 << 20, http.StatusForbidden},
		"media type":              {local, messages + "Content-Type: text/plain\r\n" + sized(1<<20), 1 << 20, http.StatusUnsupportedMediaType},
		"expectation":             {local, messages + json + "Expect: more\r\n" + sized(1<<20), 1 << 20, http.StatusExpectationFailed},
		"body of a GET":           {local, get + sized(1<<20), 1 << 20, http.StatusBadRequest},
		"headers too long":        {local, messages + "X-A: " + strings.Repeat("a", HeaderBytesMax) + "\r\n" + sized(1<<20), 1 << 20, http.StatusRequestHeaderFieldsTooLarge},
		"too many connections":    {busy, messages + json + sized(1<<20), 1 << 20, http.StatusTooManyRequests},
		"bytes after a bad frame": {local, get + "Content-Length: x\r\n\r\n", 1 << 20, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			body := bytes.Repeat([]byte("a"), c.body)
			var clients sync.WaitGroup
			for range 20 {
				conn := c.at.dial(t)
				clients.Go(func() {
					defer func() { _ = conn.Close() }()
					if _, err := conn.Write(append([]byte(c.at.named(c.head)), body...)); err != nil {
						t.Errorf("write: %v", err)
						return
					}
					response, err := http.ReadResponse(bufio.NewReader(conn), nil)
					if err != nil {
						t.Errorf("read: %v", err)
						return
					}
					text, err := io.ReadAll(response.Body)
					if err != nil || response.StatusCode != c.status || !response.Close || !strings.Contains(string(text), `"code":`) {
						t.Errorf("%d %v %s %v, want %d", response.StatusCode, response.Close, text, err, c.status)
					}
				})
			}
			clients.Wait()
		})
	}
}

// The bytes discarded after a refusal are bounded.
func TestLingeringCloseIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		full               bool // as many connections linger as may
		atLeast, lessBytes int
	}{"in bytes": {false, 8 << 20, 48 << 20}, "in connections": {true, 0, 14 << 20}} {
		t.Run(name, func(t *testing.T) {
			b := startBareGateway(t, Config{}, func(l net.Listener) net.Listener { return unhurried{l} })
			loopback := netip.MustParsePrefix("127.0.0.1/32")
			for c.full && b.server.lingering.Take(loopback, 1, false) == actor.NoScope {
			}
			conn := b.dial(t)
			if _, err := io.WriteString(conn, b.named(post+"Content-Length: 99999999\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || response.StatusCode != http.StatusRequestEntityTooLarge {
				t.Fatalf("%v %v", response, err)
			}
			piece, written := make([]byte, 64<<10), 0
			for err == nil {
				var n int
				n, err = conn.Write(piece)
				written += n
			}
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) || written < c.atLeast || written >= c.lessBytes {
				t.Errorf("%d bytes were written, then %v: want %d to %d, then a reset", written, err, c.atLeast, c.lessBytes)
			}
		})
	}
}

// Strangers that leave refused connections open take no place of a client with another
// address: it receives its answer.
func TestLingeringStrangersSpareOthers(t *testing.T) {
	b := startBareGateway(t, Config{}, func(l net.Listener) net.Listener { return unhurried{l} })
	for stranger := netip.MustParsePrefix("127.0.0.2/32"); b.server.lingering.Take(stranger, 1, false) == actor.NoScope; {
	}
	head := b.named(post + "Content-Length: 99999999\r\n\r\n")
	body := bytes.Repeat([]byte("a"), 8<<20)
	var lost atomic.Int64
	var clients sync.WaitGroup
	for range 60 {
		conn := b.dial(t)
		clients.Go(func() {
			defer func() { _ = conn.Close() }()
			_, err := conn.Write(append([]byte(head), body...))
			if err == nil {
				_, err = http.ReadResponse(bufio.NewReader(conn), nil)
			}
			if err != nil {
				lost.Add(1)
			}
		})
	}
	clients.Wait()
	if n := lost.Load(); n > 0 {
		t.Errorf("%d of 60 clients got no answer", n)
	}
}

// halfClosed is a connection that records its read deadline.
type halfClosed struct {
	net.Conn
	deadline time.Time
}

func (c *halfClosed) CloseWrite() error                 { return nil }
func (c *halfClosed) SetReadDeadline(t time.Time) error { c.deadline = t; return nil }
func (c *halfClosed) Read([]byte) (int, error)          { return 0, io.EOF }
func (c *halfClosed) Close() error                      { return nil }
func (c *halfClosed) RemoteAddr() net.Addr              { return &net.UnixAddr{} }

// A refused client gets two seconds for the rest of its request.
func TestLingeringCloseIsBoundedInTime(t *testing.T) {
	c := &halfClosed{}
	before := time.Now()
	if err := newLingerer(1, 1).close(c); err != nil {
		t.Fatal(err)
	}
	if c.deadline.Before(before.Add(2*time.Second)) || c.deadline.After(time.Now().Add(2*time.Second)) {
		t.Errorf("the deadline is %v after the start, want 2s", c.deadline.Sub(before))
	}
}
