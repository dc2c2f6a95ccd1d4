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

// kind is what can be wrong.
type kind int

const (
	lost       kind = iota // acknowledged, and not there
	duplicated             // once was said, twice it was done or told
	reordered              // told in another order than before, or than the stream's own
	wrong                  // anything else
	kinds
)

// shownMax is how many findings are told in words.
const shownMax = 20

// ledger is what clients were told, which no kill may take back.
type ledger struct {
	talk io.Writer

	mu     sync.Mutex
	counts [kinds]int
	shown  int
	told   []*errand // whatever became a run, or may have
	facts  []fact
	busy   int // requests refused for want of room

	streamed, same int // runs that streamed their answer, and whose pieces are that answer
}

func newLedger(talk io.Writer) *ledger { return &ledger{talk: talk} }

// found notes that something does not hold.
func (l *ledger) found(k kind, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[k]++
	if l.shown++; l.shown <= shownMax {
		fmt.Fprintf(l.talk, "\n%s: %s\n", [...]string{"LOST", "DUPLICATED", "REORDERED", "WRONG"}[k], fmt.Sprintf(format, args...))
	}
}

// hopeless tells that more of the same would say nothing new.
func (l *ledger) hopeless() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shown >= shownMax
}

func (l *ledger) keep(e *errand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, e)
}

func (l *ledger) keepFact(f fact) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.facts = append(l.facts, f)
}

// some picks a few of what was told so far.
func (l *ledger) some(chance *rand.Rand) (*errand, *fact) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e *errand
	var f *fact
	if len(l.told) > 0 {
		e = l.told[chance.IntN(len(l.told))]
	}
	if len(l.facts) > 0 {
		f = &l.facts[chance.IntN(len(l.facts))]
	}
	return e, f
}

// errand is one message of a client, and what it was told of it. One client has
// it at a time; once it is in the ledger nothing of it changes.
type errand struct {
	job
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

func (e *errand) String() string { return fmt.Sprintf("%s %.40q (run %s)", e.agent, e.content, e.run) }

// ended tells whether the client knows how it came out.
func (e *errand) ended() bool { return e.end != 0 || e.done || e.refused != "" }

// is takes note of which run it is, the same each time.
func (e *errand) is(l *ledger, run string) {
	if e.run != "" && run != e.run {
		l.found(duplicated, "%s: became run %s as well", e, run)
		return
	}
	e.run = run
}

// take takes note of the events of its run as one stream tells them, behind the
// one numbered after; each is told once, in its place, as it was told before.
type take struct {
	*errand
	ledger   *ledger
	after    int
	life     *life                 // counts what is new; nil: nobody does
	children map[actor.CallID]bool // called, and not done
}

func newTake(e *errand, l *ledger, after int, life *life) *take {
	return &take{e, l, after, life, map[actor.CallID]bool{}}
}

func (t *take) event(id int, body string) (last bool) {
	e, err := runs.Decode([]byte(body))
	switch {
	case err != nil:
		t.ledger.found(wrong, "%s: event %d: %v: %s", t, id, err, body)
		return true
	case uint64(id) != e.Seq:
		t.ledger.found(wrong, "%s: event %d goes by the number %d", t, e.Seq, id)
	case id <= t.after:
		t.ledger.found(duplicated, "%s: event %d is told after event %d", t, id, t.after)
		return false
	case id > t.after+1:
		t.ledger.found(lost, "%s: event %d is told after event %d", t, id, t.after)
		return true
	}
	t.after = id
	t.is(t.ledger, e.Run.String())
	if id <= len(t.events) {
		if t.events[id-1] != body {
			t.ledger.found(reordered, "%s: event %d was %s, is %s", t, id, t.events[id-1], body)
		}
		return e.Type.Ends()
	}
	if t.end != 0 {
		t.ledger.found(wrong, "%s: event %d follows %s", t, id, t.end)
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
			t.ledger.found(lost, "%s: was answered with %q, ends with %q", t, t.answer, e.Text)
		}
		t.end, t.answer, t.done = e.Type, e.Text, e.Type == runs.RunDone
	}
	return e.Type.Ends()
}
