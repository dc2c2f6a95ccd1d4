// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Status is the state of a run. The zero value means that nothing is known of the
// run.
type Status uint8

// The states of a run. Clients see these names.
const (
	Running Status = iota + 1
	PausedWaitingApproval
	PausedWaitingTool
	Done
	Failed
	Cancelled
)

var statusNames = [...]string{
	Running: "RUNNING", PausedWaitingApproval: "PAUSED_WAITING_APPROVAL", PausedWaitingTool: "PAUSED_WAITING_TOOL",
	Done: "DONE", Failed: "FAILED", Cancelled: "CANCELLED",
}

// runTransitions lists the legal successors of each state. Only a running run can
// be done: a paused run MUST resume first.
var runTransitions = [...][]Status{
	0:                     {Running},
	Running:               {PausedWaitingApproval, PausedWaitingTool, Done, Failed, Cancelled},
	PausedWaitingApproval: {Running, PausedWaitingTool, Failed, Cancelled},
	PausedWaitingTool:     {Running, PausedWaitingApproval, Failed, Cancelled},
	Done:                  {},
	Failed:                {},
	Cancelled:             {},
}

// Statuses returns all states in order.
func Statuses() []Status {
	return []Status{Running, PausedWaitingApproval, PausedWaitingTool, Done, Failed, Cancelled}
}

// String returns the name of the state.
func (s Status) String() string { return nameOf(statusNames[:], int(s)) }

// ParseStatus parses the output of String.
func ParseStatus(text string) (Status, error) {
	if i := slices.Index(statusNames[:], text); i > 0 {
		return Status(i), nil
	}
	return 0, fmt.Errorf("run status %.40q: want one of %v", text, statusNames[1:])
}

// Ended reports whether the state has no successor.
func (s Status) Ended() bool { return s >= Done }

// Paused reports whether the run is waiting.
func (s Status) Paused() bool { return s == PausedWaitingApproval || s == PausedWaitingTool }

// Transition returns an error unless a run may change from one state to the other.
func Transition(from, to Status) error {
	if int(from) < len(runTransitions) && slices.Contains(runTransitions[from], to) {
		return nil
	}
	return fmt.Errorf("a run cannot go from %s to %s", from, to)
}

// The states of a call, and of the agent that serves it, as agents' own records
// name them. Both are derived from the status of the run.
const (
	CallPending   = "Pending"
	CallCompleted = "Completed"
	CallTimedOut  = "TimedOut"
	CallFailed    = "Failed"

	AgentQueued  = "Queued" // its mailbox has the call, which has not begun
	AgentRunning = "Running"
	AgentWaiting = "Waiting"
	AgentPaused  = "Paused"
	AgentParked  = "Parked" // the agent took another course when the run was replayed
)

// CallState returns the state of the call that a run answers. The parameter why is
// the reason of the run's failure, or nil.
func CallState(s Status, why *actor.Refusal) string {
	switch {
	case s == Done:
		return CallCompleted
	case !s.Ended():
		return CallPending
	case why != nil && why.Reason == actor.Deadline:
		return CallTimedOut
	default:
		return CallFailed
	}
}

// AgentState returns the state of the agent that serves a run, or "" if the run
// has ended. The time started is 0 before the turn, and why is the reason of a run that
// is parked, or nil.
func AgentState(s Status, started actor.Time, why *actor.Refusal) string {
	switch {
	case s.Ended():
	case why != nil:
		return AgentParked
	case s == Running && started == 0:
		return AgentQueued
	}
	switch s {
	case Running:
		return AgentRunning
	case PausedWaitingTool:
		return AgentWaiting
	case PausedWaitingApproval:
		return AgentPaused
	default:
		return ""
	}
}

func nameOf(names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}
