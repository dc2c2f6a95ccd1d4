// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// Bounds of what is shown at once.
const (
	RunsMax       = 200
	RunsDefault   = 20
	EventsMax     = 1000
	EventsDefault = 200
)

// View shows runs as JSON, from whatever store there is: one that a node serves,
// or one that nobody does.
type View struct{ KV store.KV }

// Record is a run as its events tell it.
func (v View) Record(run actor.CallID) (runs.Record, error) {
	var r runs.Record
	if _, err := v.Owner(run); err != nil {
		return r, err
	}
	for {
		page, err := store.Events(v.KV, actor.DefaultTenant, run, r.Seq, EventsMax)
		if err != nil {
			return r, err
		}
		for _, raw := range page {
			e, err := runs.Decode(raw.Body)
			if err == nil {
				err = r.Apply(&e)
			}
			if err != nil {
				return r, fmt.Errorf("run %s: %w", run, err)
			}
		}
		if len(page) < EventsMax {
			return r, nil
		}
	}
}

// Owner is whose run it is; a Refusal if it is nobody's.
func (v View) Owner(run actor.CallID) (store.RunOwner, error) {
	owner, ok, err := store.ActorOf(v.KV, actor.DefaultTenant, run)
	if err == nil && !ok {
		err = actor.Refuse(actor.NotFound, "there is no run %s; GET /v1/runs lists the newest", run)
	}
	return owner, err
}

// listedTextMax is how much of its answer a run shows in a list.
const listedTextMax = 4 << 10

// Run writes what GET /v1/runs/{id} answers.
func (v View) Run(run actor.CallID) ([]byte, error) {
	r, err := v.load(run)
	if err != nil {
		return nil, err
	}
	return r.AppendJSON(nil), nil
}

// listedRun is a run in a list: of a long answer it has the beginning.
func (v View) listedRun(run actor.CallID) ([]byte, error) {
	r, err := v.load(run)
	if err != nil {
		return nil, err
	}
	if len(r.Text) > listedTextMax {
		at := listedTextMax
		for !utf8.RuneStart(r.Text[at]) {
			at--
		}
		r.Text, r.Truncated = r.Text[:at], true
	}
	return r.AppendJSON(nil), nil
}

func (v View) load(run actor.CallID) (runs.Record, error) {
	r, err := v.Record(run)
	if err != nil {
		return r, err
	}
	if r.Seq == 0 { // a child that was accepted and has no event yet
		owner, err := v.Owner(run)
		if err != nil {
			return r, err
		}
		r = runs.Record{Run: run, Root: owner.Root, Actor: owner.Actor, Status: runs.Running, Attempt: 1}
	}
	return r, nil
}

// Runs writes what GET /v1/runs answers: roots, the newest first.
func (v View) Runs(limit int) ([]byte, error) {
	newest, err := store.Runs(v.KV, actor.DefaultTenant, limit, true)
	if err != nil {
		return nil, err
	}
	b := []byte(`{"runs":[`)
	for i, owner := range newest {
		if i > 0 {
			b = append(b, ',')
		}
		one, err := v.listedRun(owner.Run)
		if err != nil {
			return nil, err
		}
		b = append(b, one...)
	}
	return append(b, "]}"...), nil
}

// isLastEvent tells whether a run's event is its last, for who has read it.
func (v View) isLastEvent(run actor.CallID, seq uint64) (bool, error) {
	last, err := store.Events(v.KV, actor.DefaultTenant, run, seq-1, 1)
	if err != nil {
		return false, err
	}
	if len(last) == 0 {
		r := actor.Refuse(actor.Invalid, "run %s has no event %d yet: want the number of the last event that was read, or 0 to begin with the first", run, seq)
		r.Field = "after"
		return false, r
	}
	e, err := runs.Decode(last[0].Body)
	if err != nil {
		return false, fmt.Errorf("run %s: event %d: %w", run, seq, err)
	}
	return e.Type.Ends(), nil
}

// Events writes what GET /v1/runs/{id}/events answers, and tells whether a client
// should wait for more: there is nothing yet, and the run is not over.
func (v View) Events(run actor.CallID, after uint64, limit int) (body []byte, wait bool, err error) {
	if _, err := v.Owner(run); err != nil {
		return nil, false, err
	}
	page, err := store.Events(v.KV, actor.DefaultTenant, run, after, limit)
	if err != nil {
		return nil, false, err
	}
	ended := false
	if len(page) == 0 && after > 0 {
		if ended, err = v.isLastEvent(run, after); err != nil {
			return nil, false, err
		}
	}
	b := append([]byte(`{"run_id":"`), run.String()...)
	b = append(b, `","events":[`...)
	for i, raw := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, raw.Body...)
		after = raw.Seq
		if i == len(page)-1 {
			e, err := runs.Decode(raw.Body)
			if err != nil {
				return nil, false, fmt.Errorf("run %s: event %d: %w", run, raw.Seq, err)
			}
			ended = e.Type.Ends()
		}
	}
	b = append(b, `],"next_after":`...)
	b = strconv.AppendUint(b, after, 10)
	b = append(b, `,"ended":`...)
	b = strconv.AppendBool(b, ended)
	return append(b, '}'), len(page) == 0 && !ended, nil
}

// Waiting finds the run that waits for a signal: the run itself, or the one
// below it by which it is held.
func (v View) Waiting(run actor.CallID) (waits actor.CallID, name string, until actor.Time, ok bool, err error) {
	for range actor.ChainMax {
		r, err := v.Record(run)
		switch {
		case err != nil:
			return run, "", 0, false, err
		case len(r.Waits) > 0:
			return run, r.Waits[0].Name, r.Waits[0].Until, true, nil
		}
		below := actor.CallID{}
		for _, p := range r.Pauses {
			if !p.Child.IsZero() {
				below = p.Child
			}
		}
		if below.IsZero() {
			break
		}
		run = below
	}
	return run, "", 0, false, nil
}
