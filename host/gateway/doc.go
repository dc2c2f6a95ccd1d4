// SPDX-License-Identifier: Apache-2.0

// Package gateway is the door: HTTP in, calls to the node, JSON and streams of
// events out. It holds the sockets and decides nothing about actors; what a
// client may say and is told is package ingress's.
//
//	POST   /v1/agents, /v1/agents/register         an agent of a spec; an external one
//	GET    /v1/agents, /v1/agents/{id}
//	DELETE /v1/agents/{id}
//	POST   /v1/agents/{id}/messages                the answer, or, by Accept, the run's events
//	POST   /v1/agents/{id}:heartbeat, :invoke      for external agents
//	GET    /v1/runs, /v1/runs/{id}, /v1/runs/{id}/events
//	POST   /v1/runs/{id}:signal, :cancel
//	GET    /v1/keys  POST /v1/keys  DELETE /v1/keys/{id}
//	GET    /healthz, /readyz, /metrics
//
// What is shown is durable. Whatever is refused is problem+json; the table of
// codes is in docs/errors.md, all else in docs/api.md. On loopback a request must
// name a loopback host, so that a web page of another origin cannot speak to us
// through its reader's browser; elsewhere it needs an API key.
//
// Every byte from outside is looked at strictly: framing that two readers could
// understand differently, paths with escapes, JSON with unknown or repeated
// members, and whatever is longer than its bound are refused before anything is
// done. Nothing of a request is kept once it is answered.
//
// A stream takes its connection over. Each frame leaves at once, a reader that
// does not read is sent away with a reason and comes back where it stopped, and a
// client that goes frees what was kept for it at once. Its run goes on: only
// :cancel ends one.
package gateway
