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

	"github.com/troupe-run/troupe/actor"
)

// peerWatchDelay is the delay before a waiting request checks that its client is
// still connected. Most answers arrive earlier and save the cost of the check.
const peerWatchDelay = 40 * time.Millisecond

// Reasons for abandoning a request while its answer is pending.
var (
	errClientGone = errors.New("the client has disconnected")
	errKeyRevoked = errors.New("the key was revoked")
)

// clientContext is the context of a request whose client waits for an answer.
// It is cancelled when the client disconnects, when the API key of the request
// is revoked, or at the deadline. respondAborted answers after a disconnection
// or a revocation. A context released before peerWatchDelay costs almost
// nothing and returns to the pool.
type clientContext struct {
	server   *Server
	conn     net.Conn
	keyID    string     // id of the API key, if any
	expires  actor.Time // of the token of the request; 0: it has none
	deadline time.Time
	started  atomic.Bool   // Done was called
	timer    *time.Timer   // starts watch
	done     chan struct{} // closed on cancellation
	released chan struct{} // closed by stop

	mu            sync.Mutex
	stopped       bool
	stopPeerWatch func()
	err           error // error for users of the context
	abortCause    error // precise reason for the gateway
}

var clientContexts = sync.Pool{New: func() any {
	w := &clientContext{done: make(chan struct{}), released: make(chan struct{})}
	w.timer = time.AfterFunc(time.Hour, w.watch)
	w.timer.Stop()
	return w
}}

// newClientContext returns a context for the request. The caller MUST call stop
// before it answers the request, and MUST NOT use the context afterwards.
func (s *Server) newClientContext(ctx *fasthttp.RequestCtx, timeout time.Duration) *clientContext {
	w := clientContexts.Get().(*clientContext)
	began := ctx.Time()
	if began.IsZero() { // it arrived over a socket
		began = time.Now()
	}
	by := callerOf(ctx)
	w.server, w.conn, w.keyID, w.expires, w.deadline = s, ctx.Conn(), by.Key, by.expires, began.Add(timeout)
	return w
}

// newTimeout returns a context that only its deadline ends. The caller MUST call
// stop, and not use the context afterwards.
func (s *Server) newTimeout(timeout time.Duration) *clientContext {
	w := clientContexts.Get().(*clientContext)
	w.server, w.conn, w.keyID, w.expires, w.deadline = s, nil, "", 0, time.Now().Add(timeout)
	return w
}

// stop releases the context and ends its watch.
func (w *clientContext) stop() {
	if !w.started.Load() || w.timer.Stop() { // watch has not started
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

// watch runs until the context is cancelled or released.
func (w *clientContext) watch() {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		return
	}
	gone, unwatch := watchPeer(w.conn)
	w.stopPeerWatch = unwatch
	w.mu.Unlock()
	timeout := time.NewTimer(time.Until(w.deadline))
	defer timeout.Stop()
	var checkKey <-chan time.Time
	if w.keyID != "" {
		ticker := time.NewTicker(keyCheckInterval)
		defer ticker.Stop()
		checkKey = ticker.C
	}
	for {
		select {
		case <-gone:
			w.end(context.Canceled, errClientGone)
			return
		case <-checkKey:
			if !stillValid(w.server.config.Keys, w.keyID, w.expires) {
				w.end(context.Canceled, errKeyRevoked)
				return
			}
		case <-timeout.C:
			w.end(context.DeadlineExceeded, context.DeadlineExceeded)
			return
		case <-w.released:
			return
		}
	}
}

func (w *clientContext) end(err, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err, w.abortCause = err, cause
	close(w.done)
}

// cause returns the reason for the cancellation, or nil.
func (w *clientContext) cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.abortCause
}

// Done implements context.Context. A caller of Done is about to block, so Done
// starts the timer of the watch. If the answer is already available, Done is
// not called and no timer is needed.
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

// respondAborted answers a request that was abandoned because its client
// disconnected or its key was revoked. It reports false for any other cause.
func respondAborted(ctx *fasthttp.RequestCtx, cause error) bool {
	switch {
	case errors.Is(cause, errClientGone):
		abandonRequest(ctx)
	case errors.Is(cause, errKeyRevoked):
		keyRevoked().write(ctx)
	default:
		return false
	}
	return true
}

// keyRevoked is the problem of a request whose key was revoked while its answer was pending.
func keyRevoked() *problem {
	return unauthorized("the API key was revoked or has expired while the answer was pending; the run continues")
}

// abandonRequest closes the connection of a request whose client has
// disconnected, without an answer: the client may still read.
func abandonRequest(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(statusClientClosed)
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(net.Conn) {})
}

// statusClientClosed marks a disconnected client in logs and metrics. It is never
// sent.
const statusClientClosed = 499
