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

// Bounds of a response.
const (
	RunsMax       = 200
	RunsDefault   = 20
	EventsMax     = 1000
	EventsDefault = 200
)

// View renders runs as JSON from a store, whether or not a node is serving it.
type View struct{ KV store.KV }

// Record returns the state of a run, computed from its events.
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

// Owner returns the owner of a run, or a NotFound refusal.
func (v View) Owner(run actor.CallID) (store.RunOwner, error) {
	owner, ok, err := store.ActorOf(v.KV, actor.DefaultTenant, run)
	if err == nil && !ok {
		err = actor.Refuse(actor.NotFound, "run %s not found; GET /v1/runs lists the newest runs", run)
	}
	return owner, err
}

// listedTextMax is the maximum length in bytes of a run's answer in a list.
const listedTextMax = 4 << 10

// Run returns the body of GET /v1/runs/{id}.
func (v View) Run(run actor.CallID) ([]byte, error) {
	r, err := v.load(run)
	if err != nil {
		return nil, err
	}
	return r.AppendJSON(nil), nil
}

// listedRun returns a run as it appears in a list: a long answer is truncated.
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
	if r.Seq == 0 { // an accepted child without events
		owner, err := v.Owner(run)
		if err != nil {
			return r, err
		}
		r = runs.Record{Run: run, Root: owner.Root, Actor: owner.Actor, Status: runs.Running, Attempt: 1}
	}
	return r, nil
}

// Runs returns the body of GET /v1/runs: root runs, newest first.
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

// isLastEvent reports whether an event is the last one of its run. It refuses the
// number of an event that does not exist.
func (v View) isLastEvent(run actor.CallID, seq uint64) (bool, error) {
	last, err := store.Events(v.KV, actor.DefaultTenant, run, seq-1, 1)
	if err != nil {
		return false, err
	}
	if len(last) == 0 {
		r := actor.Refuse(actor.Invalid, "run %s has no event %d yet: send the number of the last event read, or 0 to start at the first event", run, seq)
		r.Field = "after"
		return false, r
	}
	e, err := runs.Decode(last[0].Body)
	if err != nil {
		return false, fmt.Errorf("run %s: event %d: %w", run, seq, err)
	}
	return e.Type.Ends(), nil
}

// Events returns the body of GET /v1/runs/{id}/events. It sets wait if the page
// is empty and the run has not ended, so that a client may wait for more.
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

// Waiting returns the run that waits for a signal: the run itself, or the
// descendant that holds it.
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
