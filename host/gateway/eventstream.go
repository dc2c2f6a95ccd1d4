// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
)

// eventStream is an answer of events that is written to its connection until it ends.
type eventStream struct {
	server *Server
	conn   net.Conn
}

// openEventStream takes over the connection of a request. serve writes the answer, which begins
// with the given head; more are further lines of the head. cleanup is called at least once, at
// the end of the connection or of serve.
func openEventStream(s *Server, ctx *fasthttp.RequestCtx, more string, cleanup func(), serve func(e eventStream, head []byte)) {
	conn := ctx.Conn()
	if c, ok := conn.(*connection); ok {
		c.onClose = cleanup // also if an earlier pipelined answer cannot be sent
	}
	head := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: %s; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s", ingress.EventStream, more)
	head = append(appendAllowOrigin(head, listedOrigin(s.config.Origins, &ctx.Request.Header)), "Connection: close\r\n\r\n"...)
	ctx.SetStatusCode(fasthttp.StatusOK)
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(net.Conn) {
		defer cleanup()
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("panic while streaming", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
		}()
		serve(eventStream{s, conn}, head)
	})
}

// write reports whether the client has taken the bytes in time.
func (e eventStream) write(b []byte) bool {
	_ = e.conn.SetWriteDeadline(time.Now().Add(e.server.config.StreamTimeout))
	_, err := e.conn.Write(b)
	return err == nil
}

// writeFinal writes the last bytes, for which a client gets little time.
func (e eventStream) writeFinal(b []byte) {
	_ = e.conn.SetWriteDeadline(time.Now().Add(finalWriteTimeout))
	_, _ = e.conn.Write(b)
}

// transferCoding reports whether the client of a stream reads it in chunks, so that it notices
// a stream that was cut.
type transferCoding bool

// header returns the header line of the response; "" if it needs none.
func (t transferCoding) header() string {
	if t {
		return "Transfer-Encoding: chunked\r\n"
	}
	return ""
}

// part returns the bytes that are sent for a part of a stream.
func (t transferCoding) part(b []byte) []byte {
	if !t || len(b) == 0 {
		return b
	}
	return append(append(fmt.Appendf(nil, "%x\r\n", len(b)), b...), "\r\n"...)
}

// last returns the bytes that are sent for the last part.
func (t transferCoding) last(b []byte) []byte {
	if !t {
		return b
	}
	return append(t.part(b), "0\r\n\r\n"...)
}
