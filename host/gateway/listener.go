// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// limitedListener bounds the number of open connections, in total and for each
// client address. A connection over a limit gets an error response and is closed.
type limitedListener struct {
	net.Listener
	maxOpen, maxPerAddress int           // maxPerAddress 0: no bound
	slack                  time.Duration // slack of the deadlines of each connection
	owner                  bool          // its clients are processes of the data folder's owner
	closeOnce              func() error
	tls                    *decrypter // nil: without TLS
	lingering, excess      lingerer
	connections            *openConnections

	mu            sync.Mutex
	open          int
	openByAddress map[netip.Prefix]int
	done          uint64 // connections that were closed
	turnover      actor.Turnover
}

func (s *Server) limitConnections(l net.Listener) net.Listener {
	b := &limitedListener{Listener: l, maxOpen: s.config.Connections, maxPerAddress: s.config.PerAddress, slack: s.config.deadlineSlack(), closeOnce: sync.OnceValue(l.Close), tls: s.tls, lingering: s.lingering, excess: s.excess, connections: s.connections, openByAddress: map[netip.Prefix]int{}}
	if b.maxPerAddress == 0 && !s.onLoopback.Load() {
		b.maxPerAddress = 256
	}
	return b
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for failures := 0; ; {
		l.connections.awaitPause()
		c, err := l.Listener.Accept()
		if err != nil && isTemporary(err) { // open connections are still served, and free resources when they end
			failures++
			time.Sleep(min(time.Duration(failures)*5*time.Millisecond, time.Second))
			continue
		}
		if err != nil {
			return nil, err
		}
		prefix := ClientPrefix(c)
		refused := l.admit(prefix)
		if refused != nil && l.tls != nil { // it can read no answer before the handshake
			_ = c.Close()
			continue
		}
		if refused != nil {
			l.refuse(c, refused)
			failures = 0
			continue
		}
		release := sync.OnceFunc(func() { l.release(prefix) })
		if l.tls != nil {
			decrypted, err := l.tls.start(c, release)
			if err != nil { // no descriptors: as if Accept had failed
				_ = c.Close()
				release()
				failures++
				time.Sleep(min(time.Duration(failures)*5*time.Millisecond, time.Second))
				continue
			}
			c, release = decrypted, func() {} // it is released when the client's connection is closed
		}
		accepted := &connection{Conn: c, owner: l.owner, lingering: l.lingering, readDeadline: lazyDeadline{slack: l.slack}, writeDeadline: lazyDeadline{slack: l.slack}}
		accepted.release = l.connections.add(accepted, release)
		return accepted, nil
	}
}

// isTemporary reports whether a later Accept may succeed: descriptors or memory
// are exhausted, or the peer of one connection has disconnected.
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

func (l *limitedListener) admit(prefix netip.Prefix) *problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	scope, detail, retryAfter := actor.NoScope, "", actor.RetryAfterMin // a client knows when it closes its own connections
	switch {
	case l.open >= l.maxOpen:
		retryAfter = l.turnover.RetryAfter(wallTime(), l.done, rand.Uint64())
		scope, detail = actor.ScopeNode, fmt.Sprintf("%d connections are open, which is the limit: retry later", l.open)
	case l.maxPerAddress > 0 && l.openByAddress[prefix] >= l.maxPerAddress:
		scope, detail = actor.ScopeCaller, fmt.Sprintf("%d connections are open from your address, which is the limit: reuse them, or close some", l.openByAddress[prefix])
	default:
		l.open++
		l.openByAddress[prefix]++
		return nil
	}
	return refusalProblem(actor.RefuseBusy(scope, retryAfter, "%s", detail))
}

func (l *limitedListener) release(prefix netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.done++
	if l.openByAddress[prefix]--; l.openByAddress[prefix] == 0 {
		delete(l.openByAddress, prefix)
	}
}

// ClientPrefix returns the address range that one client is assumed to control:
// an IPv4 address or an IPv6 /64.
func ClientPrefix(c interface{ RemoteAddr() net.Addr }) netip.Prefix {
	addrPort, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	address, bits := addrPort.Addr().Unmap().WithZone(""), 64
	if address.Is4() {
		bits = 32
	}
	prefix, _ := address.Prefix(bits)
	return prefix
}

// refuse answers before the client has sent a request. The response fits into the
// send buffer of a new connection, so the write does not block.
func (l *limitedListener) refuse(c net.Conn, p *problem) {
	body := p.append(nil)
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nRetry-After: %d\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		p.Status, http.StatusText(p.Status), p.RetryAfter, len(body), body)
	go func() { _ = l.excess.close(c) }()
}

// connection is a counted connection. fasthttp sets its deadlines four times a
// request; lazyDeadline avoids most of these system calls.
type connection struct {
	net.Conn
	owner                       bool // the client is a process of the data folder's owner
	idle                        idleness
	release                     func()
	onClose                     func()          // called by Close, if not nil
	received                    func(int) error // called by Read with the length, if not nil
	lingering                   lingerer
	lingers                     bool                      // the peer may be sending a body that is not read
	bareLineFeed                bool                      // a request line ended with LF instead of CR LF
	lineEnd                     [len(requestLineEnd)]byte // last bytes read before the next Read
	readDeadline, writeDeadline lazyDeadline
	cachedKey                   keyCache
	answer                      atomic.Pointer[heldAnswer] // nil unless an answer is being written that takes a share
}

// lazyDeadline is the read or write deadline of a connection. A requested
// deadline is applied just before I/O, because setting one costs as much as
// looking up a key. Exception: it is not applied if the deadline in effect is
// earlier by less than slack.
type lazyDeadline struct {
	slack     time.Duration // 0: a requested deadline is applied at once
	requested time.Time
	applied   time.Time
}

func (l *lazyDeadline) request(t time.Time, set func(time.Time) error) error {
	if l.slack == 0 { // nothing is written: another goroutine may be reading
		return set(t)
	}
	l.requested = t
	return nil
}

// apply applies the requested deadline. It MUST be called before the connection
// blocks.
func (l *lazyDeadline) apply(set func(time.Time) error) error {
	if l.slack == 0 {
		return nil
	}
	if early := l.requested.Sub(l.applied); early >= 0 && early < l.slack {
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
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.idle.received()
	}
	if c.received != nil {
		if refused := c.received(n); refused != nil {
			return 0, refused
		}
		return n, err
	}
	c.findBareLineFeed(b[:n])
	return n, err
}

// requestLineEnd ends a request line. Its last digit may also be 0.
const requestLineEnd = "HTTP/1.1"

// findBareLineFeed sets bareLineFeed if b, or b after the previous read, has a bare
// line feed after a request line. fasthttp accepts it and hides it. No acceptable
// body matches: JSON has no such text outside a string, and no line feed inside.
func (c *connection) findBareLineFeed(b []byte) {
	for from := 0; ; {
		at := bytes.IndexByte(b[from:], '\n')
		if at < 0 {
			break
		}
		at += from
		from = at + 1
		before := b[max(0, at-len(requestLineEnd)):at]
		if at < len(requestLineEnd) {
			before = append(append(make([]byte, 0, 2*len(requestLineEnd)), c.lineEnd[at:]...), before...)
		}
		if n := len(requestLineEnd) - 1; string(before[:n]) == requestLineEnd[:n] && (before[n] == '1' || before[n] == '0') {
			c.bareLineFeed = true
		}
	}
	if keep := len(c.lineEnd) - len(b); keep > 0 {
		copy(c.lineEnd[:], c.lineEnd[len(b):])
		copy(c.lineEnd[keep:], b)
		return
	}
	copy(c.lineEnd[:], b[len(b)-len(c.lineEnd):])
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

// SetDeadline implements net.Conn. It is called when a connection is hijacked.
// From then on every deadline is applied at once, because the new owner needs
// exact deadlines.
func (c *connection) SetDeadline(t time.Time) error {
	c.readDeadline, c.writeDeadline = lazyDeadline{}, lazyDeadline{}
	return c.Conn.SetDeadline(t)
}

// unwrap returns the underlying connection to a caller that sets its read
// deadlines itself. No Read may be in progress while the caller uses it.
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
	if c.lingers {
		return c.lingering.close(c.Conn)
	}
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn. It gives access to the descriptor, to
// detect a disconnected peer.
func (c *connection) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, fmt.Errorf("%T has no file descriptor", c.Conn)
}
