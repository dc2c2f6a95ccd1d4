// SPDX-License-Identifier: Apache-2.0

package command

import (
	"time"

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
	Agents   []AgentStats // in order of their names
	Targets  []TargetStats
	Waits    WaitStats
	MCP      []MCPStats     // in order of their names
	Circuits []CircuitStats // of external agents, in order of their names
	Routes   []RouteStats

	Approvals ApprovalStats
	Unknown   uint64 // outcomes of calls that are unknown
	Webhooks  []WebhookStats
	Cluster   ClusterStats // zero: the node belongs to none
	Prompts   PromptStats
	Traces    TraceStats
}

// TraceStats holds the figures of the spans for a collector.
type TraceStats struct {
	On      bool // spans are sent
	Sent    uint64
	Dropped uint64
	Waiting int
}

// PromptStats holds the figures of recorded prompts.
type PromptStats struct {
	On       bool // prompts are recorded
	Recorded uint64
	Dropped  uint64
	Bytes    int64 // in all files
}

// ClusterStats holds the figures of a cluster as the orchestrator that serves sees them.
type ClusterStats struct {
	Members int            // with a lease
	Logs    int            // that this member owns
	Epoch   uint64         // rises whenever a log gets another owner
	Lease   actor.Duration // left; 0: it has run out, and the node waits until it is renewed
}

// RouteStats counts the decisions of an orchestrator for one intent with one course. An intent that is no
// name, and those above StatsNamesMax, count as StatsOther.
type RouteStats struct {
	Agent  string
	Intent string
	Course string // plan, reply, question, options, cannot or misrouted
	Count  uint64
}

// ApprovalStats holds the figures of the approvals that wait.
type ApprovalStats struct {
	Known   bool // false: a cell is still loading its open runs
	Waiting int
	Oldest  actor.Time // creation of the oldest; 0 if none waits
}

// WebhookStats holds the figures of one webhook.
type WebhookStats struct {
	Name      string
	Delivered uint64
	Failed    uint64 // attempts
	GivenUp   uint64
	Waiting   int
	Oldest    actor.Time // of the events that wait for their delivery; 0 if there is none
}

// CircuitStats holds the figures of the circuit breaker of one external agent.
type CircuitStats struct {
	Agent  string
	Open   bool   // calls are refused, but for probes
	Opened uint64 // times that it opened
}

// MCPStats holds the figures of one MCP server.
type MCPStats struct {
	Name     string
	Up       bool   // it is available
	Tools    int    // tools of the accepted list
	Changed  bool   // a changed list waits for acceptance
	Restarts uint64 // times that it became available after the first
}

// Bounds of the names in Stats. Of each kind StatsNamesMax names have figures of their
// own. The others are counted together as StatsOther, as are names unused for an hour
// that have made room for new ones, deleted agents, and models that do not exist.
const (
	StatsNamesMax = 1024
	StatsOther    = "other"
)

// CellStats holds the figures of one cell.
type CellStats struct {
	Mailbox     int            // approximate number of queued inputs
	Actors      int            // actors in memory
	Queued      [actor.Low]int // calls waiting in the actors' mailboxes, by lane from High to Low
	Outstanding int            // unanswered calls of these actors
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
	Took     Histogram // all answers, including refusals
}

// AgentStats holds the statistics of the runs of one agent.
type AgentStats struct {
	Agent        string
	Runs         []RunStats
	Took         Histogram // from acceptance to end
	Outstanding  int       // unanswered calls made by the agent's actors
	InputTokens  uint64    // as models and external agents reported
	OutputTokens uint64
}

// TargetStats holds the statistics of one tool or model.
type TargetStats struct {
	Kind         actor.AskKind // AskTool or AskModel
	Name         string
	Took         Histogram
	Outcomes     []OutcomeStats
	InputTokens  uint64 // of a model, as it reported
	OutputTokens uint64
	CostMicros   uint64 // of these answers, of a model that has a price
}

// OutcomeStats counts the answers with one reason.
type OutcomeStats struct {
	Reason actor.Reason // 0 means success
	Count  uint64
}

// WaitStats holds the statistics of waits for a signal or an approval.
type WaitStats struct {
	Took     Histogram // with the bounds WaitBounds
	Outcomes []OutcomeStats
}

// Histogram counts durations by bucket.
type Histogram struct {
	Counts []uint64 // by upper bound; the last count has none
	Sum    actor.Duration
}

// Upper bounds of the buckets of histograms, in order.
var (
	DurationBounds = []actor.Duration{time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
		500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour}
	WaitBounds = []actor.Duration{time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
		4 * time.Hour, 12 * time.Hour, 24 * time.Hour, 72 * time.Hour, 168 * time.Hour}
)
