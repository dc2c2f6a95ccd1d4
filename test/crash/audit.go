// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// recheck repeats a request for a random earlier exchange or resource, possibly of
// an earlier server instance.
func (l *ledger) recheck(inst *instance, rng *rand.Rand) {
	e, f := l.pick(rng)
	if f != nil {
		_ = f.check(l, inst) // a kill may interrupt it
	}
	if e == nil || e.run == "" {
		return
	}
	again := *e
	if e.key != "" && e.done {
		var a answer
		// The Idempotency-Key selects the same run, so the answer MUST be the same.
		status, err := inst.ask(request{http.MethodPost, "/v1/agents/" + e.agent + "/messages", e.body(), []string{"Idempotency-Key", e.key}}, &a)
		if err == nil {
			l.recordAnswer(&again, status, a)
		}
		return
	}
	_, _ = l.compareEvents(inst, &again)
}

// audit rechecks all exchanges and resources. All runs MUST have ended, and the
// server MUST answer every request.
func (l *ledger) audit(inst *instance) {
	for i := range l.resources {
		if err := l.resources[i].check(l, inst); err != nil {
			l.report(wrong, "%s: cannot be checked: %v", l.resources[i].description, err)
		}
	}
	each := make(chan *exchange)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for e := range each {
				again := *e
				switch read, err := l.compareEvents(inst, &again); {
				case err != nil:
					l.report(wrong, "%s: cannot be read: %v", e, err)
				case read:
					l.checkResult(&again)
				}
			}
		})
	}
	for _, e := range l.exchanges {
		if e.run != "" {
			each <- e
		}
	}
	close(each)
	all.Wait()
}

// compareEvents reads all events of a run and compares them with those recorded
// earlier. It reports whether there was any event to read. An error means that a
// request had no complete answer.
func (l *ledger) compareEvents(inst *instance, e *exchange) (read bool, err error) {
	t := newRecorder(e, l, 0, nil)
	for {
		var page page
		status, err := inst.ask(request{http.MethodGet, fmt.Sprintf("/v1/runs/%s/events?after=%d", e.run, t.after), "", nil}, &page)
		switch {
		case err != nil:
			return false, err
		case status != http.StatusOK:
			l.report(lost, "%s: the events are answered with %d %s, want 200", e, status, page.Detail)
			return false, nil
		}
		for i, raw := range page.Events {
			if t.record(t.after+1, string(raw)) && i < len(page.Events)-1 {
				l.report(wrong, "%s: %d events after the last one", e, len(page.Events)-1-i)
				break
			}
		}
		if len(page.Events) == 0 || e.end != 0 && t.after >= len(e.events) {
			if t.after < len(e.events) {
				l.report(lost, "%s: %d events were received, %d remain", e, len(e.events), t.after)
			}
			return t.after > 0, nil
		}
	}
}

// checkResult compares the final state of an ended run with the expected state.
func (l *ledger) checkResult(e *exchange) {
	events := make([]runs.Event, 0, len(e.events))
	var said runs.AnswerText
	for _, raw := range e.events {
		d, err := runs.Decode([]byte(raw))
		if err != nil {
			l.report(wrong, "%s: %v", e, err)
			return
		}
		said.Apply(&d)
		events = append(events, d)
	}
	record, err := runs.Fold(events)
	unsure := e.mayBeUnknown && record.Refusal != nil && record.Refusal.Reason == actor.Unknown
	switch {
	case err != nil:
		l.report(wrong, "%s: %v", e, err)
	case record.Ended == 0:
		l.report(wrong, "%s: did not end; its last event is %s", e, e.events[len(e.events)-1])
	case e.signalled && !slices.ContainsFunc(events, func(e runs.Event) bool { return e.Type == runs.SignalReceived }):
		l.report(lost, "%s: the acknowledged signal is missing", e)
	case e.cancelled && record.Status != runs.Cancelled:
		l.report(lost, "%s: the cancellation was acknowledged, but the run is %s", e, record.Status)
	case record.Status == runs.Cancelled && !e.cancels, record.Status == runs.Failed && !unsure:
		l.report(wrong, "%s: ended %s: %v, want %s with answer %q", e, record.Status, record.Refusal, runs.Done, e.want)
	case record.Status == runs.Done && e.want != "" && record.Text != e.want:
		l.report(wrong, "%s: got answer %q, want %q", e, record.Text, e.want)
	}
	streamed, any := said.Streamed()
	if !any || record.Status != runs.Done {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streamed++
	if streamed == record.Text {
		l.matching++
	}
}

// eventsPerRunMax exceeds the number of events of every run of this program.
const eventsPerRunMax = 1000

// waitIdle waits until no run is open, including runs that no client knows. It
// fails after requestWithin.
func (l *ledger) waitIdle(inst *instance) error {
	for began := time.Now(); ; {
		var list struct {
			Runs []answer `json:"runs"`
		}
		if status, err := inst.ask(request{http.MethodGet, "/v1/runs?limit=200", "", nil}, &list); err != nil || status != http.StatusOK {
			return fmt.Errorf("list runs: %w", cmp.Or(err, fmt.Errorf("status %d, want 200", status)))
		}
		open := slices.IndexFunc(list.Runs, func(a answer) bool {
			status, err := runs.ParseStatus(fmt.Sprint(a.Status))
			return err != nil || !status.Ended()
		})
		switch {
		case open < 0:
			return nil
		case time.Since(began) > requestWithin:
			return fmt.Errorf("run %s is still %s after a minute without requests", list.Runs[open].Run, list.Runs[open].Status)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// openStore opens the store in a folder, or in a database if url is not empty.
func openStore(dir, url string) (interface {
	store.Reader
	VerifyAll() (store.Mark, error)
	Close() error
}, error) {
	if url != "" {
		return postgres.Open(url, "", postgres.Options{ReadOnly: true})
	}
	return disk.Open(dir, "", disk.Options{ReadOnly: true})
}

// checkStore checks the store: its hash chain verifies from the start, every run
// has ended, and every message became at most one run with the expected number of
// nested calls.
func (l *ledger) checkStore(dir, url string, external *externalAgents) error {
	d, err := openStore(dir, url)
	if err != nil {
		return err
	}
	defer d.Close()
	if _, err := d.VerifyAll(); err != nil {
		return err
	}
	var owners []store.RunOwner
	err = store.EachRun(d, actor.DefaultTenant, runs.Filter{Calls: true, System: true}, func(s *runs.Summary) {
		owners = append(owners, store.RunOwner{Run: s.Run, Root: s.Root, Actor: s.Actor})
	})
	if err != nil {
		return err
	}
	roots, below, known := map[string][]string{}, map[string]int{}, map[string]bool{}
	for _, o := range owners {
		known[o.Run.String()] = true
		page, err := d.Events(actor.DefaultTenant, o.Run, 0, eventsPerRunMax)
		if err != nil || len(page) == 0 || len(page) == eventsPerRunMax {
			return fmt.Errorf("run %s: %w", o.Run, cmp.Or(err, fmt.Errorf("%d events, want 1 to %d", len(page), eventsPerRunMax-1)))
		}
		first, err := runs.Decode(page[0].Body)
		if err != nil {
			return err
		}
		if last, err := runs.Decode(page[len(page)-1].Body); err != nil || !last.Type.Ends() {
			l.report(wrong, "run %s of %s did not end; its last event is %s, %v", o.Run, o.Actor, &last, err)
		}
		if o.Run != o.Root {
			below[o.Root.String()]++
			continue
		}
		roots[first.Text] = append(roots[first.Text], o.Run.String())
	}
	for _, e := range l.exchanges {
		became := roots[e.content]
		switch {
		case len(became) > 1:
			l.report(duplicated, "%s: created the runs %v", e, became)
		case e.run != "" && !slices.Contains(became, e.run):
			l.report(lost, "%s: the store holds the runs %v instead", e, became)
		case e.done && below[e.run] != e.calls, below[e.run] > e.calls:
			l.report(duplicated, "%s: made %d calls, want %d", e, below[e.run], e.calls)
		}
	}
	external.check(l, known)
	return nil
}
