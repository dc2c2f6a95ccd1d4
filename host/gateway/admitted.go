// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"hash/maphash"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
)

// admittedMax bounds the callers that are remembered. A request that finds no room is authorized
// again.
const admittedMax = 256

// admitted are the callers of requests with a body: from the end of the head, before the body is
// read, until the route of the request takes it. So each request is authorized once.
//
// fasthttp reuses heads. Every head that announces a body is put before its body is read, so a take
// after that returns the caller of the same request, or none.
type admitted struct {
	seed  maphash.Seed
	slots [admittedMax]struct {
		mu    sync.Mutex
		head  *fasthttp.RequestHeader
		by    *caller
		scope ingress.Scope // for which by was authorized
	}
}

// put remembers the caller of a request and the scope for which it was authorized. Without a scope it
// remembers none, and the route authorizes the request.
func (a *admitted) put(h *fasthttp.RequestHeader, by *caller, scope ingress.Scope) {
	if scope == "" || scope == scopePublic {
		by = nil
	}
	slot := &a.slots[maphash.Comparable(a.seed, h)%admittedMax]
	slot.mu.Lock()
	slot.head, slot.by, slot.scope = h, by, scope
	slot.mu.Unlock()
}

// take returns the caller of a request with a body once, if it was authorized for the scope of its
// route, or nil. The key of the caller was valid when
// the head arrived.
func (a *admitted) take(h *fasthttp.RequestHeader, scope ingress.Scope) (by *caller) {
	if h.ContentLength() <= 0 {
		return nil
	}
	slot := &a.slots[maphash.Comparable(a.seed, h)%admittedMax]
	slot.mu.Lock()
	if slot.head == h && slot.scope == scope {
		by, slot.by = slot.by, nil
	}
	slot.mu.Unlock()
	return by
}
