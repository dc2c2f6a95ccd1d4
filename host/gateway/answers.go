// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
)

// Bounds of the memory for answers that their clients have not read, in bytes. Those up to bodyFree
// take no share.
const (
	answersMax      = 256 << 20
	answersEach     = 64 << 20
	answersReserved = 32 << 20
)

// answers are the answers from the end of their requests until they were written. A client that
// reads none keeps its answer in memory for WriteTimeout, on each of its connections.
type answers struct{ *shares.Shares[string] }

func newAnswers() answers {
	return answers{shares.New[string](shares.Bounds{Max: answersMax, Each: answersEach, Reserved: answersReserved})}
}

// heldAnswer is the share that the answer of a connection takes.
type heldAnswer struct {
	key   string
	bytes int64
}

// admit takes a share for the answer of a request; give returns the share. Without a free share, a request
// that only reads is refused. Any other request was performed, and its client MUST NOT read a refusal: its
// connection is closed, so the client knows that the outcome is unknown.
func (a answers) admit(ctx *fasthttp.RequestCtx) {
	c, ok := ctx.Conn().(*connection)
	if !ok || ctx.Hijacked() || ctx.Response.IsBodyStream() || ctx.UserValue(callerKey) == nil {
		return
	}
	n := int64(len(ctx.Response.Body()))
	if n <= bodyFree {
		return
	}
	by := callerOf(ctx)
	held := heldAnswer{by.shareKey(), min(n, answersEach)}
	scope := a.Take(held.key, held.bytes, by.isAdmin())
	switch {
	case scope == actor.NoScope:
		c.answer.Store(&held)
	case !ctx.IsGet() && !ctx.IsHead():
		ctx.Response.Reset()
		ctx.SetStatusCode(statusClientClosed)
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) {})
	default:
		ctx.Response.Reset()
		detail := "answers that you have not read take %d MiB, which is the limit: read them"
		most := int64(answersEach)
		if scope == actor.ScopeNode {
			detail, most = "answers that their clients have not read take %d MiB, which is the limit: retry later", answersMax-answersReserved
		}
		refusalProblem(actor.RefuseBusy(scope, time.Second, detail, most>>20)).write(ctx)
	}
}

// give returns the share of a connection whose answer was written, or never will be.
func (a answers) give(c *connection) {
	if held := c.answer.Swap(nil); held != nil {
		a.Give(held.key, held.bytes)
	}
}
