// SPDX-License-Identifier: Apache-2.0

// Package outbound calls models, external agents and tools over HTTP for the node. It
// moves bytes between sockets and package upstream, which interprets them and
// decides on retries and on forbidden addresses.
//
//	effect ─▶ Model, Invoke, Tool ─▶ exchange ─Send─▶ one goroutine per attempt ─▶ dialer
//	              ▲                     │  ▲                    │
//	              └─ pieces ────────────┘  └── Head, Bytes, End, Loss
//
// The package guarantees:
//
//  1. Every connection is opened by one dialer. It accepts a single spelling of
//     a host, resolves a name once, checks every address, and connects to one of
//     them. It checks the address again when the socket exists. It follows no
//     redirects, uses no proxy, keeps no cookies and requests no compression.
//  2. Model, Invoke and Tool return with an answer or with a refusal that gives the
//     reason, at the latest when ctx is done. After a refusal the connection is
//     closed at once; after an answer it may be reused.
//  3. All requests to one upstream share one back-off. The number of concurrent
//     exchanges is bounded in total, per agent, model and tool. An exchange over a
//     bound is refused.
//  4. Secrets are read from environment variables. They appear in no refusal, no
//     log line and no printed configuration.
//  5. Requests and answers are never logged. Each attempt of an exchange is
//     logged in one place, from an upstream.Attempt, which contains neither. The
//     detail of a refusal is logged: at most 512 bytes of the upstream's own
//     words, of a tool 1 KiB, without secrets. Config.Record gets the requests to
//     models, for those whose content may be kept.
//  6. After Close no goroutine remains.
//
// A registered agent (SetAgents) is polled for its health every 15 s, or sends
// heartbeats itself (Heartbeat). An agent that was silent for 45 s or reports
// itself unhealthy is refused without a request.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package outbound
