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

// runner is whoever is the thread of cells for a while, of one after the other: a
// cell's own goroutine, or that of a client who found a cell idle.
type runner struct {
	waiter  *waiter // nil: the cell's own
	mailbox *mailbox
	task    task
	start   actor.Time // 0: it has not looked at the time yet
}

// task is what a thread begins with, before it hands on.
type task uint8

const (
	taskHandOff task = iota
	taskDeliver      // its asker's call is stepped, which was in no ring
	taskDrain
)

func (t *runner) run() {
	switch t.task {
	case taskDeliver:
		t.mailbox.deliverDirect(t.waiter)
	case taskDrain:
		t.mailbox.drain(t)
	}
	t.mailbox.handOff(t)
}

// expired tells whether it has done enough for others. What a cell has been told of
// the time is good enough for that: asking for it costs as much as a message.
func (t *runner) expired(now actor.Time) bool {
	if now == 0 {
		now = actor.Time(time.Since(processStart))
	}
	if t.start == 0 {
		t.start = now
	}
	return now.Sub(t.start) > helpTimeMax
}

var processStart = time.Now()

// coroutine is what cells are stepped on, whoever's goroutine it is. Agents' code that
// calls runtime.Goexit ends the stack, and neither the goroutine of a cell nor
// that of a client.
//
// It may be resumed from any goroutine that is not locked to its thread; the
// process dies from one that is.
type coroutine struct {
	runner   runner
	panicked any // what it panicked with, as no cell's failure does
	resume   func() (ended, ok bool)
	stop     func()
}

func newCoroutine() *coroutine {
	s := &coroutine{}
	s.resume, s.stop = iter.Pull(func(yield func(bool) bool) {
		returned := false
		defer func() {
			if !returned {
				s.panicked = recover()
				yield(true) // there is no return; but there is a way back
			}
		}()
		for goesOn := true; goesOn; goesOn = yield(false) {
			s.runner.run()
		}
		returned = true
	})
	return s
}

// close lets go of the stack. What ends by Goexit takes a goroutine along: one that
// is made for it.
func (s *coroutine) close() { runIsolated(s.stop) }

// coroutinePool are the idle ones: as many as threads were at work at once, which are
// hardly more than cells.
type coroutinePool struct {
	mu     sync.Mutex
	idle   []*coroutine
	closed bool
}

// run has a thread do its work on a stack. If that ends on the way, the thread
// goes on on another.
func (p *coroutinePool) run(t runner) {
	for {
		s := p.get()
		s.runner = t
		if ended, _ := s.resume(); !ended {
			s.runner = runner{}
			p.put(s)
			return
		}
		s.close()
		if s.panicked != nil {
			panic(s.panicked)
		}
		t = runner{waiter: t.waiter, mailbox: s.runner.mailbox, start: s.runner.start}
	}
}

func (p *coroutinePool) get() *coroutine {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return newCoroutine()
	}
	s := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return s
}

func (p *coroutinePool) put(s *coroutine) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.idle = append(p.idle, s)
	}
	p.mu.Unlock()
	if closed {
		s.close()
	}
}

// close ends the stacks, those in use once they are idle.
func (p *coroutinePool) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, s := range idle {
		s.close()
	}
}

// runIsolated runs agents' code on a goroutine that it may end, and waits.
func runIsolated(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

// stepFailure is how a step ended that did not return.
type stepFailure struct {
	reason any
	stack  []byte
}

// String is the reason, as a person would tell it.
func (f *stepFailure) String() string { return fmt.Sprint(f.reason) }

var errGoexit = errors.New("an agent's code ended its goroutine")

// newStepFailure is what a step came to that panicked, or did not return. The deferred
// function that calls it still sees where.
func newStepFailure(reason any) *stepFailure {
	if reason == nil {
		reason = errGoexit
	}
	return &stepFailure{reason, debug.Stack()}
}
