// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"reflect"
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
	if !j.enabled() {
		return
	}
	for _, e := range b.Entries {
		_, snapshot := e.Record.(store.Snapshot)
		if r := j.w.retention; r == nil && !snapshot || r != nil && r.judge.commit(b, &e) {
			j.entries[e.Actor] = append(j.entries[e.Actor], e)
		}
	}
	for _, row := range b.Rows {
		if rowKind(row.Key) == "l" {
			j.rows[string(row.Key)] = actorsOfRow(row.Key, b)
		}
	}
}

// enabled reports whether entries are kept.
func (j *loadJudge) enabled() bool { return j.w.auditEnabled() || j.w.retention != nil }

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
	if !j.enabled() {
		return
	}
	if len(j.entries[in.Actor]) > 0 {
		j.w.Stats.Audit.LoadsAsWritten++
	}
	j.compare(LoadsAsWritten, in.Actor, &in.Saved)
}

// compare compares a loaded actor with its entries. It returns the journals of both.
func (j *loadJudge) compare(spec string, id actor.ID, saved *store.Saved) (got, want store.Journal) {
	fail := func(format string, args ...any) {
		j.w.fail(spec, fmt.Sprintf("%s as loaded ", id)+fmt.Sprintf(format, args...))
	}
	written := j.entries[id]
	for i := range saved.Entries {
		e := &saved.Entries[i]
		if e.N == 0 || e.N > uint64(len(written)) {
			fail("has entry %d of %d", e.N, len(written))
			return got, want
		}
		if got, want, different := differ(newStoredEntry(e), newStoredEntry(&written[e.N-1])); different {
			fail("has entry %d\n  %.600s, want\n  %.600s", e.N, got, want)
		}
	}
	got, err := store.Fold(*saved)
	for i := 0; i < len(written) && err == nil; i++ {
		err = want.ApplyEntry(written[i])
	}
	if err != nil || got.N != want.N {
		fail("has %d entries, want %d: %v", got.N, want.N, err)
	} else if got, want, different := differ(newStoredJournal(&got), newStoredJournal(&want)); different {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		at = max(0, at-40)
		fail("has a journal with %.200s, want %.200s", got[at:], want[at:])
	}
	return got, want
}

// storedEntry is an entry without the fields that are not stored.
type storedEntry struct {
	Type  string // of the record
	Entry store.Entry
}

func newStoredEntry(e *store.Entry) storedEntry {
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
	return storedEntry{reflect.TypeOf(o.Record).String(), o}
}

func storedAsks(asks []store.Asked) []store.Asked {
	asks = slices.Clone(asks)
	for i := range asks {
		a := &asks[i]
		a.Ask.Work, a.Ask.Body, a.Ask.PromptTokens, a.Ask.AnswerTokens = nil, nil, 0, 0
		if a.Sent != nil {
			sent := *a.Sent
			sent.Work, sent.Body, sent.PromptTokens, sent.AnswerTokens = nil, nil, 0, 0
			a.Sent = &sent
		}
	}
	return asks
}

// storedJournal is what a journal holds: its open runs, its state, its tombstones and the
// outcomes that it remembers, complete or as references.
type storedJournal struct {
	Runs     []store.Run
	State    []actor.StateItem
	Buried   []store.Buried
	Outcomes []storedOutcome
}

type storedOutcome struct {
	Call  actor.CallID
	Until actor.Time
}

func newStoredJournal(j *store.Journal) storedJournal {
	s := storedJournal{Runs: make([]store.Run, 0, len(j.Runs)), State: j.ActorState, Buried: j.Buried}
	for i := range j.Evicted {
		s.Outcomes = append(s.Outcomes, storedOutcome{j.Evicted[i].Call, j.Evicted[i].Until})
	}
	for i := range j.Ended {
		s.Outcomes = append(s.Outcomes, storedOutcome{j.Ended[i].Call, j.Ended[i].Until})
	}
	slices.SortFunc(s.Outcomes, func(a, b storedOutcome) int { return cmp.Or(a.Call.Compare(b.Call), cmp.Compare(a.Until, b.Until)) })
	for _, r := range j.Runs {
		run := *r
		run.Steps = slices.Clone(run.Steps)
		for i := range run.Steps {
			run.Steps[i].Asks = storedAsks(run.Steps[i].Asks)
		}
		s.Runs = append(s.Runs, run)
	}
	return s
}

// asText lets values be encoded that have no representation in JSON.
var asText = json.WithMarshalers(json.JoinMarshalers(
	json.MarshalFunc(func(actor.Work) ([]byte, error) { return []byte("null"), nil }),
	json.MarshalFunc(func(d actor.Duration) ([]byte, error) { return strconv.AppendInt(nil, int64(d), 10), nil }),
))

// differ compares two values as text, in which an absent list is that of an empty one. It returns
// the texts if they differ. Most values are equal as they are, which costs less to find out.
func differ(got, want any) (gotText, wantText string, different bool) {
	if reflect.DeepEqual(got, want) {
		return "", "", false
	}
	gotText, wantText = textOfValue(got), textOfValue(want)
	return gotText, wantText, gotText != wantText
}

func textOfValue(v any) string {
	text, err := json.Marshal(v, asText)
	if err != nil {
		panic(err)
	}
	return string(text)
}
