// SPDX-License-Identifier: Apache-2.0

// Package gateway serves the HTTP API of a node: requests become calls, and
// answers leave as JSON or as streams of events. It owns the listening sockets
// and makes no decision about actors. The protocol with clients is defined in
// package ingress.
//
//	POST   /v1/agents, /v1/agents/register         create an agent from a spec; register an external one
//	GET    /v1/agents, /v1/agents/{id}
//	DELETE /v1/agents/{id}
//	POST   /v1/agents/{id}/messages                the answer or, by Accept, the events of the run
//	POST   /v1/agents/{id}:heartbeat, :invoke      for external agents
//	GET    /v1/runs, /v1/runs/{id}, /v1/runs/{id}/events
//	POST   /v1/runs/{id}:signal, :cancel, :retry
//	GET    /v1/tools, /v1/tools/{id}  POST /v1/tools  PUT, DELETE /v1/tools/{id}
//	POST   /v1/tools/{id}:invoke                   for external agents
//	GET    /v1/tool_calls/{id}  POST /v1/tool_calls/{id}:wait
//	GET    /v1/approvals, /v1/approvals/{id}  POST /v1/approvals/{id}:decide
//	GET    /v1/keys  POST /v1/keys  DELETE /v1/keys/{id}
//	GET    /healthz, /readyz, /metrics
//
// Every answer shows durable state only. Every error is problem+json;
// docs/errors.md lists the codes, and docs/api.md describes the API. On loopback
// a request must name a loopback host, so that a web page of another origin
// cannot reach the API through a browser on this machine. Off loopback a request
// needs an API key.
//
// All input is validated strictly. A request is refused before any effect if its
// framing is ambiguous, its path contains escapes, its JSON has unknown or
// duplicate members, or a part exceeds its bound. No memory of a request is
// retained after its answer.
//
// A stream takes over its connection, and each frame is sent at once. A slow
// reader is disconnected with a reason and can resume at the same position. When
// a client disconnects, its resources are released at once. Its run continues:
// only :cancel ends a run early.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package gateway
