// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
)

// Point is a condition that the simulations MUST reach sometimes. If a set of runs never
// reaches some point, the set is not significant.
type Point uint8

// The points.
const (
	NodeRestarted         Point = iota
	CellRestarted               // after a panic
	LeaseLapsed                 // a node had work, and waited because its lease had run out by its own clock
	LeaseRenewedLate            // that lease was renewed, and the node went on
	LeaseLost                   // a process ended because another node had claimed its logs
	Fenced                      // a batch was rejected because another node owns the shards
	Adopted                     // another node took over the shards of a dead or unreachable node
	Moved                       // shards were handed over to another cell
	FromSnapshot                // an actor was restored from a snapshot and later entries
	TurnRestored                // an actor was restored with an open turn
	HeldReply                   // a client has to fetch the reply later
	StreamRead                  // a client read the stream of a run to its end
	OutcomeReread               // an archived outcome was read again for a repeated call
	RepeatAnswered              // a request was answered with the outcome of an earlier request under the same key
	RegistryAnnounced           // the registry announced a change to all nodes
	AgentPut                    // the registry acknowledged a new or changed agent
	AgentDeleted                // the registry acknowledged the deletion of an agent
	APIKeyCreated               // the registry acknowledged a new API key
	APIKeyRevoked               // the registry acknowledged the revocation of an API key
	RegistryOpRefused           // the registry rejected an operation
	AgentQuotaRefused           // the registry rejected an agent beyond a quota
	APIKeyAccepted              // a client presented a valid API key
	APIKeyRejected              // a client presented a revoked, expired or unknown API key
	RunPolled                   // a client polled a run and its child runs
	PausedRunPolled             // a client polled a run that was held
	SpecFileRejected            // an invalid agent file was rejected with an explanation
	RegisteredAgentServed       // a registered agent answered
	RankLost                    // an input owner with the highest rank lost its rank
	InputStarved                // an input of the starved actor was overtaken or delayed
	CallLoopReported            // a possible call loop was reported to the author of an agent file
	MutationRejected            // a mutated encoding was rejected
	CorruptionFound             // an examination of the store found a corrupted row
	CorruptRowRead              // a truncated row was read
	SummaryAudited              // the summary of a run was compared with its events
	WaitListed                  // a client listed a run that waits for a signal
	PublishedOnDemand           // a run of a volatile actor published its events for a subscriber
	CutRefused                  // a log could not be cut yet
	DeletionRefused             // a session could not be deleted
	NothingPublished            // a run of a volatile actor had no subscriber, and published nothing
	TranscriptReplayed          // a replayed turn was given earlier messages
	PageRead                    // a turn read a closed page of its transcript
	MessageAppended             // a message was appended to a transcript
	BusyRejected                // a message was refused because a run is open
	RunInterrupted              // a message cancelled an open run
	SessionFollowed             // a client followed a session over the channel protocol
	RunParked                   // a run was parked

	Passivated      // an idle actor left memory
	ActorLost       // an actor left memory because another node owns its shard
	CallResent      // a call without an answer was sent again
	EffectRetried   // a later incarnation repeated the tool, model or agent request of an ask
	UpstreamRetried // a request to an upstream service was retried
	PiecesRetracted // pieces of an answer that had been shown were retracted
	LateDropped     // a message arrived after its receiver had stopped waiting
	LateOutcome     // the outcome of an effect arrived after its receiver had stopped waiting
	LatePiece       // a piece of an outcome arrived after its receiver had stopped waiting
	OldEpochDropped // a message from or for another epoch was dropped
	FullDropped     // a message was dropped because the mailbox was full

	points = int(FullDropped) + 1
)

var pointNames = [points]string{
	NodeRestarted:         "node restarted",
	CellRestarted:         "cell restarted",
	LeaseLapsed:           "lease lapsed",
	LeaseRenewedLate:      "lease renewed late",
	LeaseLost:             "lease lost",
	Fenced:                "batch fenced",
	Adopted:               "shards adopted",
	Moved:                 "shards moved",
	FromSnapshot:          "restart from snapshot and entries",
	TurnRestored:          "turn restored",
	HeldReply:             "reply held",
	StreamRead:            "stream read",
	OutcomeReread:         "outcome read again",
	RepeatAnswered:        "repeat answered",
	RegistryAnnounced:     "registry announced",
	AgentPut:              "agent put",
	AgentDeleted:          "agent deleted",
	APIKeyCreated:         "API key created",
	APIKeyRevoked:         "API key revoked",
	RegistryOpRefused:     "registry operation refused",
	AgentQuotaRefused:     "agent quota refused",
	APIKeyAccepted:        "API key accepted",
	APIKeyRejected:        "API key rejected",
	RunPolled:             "run polled",
	PausedRunPolled:       "paused run polled",
	SpecFileRejected:      "agent file rejected",
	RegisteredAgentServed: "registered agent served",
	RankLost:              "rank lost",
	InputStarved:          "input starved",
	CallLoopReported:      "call loop reported",
	MutationRejected:      "mutation rejected",
	CorruptionFound:       "corruption found",
	CorruptRowRead:        "corrupted row read",
	SummaryAudited:        "summary compared",
	PublishedOnDemand:     "published on demand",
	WaitListed:            "wait listed",
	CutRefused:            "cut refused",
	DeletionRefused:       "deletion refused",
	NothingPublished:      "nothing published",
	TranscriptReplayed:    "transcript replayed",
	PageRead:              "page of a transcript read",
	MessageAppended:       "message appended",
	BusyRejected:          "message rejected, actor busy",
	RunInterrupted:        "run interrupted",
	SessionFollowed:       "session followed",
	RunParked:             "run parked",
	Passivated:            "actor passivated",
	ActorLost:             "actor lost",
	CallResent:            "call sent again",
	EffectRetried:         "effect retried",
	UpstreamRetried:       "upstream request retried",
	PiecesRetracted:       "pieces retracted",
	LateDropped:           "late message dropped",
	LateOutcome:           "late outcome dropped",
	LatePiece:             "late piece dropped",
	OldEpochDropped:       "old epoch dropped",
	FullDropped:           "dropped, mailbox full",
}

// String returns the printed name of the point.
func (p Point) String() string { return pointNames[p] }

// Stats counts what happened in a run.
type Stats struct {
	Steps           int
	Calls           int // calls whose turn started
	Replies         int // replies delivered to clients
	Depth           int // maximum depth of the accepted calls
	Nodes           int
	JudgedOps       int             // operations in the externally visible histories
	JudgedHistories int             // number of these histories
	Undecided       int             // number of history kinds whose check timed out
	Events          [32]int         // by history.Kind
	Refusals        [32][scopes]int // by actor.Reason and actor.Scope
	Published       [32]int         // run events, by runs.Type
	Faults          [faultKinds]int
	Points          [points]int
	Failpoints      [16]int // by failpoint.Point
	Premises        specs.Premises
	Audit           AuditPremises

	Workload    actor.Duration // simulated time before the recovery phase
	Recovery    actor.Duration // simulated time of the recovery phase
	IdleMinutes int            // minutes of the workload without a client request
	TenthSteps  [tenths]int    // steps in each tenth of the workload of a long run
}

// scopes is the number of scopes, including NoScope.
const scopes = int(actor.ScopeNode) + 1

// TotalFaults returns the number of faults of all kinds.
func (s *Stats) TotalFaults() int {
	n := 0
	for _, v := range s.Faults {
		n += v
	}
	return n
}

// Add adds the counts of another run. Depth and Nodes are not sums and stay
// unchanged.
func (s *Stats) Add(o *Stats) {
	s.Steps += o.Steps
	s.Calls += o.Calls
	s.Replies += o.Replies
	s.JudgedOps += o.JudgedOps
	s.JudgedHistories += o.JudgedHistories
	s.Undecided += o.Undecided
	s.Workload += o.Workload
	s.Recovery += o.Recovery
	s.IdleMinutes += o.IdleMinutes
	s.Premises.Add(&o.Premises)
	specs.AddPremises(&s.Audit, &o.Audit)
	for i, v := range o.TenthSteps {
		s.TenthSteps[i] += v
	}
	for i, v := range o.Events {
		s.Events[i] += v
	}
	for i, v := range o.Published {
		s.Published[i] += v
	}
	for i := range o.Refusals {
		for j, v := range o.Refusals[i] {
			s.Refusals[i][j] += v
		}
	}
	for i, v := range o.Faults {
		s.Faults[i] += v
	}
	for i, v := range o.Failpoints {
		s.Failpoints[i] += v
	}
	for i, v := range o.Points {
		s.Points[i] += v
	}
}

// countStep counts actors restored from a snapshot and entries, and restored turns
// that send a call again.
func (s *Stats) countStep(c *cell, in runtime.Input, events []history.Event) {
	if _, ok := in.(runtime.Recalled); ok {
		s.Points[OutcomeReread]++
	}
	if _, ok := in.(runtime.PageLoaded); ok {
		s.Points[PageRead]++
	}
	l, ok := in.(runtime.Loaded)
	if !ok || !c.restarted {
		return
	}
	if l.Saved.Snapshot != nil && len(l.Saved.Entries) > 0 {
		s.Points[FromSnapshot]++
	}
	for i := range events {
		if e := &events[i]; e.Kind == history.Send && e.What == "request" && e.Attempt > 1 {
			s.Points[TurnRestored]++
			return
		}
	}
}

func (s *Stats) countEvent(e *history.Event) {
	s.Events[e.Kind]++
	switch e.Kind {
	case history.Start:
		s.Calls++
	case history.Admit:
		s.Depth = max(s.Depth, len(e.Chain))
	case history.Refuse, history.Reply:
		if e.Reason != 0 {
			s.Refusals[e.Reason][e.Scope]++
		}
	case history.Answer:
		if e.Reason == actor.Unknown {
			s.Refusals[e.Reason][e.Scope]++
		}
	}
	if p, ok := pointOf(e); ok {
		s.Points[p]++
	}
}

// pointOf returns the point that a single event shows, if any.
func pointOf(e *history.Event) (Point, bool) {
	switch e.Kind {
	case history.Deactivate:
		if e.Why == "idle" {
			return Passivated, true
		}
		return ActorLost, true
	case history.Send:
		return CallResent, e.What == "request" && e.Attempt > 1
	case history.Reply:
		return RunInterrupted, e.Reason == actor.Stopped && strings.HasPrefix(e.Detail, "interrupted by the message")
	case history.Drop:
		switch {
		case e.What == "outcome":
			return LateOutcome, true
		case e.What == "piece":
			return LatePiece, true
		case e.Why == "late":
			return LateDropped, true
		case e.Why == "epoch":
			return OldEpochDropped, true
		case e.Why == "full":
			return FullDropped, true
		}
	case history.Perform:
		switch e.What {
		case "try":
			return UpstreamRetried, e.N > 1
		case "take back":
			return PiecesRetracted, true
		case "tool", "work", "model", "invoke":
			return EffectRetried, e.Attempt > 1
		}
	}
	return 0, false
}
