// SPDX-License-Identifier: Apache-2.0

// Package runs defines the states of runs, tool calls and approvals with their
// legal transitions, and the events of a run.
//
// A run is one call as a unit of work. It is RUNNING, in one of two PAUSED states,
// or has ended:
//
//	            ┌─ PAUSED_WAITING_TOOL ──────┐
//	RUNNING ────┤          ↕                 ├──── RUNNING … DONE
//	            └─ PAUSED_WAITING_APPROVAL ──┘
//
//	any of the three may end FAILED or CANCELLED; an ended run never changes
//
// The events of each run are numbered from 1 without gaps and are never changed.
// The state is not stored. Fold derives it from the events, so the two cannot
// disagree:
//
//   - waiting for approval: a wait is open, a call below holds the run, or the run
//     is parked until a person inspects it;
//   - waiting for a tool: a call or a tool is in progress;
//   - otherwise running.
//
// Events are for people, clients and replay. The protocol's own records are in
// packages history and store.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package runs
