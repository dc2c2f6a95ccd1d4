// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/internal/client"

	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"

	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

const (
	// StreamsMax is the default for Config.Streams.
	StreamsMax = 4096

	keyCheckInterval     = client.KeyCheckInterval // period of checks that the key is still valid
	writeSliceMax        = 250 * time.Millisecond  // maximum duration of one blocking write
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

// streamConn writes a client.Stream to one connection.
type streamConn struct {
	server  *Server
	events  *client.Stream
	run     actor.CallID
	conn    net.Conn
	started time.Time
	origin  string // listed origin of the page that reads the stream; may be empty
	cleanup func() // once
}

// streamRun answers with a stream of the events that follow a cursor. onEnd is called exactly
// once, when the stream has ended: it frees the place that the stream takes.
func (s *Server) streamRun(ctx *fasthttp.RequestCtx, run actor.CallID, tree bool, cursor ingress.Cursor, onEnd func()) {
	by := callerOf(ctx)
	t := &streamConn{server: s, run: run, conn: ctx.Conn(), started: s.clock(), origin: listedOrigin(s.config.Origins, &ctx.Request.Header)}
	config := ingress.StreamConfig{Run: run, Tree: tree, After: cursor, Random: rand.Uint64(), WriteTimeout: s.config.StreamTimeout}
	if by.chats() {
		config.Show = by.showEvent
	}
	t.events = clientOf(s, &by).Stream(config, s.stopping, t.now)
	t.cleanup = sync.OnceFunc(func() {
		t.events.Close()
		onEnd()
	})
	err := t.events.Start()
	begun := t.events.Unwritten.Size() > 0
	if err != nil && !begun {
		t.fail(err)
	}
	switch end := t.events.End; {
	case err != nil && begun: // nothing was sent yet
		s.respondError(ctx, err)
	case end == nil:
		http10 := !ctx.Request.Header.IsHTTP11()
		if c, ok := t.conn.(*connection); ok {
			c.onClose = t.cleanup // serve also cleans up, but never runs if an earlier pipelined answer cannot be sent
		}
		ctx.SetStatusCode(fasthttp.StatusOK)
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) { t.serve(http10) })
		return
	case end.Refusal != nil:
		refusalProblem(end.Refusal).write(ctx)
	case end.Reason == ingress.RunEnded:
		ctx.SetStatusCode(fasthttp.StatusNoContent) // 204 shows an SSE client not to reconnect
	}
	t.cleanup()
}

// now returns a monotonic time.
func (t *streamConn) now() actor.Time { return actor.Time(t.server.clock().Sub(t.started)) }

// fail ends the stream after an error of a wait or of the node.
func (t *streamConn) fail(err error) {
	var r *actor.Refusal
	dropped := command.EventsDropped{}
	switch {
	case errors.Is(err, context.Canceled):
		t.events.Step(ingress.Closed{})
	case errors.Is(err, client.ErrRevoked):
		t.events.Step(ingress.Revoked{})
	case errors.Is(err, command.ErrClosed):
		t.events.Step(ingress.Draining{})
	case errors.As(err, &dropped):
		t.events.Fail(actor.Refuse(actor.NotFound, "%v", dropped))
	case errors.As(err, &r) && r.Reason == actor.Busy:
		t.events.Fail(r)
	default:
		t.server.log.Error("cannot read the events of a run", "run", t.run.String(), "error", err.Error())
		t.events.Fail(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second,
			Detail: fmt.Sprintf("the events of run %s cannot be read now: retry later", t.run)})
	}
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
	for t.flush(t.responseHead(http10)); t.events.End == nil; {
		var err error
		if t.events.Unwritten.Size() > 0 {
			t.flush(nil)
			err = t.events.Check(peerContext{gone})
		} else {
			err = t.events.Advance(peerContext{gone})
		}
		if err != nil {
			t.fail(err)
		}
	}
	t.writeFinal()
	t.server.log.Debug("stream ended", "run", t.run.String(), "reason", t.events.End.Reason.String(), "ms", time.Duration(t.now()).Milliseconds())
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
	timeout := max(min(writeSliceMax, t.events.Due()), time.Millisecond)
	if len(head) > 0 { // the stream cannot time out before its first byte
		timeout = writeSliceMax
	}
	_ = t.conn.SetWriteDeadline(time.Now().Add(timeout))
	n, err := t.conn.Write(append(head, t.events.Unwritten.Bytes...))
	if len(head) > 0 && n < len(head) {
		t.events.Step(ingress.Closed{})
		return
	}
	n -= len(head)
	t.events.Unwritten.Bytes = t.events.Unwritten.Bytes[n:]
	t.events.Step(ingress.Wrote{Bytes: n})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.events.Step(ingress.Tick{})
	case err != nil:
		t.events.Step(ingress.Closed{})
	}
}

// writeFinal writes the remaining bytes and the final frame. A larger send buffer
// holds them for a reader that is not reading.
func (t *streamConn) writeFinal() {
	if t.events.End.Reason == ingress.ClientGone {
		return
	}
	setSendBuffer(t.conn, finalSendBufferBytes)
	_ = t.conn.SetWriteDeadline(time.Now().Add(finalWriteTimeout))
	_, _ = t.conn.Write(append(t.events.Unwritten.Bytes, t.events.End.Final...))
}

func setSendBuffer(c net.Conn, bytes int) {
	if own, ok := c.(*connection); ok {
		c = own.Conn
	}
	if tcp, ok := c.(interface{ SetWriteBuffer(int) error }); ok {
		_ = tcp.SetWriteBuffer(bytes)
	}
}
