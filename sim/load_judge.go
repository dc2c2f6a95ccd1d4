// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// loadJudge checks that a cell loads what was written: the loaded entries are those that
// the store has committed, and the loaded journal is their fold. It keeps the entries
// themselves, so that neither the codec nor snapshots nor rows can change them.
type loadJudge struct {
	w       *Simulation
	entries map[actor.ID][]store.Entry
	rows    map[string][]actor.ID // actors with entries in a row of a log, by its key
}

func newLoadJudge(w *Simulation) loadJudge {
	return loadJudge{w, map[actor.ID][]store.Entry{}, map[string][]actor.ID{}}
}

// commit records the entries of a batch that the store has taken.
func (j *loadJudge) commit(b *store.Batch) {
	if !j.w.auditEnabled() {
		return
	}
	for _, e := range b.Entries {
		if _, ok := e.Record.(store.Snapshot); !ok {
			j.entries[e.Actor] = append(j.entries[e.Actor], e)
		}
	}
	for _, row := range b.Rows {
		if rowKind(row.Key) == "l" {
			j.rows[string(row.Key)] = actorsOfRow(row.Key, b)
		}
	}
}

// accepted returns the actors of all runs that the store has.
func (j *loadJudge) accepted() map[actor.CallID]actor.ID {
	all := map[actor.CallID]actor.ID{}
	for _, entries := range j.entries {
		for i := range entries {
			if a, ok := entries[i].Record.(store.Accepted); ok {
				all[a.Call.ID] = entries[i].Actor
			}
		}
	}
	return all
}

// loaded checks an actor as a cell loads it.
func (j *loadJudge) loaded(in runtime.Loaded) {
	if !j.w.auditEnabled() {
		return
	}
	written := j.entries[in.Actor]
	if len(written) > 0 {
		j.w.Stats.Audit.LoadsAsWritten++
	}
	for i := range in.Saved.Entries {
		got := &in.Saved.Entries[i]
		if got.N == 0 || got.N > uint64(len(written)) {
			j.fail(in.Actor, "has entry %d of %d", got.N, len(written))
			return
		}
		if want := &written[got.N-1]; entryText(got) != entryText(want) {
			j.fail(in.Actor, "has entry %d\n  %.600s, want\n  %.600s", got.N, entryText(got), entryText(want))
		}
	}
	journal, err := store.Fold(in.Saved)
	want := store.Journal{}
	for i := 0; i < len(written) && err == nil; i++ {
		err = want.ApplyEntry(written[i])
	}
	if err != nil || journal.N != want.N {
		j.fail(in.Actor, "has %d entries, want %d: %v", journal.N, want.N, err)
	} else if got, want := journalText(&journal), journalText(&want); got != want {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		at = max(0, at-40)
		j.fail(in.Actor, "has a journal with %.200s, want %.200s", got[at:], want[at:])
	}
}

func (j *loadJudge) fail(id actor.ID, format string, args ...any) {
	j.w.fail(LoadsAsWritten, fmt.Sprintf("%s as loaded ", id)+fmt.Sprintf(format, args...))
}

// entryText returns an entry without the fields that are not stored.
func entryText(e *store.Entry) string {
	o := e.WithoutBodies()
	o.Summary, o.First = nil, false // a journal does not need them
	switch r := o.Record.(type) {
	case store.Asking:
		r.Asks = storedAsks(r.Asks)
		o.Record = r
	case store.Added:
		r.Ask = storedAsks([]store.Asked{r.Ask})[0]
		o.Record = r
	}
	return fmt.Sprintf("%T %s", o.Record, textOfValue(o))
}

func storedAsks(asks []store.Asked) []store.Asked {
	asks = slices.Clone(asks)
	for i := range asks {
		a := &asks[i]
		a.Ask.Work, a.Ask.Body = nil, nil
		if a.Sent != nil {
			sent := *a.Sent
			sent.Work, sent.Body = nil, nil
			a.Sent = &sent
		}
	}
	return asks
}

// journalText returns what a journal holds: its open runs, its state, its tombstones and
// the outcomes that it remembers, complete or as references.
func journalText(j *store.Journal) string {
	type outcome struct {
		Call  actor.CallID
		Until actor.Time
	}
	var outcomes []outcome
	for i := range j.Evicted {
		outcomes = append(outcomes, outcome{j.Evicted[i].Call, j.Evicted[i].Until})
	}
	for i := range j.Ended {
		outcomes = append(outcomes, outcome{j.Ended[i].Call, j.Ended[i].Until})
	}
	slices.SortFunc(outcomes, func(a, b outcome) int { return cmp.Or(a.Call.Compare(b.Call), cmp.Compare(a.Until, b.Until)) })
	all := make([]store.Run, 0, len(j.Runs))
	for _, r := range j.Runs {
		run := *r
		run.Steps = slices.Clone(run.Steps)
		for i := range run.Steps {
			run.Steps[i].Asks = storedAsks(run.Steps[i].Asks)
		}
		all = append(all, run)
	}
	return textOfValue(all) + textOfValue(j.ActorState) + textOfValue(j.Buried) + textOfValue(outcomes)
}

// asText lets values be encoded that have no representation in JSON.
var asText = json.WithMarshalers(json.JoinMarshalers(
	json.MarshalFunc(func(actor.Work) ([]byte, error) { return []byte("null"), nil }),
	json.MarshalFunc(func(d actor.Duration) ([]byte, error) { return strconv.AppendInt(nil, int64(d), 10), nil }),
))

func textOfValue(v any) string {
	text, err := json.Marshal(v, asText)
	if err != nil {
		panic(err)
	}
	return string(text)
}
