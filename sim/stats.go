// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
)

// Point is something that a world must come by sometimes, or it shows nothing.
type Point uint8

// The points.
const (
	NodeRestarted         Point = iota
	CellRestarted               // after a panic
	LeaseLost                   // a node stopped by its own clock
	Fenced                      // a batch was refused: another owns the shards
	Adopted                     // shards of a dead or silent node got another owner
	Moved                       // shards were handed over
	FromSnapshot                // an actor came back from a snapshot and the entries behind it
	TurnRestored                // with a turn under way
	HeldReply                   // a client was told to come back for the answer
	StreamRead                  // a client read the stream of a run to its end
	OutcomeReread               // what a call came to had been put away, and was read again for a repeat
	RepeatAnswered              // a repeat under one key was answered from the first's outcome
	RegistryAnnounced           // the registry let all nodes know of a change
	AgentPut                    // and said so to who asked: an agent is new, or another than before
	AgentDeleted                // or is no more
	APIKeyCreated               // there is an API key more
	APIKeyRevoked               // or less
	RegistryOpRefused           // it did not take what it was asked
	APIKeyAccepted              // somebody came with a key that is good
	APIKeyRejected              // or with one that is revoked, expired, or nobody's
	RunPolled                   // somebody looked at a run, and at those below it
	PausedRunPolled             // while it stood still
	SpecFileRejected            // a file of an agent was wrong, and it was said how
	RegisteredAgentServed       // an agent answered that the registry had taken in
	RankLost                    // who would have gone next lost its rank
	InputStarved                // others went first, or it waited though it was the only one
	CallLoopReported            // who wrote the file of an agent was told of calls that could go round
	MutationRejected            // who read what was not written so said that it cannot be read
	CorruptionFound             // and who examined a store of which a row was another

	Passivated      // an actor left memory, idle
	ActorLost       // or because its shard has another owner
	CallResent      // a call that got no answer was sent again
	EffectRetried   // a tool, model or agent was asked again for one ask, by a later incarnation
	UpstreamRetried // whoever stands behind a node was tried once more
	PiecesRetracted // what was shown of an answer was taken back
	LateDropped     // a message came when nobody waited for it
	LateOutcome     // or what came of an effect
	LatePiece       // or a piece of it
	OldEpochDropped // or from, or for, another time
	FullDropped     // or when there was no room

	points = int(FullDropped) + 1
)

var pointNames = [points]string{"node restarted", "cell restarted", "lease lost", "batch fenced", "shards adopted", "shards moved",
	"restart from snapshot and entries", "turn restored", "held client answered", "stream read", "outcome read again", "repeat answered",
	"registry announced", "agent put", "agent deleted", "API key created", "API key revoked", "order refused", "API key taken", "API key refused", "run looked at", "paused run looked at", "slip in a file told", "enlisted agent served",
	"rank lost", "input starved", "loop told", "mangling told", "rot found",
	"actor passivated", "actor lost", "call sent again", "work done again", "tried again", "pieces taken back",
	"late message dropped", "late outcome dropped", "late piece dropped", "old epoch dropped", "no room: dropped"}

// String says what happened.
func (p Point) String() string { return pointNames[p] }

// Stats counts what was seen of a world.
type Stats struct {
	Steps           int
	Calls           int // that had a turn
	Replies         int // that clients got
	Depth           int // of the deepest call that was taken
	Nodes           int
	JudgedOps       int             // operations in histories as they are seen from outside
	JudgedHistories int             // those histories
	Undecided       int             // kinds of them that took too long
	Events          [32]int         // by history.Kind
	Refusals        [32][scopes]int // by actor.Reason and actor.Scope
	Published       [32]int         // run events, by runs.Type
	Faults          [faultKinds]int
	Points          [points]int
	Failpoints      [16]int // by failpoint.Point

	Workload    actor.Duration // simulated, until the last phase
	Recovery    actor.Duration // and of that
	IdleMinutes int            // minutes of the workload without a client's request
	TenthSteps  [tenths]int    // steps in each tenth of a long world's workload
}

// scopes is how many there are, with none for one.
const scopes = int(actor.ScopeNode) + 1

// TotalFaults is how many faults there were.
func (s *Stats) TotalFaults() int {
	n := 0
	for _, v := range s.Faults {
		n += v
	}
	return n
}

// Add counts another world's too; its depth and nodes are not sums.
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

// countStep counts what a cell came back with: an actor from snapshot and entries, a
// turn that asks again.
func (s *Stats) countStep(c *cell, in runtime.Input, events []history.Event) {
	if _, ok := in.(runtime.Recalled); ok {
		s.Points[OutcomeReread]++
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

// pointOf is the point that an event by itself shows.
func pointOf(e *history.Event) (Point, bool) {
	switch e.Kind {
	case history.Deactivate:
		if e.Why == "idle" {
			return Passivated, true
		}
		return ActorLost, true
	case history.Send:
		return CallResent, e.What == "request" && e.Attempt > 1
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
