// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// findingKind is a kind of violation.
type findingKind int

const (
	lost       findingKind = iota // an acknowledged effect is missing
	duplicated                    // one request took effect or was reported twice
	reordered                     // reported in a different order or with different content than before
	wrong                         // any other violation
	kinds
)

// findingsShownMax is the maximum number of findings printed in full.
const findingsShownMax = 20

// ledger records all acknowledgements that clients received. They MUST survive
// every kill.
type ledger struct {
	stderr io.Writer

	mu        sync.Mutex
	counts    [kinds]int
	shown     int
	exchanges []*exchange // exchanges whose message became a run, or may have become a run
	resources []resource
	rejected  int // requests refused for lack of capacity

	streamed, matching int // runs that streamed deltas, and runs whose deltas equal their answer
}

func newLedger(stderr io.Writer) *ledger { return &ledger{stderr: stderr} }

// report records a violation and prints the first findingsShownMax of them.
func (l *ledger) report(k findingKind, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[k]++
	if l.shown++; l.shown <= findingsShownMax {
		fmt.Fprintf(l.stderr, "\n%s at %s: %s\n", [...]string{"LOST", "DUPLICATED", "REORDERED", "WRONG"}[k], time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...))
	}
}

// full reports whether enough findings were printed to stop.
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

// pick returns a random exchange and a random resource, each nil if there is none
// yet.
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

// exchange is one message of a client and the responses that it received. It
// belongs to one client at a time, and does not change once it is in the ledger.
type exchange struct {
	scenario
	n       int // unique number
	session string
	key     string // Idempotency-Key
	content string
	want    string // expected answer; "" if it varies

	run       string
	events    []string // received events, from the first
	end       runs.Type
	done      bool   // it was answered
	answer    string // the answer, if done
	refused   string // code of the refusal, which ends the exchange
	waiting   bool   // the run waits for a signal
	signalled bool   // the signal was acknowledged
	cancelled bool   // the cancellation was acknowledged
}

func (e *exchange) String() string {
	return fmt.Sprintf("%s %.40q (session %s, key %s, run %s)", e.agent, e.content, e.session, cmp.Or(e.key, "none"), cmp.Or(e.run, "unknown"))
}

// ended reports whether the client knows the outcome.
func (e *exchange) ended() bool { return e.end != 0 || e.done || e.refused != "" }

// setRun records the run that the message became. Every response MUST name the same
// run.
func (e *exchange) setRun(l *ledger, run string) {
	if e.run != "" && run != e.run {
		l.report(duplicated, "%s: also created run %s", e, run)
		return
	}
	e.run = run
}

// recorder records the events of a run from one stream. The stream resumes after
// the event whose number is in the field after. Each event MUST appear once, in
// order, and equal to any earlier copy.
type recorder struct {
	*exchange
	ledger   *ledger
	after    int
	inst     *instance             // counts new events; nil if they are not counted
	children map[actor.CallID]bool // nested calls counted in inst.nested when they started
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
		t.ledger.report(wrong, "%s: event %d has the ID %d", t, e.Seq, id)
	case id <= t.after:
		t.ledger.report(duplicated, "%s: event %d follows event %d", t, id, t.after)
		return false
	case id > t.after+1:
		t.ledger.report(lost, "%s: event %d follows event %d", t, id, t.after)
		return true
	}
	t.after = id
	t.setRun(t.ledger, e.Run.String())
	if id <= len(t.events) {
		if t.events[id-1] != body {
			t.ledger.report(reordered, "%s: event %d was %s, now %s", t, id, t.events[id-1], body)
		}
		return e.Type.Ends()
	}
	if t.end != 0 {
		t.ledger.report(wrong, "%s: event %d follows %s", t, id, t.end)
	}
	t.events = append(t.events, body)
	if t.inst != nil {
		t.inst.ack()
	}
	switch e.Type {
	case runs.AgentCalledChild:
		if t.inst != nil {
			t.children[e.Child] = true
			t.inst.nested.Add(1)
		}
	case runs.AgentChildDone:
		if t.children[e.Child] {
			t.inst.nested.Add(-1)
		}
	case runs.WaitOpened:
		t.waiting = true
	case runs.SignalReceived:
		t.waiting = false
	}
	if e.Type.Ends() {
		if t.done && t.answer != e.Text {
			t.ledger.report(lost, "%s: was answered with %q, but ended with %q", t, t.answer, e.Text)
		}
		t.end, t.answer, t.done = e.Type, e.Text, e.Type == runs.RunDone
	}
	return e.Type.Ends()
}
