// SPDX-License-Identifier: Apache-2.0

// Package outbound asks models and external agents for the node, over HTTP. It
// carries bytes between sockets and upstream, which decides what they mean,
// when to try again and where nobody goes.
//
//	effect ─▶ Model, Invoke ─▶ exchange ─Send─▶ one goroutine per attempt ─▶ dialer
//	              ▲               │  ▲                    │
//	              └─ pieces ──────┘  └── Head, Bytes, End, Loss
//
// What is promised:
//
//  1. Every connection is made by one dialer. It takes hosts in one spelling,
//     resolves a name once, asks about each address, connects to one of those,
//     and asks once more when the socket is there. No redirect is followed, no
//     proxy is used, no cookie kept, no compressed body asked for.
//  2. Model and Invoke return when there is an answer, or a refusal that says
//     why not, or ctx ends; then the connection is closed at once.
//  3. All requests to one upstream share one back-off. What is under way is
//     bounded: all of it, and each agent's and model's. What is over is refused.
//  4. Secrets stand in environment variables; they are in no answer's refusal,
//     no log line and no printed configuration.
//  5. What is asked and answered is never logged. Of an exchange each attempt
//     is logged, in one place, from an upstream.Attempt, which has room for
//     neither. Of its refusal only the reason is told: the sentence may quote the
//     upstream, and the upstream may quote the prompt. The run's events have it.
//  6. After Close no goroutine is left.
//
// An agent that the node was told of (SetAgents) is asked for its health every
// 15 s, or says by itself that it is there (Beat). One that was silent for 45 s,
// or that says it is not well, is refused without being asked.
package outbound
