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

// serving is a life of a server that has these events of the run, and no other run.
func serving(t *testing.T, events []string) *life {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after, err := strconv.Atoi(r.URL.Query().Get("after"))
		if events == nil || err != nil {
			http.Error(w, `{"detail":"there is no such run"}`, http.StatusNotFound)
			return
		}
		rest := events[min(after, len(events)):]
		fmt.Fprintf(w, `{"events":[%s]}`, strings.Join(rest[:min(3, len(rest))], ","))
	}))
	t.Cleanup(s.Close)
	return newLife(t.Context(), s.URL, make(chan struct{}), 0)
}

func TestTheLedgerIsHeldAgainstTheServer(t *testing.T) {
	whole := story()
	for _, c := range []struct {
		name   string
		e      errand
		events []string
		want   kind
	}{
		{"all of it", errand{job: told, events: whole}, whole, kinds},
		{"all of it, over more pages than one, and its end is known", errand{job: told, events: whole, end: runs.RunDone}, whole, kinds},
		{"more than was told", errand{job: told, events: whole[:2]}, whole, kinds},
		{"an answer without its stream", errand{job: told, done: true, answer: "hello"}, whole, kinds},
		{"less than was told", errand{job: told, events: whole[:5]}, whole[:4], lost},
		{"no such run", errand{job: told, events: whole}, nil, lost},
		{"no such run, as was answered", errand{job: told, done: true, answer: "hello"}, nil, lost},
		{"another answer", errand{job: told, done: true, answer: "hullo"}, whole, lost},
		{"another event", errand{job: told, events: whole}, slices.Replace(slices.Clone(whole), 3, 4, encoded(func(e *runs.Event) { e.Text = "hal" })), reordered},
	} {
		l := newLedger(io.Discard)
		c.e.run = run.String()
		if read := l.compare(serving(t, c.events), &c.e); read != (c.events != nil) {
			t.Errorf("%s: there was something to read: %v", c.name, read)
		}
		check(t, c.name, l, c.want)
	}
}

// folder is one that a server left: a run of the teller for each text, with a
// run below it, and the last without its end.
func folder(t *testing.T, ended bool, texts ...string) (dir string, ids []string) {
	dir = t.TempDir()
	d, err := disk.Open(dir, "n1", disk.Options{FreeFloor: 1})
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

func TestTheLedgerIsHeldAgainstTheFolder(t *testing.T) {
	for _, c := range []struct {
		name   string
		texts  []string
		ended  bool
		change func(e *errand)
		want   kind
	}{
		{"as it should be", []string{"a", "b"}, true, func(*errand) {}, kinds},
		{"a run that never ends", []string{"a", "b"}, false, func(*errand) {}, wrong},
		{"one message, two runs", []string{"a", "a"}, true, func(*errand) {}, duplicated},
		{"a run that is not there", []string{"a"}, true, func(e *errand) { e.run = other.String() }, lost},
		{"a message nobody knows of", []string{"a"}, true, func(e *errand) { e.content, e.run = "c", "" }, kinds},
		{"one call too many", []string{"a"}, true, func(e *errand) { e.calls = 0 }, duplicated},
		{"one call too few", []string{"a"}, true, func(e *errand) { e.calls, e.done = 2, true }, duplicated},
	} {
		l := newLedger(io.Discard)
		dir, ids := folder(t, c.ended, c.texts...)
		e := &errand{job: job{agent: teller, calls: 1}, content: "a", run: ids[0]}
		c.change(e)
		l.keep(e)
		if err := l.hold(dir, &outside{}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		check(t, c.name, l, c.want)
	}
}
