// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/store"
)

const (
	// StreamsMax is how many streams there are at once, where Config does not say.
	StreamsMax = 4096

	keyCheckInterval     = 500 * time.Millisecond // whether a key still counts
	writeSliceMax        = 250 * time.Millisecond // of a write that waits for its reader
	finalWriteTimeout    = 250 * time.Millisecond
	sendBufferBytes      = 32 << 10  // what the system holds for a reader, as asked; it takes twice that
	finalSendBufferBytes = 128 << 10 // and for one that is sent away
	lastEventID          = "Last-Event-ID"
)

// streamLimiter counts those that are open.
type streamLimiter struct {
	maxOpen int
	mu      sync.Mutex
	open    int
	idle    chan struct{} // not nil: somebody waits until there are none
}

func (s *streamLimiter) acquire() *actor.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.maxOpen {
		return actor.RefuseBusy(actor.ScopeNode, 5*time.Second, "%d streams of events are open: close some, or ask for JSON by Accept: application/json", s.open)
	}
	s.open++
	return nil
}

func (s *streamLimiter) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open--; s.open == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

func (s *streamLimiter) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// waitIdle returns when there are none.
func (s *streamLimiter) waitIdle(ctx context.Context) error {
	s.mu.Lock()
	if s.open == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	none := s.idle
	s.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// requestCursor is how far a client says it has read. The header is what a client that
// connects again sends by itself, so it counts more than the query it began with.
func requestCursor(ctx *fasthttp.RequestCtx) (ingress.Cursor, *problem) {
	name, text := lastEventID, header(ctx, lastEventID)
	if text == "" {
		if name = "after"; !ctx.QueryArgs().Has(name) {
			return nil, nil
		}
		text = string(ctx.QueryArgs().Peek(name))
	}
	c, r := ingress.ParseCursor(text)
	if r != nil {
		return nil, invalid(400, name, name+": "+r.Detail)
	}
	return c, nil
}

// streamConn tells one client of a run: the world of an ingress.Stream.
type streamConn struct {
	server  *Server
	stream  *ingress.Stream
	run     actor.CallID
	keyID   string // the API key it came with, if any
	conn    net.Conn
	started time.Time

	pendingRead *ingress.Read
	unwritten   []byte // to be written
	end         *ingress.End

	rootAppended  <-chan struct{} // of the run itself
	childAppended chan struct{}   // of those below it: fresh says which
	mu            sync.Mutex
	appendedRuns  []actor.CallID
	closed        chan struct{}
	cleanups      []func()
	cleanup       func() // does them all, the last first, once
}

// streamRun answers with a stream of a run's events behind a cursor. Whatever happens,
// after is called once, when nobody listens any more. The slot is taken already.
func (s *Server) streamRun(ctx *fasthttp.RequestCtx, run actor.CallID, tree bool, at ingress.Cursor, after func()) {
	t := &streamConn{server: s, stream: ingress.NewStream(ingress.StreamConfig{Run: run, Tree: tree, After: at, Random: rand.Uint64(), WriteTimeout: s.config.StreamTimeout}), run: run, keyID: callerOf(ctx).Key, conn: ctx.Conn(), started: time.Now(),
		childAppended: make(chan struct{}, 1), closed: make(chan struct{})}
	t.cleanups = append(t.cleanups, s.streams.release, func() { close(t.closed) }, after)
	t.cleanup = sync.OnceFunc(func() {
		for _, stop := range slices.Backward(t.cleanups) {
			stop()
		}
	})
	t.step(ingress.Opened{})
	for t.end == nil && len(t.unwritten) == 0 {
		t.readEvents()
	}
	switch {
	case t.end == nil:
		old := !ctx.Request.Header.IsHTTP11()
		if c, ok := t.conn.(*connection); ok {
			c.onClose = t.cleanup // should answers before this one not get through, nobody talks
		}
		ctx.SetStatusCode(fasthttp.StatusOK)
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) { t.serve(old) })
		return
	case t.end.Refusal != nil:
		refusalProblem(t.end.Refusal).write(ctx)
	case t.end.Reason == ingress.RunEnded:
		ctx.SetStatusCode(fasthttp.StatusNoContent) // a client that is told so does not connect again
	}
	t.cleanup()
}

// now is a time that does not go back.
func (t *streamConn) now() actor.Time { return actor.Time(time.Since(t.started)) }

func (t *streamConn) step(in ingress.StreamInput) {
	for _, out := range t.stream.Step(t.now(), in) {
		switch out := out.(type) {
		case ingress.Watch:
			t.watch(out.Run)
		case ingress.Read:
			t.pendingRead = &out
		case ingress.Write:
			t.unwritten = out.Bytes
		case ingress.End:
			t.end = &out
		}
	}
}

// watch listens for news of a run; there are at most ingress.TreeRunsMax of them.
func (t *streamConn) watch(run actor.CallID) {
	news, stop := t.server.node.Watch(run)
	t.cleanups = append(t.cleanups, stop)
	if run == t.run {
		t.rootAppended = news
		return
	}
	go func() {
		for {
			select {
			case <-news:
				t.mu.Lock()
				if !slices.Contains(t.appendedRuns, run) {
					t.appendedRuns = append(t.appendedRuns, run)
				}
				t.mu.Unlock()
				select {
				case t.childAppended <- struct{}{}:
				default: // it will look
				}
			case <-t.closed:
				return
			}
		}
	}()
}

// readEvents reads what the stream asked for.
func (t *streamConn) readEvents() {
	in := *t.pendingRead
	t.pendingRead = nil
	within, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var page [][]byte
	err := t.server.node.Read(within, func(kv store.KV) error {
		page = nil
		events, err := store.Events(kv, actor.DefaultTenant, in.Run, in.After, in.Limit)
		for _, e := range events {
			page = append(page, e.Body)
		}
		return err
	})
	switch {
	case err == nil:
		t.step(ingress.Events{Bodies: page})
	case errors.Is(err, engine.ErrClosed):
		t.step(ingress.Draining{})
	default:
		t.server.log.Error("the events of a run cannot be read", "run", in.Run.String(), "error", err.Error())
		t.step(ingress.ReadFailed{Refusal: &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second,
			Detail: fmt.Sprintf("the events of run %s cannot be read just now", in.Run)}})
	}
}

// serve writes until the stream ends. The connection is its own, and closed afterwards.
func (t *streamConn) serve(old bool) {
	defer func() {
		if p := recover(); p != nil {
			t.server.log.Error("a stream made the gateway fail", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		t.cleanup()
	}()
	gone, unwatch := watchPeer(t.conn)
	defer unwatch()
	setSendBuffer(t.conn, sendBufferBytes)
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	for t.flush(t.responseHead(old)); t.end == nil; {
		switch {
		case len(t.unwritten) > 0:
			t.flush(nil)
		case t.pendingRead != nil:
			t.readEvents()
		default:
			t.awaitInput(gone, wake)
		}
		t.checkEnd(gone)
	}
	t.writeFinal()
	t.server.log.Debug("a stream ended", "run", t.run.String(), "why", t.end.Reason.String(), "ms", time.Since(t.started).Milliseconds())
}

// responseHead is what stands before the events. The stream ends with its connection: it
// has words of its own for how it ended.
func (t *streamConn) responseHead(old bool) []byte {
	version := "HTTP/1.1"
	if old {
		version = "HTTP/1.0"
	}
	b := fmt.Appendf(nil, "%s 200 OK\r\nDate: ", version)
	b = fasthttp.AppendHTTPDate(b, time.Now())
	return fmt.Appendf(b, "\r\nContent-Type: %s; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\nX-Run-Id: %s\r\nConnection: close\r\n\r\n",
		ingress.EventStream, t.run)
}

// flush has the client take some of what is out, for a while; a head is not the stream's business.
func (t *streamConn) flush(head []byte) {
	due, _ := t.stream.NextDeadline()
	within := max(min(writeSliceMax, due.Sub(t.now())), time.Millisecond)
	if len(head) > 0 { // nothing is over before it has begun
		within = writeSliceMax
	}
	_ = t.conn.SetWriteDeadline(time.Now().Add(within))
	n, err := t.conn.Write(append(head, t.unwritten...))
	if len(head) > 0 && n < len(head) {
		t.step(ingress.Closed{})
		return
	}
	n -= len(head)
	t.unwritten = t.unwritten[n:]
	t.step(ingress.Wrote{Bytes: n})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.step(ingress.Tick{})
	case err != nil:
		t.step(ingress.Closed{})
	}
}

// awaitInput waits until there is something to do.
func (t *streamConn) awaitInput(gone <-chan struct{}, wake *time.Timer) {
	due, _ := t.stream.NextDeadline()
	wait := due.Sub(t.now())
	if t.keyID != "" {
		wait = min(wait, keyCheckInterval)
	}
	wake.Reset(max(wait, 0))
	select {
	case <-t.rootAppended:
		t.step(ingress.Appended{Run: t.run})
	case <-t.childAppended:
		t.mu.Lock()
		fresh := t.appendedRuns
		t.appendedRuns = nil
		t.mu.Unlock()
		for _, run := range fresh {
			t.step(ingress.Appended{Run: run})
		}
	case <-gone:
	case <-t.server.stopping:
	case <-wake.C:
		t.step(ingress.Tick{})
	}
}

// checkEnd tells the stream what ends it.
func (t *streamConn) checkEnd(gone <-chan struct{}) {
	select {
	case <-gone:
		t.step(ingress.Closed{})
		return
	default:
	}
	select {
	case <-t.server.stopping:
		t.step(ingress.Draining{})
		return
	default:
	}
	if t.keyID != "" && !t.server.config.Keys.Valid(t.keyID) {
		t.step(ingress.Revoked{})
	}
}

// writeFinal writes what is still to be said. For a reader that does not read the
// system holds them, with what it holds already.
func (t *streamConn) writeFinal() {
	if t.end.Reason == ingress.ClientGone {
		return
	}
	setSendBuffer(t.conn, finalSendBufferBytes)
	_ = t.conn.SetWriteDeadline(time.Now().Add(finalWriteTimeout))
	_, _ = t.conn.Write(append(t.unwritten, t.end.Final...))
}

func setSendBuffer(c net.Conn, bytes int) {
	if of, ok := c.(*connection); ok {
		c = of.Conn
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(bytes)
	}
}
