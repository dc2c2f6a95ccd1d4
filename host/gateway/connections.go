// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
)

// listener lets in so many connections at once, and so many from one address.
// One too many is told so, and closed.
type listener struct {
	net.Listener
	most, perAddress int // perAddress 0: no bound
	close            func() error

	mu   sync.Mutex
	open int
	from map[netip.Prefix]int
}

func (s *Server) bounded(l net.Listener) net.Listener {
	b := &listener{Listener: l, most: s.config.Connections, perAddress: s.config.PerAddress, close: sync.OnceValue(l.Close), from: map[netip.Prefix]int{}}
	if b.perAddress == 0 && !s.local.Load() {
		b.perAddress = 256
	}
	return b
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := addressOf(c)
		if why := l.enter(from); why != nil {
			refuseConnection(c, why)
			continue
		}
		return &connection{Conn: c, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
	}
}

// Close implements net.Listener. It may be called twice.
func (l *listener) Close() error { return l.close() }

func (l *listener) enter(from netip.Prefix) *problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	scope, what := actor.NoScope, ""
	switch {
	case l.open >= l.most:
		scope, what = actor.ScopeNode, fmt.Sprintf("%d connections are open: come back later", l.open)
	case l.perAddress > 0 && l.from[from] >= l.perAddress:
		scope, what = actor.ScopeCaller, fmt.Sprintf("%d connections are open from your address: use them again, or close some", l.from[from])
	default:
		l.open++
		l.from[from]++
		return nil
	}
	return refusal(actor.RefuseBusy(scope, time.Second, "%s", what))
}

func (l *listener) leave(from netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.from[from]--; l.from[from] == 0 {
		delete(l.from, from)
	}
}

// addressOf is who a connection comes from, as far as one party can have it: an
// address of IPv4, a /64 of IPv6.
func addressOf(c interface{ RemoteAddr() net.Addr }) netip.Prefix {
	at, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	address, bits := at.Addr().Unmap().WithZone(""), 64
	if address.Is4() {
		bits = 32
	}
	prefix, _ := address.Prefix(bits)
	return prefix
}

// refuseConnection answers before anything was asked. The few bytes fit into
// what a new connection has room for, so that nobody is kept waiting.
func refuseConnection(c net.Conn, p *problem) {
	body, _ := json.Marshal(p)
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nRetry-After: %d\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		p.Status, http.StatusText(p.Status), p.RetryAfter, len(body), body)
	_ = c.Close()
}

// connection is one that is counted until it is closed.
type connection struct {
	net.Conn
	leave func()
	last  func() // if set, done when it is closed
}

// Close implements net.Conn.
func (c *connection) Close() error {
	defer c.leave()
	if c.last != nil {
		c.last()
	}
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn, for who must know whether the other end is still there.
func (c *connection) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, fmt.Errorf("a %T has no descriptor", c.Conn)
}
