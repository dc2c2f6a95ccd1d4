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

// listener lets in so many connections at once, and so many from one address.
// One too many is told so, and closed.
type listener struct {
	net.Listener
	most, perAddress int           // perAddress 0: no bound
	slack            time.Duration // of a connection's deadlines
	close            func() error

	mu   sync.Mutex
	open int
	from map[netip.Prefix]int
}

func (s *Server) bounded(l net.Listener) net.Listener {
	b := &listener{Listener: l, most: s.config.Connections, perAddress: s.config.PerAddress, slack: s.config.slack(), close: sync.OnceValue(l.Close), from: map[netip.Prefix]int{}}
	if b.perAddress == 0 && !s.local.Load() {
		b.perAddress = 256
	}
	return b
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for failed := 0; ; {
		c, err := l.Listener.Accept()
		if err != nil && passes(err) { // who is served already goes on, and makes room
			failed++
			time.Sleep(min(time.Duration(failed)*5*time.Millisecond, time.Second))
			continue
		}
		if err != nil {
			return nil, err
		}
		failed = 0
		from := addressOf(c)
		if why := l.enter(from); why != nil {
			refuseConnection(c, why)
			continue
		}
		return &connection{Conn: c, leave: sync.OnceFunc(func() { l.leave(from) }), reads: limit{slack: l.slack}, writes: limit{slack: l.slack}}, nil
	}
}

// passes tells whether a connection cannot be taken just now, for want of
// descriptors or memory, or because its other end has gone: another can, later.
func passes(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPROTO, syscall.EPERM,
		syscall.ENETDOWN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENOPROTOOPT, syscall.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
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
	leave         func()
	last          func() // if set, done when it is closed
	reads, writes limit
	shown         shown
}

// limit is until when a connection may be read, or written. What is asked for
// stands once somebody is about to wait, and not at all if something stands that is
// over a little earlier: each time a clock is set costs as much as looking a key up.
type limit struct {
	slack  time.Duration // 0: what is asked for stands at once
	asked  time.Time
	stands time.Time
}

func (l *limit) ask(t time.Time, set func(time.Time) error) error {
	if l.asked = t; l.slack > 0 {
		return nil
	}
	return set(t)
}

// stand has what was asked for stand, before somebody waits.
func (l *limit) stand(set func(time.Time) error) error {
	if early := l.asked.Sub(l.stands); l.slack == 0 || early >= 0 && early < l.slack {
		return nil
	}
	l.stands = l.asked
	return set(l.asked)
}

// Read implements net.Conn.
func (c *connection) Read(b []byte) (int, error) {
	if err := c.reads.stand(c.Conn.SetReadDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *connection) Write(b []byte) (int, error) {
	if err := c.writes.stand(c.Conn.SetWriteDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// SetReadDeadline implements net.Conn.
func (c *connection) SetReadDeadline(t time.Time) error {
	return c.reads.ask(t, c.Conn.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (c *connection) SetWriteDeadline(t time.Time) error {
	return c.writes.ask(t, c.Conn.SetWriteDeadline)
}

// SetDeadline implements net.Conn. It is said when a connection is taken over: whoever
// does that means each deadline to the instant.
func (c *connection) SetDeadline(t time.Time) error {
	c.reads, c.writes = limit{}, limit{}
	return c.Conn.SetDeadline(t)
}

// below is the connection without its limits, for who sets the deadline of reading
// itself for a while. Nobody reads meanwhile.
func (c *connection) below() net.Conn {
	c.reads.stands = time.Time{}
	return c.Conn
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
