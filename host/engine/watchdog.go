// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// StepMax is the duration after which a running step is reported as slow.
const StepMax = 100 * time.Millisecond

// watchdog reports a step that takes too long while it is running. All other
// actors of the cell wait for it, and so does a client whose goroutine runs it.
// The watchdog polls while the cell steps and stops when the cell is idle.
type watchdog struct {
	cell   uint16
	log    *slog.Logger
	clock  clock
	timer  *time.Timer
	active atomic.Bool
	tally  *tally // receives the durations of running steps

	mu       sync.Mutex // while it is held, no step begins or ends
	input    runtime.Input
	start    actor.Time
	steps    uint64
	reported uint64
}

func newWatchdog(cell uint16, log *slog.Logger, clock clock, tally *tally) *watchdog {
	w := &watchdog{cell: cell, log: log, clock: clock, tally: tally}
	w.timer = time.AfterFunc(time.Hour, w.poll)
	w.timer.Stop()
	return w
}

// begin starts a step and returns its number.
func (w *watchdog) begin(in runtime.Input, now actor.Time) (step uint64) {
	w.mu.Lock()
	w.input, w.start = in, now
	w.steps++
	step = w.steps
	w.mu.Unlock()
	w.wake()
	return step
}

func (w *watchdog) end() {
	w.mu.Lock()
	w.input = nil
	w.mu.Unlock()
}

func (w *watchdog) wake() {
	if !w.active.Load() && w.active.CompareAndSwap(false, true) {
		w.timer.Reset(StepMax / 2)
	}
}

func (w *watchdog) poll() {
	if name, took := w.slowStep(); name != "" {
		w.log.Warn("slow step, cell blocked", "cell", w.cell, "at", name, "ms", took.Milliseconds())
	}
}

// slowStep returns the name and duration of a running slow step, once per step.
func (w *watchdog) slowStep() (name string, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.input == nil {
		w.active.Store(false) // the next begin restarts the timer
		return "", 0
	}
	w.timer.Reset(StepMax / 2)
	took = w.clock.now().Sub(w.start)
	w.tally.recordLongest(took)
	if took < StepMax || w.reported == w.steps {
		return "", 0
	}
	w.reported = w.steps
	return inputName(w.input), took
}

// inputName describes an input in a few words. It never includes content.
func inputName(in runtime.Input) string {
	switch in := in.(type) {
	case *runtime.Visit:
		return fmt.Sprintf("request %s for %s", in.Call.ID, in.Call.To)
	case *runtime.Deliver:
		return fmt.Sprintf("%s %s for %s", in.Envelope.Body.Name(), in.Envelope.Body.Subject(), in.Envelope.To)
	case runtime.Outcome:
		return fmt.Sprintf("outcome %s", in.ID)
	case runtime.Streamed:
		return fmt.Sprintf("piece %s", in.ID)
	case runtime.Loaded:
		return fmt.Sprintf("loaded %s", in.Actor)
	default:
		return fmt.Sprintf("%T", in)
	}
}
