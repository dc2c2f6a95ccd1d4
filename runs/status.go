// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Status is the state of a run. The zero Status is that of a run nothing is known of.
type Status uint8

// The states of a run, under the names that clients see.
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

// runTransitions lists what may follow each state. Only a run that runs can be done:
// whoever waits has something to come back from first.
var runTransitions = [...][]Status{
	0:                     {Running},
	Running:               {PausedWaitingApproval, PausedWaitingTool, Done, Failed, Cancelled},
	PausedWaitingApproval: {Running, PausedWaitingTool, Failed, Cancelled},
	PausedWaitingTool:     {Running, PausedWaitingApproval, Failed, Cancelled},
	Done:                  {},
	Failed:                {},
	Cancelled:             {},
}

// Statuses lists the closed set in its order.
func Statuses() []Status {
	return []Status{Running, PausedWaitingApproval, PausedWaitingTool, Done, Failed, Cancelled}
}

// String is the state's name.
func (s Status) String() string { return nameOf(statusNames[:], int(s)) }

// ParseStatus reads what String writes.
func ParseStatus(text string) (Status, error) {
	if i := slices.Index(statusNames[:], text); i > 0 {
		return Status(i), nil
	}
	return 0, fmt.Errorf("run status %.40q: want one of %v", text, statusNames[1:])
}

// Ended tells whether nothing can follow.
func (s Status) Ended() bool { return s >= Done }

// Paused tells whether the run stands still.
func (s Status) Paused() bool { return s == PausedWaitingApproval || s == PausedWaitingTool }

// Transition says why a run may not go from one state to the other, or nil.
func Transition(from, to Status) error {
	if int(from) < len(runTransitions) && slices.Contains(runTransitions[from], to) {
		return nil
	}
	return fmt.Errorf("a run cannot go from %s to %s", from, to)
}

// The states of a call, and of the agent that serves it, in the words of the
// agents' own records. Both are derived.
const (
	CallPending   = "Pending"
	CallCompleted = "Completed"
	CallTimedOut  = "TimedOut"
	CallFailed    = "Failed"

	AgentRunning = "Running"
	AgentWaiting = "Waiting"
	AgentPaused  = "Paused"
)

// CallState is the state of the call that a run answers; why is how it failed, if it did.
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

// AgentState is the state of the agent at work on a run; one that has ended has none.
func AgentState(s Status) string {
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
