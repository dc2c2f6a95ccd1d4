// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// stepper steps one incarnation of a cell on a stack of its own. Agents' code
// that panics or calls runtime.Goexit ends that stack, and neither the goroutine
// of the cell nor that of a client who happens to be the cell's thread.
//
// It may be used from any goroutine that is not locked to its thread; the
// process dies from one that is.
type stepper struct {
	resume func() (stepped, bool)
	stop   func()
	now    actor.Time
	in     runtime.Input
}

type stepped struct {
	ready runtime.Ready
	fall  *fall
}

// fall is how a step ended that did not return.
type fall struct {
	reason any
	stack  []byte
}

// String is the reason, as a person would tell it.
func (f *fall) String() string { return fmt.Sprint(f.reason) }

var errGoexit = errors.New("an agent's code ended its goroutine")

func newStepper(core *runtime.Cell) *stepper {
	s := &stepper{}
	s.resume, s.stop = iter.Pull(func(yield func(stepped) bool) {
		returned := false
		defer func() {
			if returned {
				return
			}
			f := &fall{reason: recover(), stack: debug.Stack()}
			if f.reason == nil {
				f.reason = errGoexit
			}
			yield(stepped{fall: f}) // there is no return; but there is a way back
		}()
		for yield(stepped{ready: core.Step(s.now, s.in)}) {
		}
		returned = true
	})
	return s
}

// step advances the cell, or panics with a fall: then it must not be used again.
func (s *stepper) step(now actor.Time, in runtime.Input) runtime.Ready {
	s.now, s.in = now, in
	out, _ := s.resume()
	s.in = nil
	if out.fall != nil {
		panic(out.fall)
	}
	return out.ready
}

// end lets go of the stack. What ends by Goexit takes a goroutine along: one that
// is made for it.
func (s *stepper) end() { apart(s.stop) }

// apart runs agents' code on a goroutine that it may end, and waits.
func apart(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}
