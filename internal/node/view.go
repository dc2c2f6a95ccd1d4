// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// View reads the runs of one tenant from a store, whether or not a node is serving it. While one
// is, what a View reads MUST NOT be shown before it is durable: use Commands.
type View struct {
	Log    store.Reader
	Tenant string
	// Registry shows the runs of the registry too. Their records are those of API keys, so
	// they are an administrator's.
	Registry bool
}

// shows reports whether the runs of an actor are shown.
func (v View) shows(id actor.ID) bool { return v.Registry || id != agents.RegistryID }

// Owner returns the owner of a run, or a NotFound refusal.
func (v View) Owner(run actor.CallID) (command.Owner, error) {
	owner, ok, err := v.Log.Run(v.Tenant, run)
	if err == nil && !(ok && v.shows(owner.Actor)) {
		owner, err = store.RunOwner{}, actor.RunNotFound(run)
	}
	return command.Owner(owner), err
}

// anyOwner is Owner for a run in whichever tenant it is.
func (v View) anyOwner(run actor.CallID) (command.Owner, error) {
	owner, ok, err := v.ownerElsewhere(run)
	if err == nil && !(ok && v.shows(owner.Actor)) {
		owner, err = store.RunOwner{}, actor.RunNotFound(run)
	}
	return command.Owner(owner), err
}

// OpenRun returns the owner of an open run, in whichever tenant it is, or a NotFound
// refusal. It looks in the view's tenant first. Agents ask it often, so it reads no journal:
// that of a long run would cost them all.
func (v View) OpenRun(run actor.CallID) (command.Owner, error) {
	owner, ok, err := v.Log.Run(v.Tenant, run)
	if err == nil && !ok {
		owner, ok, err = v.ownerElsewhere(run)
	}
	if err != nil {
		return command.Owner{}, err
	}
	ended := false
	if ok {
		ended, err = v.Log.Ended(owner.Actor.Tenant, run)
	}
	if err == nil && (!ok || ended) {
		err = actor.RefuseNotFound(actor.WhatOpenRun, "no open run %s", run)
	}
	return command.Owner(owner), err
}

// ownerElsewhere returns the owner of a run in any tenant.
func (v View) ownerElsewhere(run actor.CallID) (owner store.RunOwner, ok bool, err error) {
	tenants, err := v.Log.Tenants()
	for _, tenant := range tenants {
		if owner, ok, err = v.Log.Run(tenant, run); ok || err != nil {
			break
		}
	}
	return owner, ok, err
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
	page.All = slices.DeleteFunc(page.All, func(s runs.Summary) bool { return !v.shows(s.Actor) })
	return command.Runs{Page: page}, err
}

const (
	// namespacesMerged is the maximum number of namespaces whose runs EveryRun merges by their age.
	namespacesMerged = 256
	// namespacesPerPage is the maximum number of namespaces that one page of EveryRun reads if
	// there are more of them.
	namespacesPerPage = 64
)

// EveryRun returns a page of the runs of all namespaces, newest first. If there are more than
// namespacesMerged, those of one namespace follow those of another.
func (v View) EveryRun(q command.EveryRunQuery) (out command.EveryRun, err error) {
	if err := checkLimit(q.Limit, command.RunsMax); err != nil {
		return out, err
	}
	all, err := v.Log.Tenants()
	if err != nil {
		return out, err
	}
	if q.From == "" && len(all) <= namespacesMerged {
		out.Page, err = v.newestRuns(all, q)
		return out, err
	}
	at, found := slices.BinarySearch(all, q.From)
	before := q.Before
	if !found { // the namespace has gone since the page before
		before = actor.CallID{}
	}
	for i, tenant := range all[at:] {
		if len(out.Page.All) == q.Limit || i == namespacesPerPage {
			out.From = tenant
			return out, nil
		}
		v.Tenant = tenant
		page, err := v.Runs(command.RunsQuery{Filter: q.Filter, Before: before, Limit: q.Limit - len(out.Page.All)})
		if err != nil {
			return out, err
		}
		out.Page.All, before = append(out.Page.All, page.Page.All...), actor.CallID{}
		if !page.Page.Next.IsZero() {
			out.Page.Next, out.From = page.Page.Next, tenant
			return out, nil
		}
	}
	return out, nil
}

// newestRuns merges the runs of namespaces. What a namespace has behind the end of its page is unknown,
// so the merged page ends there too.
func (v View) newestRuns(namespaces []string, q command.EveryRunQuery) (out runs.Page, err error) {
	for _, v.Tenant = range namespaces {
		found, err := v.Runs(command.RunsQuery{Filter: q.Filter, Before: q.Before, Limit: q.Limit})
		if err != nil {
			return out, err
		}
		out.All = append(out.All, found.Page.All...)
		if next := found.Page.Next; next.Compare(out.Next) > 0 {
			out.Next = next
		}
	}
	slices.SortFunc(out.All, func(a, b runs.Summary) int { return b.Run.Compare(a.Run) })
	if !out.Next.IsZero() {
		out.All = slices.DeleteFunc(out.All, func(s runs.Summary) bool { return s.Run.Compare(out.Next) < 0 })
	}
	if len(out.All) > q.Limit {
		out.All = out.All[:q.Limit]
		out.Next = out.All[q.Limit-1].Run
	}
	return out, nil
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
			out.Ended, err = v.Log.Ended(v.Tenant, q.Run)
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
