// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
)

// Bounds of results. A query for more is refused as Invalid.
const (
	RunsMax   = 200  // runs of a list
	EventsMax = 1000 // events of a page
	ActorsMax = 100  // actors of an agent
)

// Query is one of the queries below.
type Query interface{ query() }

// Result is the result of a query or an action.
type Result interface{ result() }

// QueryFor is a query whose result has type R.
type QueryFor[R Result] interface {
	Query
	returns(R)
}

// Find looks up the result of a query.
func Find[R Result](ctx context.Context, n Node, by actor.Principal, q QueryFor[R]) (R, error) {
	found, err := n.Lookup(ctx, Lookup{by, q})
	return resultOf[R](q, found, err)
}

// The queries. A query that names a run which does not exist is refused as
// NotFound.
type (
	// AgentsQuery asks for the current agents, including system agents.
	AgentsQuery struct{}
	// OwnerQuery asks for the owner of a run.
	OwnerQuery struct {
		Run       actor.CallID
		EveryUser bool // in whichever namespace it is, which needs ingress.ScopeOperator
	}
	// OpenRunQuery asks for the owner of an open run, in the namespace of any user.
	OpenRunQuery struct{ Run actor.CallID }
	// WorkingQuery asks for the runs on which external agents work, in the namespaces of all users:
	// for none, one or WorkingMax of them.
	WorkingQuery struct{ Agents []string }
	// RunQuery asks for the state of a run.
	RunQuery struct{ Run actor.CallID }
	// RunsQuery asks for a page of the runs that a filter selects, newest first:
	// those older than Before.
	RunsQuery struct {
		Filter runs.Filter
		Before actor.CallID // zero: from the newest run
		Limit  int
	}
	// EveryRunQuery is RunsQuery for the runs of all namespaces, newest first. If there are very many namespaces, those
	// of one follow those of another, in the order of the namespaces' names. It needs ingress.ScopeOperator.
	EveryRunQuery struct {
		Filter runs.Filter
		From   string       // with very many namespaces: that at which the page begins; "": the first one
		Before actor.CallID // zero: from the newest run of that namespace
		Limit  int
	}
	// WaitingQuery asks for the signal that a run waits for.
	WaitingQuery struct{ Run actor.CallID }
	// EventsQuery asks for the events of a run that follow the event numbered
	// After. A strict query refuses a run or a number After that does not
	// exist; only its result shows whether the run has ended. Any other query
	// returns no events then, and MUST follow a query for the owner, which checks
	// that the principal may see the run.
	EventsQuery struct {
		Run    actor.CallID
		After  uint64 // 0: from the first event
		Limit  int
		Strict bool
	}
	// ActorsQuery asks for actors of an agent that are in memory.
	ActorsQuery struct {
		Agent string
		Limit int
	}
	// HealthQuery asks whether the node takes new work.
	HealthQuery struct{}
	// StatsQuery asks for the statistics of the node.
	StatsQuery struct{}
)

func (AgentsQuery) query()   {}
func (OwnerQuery) query()    {}
func (OpenRunQuery) query()  {}
func (WorkingQuery) query()  {}
func (RunQuery) query()      {}
func (RunsQuery) query()     {}
func (EveryRunQuery) query() {}
func (WaitingQuery) query()  {}
func (EventsQuery) query()   {}
func (ActorsQuery) query()   {}
func (HealthQuery) query()   {}
func (StatsQuery) query()    {}

func (AgentsQuery) returns(Agents)     {}
func (OwnerQuery) returns(Owner)       {}
func (OpenRunQuery) returns(Owner)     {}
func (WorkingQuery) returns(Working)   {}
func (RunQuery) returns(Run)           {}
func (RunsQuery) returns(Runs)         {}
func (EveryRunQuery) returns(EveryRun) {}
func (WaitingQuery) returns(Waiting)   {}
func (EventsQuery) returns(Events)     {}
func (ActorsQuery) returns(Actors)     {}
func (HealthQuery) returns(Health)     {}
func (StatsQuery) returns(Stats)       {}

func (Agents) result()   {}
func (Owner) result()    {}
func (Working) result()  {}
func (Run) result()      {}
func (Runs) result()     {}
func (EveryRun) result() {}
func (Waiting) result()  {}
func (Events) result()   {}
func (Actors) result()   {}
func (Health) result()   {}
func (Stats) result()    {}

// Agents lists the agents of a node. It is shared and MUST NOT be changed.
type Agents struct{ All []Agent }

// Agent is an agent without its behavior.
type Agent struct {
	Name       string
	Hash       actor.Hash // of the definition
	Doc        string
	Kind       actor.AgentKind
	Spec       []byte // source spec as JSON; nil for a native agent
	System     bool   // part of Troupe itself; clients must not call it
	Durability actor.Durability
	OneSession bool     // see actor.Definition
	Owner      string   // likewise
	Former     []string // FormerOwners
	Declares   []byte   // code and capabilities of a native agent, as JSON; nil: none
}

// Owner is the actor that accepted a run, and the root of the run's tree.
type Owner struct {
	Run   actor.CallID
	Root  actor.CallID
	Actor actor.ID
}

// WorkingMax is the maximum number of runs in Working: the least that shows that a run is not the only one.
const WorkingMax = 2

// Working lists runs on which external agents work.
type Working struct{ All []Owner }

// Run is the state of a run, computed from its events.
type Run struct {
	Owner  Owner
	Record runs.Record // Seq is 0 for an accepted run without events
}

// Current returns the record of the run. A run without events is running. The events of a call that has not begun, or that
// ended before, name neither its actor nor its root.
func (r *Run) Current() runs.Record {
	if r.Record.Seq > 0 {
		now := r.Record
		if now.Actor == (actor.ID{}) {
			now.Actor = r.Owner.Actor
		}
		if now.Root.IsZero() {
			now.Root = r.Owner.Root
		}
		return now
	}
	return runs.Record{Run: r.Owner.Run, Root: r.Owner.Root, Actor: r.Owner.Actor, Status: runs.Running, Attempt: 1}
}

// Shorten shortens the text of a listed run.
func (r *Run) Shorten() {
	s := r.Record.Summary()
	r.Record.Text, r.Record.Truncated = s.Text, s.Truncated
}

// Runs is a page of a list of runs.
type Runs struct{ Page runs.Page }

// EveryRun is a page of the list of the runs of all namespaces.
type EveryRun struct {
	Page runs.Page
	From string // namespace in which the list continues; "" if the page is the last one
}

// Waiting describes the signal that a run, or the descendant that holds it,
// waits for.
type Waiting struct {
	Status runs.Status  // of the run that the query names
	Found  bool         // a run waits for a signal
	Run    actor.CallID // run that waits
	Name   string       // name of the signal
	Until  actor.Time
}

// Events is a page of the events of a run.
type Events struct {
	Run   actor.CallID
	After uint64 // number of the last event of the page, or of the query if the page is empty
	All   []Event
	Ended bool // the last event ends the run
}

// Event is an event as it was recorded.
type Event struct {
	Seq  uint64 // from 1
	Body []byte // see runs.Decode
}

// Actors lists actors of one agent.
type Actors struct{ All []history.Actor }

// Health is the readiness of a node.
type Health struct {
	Reason string // why the node takes no new work; empty if it does
	// Database says what a failover of the database keeps; empty: the store is in a folder.
	Database string
}

// Values of Health.Database.
const (
	DatabaseSynchronous  = "synchronous"  // all that was acknowledged: commits wait for a standby
	DatabaseAsynchronous = "asynchronous" // perhaps not the last of it
)
