// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// longRuns is the log of a session whose runs have very many events.
type longRuns struct {
	store.Reader
	body []byte
	read int // events
}

func (*longRuns) SessionActors(string, string) ([]actor.ID, error) { return nil, nil }

func (*longRuns) Runs(_ string, _ runs.Filter, _ actor.CallID, limit int) (runs.Page, error) {
	return runs.Page{All: make([]runs.Summary, limit)}, nil
}

func (l *longRuns) Events(_ string, _ actor.CallID, after uint64, limit int) (page []store.RunEvent, err error) {
	for i := range uint64(limit) {
		page = append(page, store.RunEvent{Seq: after + i + 1, Body: l.body})
	}
	l.read += limit
	return page, nil
}

// A result that nobody has got is looked for in a bounded number of events.
func TestSearchForOutputIsBounded(t *testing.T) {
	event := runs.Event{Seq: 1, Run: actor.CallID{1}, At: 1, Type: runs.RunResumed}
	log := &longRuns{body: runs.Encode(event)}
	_, err := View{Log: log}.SessionOutput("s-1", "none")
	var r *actor.Refusal
	if !errors.As(err, &r) || r.Field != "output" {
		t.Errorf("got %v, want a refusal of the field output", err)
	}
	if log.read != outputEventsMax {
		t.Errorf("%d events were read, want %d", log.read, outputEventsMax)
	}
}
