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

// watchAfter is how long a request may wait before anybody looks whether its
// client is still there: most answers come before it is worth a look.
const watchAfter = 40 * time.Millisecond

// Why a request is given up while its answer is awaited.
var (
	errGone    = errors.New("the client is gone")
	errRevoked = errors.New("the key was revoked")
)

// wait is a context for what a client waits for: it ends when the client is gone
// or may not ask any more, of which left tells, and when the time is over. One that
// is over before watchAfter has cost next to nothing, and is used again.
type wait struct {
	server *Server
	conn   net.Conn
	key    string // the API key it came with, if any
	until  time.Time
	begun  atomic.Bool   // somebody waits
	timer  *time.Timer   // then begins the watch
	done   chan struct{} // closed: it has ended
	over   chan struct{} // closed: nobody waits

	mu      sync.Mutex
	stopped bool
	unwatch func()
	err     error // why it has ended, to those who were given it as a context
	why     error // and to us
}

var waits = sync.Pool{New: func() any {
	w := &wait{done: make(chan struct{}), over: make(chan struct{})}
	w.timer = time.AfterFunc(time.Hour, w.watch)
	w.timer.Stop()
	return w
}}

// waiting begins to wait. Stop must be called before the request is answered; the
// wait is nobody's afterwards.
func (s *Server) waiting(ctx *fasthttp.RequestCtx, within time.Duration) *wait {
	w := waits.Get().(*wait)
	w.server, w.conn, w.key, w.until = s, ctx.Conn(), who(ctx).Key, ctx.Time().Add(within)
	return w
}

// stop ends the wait, and the watch if it has begun.
func (w *wait) stop() {
	if !w.begun.Load() || w.timer.Stop() { // nobody watches
		w.begun.Store(false)
		w.server, w.conn = nil, nil
		waits.Put(w)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	close(w.over)
	if w.unwatch != nil {
		w.unwatch()
	}
}

// watch looks after a wait until it ends, or is stopped.
func (w *wait) watch() {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		return
	}
	gone, unwatch := watchPeer(w.conn)
	w.unwatch = unwatch
	w.mu.Unlock()
	end := time.NewTimer(time.Until(w.until))
	defer end.Stop()
	var look <-chan time.Time
	if w.key != "" {
		every := time.NewTicker(lookEvery)
		defer every.Stop()
		look = every.C
	}
	for {
		select {
		case <-gone:
			w.end(context.Canceled, errGone)
			return
		case <-look:
			if !w.server.config.Keys.Valid(w.key) {
				w.end(context.Canceled, errRevoked)
				return
			}
		case <-end.C:
			w.end(context.DeadlineExceeded, context.DeadlineExceeded)
			return
		case <-w.over:
			return
		}
	}
}

func (w *wait) end(err, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err, w.why = err, why
	close(w.done)
}

// cause is why it has ended; nil if it has not.
func (w *wait) cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

// Done implements context.Context. Whoever asks is about to wait: an answer that is
// there by then needs no timer.
func (w *wait) Done() <-chan struct{} {
	if !w.begun.Load() && w.begun.CompareAndSwap(false, true) {
		w.timer.Reset(min(watchAfter, time.Until(w.until)))
	}
	return w.done
}

// Err implements context.Context.
func (w *wait) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Deadline implements context.Context.
func (w *wait) Deadline() (time.Time, bool) { return w.until, true }

// Value implements context.Context.
func (w *wait) Value(any) any { return nil }

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
