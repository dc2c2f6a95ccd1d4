// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// newTestInstance returns an instance of a server that holds one run with these
// events. Any other request gets 404. If events is nil, every request gets 404.
func newTestInstance(t *testing.T, events []string) *instance {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after, err := strconv.Atoi(r.URL.Query().Get("after"))
		if events == nil || err != nil {
			http.Error(w, `{"detail":"no such run"}`, http.StatusNotFound)
			return
		}
		rest := events[min(after, len(events)):]
		fmt.Fprintf(w, `{"events":[%s]}`, strings.Join(rest[:min(3, len(rest))], ","))
	}))
	t.Cleanup(s.Close)
	return newInstance(t.Context(), s.URL, t.TempDir(), make(chan struct{}), 0)
}

func TestCompareEventsWithServer(t *testing.T) {
	full := runEvents()
	for _, c := range []struct {
		name   string
		e      exchange
		events []string
		want   findingKind
	}{
		{"all events", exchange{scenario: tellerCall, events: full}, full, kinds},
		{"all events on several pages, end known", exchange{scenario: tellerCall, events: full, end: runs.RunDone}, full, kinds},
		{"more events than received", exchange{scenario: tellerCall, events: full[:2]}, full, kinds},
		{"answer without stream", exchange{scenario: tellerCall, done: true, answer: "hello"}, full, kinds},
		{"fewer events than received", exchange{scenario: tellerCall, events: full[:5]}, full[:4], lost},
		{"no such run", exchange{scenario: tellerCall, events: full}, nil, lost},
		{"no such run, but answered", exchange{scenario: tellerCall, done: true, answer: "hello"}, nil, lost},
		{"different answer", exchange{scenario: tellerCall, done: true, answer: "hullo"}, full, lost},
		{"different event", exchange{scenario: tellerCall, events: full}, slices.Replace(slices.Clone(full), 3, 4, modifiedEvent(func(e *runs.Event) { e.Text = "hal" })), reordered},
	} {
		l := newLedger(io.Discard)
		c.e.run = runID.String()
		if read, err := l.compareEvents(newTestInstance(t, c.events), &c.e); err != nil || read != (c.events != nil) {
			t.Errorf("%s: got events read %v, %v", c.name, read, err)
		}
		checkFindings(t, c.name, l, c.want)
	}
}

// An audit that cannot read what it audits is no audit.
func TestAuditReportsMissingAnswers(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	inst := newInstance(t.Context(), closed.URL, t.TempDir(), make(chan struct{}), 0)
	l := newLedger(io.Discard)
	l.add(&exchange{scenario: tellerCall, run: runID.String(), events: runEvents()})
	l.audit(inst)
	checkFindings(t, "run", l, wrong)
	l = newLedger(io.Discard)
	l.addResource(resource{"agent a created", request{http.MethodGet, "/v1/agents/a", "", nil}, http.StatusOK})
	l.audit(inst)
	checkFindings(t, "resource", l, wrong)
}

// newTestStore creates a store with a run of the teller for each text, and a nested
// run below each. The two runs of the last text have an end only if ended is set.
func newTestStore(t *testing.T, ended bool, texts ...string) (dir string, ids []string) {
	dir = t.TempDir()
	d, err := disk.Open(dir, "n1", disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	log := disk.NewLog(d)
	for i, text := range texts {
		root := actor.NewCallID(1, 1, uint64(2*i+1))
		ids = append(ids, root.String())
		for n, id := range []actor.CallID{root, actor.NewCallID(1, 1, uint64(2*i+2))} {
			to := actor.NewID(teller, fmt.Sprintf("s-%d-%d", i, n))
			events := []store.RunEvent{{Run: id, Seq: 1, Body: runs.Encode(runs.Event{Run: id, Seq: 1, At: 1, Type: runs.UserInput, Actor: to, Text: text})}}
			if ended || i < len(texts)-1 {
				events = append(events, store.RunEvent{Run: id, Seq: 2, Body: runs.Encode(runs.Event{Run: id, Seq: 2, At: 2, Type: runs.RunCancelled, Refusal: actor.Refuse(actor.Stopped, "no")})})
			}
			call := actor.Call{ID: id, Root: root, To: to, Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: time.Second, Attempt: 1, Origin: actor.Human, Parts: actor.Text(text)}
			if id != root {
				call.Parent, call.Chain, call.Origin = root, []actor.ID{actor.NewID(asker, "s")}, actor.Agent
			}
			log.Commit([]store.Entry{{Actor: to, Epoch: 1, N: 1, Record: store.Accepted{At: 1, Call: call}, Events: events}}, nil)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, ids
}

func TestCheckStore(t *testing.T) {
	for _, c := range []struct {
		name   string
		texts  []string
		ended  bool
		change func(e *exchange)
		want   findingKind
	}{
		{"correct", []string{"a", "b"}, true, func(*exchange) {}, kinds},
		{"run without end", []string{"a", "b"}, false, func(*exchange) {}, wrong},
		{"one message, two runs", []string{"a", "a"}, true, func(*exchange) {}, duplicated},
		{"missing run", []string{"a"}, true, func(e *exchange) { e.run = otherRunID.String() }, lost},
		{"unknown message without run", []string{"a"}, true, func(e *exchange) { e.content, e.run = "c", "" }, kinds},
		{"one call too many", []string{"a"}, true, func(e *exchange) { e.calls = 0 }, duplicated},
		{"one call too few", []string{"a"}, true, func(e *exchange) { e.calls, e.done = 2, true }, duplicated},
	} {
		l := newLedger(io.Discard)
		dir, ids := newTestStore(t, c.ended, c.texts...)
		e := &exchange{scenario: scenario{agent: teller, calls: 1}, content: "a", run: ids[0]}
		c.change(e)
		l.add(e)
		if err := l.checkStore(dir, "", &externalAgents{}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		checkFindings(t, c.name, l, c.want)
	}
}
