// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// watchPeer closes the channel gone when the peer of a connection has
// disconnected, without consuming bytes that the peer may have sent. The caller
// MUST call stop before the connection is read again. A peer that closes its
// sending half counts as disconnected. If the peer has sent more than its
// request, only a reset is detected.
func watchPeer(c net.Conn) (gone <-chan struct{}, stop func()) {
	disconnected, ended := make(chan struct{}), make(chan struct{})
	if own, ok := c.(*connection); ok {
		c = own.unwrap()
	}
	raw, ok := c.(syscall.Conn)
	if !ok {
		return disconnected, func() {}
	}
	descriptor, err := raw.SyscallConn()
	if err != nil || c.SetReadDeadline(time.Time{}) != nil {
		return disconnected, func() {}
	}
	go func() {
		defer close(ended)
		closed := false
		// Read calls the function once at the start, and again whenever the
		// descriptor may be readable.
		_ = descriptor.Read(func(fd uintptr) bool {
			closed = peerClosed(int(fd))
			return closed
		})
		if closed {
			close(disconnected)
		}
	}()
	return disconnected, sync.OnceFunc(func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-ended
		_ = c.SetReadDeadline(time.Time{})
	})
}

// peerContext is a context that ends when the peer of a connection has disconnected.
type peerContext struct{ gone <-chan struct{} }

// Done implements context.Context.
func (p peerContext) Done() <-chan struct{} { return p.gone }

// Err implements context.Context.
func (p peerContext) Err() error {
	select {
	case <-p.gone:
		return context.Canceled
	default:
		return nil
	}
}

// Deadline implements context.Context.
func (peerContext) Deadline() (at time.Time, ok bool) { return at, false }

// Value implements context.Context.
func (peerContext) Value(any) any { return nil }

func peerClosed(fd int) bool {
	var one [1]byte
	for {
		n, _, err := syscall.Recvfrom(fd, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return !errors.Is(err, syscall.EAGAIN)
		}
		return n == 0
	}
}
