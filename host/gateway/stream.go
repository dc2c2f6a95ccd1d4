// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

const (
	// StreamsMax is the default for Config.Streams.
	StreamsMax = 4096

	keyCheckInterval     = 500 * time.Millisecond // period of checks that the key is still valid
	writeSliceMax        = 250 * time.Millisecond // maximum duration of one blocking write
	finalWriteTimeout    = 250 * time.Millisecond
	sendBufferBytes      = 32 << 10  // requested socket send buffer; the kernel doubles it
	finalSendBufferBytes = 128 << 10 // requested send buffer for the final bytes to a reader that is being disconnected
	lastEventID          = "Last-Event-ID"
)

// requestCursor returns the cursor of the client. The Last-Event-ID header takes
// precedence over the query: a reconnecting client updates the header and repeats
// the original query.
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

// streamConn is the driver of an ingress.Stream on one connection.
type streamConn struct {
	server  *Server
	stream  *ingress.Stream
	run     actor.CallID
	by      caller
	conn    net.Conn
	started time.Time
	origin  string // listed origin of the page that reads the stream; may be empty

	pendingRead *ingress.Read
	back        <-chan struct{} // closed once the node is back for pendingRead; nil unless it is away
	unwritten   []byte          // bytes of the outstanding Write
	end         *ingress.End
	serving     bool  // the head of the response was sent, or is about to be
	followErr   error // a subscription failed: the stream would miss events

	rootAppended  <-chan struct{} // signals new events of the root run
	childAppended chan struct{}   // signals new events of the runs in appendedRuns
	mu            sync.Mutex
	appendedRuns  []actor.CallID
	closed        chan struct{}
	follows       map[actor.CallID]func() // ends the subscriptions to open runs
	cleanups      []func()
	cleanup       func() // runs all cleanups once, in reverse order
}

// streamRun answers with a stream of the events that follow a cursor. onEnd is called exactly
// once, when the stream has ended: it frees the place that the stream takes.
func (s *Server) streamRun(ctx *fasthttp.RequestCtx, run actor.CallID, tree bool, cursor ingress.Cursor, onEnd func()) {
	t := &streamConn{server: s, stream: ingress.NewStream(ingress.StreamConfig{Run: run, Tree: tree, After: cursor, Random: rand.Uint64(), WriteTimeout: s.config.StreamTimeout}), run: run, by: callerOf(ctx), conn: ctx.Conn(), started: s.clock(), origin: listedOrigin(s.config.Origins, &ctx.Request.Header),
		childAppended: make(chan struct{}, 1), closed: make(chan struct{}), follows: map[actor.CallID]func(){}}
	t.cleanups = append(t.cleanups, onEnd, func() { close(t.closed) }, t.unwatchAll)
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
	case t.followErr != nil && t.end == nil: // nothing was sent yet
		s.respondError(ctx, t.followErr)
	case t.end == nil:
		http10 := !ctx.Request.Header.IsHTTP11()
		if c, ok := t.conn.(*connection); ok {
			c.onClose = t.cleanup // serve also cleans up, but never runs if an earlier pipelined answer cannot be sent
		}
		ctx.SetStatusCode(fasthttp.StatusOK)
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) { t.serve(http10) })
		return
	case t.end.Refusal != nil:
		refusalProblem(t.end.Refusal).write(ctx)
	case t.end.Reason == ingress.RunEnded:
		ctx.SetStatusCode(fasthttp.StatusNoContent) // 204 shows an SSE client not to reconnect
	}
	t.cleanup()
}

// now returns a monotonic time.
func (t *streamConn) now() actor.Time { return actor.Time(t.server.clock().Sub(t.started)) }

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

// watch subscribes to new events of a run until its last event was read. A stream has at most
// ingress.TreeRunsMax subscriptions.
func (t *streamConn) watch(run actor.CallID) {
	appended, unfollow, err := t.server.follow(t.by, run)
	if err != nil {
		t.followErr = err
		return
	}
	if run == t.run {
		t.setFollow(run, unfollow)
		t.rootAppended = appended
		return
	}
	ended := make(chan struct{})
	t.setFollow(run, func() {
		unfollow()
		close(ended)
	})
	go func() {
		for {
			select {
			case _, open := <-appended:
				if !open {
					appended = nil // the last read returns the reason
				}
				t.mu.Lock()
				if !slices.Contains(t.appendedRuns, run) {
					t.appendedRuns = append(t.appendedRuns, run)
				}
				t.mu.Unlock()
				select {
				case t.childAppended <- struct{}{}:
				default: // a wake-up is already pending
				}
			case <-ended:
				return
			case <-t.closed:
				return
			}
		}
	}()
}

func (t *streamConn) setFollow(run actor.CallID, unfollow func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.follows[run] = unfollow
}

// unwatch ends the subscription to a run, if there is one.
func (t *streamConn) unwatch(run actor.CallID) {
	t.mu.Lock()
	unfollow := t.follows[run]
	delete(t.follows, run)
	t.mu.Unlock()
	if unfollow != nil {
		unfollow()
	}
}

func (t *streamConn) unwatchAll() {
	t.mu.Lock()
	runs := slices.Collect(maps.Keys(t.follows))
	t.mu.Unlock()
	for _, run := range runs {
		t.unwatch(run)
	}
}

// readEvents performs the outstanding Read.
func (t *streamConn) readEvents() {
	in := *t.pendingRead
	t.pendingRead = nil
	page, err := lookup(t.server, t.by, command.EventsQuery{Run: in.Run, After: in.After, Limit: in.Limit})
	if away := (*command.AwayError)(nil); errors.As(err, &away) && t.serving && t.followErr == nil {
		t.pendingRead, t.back = &in, away.Back
		return
	}
	if err = errors.Join(err, t.followErr); err != nil {
		t.fail(in.Run, err)
		return
	}
	var bodies [][]byte
	for _, e := range page.All {
		bodies = append(bodies, e.Body)
	}
	if n := len(bodies); n > 0 && runs.TypeOf(bodies[n-1]).Ends() {
		t.unwatch(in.Run) // nothing follows
	}
	t.step(ingress.Events{Bodies: bodies})
}

// fail ends the stream after an error of the node.
func (t *streamConn) fail(run actor.CallID, err error) {
	if errors.Is(err, command.ErrClosed) {
		t.step(ingress.Draining{})
		return
	}
	if dropped := (command.EventsDropped{}); errors.As(err, &dropped) {
		t.step(ingress.ReadFailed{Refusal: actor.Refuse(actor.NotFound, "%v", dropped)})
		return
	}
	if r := (*actor.Refusal)(nil); errors.As(err, &r) && r.Reason == actor.Busy {
		t.step(ingress.ReadFailed{Refusal: r})
		return
	}
	t.server.log.Error("cannot read the events of a run", "run", run.String(), "error", err.Error())
	t.step(ingress.ReadFailed{Refusal: &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second,
		Detail: fmt.Sprintf("the events of run %s cannot be read now: retry later", run)}})
}

// serve writes the stream until it ends. It owns the hijacked connection, which
// is closed afterwards.
func (t *streamConn) serve(http10 bool) {
	defer func() {
		if p := recover(); p != nil {
			t.server.log.Error("panic while streaming", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		t.cleanup()
	}()
	gone, unwatch := watchPeer(t.conn)
	defer unwatch()
	setSendBuffer(t.conn, sendBufferBytes)
	t.serving = true
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for t.flush(t.responseHead(http10)); t.end == nil; {
		switch {
		case len(t.unwritten) > 0:
			t.flush(nil)
		case t.pendingRead != nil && t.back == nil:
			t.readEvents()
		default:
			t.awaitInput(gone, timer)
		}
		t.checkEnd(gone)
	}
	t.writeFinal()
	t.server.log.Debug("stream ended", "run", t.run.String(), "reason", t.end.Reason.String(), "ms", time.Duration(t.now()).Milliseconds())
}

// responseHead returns the response head that precedes the events. The response
// has no length: the end of the connection ends the stream, whose last frame
// gives the reason.
func (t *streamConn) responseHead(http10 bool) []byte {
	version := "HTTP/1.1"
	if http10 {
		version = "HTTP/1.0"
	}
	b := fmt.Appendf(nil, "%s 200 OK\r\nDate: ", version)
	b = fasthttp.AppendHTTPDate(b, time.Now())
	b = fmt.Appendf(b, "\r\nContent-Type: %s; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\nX-Run-Id: %s\r\n", ingress.EventStream, t.run)
	return append(appendAllowOrigin(b, t.origin), "Connection: close\r\n\r\n"...)
}

// flush writes the head and the pending bytes for at most writeSliceMax. The
// head does not count as output of the Stream.
func (t *streamConn) flush(head []byte) {
	due, _ := t.stream.NextDeadline()
	timeout := max(min(writeSliceMax, due.Sub(t.now())), time.Millisecond)
	if len(head) > 0 { // the stream cannot time out before its first byte
		timeout = writeSliceMax
	}
	_ = t.conn.SetWriteDeadline(time.Now().Add(timeout))
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

// awaitInput blocks until the stream has an input.
func (t *streamConn) awaitInput(gone <-chan struct{}, timer *time.Timer) {
	due, _ := t.stream.NextDeadline()
	wait := due.Sub(t.now())
	if t.by.Key != "" {
		wait = min(wait, keyCheckInterval)
	}
	timer.Reset(max(wait, 0))
	select {
	case <-t.rootAppended:
		t.step(ingress.Appended{Run: t.run})
	case <-t.childAppended:
		t.mu.Lock()
		appended := t.appendedRuns
		t.appendedRuns = nil
		t.mu.Unlock()
		for _, run := range appended {
			t.step(ingress.Appended{Run: run})
		}
	case <-t.back:
		t.back = nil
	case <-gone:
	case <-t.server.stopping:
	case <-timer.C:
		t.step(ingress.Tick{})
	}
}

// checkEnd passes on the inputs that end the stream: disconnection, shutdown and
// a revoked key.
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
	if t.by.Key != "" && !t.server.config.Keys.Valid(t.by.Key) {
		t.step(ingress.Revoked{})
	}
}

// writeFinal writes the remaining bytes and the final frame. A larger send buffer
// holds them for a reader that is not reading.
func (t *streamConn) writeFinal() {
	if t.end.Reason == ingress.ClientGone {
		return
	}
	setSendBuffer(t.conn, finalSendBufferBytes)
	_ = t.conn.SetWriteDeadline(time.Now().Add(finalWriteTimeout))
	_, _ = t.conn.Write(append(t.unwritten, t.end.Final...))
}

func setSendBuffer(c net.Conn, bytes int) {
	if own, ok := c.(*connection); ok {
		c = own.Conn
	}
	if tcp, ok := c.(interface{ SetWriteBuffer(int) error }); ok {
		_ = tcp.SetWriteBuffer(bytes)
	}
}
