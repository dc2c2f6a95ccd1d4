// SPDX-License-Identifier: Apache-2.0

// Package ingress says what a client may do next and what it is told: requests,
// promises to ask once, cursors, bounded queues, frames out. It holds no socket.
//
//	Decode                       the one reader of JSON from outside
//	Message, Signal, Invoke …    what was asked for, as a call
//	WantsStream                  whether the answer is to come as it is made
//	Cursor                       how far a client has read
//	Stream                       a run told to one client, event by event
//
// A Stream is a state machine that a world drives: it is given the time and one
// input, says what to read, watch and write, and by NextDeadline when to come back.
//
//	          refused: the cursor is not of this run
//	         ┌─────────────────▶ End
//	Opened ──┤
//	         └─▶ telling ──────▶ End      the run is over, or there is nothing after the cursor
//	              │   ▲  │
//	        Write ▼   │  └─────▶ End      Closed, Revoked, Draining, slow, unreadable
//	            Wrote ┘
//
// Whoever is cut off goes on where it stopped: every frame bears a cursor, and
// what follows that cursor is all that was not told yet, once each, in the order
// of its run. Nothing is lost by ending a stream; so a reader that is too slow is
// sent away instead of being waited for.
package ingress
