// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// thread is whoever is the thread of cells for a while, of one after the other: a
// cell's own goroutine, or that of a client who found a cell idle.
type thread struct {
	asker *waiter // nil: the cell's own
	cell  *mailbox
	first chore
	began actor.Time // 0: it has not looked at the time yet
}

// chore is what a thread begins with, before it hands on.
type chore uint8

const (
	handsOn chore = iota
	asks          // its asker's call is stepped, which was in no ring
	drains
)

func (t *thread) work() {
	switch t.first {
	case asks:
		t.cell.direct(t.asker)
	case drains:
		t.cell.drain(t)
	}
	t.cell.handOn(t)
}

// over tells whether it has done enough for others. What a cell has been told of
// the time is good enough for that: asking for it costs as much as a message.
func (t *thread) over(now actor.Time) bool {
	if now == 0 {
		now = actor.Time(time.Since(awake))
	}
	if t.began == 0 {
		t.began = now
	}
	return now.Sub(t.began) > helpFor
}

var awake = time.Now()

// stack is what cells are stepped on, whoever's goroutine it is. Agents' code that
// calls runtime.Goexit ends the stack, and neither the goroutine of a cell nor
// that of a client.
//
// It may be resumed from any goroutine that is not locked to its thread; the
// process dies from one that is.
type stack struct {
	thread thread
	lost   any // what it panicked with, as no cell's failure does
	resume func() (ended, ok bool)
	stop   func()
}

func newStack() *stack {
	s := &stack{}
	s.resume, s.stop = iter.Pull(func(yield func(bool) bool) {
		returned := false
		defer func() {
			if !returned {
				s.lost = recover()
				yield(true) // there is no return; but there is a way back
			}
		}()
		for goesOn := true; goesOn; goesOn = yield(false) {
			s.thread.work()
		}
		returned = true
	})
	return s
}

// end lets go of the stack. What ends by Goexit takes a goroutine along: one that
// is made for it.
func (s *stack) end() { apart(s.stop) }

// stacks are the idle ones: as many as threads were at work at once, which are
// hardly more than cells.
type stacks struct {
	mu     sync.Mutex
	idle   []*stack
	closed bool
}

// lend has a thread do its work on a stack. If that ends on the way, the thread
// goes on on another.
func (p *stacks) lend(t thread) {
	for {
		s := p.take()
		s.thread = t
		if ended, _ := s.resume(); !ended {
			s.thread = thread{}
			p.put(s)
			return
		}
		s.end()
		if s.lost != nil {
			panic(s.lost)
		}
		t = thread{asker: t.asker, cell: s.thread.cell, began: s.thread.began}
	}
}

func (p *stacks) take() *stack {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return newStack()
	}
	s := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return s
}

func (p *stacks) put(s *stack) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.idle = append(p.idle, s)
	}
	p.mu.Unlock()
	if closed {
		s.end()
	}
}

// close ends the stacks, those in use once they are idle.
func (p *stacks) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, s := range idle {
		s.end()
	}
}

// apart runs agents' code on a goroutine that it may end, and waits.
func apart(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

// fall is how a step ended that did not return.
type fall struct {
	reason any
	stack  []byte
}

// String is the reason, as a person would tell it.
func (f *fall) String() string { return fmt.Sprint(f.reason) }

var errGoexit = errors.New("an agent's code ended its goroutine")

// fell is what a step came to that panicked, or did not return. The deferred
// function that calls it still sees where.
func fell(reason any) *fall {
	if reason == nil {
		reason = errGoexit
	}
	return &fall{reason, debug.Stack()}
}
