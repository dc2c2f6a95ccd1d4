// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// watchAfter is how long a request may wait before anybody looks whether its
// client is still there.
const watchAfter = 40 * time.Millisecond

// Why a request is given up while its answer is awaited.
var (
	errGone    = errors.New("the client is gone")
	errRevoked = errors.New("the key was revoked")
)

// watchPeer says when the other end of a connection is gone, without reading what
// it may have sent. Stop ends the watch; before that nobody else may read. A
// client that closes its half for writing counts as gone; one that has sent more
// than its request is only seen to go when it resets the connection.
func watchPeer(c net.Conn) (gone <-chan struct{}, stop func()) {
	left, ended := make(chan struct{}), make(chan struct{})
	raw, ok := c.(syscall.Conn)
	if !ok {
		return left, func() {}
	}
	descriptor, err := raw.SyscallConn()
	if err != nil || c.SetReadDeadline(time.Time{}) != nil {
		return left, func() {}
	}
	go func() {
		defer close(ended)
		is := false
		// The function is called when there may be something to read, and at first.
		_ = descriptor.Read(func(fd uintptr) bool {
			is = hungUp(int(fd))
			return is
		})
		if is {
			close(left)
		}
	}()
	return left, sync.OnceFunc(func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-ended
		_ = c.SetReadDeadline(time.Time{})
	})
}

func hungUp(fd int) bool {
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

// waiting is a context for what a client waits for: it ends when the client is
// gone or may not ask any more, of which left tells, and when the time is over.
// Stop must be called before the request is answered.
func (s *Server) waiting(ctx *fasthttp.RequestCtx, within time.Duration) (_ context.Context, stop func()) {
	waits, cancel := context.WithCancelCause(context.Background())
	waits, over := context.WithTimeout(waits, within)
	conn, key := ctx.Conn(), who(ctx).Key
	var mu sync.Mutex
	ended := make(chan struct{})
	unwatch := func() {}
	// Most answers come before it is worth a look.
	later := time.AfterFunc(watchAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-ended:
			return
		default:
		}
		var gone <-chan struct{}
		gone, unwatch = watchPeer(conn)
		go func() {
			var look <-chan time.Time
			if key != "" {
				every := time.NewTicker(lookEvery)
				defer every.Stop()
				look = every.C
			}
			for {
				select {
				case <-gone:
					cancel(errGone)
					return
				case <-look:
					if !s.config.Keys.Valid(key) {
						cancel(errRevoked)
						return
					}
				case <-ended:
					return
				}
			}
		}()
	})
	return waits, func() {
		later.Stop()
		mu.Lock()
		defer mu.Unlock()
		close(ended)
		unwatch()
		over()
		cancel(nil)
	}
}

// left answers a request whose client is gone or may not ask any more, if that is
// why a waiting ended.
func left(ctx *fasthttp.RequestCtx, why error) bool {
	switch {
	case errors.Is(why, errGone):
		hangUp(ctx)
	case errors.Is(why, errRevoked):
		unauthorized("the API key was revoked, or has expired, while the answer was awaited; the run goes on").write(ctx)
	default:
		return false
	}
	return true
}

// hangUp ends a request that nobody waits for any more.
func hangUp(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(statusGone)
	ctx.SetConnectionClose()
}

// statusGone stands in logs for a client that did not wait. It is not sent: there is nobody.
const statusGone = 499
