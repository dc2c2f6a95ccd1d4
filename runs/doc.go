// SPDX-License-Identifier: Apache-2.0

// Package runs knows the states of work, the legal steps between them, and the
// events that tell what happened in a run.
//
// A run is one call seen as work. It is RUNNING, stands still in one of two
// PAUSED states, or has ended:
//
//	            ┌─ PAUSED_WAITING_TOOL ──────┐
//	RUNNING ────┤          ↕                 ├──── RUNNING … DONE
//	            └─ PAUSED_WAITING_APPROVAL ──┘
//
//	any of the three may end FAILED or CANCELLED; nothing follows an end
//
// Events are numbered from 1 without a gap in each run, and are never changed.
// The state is not stored beside them: Fold derives it, so that the two cannot
// disagree. A run waits for an approval while a person or event has to speak
// (a wait is open, or the run is held or parked), for a tool while a call or a
// tool is out, and else it runs.
//
// Nothing here is the protocol's own record: that is package history's, and
// package store's. Events are for people, clients and replay.
package runs
