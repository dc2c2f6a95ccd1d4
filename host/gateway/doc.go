// SPDX-License-Identifier: Apache-2.0

// Package gateway is the door: HTTP in, calls to the node, JSON out. It holds
// the sockets and decides nothing about actors.
//
//	POST /v1/agents/{id}/messages   {"content", "session"?, "timeout_ms"?} → the answer, or 202 if the run waits for somebody or takes longer
//	GET  /v1/agents
//	GET  /v1/runs?limit=            the newest roots first
//	GET  /v1/runs/{id}
//	GET  /v1/runs/{id}/events?after=&limit=&wait_ms=
//	POST /v1/runs/{id}:signal       {"name", "payload"?}
//	GET  /healthz, /readyz
//
// What is shown is durable. Whatever is refused is problem+json; the table of
// codes is in docs/errors.md.
//
// Over loopback nobody needs an API key, and a request must name this machine as
// its Host: a web page of another origin cannot speak to us through its reader's
// browser. On any other address each request needs a key, with the scope that
// the table in keys.go asks of its route, and nothing is served before there is
// one. External agents come with the token of their run instead. There is one
// tenant: whoever may read sees all runs.
//
// Every byte from outside is looked at strictly: framing that two readers could
// understand differently, paths with escapes, JSON with unknown or repeated
// members, and whatever is longer than its bound are refused before anything is
// done, most of it before the body is read. Who is slow is sent away, and so is
// who holds too many connections. Nothing of a request is kept once it is answered.
package gateway
