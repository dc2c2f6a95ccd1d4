// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
)

// keySet answers with the public keys of signed identities. They are no secret, and those who verify one have
// no key of this server.
func keySet(secret []byte) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set("Cache-Control", "public, max-age=3600")
		respond(ctx, http.StatusOK, ingress.Signer{Secret: secret}.KeySet(wallTime()))
	}
}
