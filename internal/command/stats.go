// SPDX-License-Identifier: Apache-2.0

package command

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Stats holds gauges of a node and its counters since the start. The values are
// read one after the other and need not agree exactly.
type Stats struct {
	Cells    []CellStats
	Clients  int // clients that wait for an answer
	Backlog  int // log entries that wait to be written
	Refusals []RefusalStats
	Runs     []RunStats
	Asks     []AskStats
}

// CellStats holds the figures of one cell.
type CellStats struct {
	Mailbox     int // approximate number of queued inputs
	Actors      int // actors in memory
	Queued      int // calls waiting in the actors' mailboxes
	Outstanding int // unanswered calls of these actors
	Incarnation uint64
	Steps       uint64
	StepLongest actor.Duration // longest step since the start
}

// RefusalStats counts the calls that were refused before their turn.
type RefusalStats struct {
	Reason actor.Reason
	Scope  actor.Scope // set if Reason is Busy
	Count  uint64
}

// RunStats counts the runs that ended with one status.
type RunStats struct {
	Status runs.Status
	Count  uint64
}

// AskStats holds the statistics of the asks of one kind.
type AskStats struct {
	Kind     actor.AskKind
	UnderWay int
	Answered uint64         // all answers, including refusals
	Took     actor.Duration // total time of the answered asks
}
