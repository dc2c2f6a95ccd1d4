// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fasthttp/websocket"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

const (
	// socketRoute is the path of the channel protocol.
	socketRoute = "/v1/ws"
	// socketProtocol is the subprotocol that the server speaks. A client that offers none is
	// accepted.
	socketProtocol = "troupe.v1+json"

	protocolHeader    = "Sec-Websocket-Protocol"
	socketBufferBytes = 1 << 10
	socketRunEvents   = 256 // earlier events of a run that are read at once
	closeWait         = 250 * time.Millisecond

	// Bounds of the sockets whose client is not known yet: in all, of one address, and for the owner.
	strangersMax      = 256
	strangersEach     = 16
	strangersReserved = 16
)

// socketRoutes serves the channel protocol over WebSocket.
type socketRoutes struct{ *Server }

// upgrade answers a handshake. The client is authenticated by it, or by its hello.
func (s socketRoutes) upgrade(ctx *fasthttp.RequestCtx) {
	if !websocket.FastHTTPIsWebSocketUpgrade(ctx) {
		ctx.Response.Header.Set("Upgrade", "websocket")
		newProblem(http.StatusUpgradeRequired, "upgrade_required", "UpgradeRequired", "this path speaks WebSocket: connect to ws://…"+socketRoute+" with the subprotocol "+socketProtocol).write(ctx)
		return
	}
	address := "address " + ClientPrefix(ctx.Conn()).String()
	if s.onLoopback.Load() { // the clients of a proxy cannot be told apart
		address = "address " + ctx.RemoteAddr().String()
	}
	var head fasthttp.RequestHeader
	ctx.Request.Header.CopyTo(&head)
	known, p := s.presented(ctx, &head)
	seat := &place{}
	if p == nil {
		var r *actor.Refusal
		if known != nil {
			seat.key = known.shareKey()
			seat.release, r = s.streams.acquire(known)
		} else {
			seat.release, r = s.strangers.acquireFor(address, isOwner(ctx.Conn()))
		}
		if r != nil {
			p = refusalProblem(r)
		}
	}
	if p != nil {
		s.throttle(ctx.Conn(), p).write(ctx)
		return
	}
	d := newSocketDriver(s.Server, &head, ctx.Conn())
	d.seat, d.share.by, d.reader.share = seat, address, d.share
	release := sync.OnceFunc(func() {
		d.cancel()
		seat.free()
	})
	if c, ok := ctx.Conn().(*connection); ok {
		c.onClose = release // also if the hijacked connection is closed before serve
		c.received = d.reader.received
	}
	upgrader := websocket.FastHTTPUpgrader{ReadBufferSize: socketBufferBytes, WriteBufferSize: socketBufferBytes, WriteBufferPool: &socketBuffers, Subprotocols: []string{socketProtocol},
		CheckOrigin: func(*fasthttp.RequestCtx) bool { return true }, // the head was validated, with its origin
		Error: func(ctx *fasthttp.RequestCtx, status int, reason error) {
			invalid(status, "", reason.Error()).write(ctx)
		}}
	err := upgrader.Upgrade(ctx, func(c *websocket.Conn) {
		defer release()
		d.serve(c, known != nil)
	})
	if err != nil {
		release()
	}
}

var socketBuffers sync.Pool

// presented checks the credentials of a handshake: in the Authorization header, or as a
// subprotocol, because pages in browsers cannot send headers. It returns nil if there are
// none.
func (s socketRoutes) presented(ctx *fasthttp.RequestCtx, head *fasthttp.RequestHeader) (known *caller, p *problem) {
	offered, own := 0, false
	for _, value := range head.PeekAll(protocolHeader) {
		for name := range strings.SplitSeq(string(value), ",") {
			switch name = strings.TrimSpace(name); {
			case name == "":
			case strings.HasPrefix(name, "troupe_"):
				if len(head.Peek(fasthttp.HeaderAuthorization)) > 0 {
					return nil, invalid(http.StatusBadRequest, protocolHeader, "a key in "+protocolHeader+" and one in Authorization: want one of them")
				}
				head.Set(fasthttp.HeaderAuthorization, "Bearer "+name)
			default:
				offered++
				own = own || name == socketProtocol
			}
		}
	}
	if offered > 0 && !own {
		return nil, invalid(http.StatusBadRequest, protocolHeader, "want the subprotocol "+socketProtocol+", or none")
	}
	head.Del(protocolHeader)
	if hasRunToken(head) {
		return nil, actsForRun()
	}
	if len(head.Peek(fasthttp.HeaderAuthorization)) == 0 {
		return nil, nil
	}
	c, p := s.authorize(head, ingress.ScopeRead, ctx.Conn())
	if user, named := userNamed(head); p == nil && named {
		c, p = c.actingFor(user, userHeader)
	}
	return c, p
}
