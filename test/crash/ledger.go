// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// findingKind is what can be wrong.
type findingKind int

const (
	lost       findingKind = iota // acknowledged, and not there
	duplicated                    // once was said, twice it was done or told
	reordered                     // told in another order than before, or than the stream's own
	wrong                         // anything else
	kinds
)

// findingsShownMax is how many findings are told in words.
const findingsShownMax = 20

// ledger is what clients were told, which no kill may take back.
type ledger struct {
	stderr io.Writer

	mu        sync.Mutex
	counts    [kinds]int
	shown     int
	exchanges []*exchange // whatever became a run, or may have
	resources []resource
	rejected  int // requests refused for want of room

	streamed, matching int // runs that streamed their answer, and whose pieces are that answer
}

func newLedger(stderr io.Writer) *ledger { return &ledger{stderr: stderr} }

// report notes that something does not hold.
func (l *ledger) report(k findingKind, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[k]++
	if l.shown++; l.shown <= findingsShownMax {
		fmt.Fprintf(l.stderr, "\n%s: %s\n", [...]string{"LOST", "DUPLICATED", "REORDERED", "WRONG"}[k], fmt.Sprintf(format, args...))
	}
}

// full tells that more of the same would say nothing new.
func (l *ledger) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shown >= findingsShownMax
}

func (l *ledger) add(e *exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exchanges = append(l.exchanges, e)
}

func (l *ledger) addResource(f resource) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resources = append(l.resources, f)
}

// pick picks a few of what was told so far.
func (l *ledger) pick(rng *rand.Rand) (*exchange, *resource) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e *exchange
	var f *resource
	if len(l.exchanges) > 0 {
		e = l.exchanges[rng.IntN(len(l.exchanges))]
	}
	if len(l.resources) > 0 {
		f = &l.resources[rng.IntN(len(l.resources))]
	}
	return e, f
}

// exchange is one message of a client, and what it was told of it. One client has
// it at a time; once it is in the ledger nothing of it changes.
type exchange struct {
	scenario
	n       int // no other has it
	session string
	key     string // Idempotency-Key
	content string
	want    string // what the answer must be; "" if that depends

	run       string
	events    []string // as they were told, from the first
	end       runs.Type
	done      bool   // it was answered
	answer    string // then
	refused   string // how it was refused, by code; it is over then
	waiting   bool   // for a signal
	signalled bool   // that was acknowledged
	cancelled bool   // that was acknowledged
}

func (e *exchange) String() string {
	return fmt.Sprintf("%s %.40q (run %s)", e.agent, e.content, e.run)
}

// ended tells whether the client knows how it came out.
func (e *exchange) ended() bool { return e.end != 0 || e.done || e.refused != "" }

// setRun takes note of which run it is, the same each time.
func (e *exchange) setRun(l *ledger, run string) {
	if e.run != "" && run != e.run {
		l.report(duplicated, "%s: became run %s as well", e, run)
		return
	}
	e.run = run
}

// recorder takes note of the events of its run as one stream tells them, behind the
// one numbered after; each is told once, in its place, as it was told before.
type recorder struct {
	*exchange
	ledger   *ledger
	after    int
	life     *instance             // counts what is new; nil: nobody does
	children map[actor.CallID]bool // called, and not done
}

func newRecorder(e *exchange, l *ledger, after int, inst *instance) *recorder {
	return &recorder{e, l, after, inst, map[actor.CallID]bool{}}
}

func (t *recorder) record(id int, body string) (last bool) {
	e, err := runs.Decode([]byte(body))
	switch {
	case err != nil:
		t.ledger.report(wrong, "%s: event %d: %v: %s", t, id, err, body)
		return true
	case uint64(id) != e.Seq:
		t.ledger.report(wrong, "%s: event %d goes by the number %d", t, e.Seq, id)
	case id <= t.after:
		t.ledger.report(duplicated, "%s: event %d is told after event %d", t, id, t.after)
		return false
	case id > t.after+1:
		t.ledger.report(lost, "%s: event %d is told after event %d", t, id, t.after)
		return true
	}
	t.after = id
	t.setRun(t.ledger, e.Run.String())
	if id <= len(t.events) {
		if t.events[id-1] != body {
			t.ledger.report(reordered, "%s: event %d was %s, is %s", t, id, t.events[id-1], body)
		}
		return e.Type.Ends()
	}
	if t.end != 0 {
		t.ledger.report(wrong, "%s: event %d follows %s", t, id, t.end)
	}
	t.events = append(t.events, body)
	if t.life != nil {
		t.life.ack()
	}
	switch e.Type {
	case runs.AgentCalledChild:
		if t.life != nil {
			t.children[e.Child] = true
			t.life.nested.Add(1)
		}
	case runs.AgentChildDone:
		if t.children[e.Child] {
			t.life.nested.Add(-1)
		}
	case runs.WaitOpened:
		t.waiting = true
	case runs.SignalReceived:
		t.waiting = false
	}
	if e.Type.Ends() {
		if t.done && t.answer != e.Text {
			t.ledger.report(lost, "%s: was answered with %q, ends with %q", t, t.answer, e.Text)
		}
		t.end, t.answer, t.done = e.Type, e.Text, e.Type == runs.RunDone
	}
	return e.Type.Ends()
}
