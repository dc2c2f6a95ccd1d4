// SPDX-License-Identifier: Apache-2.0

// Package ingress implements the protocol between clients and a node: it decodes
// requests, idempotency keys and credentials, and turns runs into bounded event
// streams. It has no sockets; a driver supplies time and input.
//
//	Decode                       strict JSON decoder for all client input
//	Message, Signal, Invoke …    decode a request body into a call
//	WantsStream                  whether a client prefers a stream of events
//	Cursor                       position of a client in a stream of events
//	Stream                       state machine that streams one run to one client
//
// A Stream is driven by its caller: Step takes the time and one input and returns
// what to read, watch and write. NextDeadline returns the time of the next Tick.
//
//	          refused: the cursor is not of this run
//	         ┌─────────────────▶ End
//	Opened ──┤
//	         └─▶ streaming ────▶ End      the run has ended, or the cursor is at its end
//	              │   ▲  │
//	        Write ▼   │  └─────▶ End      Closed, Revoked, Draining, slow, unreadable
//	            Wrote ┘
//
// A client that is disconnected can resume: every frame carries a cursor, and a
// stream opened with that cursor delivers each later event exactly once, in the
// order of its run. Ending a stream therefore loses nothing. A slow reader is
// disconnected instead of being waited for.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package ingress
