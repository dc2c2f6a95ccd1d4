// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// View reads the runs of one tenant from a store, whether or not a node is serving it. While one
// is, what a View reads MUST NOT be shown before it is durable: use Commands.
type View struct {
	Log    store.Reader
	Tenant string
}

// Owner returns the owner of a run, or a NotFound refusal.
func (v View) Owner(run actor.CallID) (command.Owner, error) {
	owner, ok, err := v.Log.Run(v.Tenant, run)
	if err == nil && !ok {
		err = actor.Refuse(actor.NotFound, "run %s not found; GET /v1/runs lists the newest runs", run)
	}
	return command.Owner(owner), err
}

// Run returns the state of a run, computed from its events.
func (v View) Run(run actor.CallID) (command.Run, error) {
	owner, err := v.Owner(run)
	if err != nil {
		return command.Run{}, err
	}
	record, err := store.FoldRun(v.Log, v.Tenant, run)
	return command.Run{Owner: owner, Record: record}, err
}

// Runs returns a page of runs.
func (v View) Runs(q command.RunsQuery) (command.Runs, error) {
	if err := checkLimit(q.Limit, command.RunsMax); err != nil {
		return command.Runs{}, err
	}
	page, err := v.Log.Runs(v.Tenant, q.Filter, q.Before, q.Limit)
	return command.Runs{Page: page}, err
}

// Events returns a page of events.
func (v View) Events(q command.EventsQuery) (command.Events, error) {
	out := command.Events{Run: q.Run, After: q.After}
	if err := checkLimit(q.Limit, command.EventsMax); err != nil {
		return out, err
	}
	if q.Strict {
		if _, err := v.Owner(q.Run); err != nil {
			return out, err
		}
	}
	page, err := v.Log.Events(v.Tenant, q.Run, q.After, q.Limit)
	if err != nil {
		return out, err
	}
	last := store.RunEvent{Run: q.Run, Seq: q.After}
	for _, raw := range page {
		out.All = append(out.All, command.Event{Seq: raw.Seq, Body: raw.Body})
		last = raw
	}
	out.After = last.Seq
	if !q.Strict || last.Seq == 0 {
		return out, nil
	}
	if len(page) == 0 {
		last, err = v.event(q.Run, q.After)
		if errors.As(err, new(store.EventsDropped)) {
			out.Ended, err = v.hasEnded(q.Run)
			return out, err
		}
		if err != nil {
			return out, err
		}
	}
	e, err := runs.Decode(last.Body)
	if err != nil {
		return out, fmt.Errorf("run %s: event %d: %w", q.Run, last.Seq, err)
	}
	out.Ended = e.Type.Ends()
	return out, nil
}

// event returns one event of a run. It refuses the number of an event that does
// not exist.
func (v View) event(run actor.CallID, seq uint64) (store.RunEvent, error) {
	found, err := v.Log.Events(v.Tenant, run, seq-1, 1)
	if err == nil && len(found) == 0 {
		r := actor.Refuse(actor.Invalid, "run %s has no event %d yet: send the number of the last event read, or 0 to start at the first event", run, seq)
		r.Field = "after"
		err = r
	}
	if err != nil {
		return store.RunEvent{}, err
	}
	return found[0], nil
}

// hasEnded reports whether a run whose events were dropped has ended, by its summary.
func (v View) hasEnded(run actor.CallID) (bool, error) {
	next := run // the next ID, at which the list begins
	for i := len(next) - 1; i >= 0; i-- {
		if next[i]++; next[i] != 0 {
			break
		}
	}
	page, err := v.Log.Runs(v.Tenant, runs.Filter{Since: run.Time(), Calls: true, System: true}, next, 1)
	return len(page.All) == 1 && page.All[0].Run == run && page.All[0].Ended != 0, err
}

// Waiting returns the signal that a run waits for, or that the descendant which
// holds it waits for.
func (v View) Waiting(run actor.CallID) (command.Waiting, error) {
	r, err := v.Run(run)
	if err != nil {
		return command.Waiting{}, err
	}
	out := command.Waiting{Status: r.Record.Status}
	for range actor.ChainMax {
		if len(r.Record.Waits) > 0 {
			out.Found, out.Run, out.Name, out.Until = true, run, r.Record.Waits[0].Name, r.Record.Waits[0].Until
			return out, nil
		}
		below := actor.CallID{}
		for _, p := range r.Record.Pauses {
			if !p.Child.IsZero() {
				below = p.Child
			}
		}
		if below.IsZero() {
			return out, nil
		}
		run = below
		r, err = v.Run(run)
		var unknown *actor.Refusal
		if errors.As(err, &unknown) { // the child is not durable yet
			return out, nil
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

func checkLimit(limit, most int) error {
	if limit < 0 || limit > most {
		return actor.Refuse(actor.Invalid, "limit: %d: want at most %d", limit, most)
	}
	return nil
}
