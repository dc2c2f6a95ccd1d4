// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
)

// Bounds of the memory for the bodies of requests, in bytes.
const (
	// bodyFree is the length up to which a body takes no share. The number of
	// connections bounds the memory for such bodies.
	bodyFree       = 8 << 10
	bodiesMax      = 256 << 20
	bodiesEach     = 64 << 20
	bodiesReserved = 32 << 20
)

// bodySweepPeriod is the minimum time between two searches for lost bodies.
const bodySweepPeriod = 100 * time.Millisecond

// bodies are the request bodies in memory: from the end of the head, when fasthttp
// allocates the body, until the request is handled. fasthttp reuses a head, but not
// before its request has ended, so the address of the head identifies a request.
type bodies struct {
	*shares.Shares[string]

	mu    sync.Mutex
	held  map[*fasthttp.RequestHeader]heldBody
	swept time.Time
}

// heldBody is a body that takes a share.
type heldBody struct {
	key     string
	bytes   int64
	until   time.Time // end of the time to receive the body; zero once it is received
	refused *problem  // nil unless the body was refused
}

func newBodies() *bodies {
	return &bodies{Shares: shares.New[string](shares.Bounds{Max: bodiesMax, Each: bodiesEach, Reserved: bodiesReserved}), held: map[*fasthttp.RequestHeader]heldBody{}}
}

// admit takes a share for a body of at most n bytes that arrives until a time. If it
// refuses, release returns the problem. fasthttp reports no error for some connections
// that end within a body, so a body that has not arrived in time is lost.
func (b *bodies) admit(h *fasthttp.RequestHeader, key string, n int64, privileged bool, until time.Time) (admitted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(h) // the former request with this head has ended
	scope := b.Take(key, n, privileged)
	if now := time.Now(); scope != actor.NoScope && now.Sub(b.swept) >= bodySweepPeriod {
		b.swept = now
		for h, body := range b.held {
			if !body.until.IsZero() && body.until.Before(now) {
				b.drop(h)
			}
		}
		scope = b.Take(key, n, privileged)
	}
	body := heldBody{key: key, bytes: n, until: until}
	switch scope {
	case actor.ScopeCaller:
		body.refused = refusalProblem(actor.RefuseBusy(scope, time.Second, "the bodies of requests under way from you take %d MiB, which is the limit: wait for their answers", bodiesEach>>20))
	case actor.ScopeNode:
		body.refused = refusalProblem(actor.RefuseBusy(scope, time.Second, "the bodies of requests under way take %d MiB, which is the limit: retry later", (bodiesMax-bodiesReserved)>>20))
	}
	if body.refused != nil {
		body.bytes = 0
	}
	b.held[h] = body
	return body.refused == nil
}

// received records the length of a body that has arrived.
func (b *bodies) received(h *fasthttp.RequestHeader, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if body, ok := b.held[h]; ok {
		b.Give(body.key, body.bytes-n)
		body.bytes, body.until = n, time.Time{}
		b.held[h] = body
	}
}

// release returns the share of a request that has ended, and the problem with which admit
// has refused it.
func (b *bodies) release(h *fasthttp.RequestHeader) *problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	refused := b.held[h].refused
	b.drop(h)
	return refused
}

func (b *bodies) drop(h *fasthttp.RequestHeader) {
	if body, ok := b.held[h]; ok {
		b.Give(body.key, body.bytes)
		delete(b.held, h)
	}
}

// bodyAdmission decides which bodies are read.
type bodyAdmission struct{ *Server }

// admit reports whether a body of up to n bytes may be read.
func (s bodyAdmission) admit(h *fasthttp.RequestHeader, n int, owner bool) bool {
	if n > bodyMax(h) {
		return false
	}
	by, scope, p := s.validateBeforeBody(h, owner)
	s.admitted.put(h, by, scope)
	if p != nil || n <= bodyFree {
		return p == nil
	}
	until := time.Now().Add(s.config.BodyTimeout + s.config.deadlineSlack())
	return s.bodies.admit(h, by.shareKey(), int64(n), by.isAdmin(), until)
}

// bodyLength returns the length of the body that follows a head: the maximum if it is
// chunked, and 0 if there is none.
func bodyLength(h *fasthttp.RequestHeader) int {
	if n := h.ContentLength(); n >= 0 {
		return n
	}
	if h.ContentLength() == -1 {
		return bodyMax(h)
	}
	return 0
}

// takesBodyShare reports whether the body of a request that was received may have taken
// a share. A chunked body has lost its length, but closes the connection.
func takesBodyShare(h *fasthttp.RequestHeader) bool {
	return h.ContentLength() > bodyFree || h.ContentLength() == -1 || h.ConnectionClose() && string(h.Method()) != http.MethodGet
}
