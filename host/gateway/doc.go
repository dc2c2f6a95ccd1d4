// SPDX-License-Identifier: Apache-2.0

// Package gateway serves the HTTP API of a node: requests become calls, and
// answers leave as JSON or as streams of events. It owns the listening sockets
// and makes no decision about actors. The protocol with clients is defined in
// package ingress.
//
//	GET             /healthz
//	GET             /readyz
//	GET             /metrics
//	GET             /
//	GET             /docs
//	GET             /docs/{id}
//	GET             /chat
//	GET             /console
//	GET             /assets/{id}
//	GET             /.well-known/jwks.json
//	GET POST        /v1/agents
//	POST            /v1/agents/register
//	GET DELETE      /v1/agents/{id}
//	POST            /v1/agents/{id}:heartbeat :invoke
//	POST            /v1/agents/{id}/messages
//	POST            /v1/agents/{id}/skills/{skill}:invoke
//	GET             /v1/capabilities
//	GET PUT DELETE  /v1/capabilities/{id}
//	GET             /v1/schemas/{id}
//	GET             /v1/runs
//	GET             /v1/runs/{id}
//	GET             /v1/runs/{id}/events
//	GET             /v1/runs/{id}/prompts
//	GET             /v1/runs/{id}/steps
//	POST            /v1/runs/{id}:signal :cancel :retry
//	GET POST        /v1/sessions
//	GET DELETE      /v1/sessions/{id}
//	GET             /v1/sessions/{id}/events
//	GET             /v1/sessions/{id}/state
//	GET             /v1/schedules
//	GET             /v1/usage
//	GET             /v1/tasks
//	GET             /v1/tasks/{id}
//	POST            /v1/tasks/{id}:cancel
//	GET POST        /v1/sessions/{id}/messages
//	GET POST        /v1/memory
//	POST            /v1/memory/forget
//	POST            /v1/memory/entity
//	POST            /v1/memory/search
//	POST            /v1/memory/traverse
//	POST            /v1/context
//	GET PUT DELETE  /v1/context/{id}
//	GET             /v1/ws
//	GET POST        /v1/tools
//	GET PUT DELETE  /v1/tools/{id}
//	POST            /v1/tools/{id}:invoke
//	GET             /v1/tool_calls
//	GET             /v1/tool_calls/{id}
//	POST            /v1/tool_calls/{id}:wait :result
//	GET             /v1/approvals
//	GET             /v1/approvals/{id}
//	POST            /v1/approvals/{id}:decide
//	POST            /v1/chat/completions
//	GET             /v1/models
//	GET             /v1/models/{id}
//	POST            /v1/openai/chat/completions
//	GET             /v1/openai/models
//	GET             /v1/openai/models/{id}
//	GET POST        /v1/keys
//	DELETE          /v1/keys/{id}
//	POST            /v1/tokens
//	POST            /v1/backups
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
