// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// peerWatchDelay is how long a request may wait before anybody looks whether its
// client is still there: most answers come before it is worth a look.
const peerWatchDelay = 40 * time.Millisecond

// Why a request is given up while its answer is awaited.
var (
	errClientGone = errors.New("the client is gone")
	errKeyRevoked = errors.New("the key was revoked")
)

// clientContext is a context for what a client waits for: it ends when the client is gone
// or may not ask any more, of which left tells, and when the time is over. One that
// is over before watchAfter has cost next to nothing, and is used again.
type clientContext struct {
	server   *Server
	conn     net.Conn
	keyID    string // the API key it came with, if any
	deadline time.Time
	started  atomic.Bool   // somebody waits
	timer    *time.Timer   // then begins the watch
	done     chan struct{} // closed: it has ended
	released chan struct{} // closed: nobody waits

	mu            sync.Mutex
	stopped       bool
	stopPeerWatch func()
	err           error // why it has ended, to those who were given it as a context
	abortCause    error // and to us
}

var clientContexts = sync.Pool{New: func() any {
	w := &clientContext{done: make(chan struct{}), released: make(chan struct{})}
	w.timer = time.AfterFunc(time.Hour, w.watch)
	w.timer.Stop()
	return w
}}

// newClientContext begins to wait. Stop must be called before the request is answered; the
// wait is nobody's afterwards.
func (s *Server) newClientContext(ctx *fasthttp.RequestCtx, within time.Duration) *clientContext {
	w := clientContexts.Get().(*clientContext)
	w.server, w.conn, w.keyID, w.deadline = s, ctx.Conn(), callerOf(ctx).Key, ctx.Time().Add(within)
	return w
}

// stop ends the wait, and the watch if it has begun.
func (w *clientContext) stop() {
	if !w.started.Load() || w.timer.Stop() { // nobody watches
		w.started.Store(false)
		w.server, w.conn = nil, nil
		clientContexts.Put(w)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	close(w.released)
	if w.stopPeerWatch != nil {
		w.stopPeerWatch()
	}
}

// watch looks after a wait until it ends, or is stopped.
func (w *clientContext) watch() {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		return
	}
	gone, unwatch := watchPeer(w.conn)
	w.stopPeerWatch = unwatch
	w.mu.Unlock()
	end := time.NewTimer(time.Until(w.deadline))
	defer end.Stop()
	var look <-chan time.Time
	if w.keyID != "" {
		every := time.NewTicker(keyCheckInterval)
		defer every.Stop()
		look = every.C
	}
	for {
		select {
		case <-gone:
			w.end(context.Canceled, errClientGone)
			return
		case <-look:
			if !w.server.config.Keys.Valid(w.keyID) {
				w.end(context.Canceled, errKeyRevoked)
				return
			}
		case <-end.C:
			w.end(context.DeadlineExceeded, context.DeadlineExceeded)
			return
		case <-w.released:
			return
		}
	}
}

func (w *clientContext) end(err, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err, w.abortCause = err, why
	close(w.done)
}

// cause is why it has ended; nil if it has not.
func (w *clientContext) cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.abortCause
}

// Done implements context.Context. Whoever asks is about to wait: an answer that is
// there by then needs no timer.
func (w *clientContext) Done() <-chan struct{} {
	if !w.started.Load() && w.started.CompareAndSwap(false, true) {
		w.timer.Reset(min(peerWatchDelay, time.Until(w.deadline)))
	}
	return w.done
}

// Err implements context.Context.
func (w *clientContext) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Deadline implements context.Context.
func (w *clientContext) Deadline() (time.Time, bool) { return w.deadline, true }

// Value implements context.Context.
func (w *clientContext) Value(any) any { return nil }

// respondAborted answers a request whose client is gone or may not ask any more, if that is
// why a waiting ended.
func respondAborted(ctx *fasthttp.RequestCtx, why error) bool {
	switch {
	case errors.Is(why, errClientGone):
		abandonRequest(ctx)
	case errors.Is(why, errKeyRevoked):
		unauthorized("the API key was revoked, or has expired, while the answer was awaited; the run goes on").write(ctx)
	default:
		return false
	}
	return true
}

// abandonRequest ends a request that nobody waits for any more.
func abandonRequest(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(statusClientClosed)
	ctx.SetConnectionClose()
}

// statusClientClosed stands in logs for a client that did not wait. It is not sent: there is nobody.
const statusClientClosed = 499
