// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"github.com/troupe-run/troupe/actor"
)

// Filter selects the runs of a list. An unset text, time or ID selects all runs.
type Filter struct {
	Agent   string
	Session string
	Status  Status
	Queued  bool         // only runs that have not begun
	Since   actor.Time   // earliest creation of the run's ID, which has milliseconds
	Until   actor.Time   // the creation is before this time
	Root    actor.CallID // also selects the root itself
	Parent  actor.CallID
	// Workflow is the correlation ID of requests for capabilities: see Summary.Workflow.
	Workflow string

	Calls  bool // also runs that other runs called
	System bool // also runs of actor.SystemAgent
}

// Page is a part of a list of runs, newest first. If Next is not zero, the list
// continues with runs older than Next. A page may have fewer runs than its limit, or
// none, although the list continues.
type Page struct {
	All  []Summary
	Next actor.CallID
}

// Range returns the IDs between which all selected runs are: from <= ID < to. A zero
// to is no bound.
func (f *Filter) Range() (from, to actor.CallID) {
	if f.Since > 0 {
		from = actor.FirstCallID(f.Since)
	}
	if f.Until > 0 {
		to = actor.FirstCallID(f.Until)
	}
	return from, to
}

// Selects reports whether the filter selects a run within its Range.
func (f *Filter) Selects(s *Summary) bool {
	switch {
	case f.Agent != "" && s.Actor.Agent != f.Agent,
		f.Session != "" && s.Actor.Key != f.Session,
		f.Status != 0 && s.Status != f.Status,
		f.Queued && s.Started != 0,
		!f.Root.IsZero() && s.Root != f.Root,
		!f.Parent.IsZero() && s.Parent != f.Parent,
		f.Workflow != "" && s.Workflow != f.Workflow,
		!f.Calls && s.Run != s.Root,
		!f.System && actor.IsSystemAgent(s.Actor.Agent):
		return false
	}
	return true
}
