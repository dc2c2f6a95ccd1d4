// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// limitedListener lets in so many connections at once, and so many from one address.
// One too many is told so, and closed.
type limitedListener struct {
	net.Listener
	maxOpen, maxPerAddress int           // perAddress 0: no bound
	slack                  time.Duration // of a connection's deadlines
	closeOnce              func() error

	mu            sync.Mutex
	open          int
	openByAddress map[netip.Prefix]int
}

func (s *Server) limitConnections(l net.Listener) net.Listener {
	b := &limitedListener{Listener: l, maxOpen: s.config.Connections, maxPerAddress: s.config.PerAddress, slack: s.config.deadlineSlack(), closeOnce: sync.OnceValue(l.Close), openByAddress: map[netip.Prefix]int{}}
	if b.maxPerAddress == 0 && !s.onLoopback.Load() {
		b.maxPerAddress = 256
	}
	return b
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for failed := 0; ; {
		c, err := l.Listener.Accept()
		if err != nil && isTemporary(err) { // who is served already goes on, and makes room
			failed++
			time.Sleep(min(time.Duration(failed)*5*time.Millisecond, time.Second))
			continue
		}
		if err != nil {
			return nil, err
		}
		failed = 0
		from := clientPrefix(c)
		if why := l.admit(from); why != nil {
			refuseConnection(c, why)
			continue
		}
		return &connection{Conn: c, release: sync.OnceFunc(func() { l.release(from) }), readDeadline: lazyDeadline{slack: l.slack}, writeDeadline: lazyDeadline{slack: l.slack}}, nil
	}
}

// isTemporary tells whether a connection cannot be taken just now, for want of
// descriptors or memory, or because its other end has gone: another can, later.
func isTemporary(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPROTO, syscall.EPERM,
		syscall.ENETDOWN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENOPROTOOPT, syscall.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Close implements net.Listener. It may be called twice.
func (l *limitedListener) Close() error { return l.closeOnce() }

func (l *limitedListener) admit(from netip.Prefix) *problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	scope, what := actor.NoScope, ""
	switch {
	case l.open >= l.maxOpen:
		scope, what = actor.ScopeNode, fmt.Sprintf("%d connections are open: come back later", l.open)
	case l.maxPerAddress > 0 && l.openByAddress[from] >= l.maxPerAddress:
		scope, what = actor.ScopeCaller, fmt.Sprintf("%d connections are open from your address: use them again, or close some", l.openByAddress[from])
	default:
		l.open++
		l.openByAddress[from]++
		return nil
	}
	return refusalProblem(actor.RefuseBusy(scope, time.Second, "%s", what))
}

func (l *limitedListener) release(from netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.openByAddress[from]--; l.openByAddress[from] == 0 {
		delete(l.openByAddress, from)
	}
}

// clientPrefix is who a connection comes from, as far as one party can have it: an
// address of IPv4, a /64 of IPv6.
func clientPrefix(c interface{ RemoteAddr() net.Addr }) netip.Prefix {
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
	body := p.append(nil)
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nRetry-After: %d\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		p.Status, http.StatusText(p.Status), p.RetryAfter, len(body), body)
	_ = c.Close()
}

// connection is one that is counted until it is closed. Its deadlines are fasthttp's,
// which says four of them for each request.
type connection struct {
	net.Conn
	release                     func()
	onClose                     func() // if set, done when it is closed
	readDeadline, writeDeadline lazyDeadline
	cachedKey                   keyCache
}

// lazyDeadline is until when a connection may be read, or written. What is asked for
// stands once somebody is about to wait, and not at all if something stands that is
// over a little earlier: each time a clock is set costs as much as looking a key up.
type lazyDeadline struct {
	slack     time.Duration // 0: what is asked for stands at once
	requested time.Time
	applied   time.Time
}

func (l *lazyDeadline) request(t time.Time, set func(time.Time) error) error {
	if l.requested = t; l.slack > 0 {
		return nil
	}
	return set(t)
}

// apply has what was asked for stand, before somebody waits.
func (l *lazyDeadline) apply(set func(time.Time) error) error {
	if early := l.requested.Sub(l.applied); l.slack == 0 || early >= 0 && early < l.slack {
		return nil
	}
	l.applied = l.requested
	return set(l.requested)
}

// Read implements net.Conn.
func (c *connection) Read(b []byte) (int, error) {
	if err := c.readDeadline.apply(c.Conn.SetReadDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *connection) Write(b []byte) (int, error) {
	if err := c.writeDeadline.apply(c.Conn.SetWriteDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// SetReadDeadline implements net.Conn.
func (c *connection) SetReadDeadline(t time.Time) error {
	return c.readDeadline.request(t, c.Conn.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (c *connection) SetWriteDeadline(t time.Time) error {
	return c.writeDeadline.request(t, c.Conn.SetWriteDeadline)
}

// SetDeadline implements net.Conn. It is said when a connection is taken over: whoever
// does that means each deadline to the instant.
func (c *connection) SetDeadline(t time.Time) error {
	c.readDeadline, c.writeDeadline = lazyDeadline{}, lazyDeadline{}
	return c.Conn.SetDeadline(t)
}

// unwrap is the connection without its limits, for who sets the deadline of reading
// itself for a while. Nobody reads meanwhile.
func (c *connection) unwrap() net.Conn {
	c.readDeadline.applied = time.Time{}
	return c.Conn
}

// Close implements net.Conn.
func (c *connection) Close() error {
	defer c.release()
	if c.onClose != nil {
		c.onClose()
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
