// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
)

// runner is the work of one goroutine that holds cells, one after the other.
// The goroutine is a cell's worker or the goroutine of a client that found a
// cell idle.
type runner struct {
	waiter  *waiter // nil for a cell's worker
	mailbox *mailbox
	task    task
	start   actor.Time // time of the first call of expired; 0 means not called yet
}

// task is what a runner does before handOff.
type task uint8

const (
	taskHandOff task = iota
	taskDeliver      // delivers the waiter's call, which was in no queue
	taskDrain
)

func (r *runner) run() {
	switch r.task {
	case taskDeliver:
		r.mailbox.deliverDirect(r.waiter)
	case taskDrain:
		r.mailbox.drain(r)
	}
	r.mailbox.handOff(r)
}

// expired reports whether the runner has used up its time for other cells. The
// parameter now is the start of the cell's last step, or 0 if that start is
// unknown: the cell was never stepped and took no time. The current time would be
// more precise, but reading the clock costs as much as delivering a message.
func (r *runner) expired(now actor.Time) bool {
	if now == 0 {
		return false
	}
	if r.start == 0 {
		r.start = now
	}
	return now.Sub(r.start) > helpTimeMax
}

// coroutine is a stack on which cells are stepped, independent of the goroutine
// that holds them. Agent code that calls runtime.Goexit ends the coroutine, but
// neither a cell's worker nor the goroutine of a client.
//
// It may be resumed from any goroutine that is not locked to its thread.
// Resuming it from a goroutine that is locked to its thread ends the process.
type coroutine struct {
	runner   runner
	panicked any // panic value that did not come from a cell's step
	resume   func() (ended, ok bool)
	stop     func()
}

func newCoroutine() *coroutine {
	co := &coroutine{}
	co.resume, co.stop = iter.Pull(func(yield func(bool) bool) {
		returned := false
		defer func() {
			if !returned {
				co.panicked = recover()
				yield(true) // after Goexit the function cannot return, but it can still yield
			}
		}()
		for next := true; next; next = yield(false) {
			co.runner.run()
		}
		returned = true
	})
	return co
}

// close ends the coroutine. It calls stop on a separate goroutine: after agent
// code has called Goexit, stop ends its calling goroutine.
func (co *coroutine) close() { runIsolated(co.stop) }

// coroutinePool holds idle coroutines. Their number is the maximum number of
// runners that were active at once, which is hardly more than the number of
// cells.
type coroutinePool struct {
	spare  atomic.Pointer[coroutine] // one that needs no lock
	mu     sync.Mutex
	idle   []*coroutine
	closed atomic.Bool
}

// run runs a runner on a coroutine. If the coroutine ends before the work is
// complete, the rest runs on another coroutine.
func (p *coroutinePool) run(r runner) {
	for {
		co := p.get()
		co.runner = r
		if ended, _ := co.resume(); !ended {
			co.runner = runner{}
			p.put(co)
			return
		}
		co.close()
		if co.panicked != nil {
			panic(co.panicked)
		}
		r = runner{waiter: r.waiter, mailbox: co.runner.mailbox, start: co.runner.start}
	}
}

func (p *coroutinePool) get() *coroutine {
	if co := p.spare.Swap(nil); co != nil {
		return co
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return newCoroutine()
	}
	co := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return co
}

func (p *coroutinePool) put(co *coroutine) {
	if !p.spare.CompareAndSwap(nil, co) {
		p.mu.Lock()
		closed := p.closed.Load()
		if !closed {
			p.idle = append(p.idle, co)
		}
		p.mu.Unlock()
		if closed {
			co.close()
		}
	} else if p.closed.Load() {
		p.closeSpare()
	}
}

func (p *coroutinePool) closeSpare() {
	if co := p.spare.Swap(nil); co != nil {
		co.close()
	}
}

// close ends the idle coroutines, and the others as soon as they are idle.
func (p *coroutinePool) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.closed.Store(true)
	p.mu.Unlock()
	p.closeSpare()
	for _, co := range idle {
		co.close()
	}
}

// runIsolated runs fn on a separate goroutine and waits for it. Agent code in
// fn may end that goroutine with runtime.Goexit.
func runIsolated(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	<-done
}

// stepFailure describes a step that did not return.
type stepFailure struct {
	reason any
	stack  []byte
}

// String returns the reason as text.
func (f *stepFailure) String() string { return fmt.Sprint(f.reason) }

var errGoexit = errors.New("agent code called runtime.Goexit")

// newStepFailure returns the failure of a step that panicked or did not return.
// It MUST be called from the deferred function, which still sees the failing
// stack.
func newStepFailure(reason any) *stepFailure {
	if reason == nil {
		reason = errGoexit
	}
	return &stepFailure{reason, debug.Stack()}
}
