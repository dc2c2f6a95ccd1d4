// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// StepMax is how long a step may take before it is named.
const StepMax = 100 * time.Millisecond

// watchdog names a step that takes too long, while it does: all other actors of
// the cell wait for it, and so does the client whose goroutine it may be. It
// looks now and then as long as the cell steps, and sleeps with it.
type watchdog struct {
	cell  uint16
	log   *slog.Logger
	clock clock
	timer *time.Timer
	awake atomic.Bool
	step  atomic.Pointer[step]
	named *step // the timer's alone
}

type step struct {
	input runtime.Input
	began actor.Time
}

func newWatchdog(cell uint16, log *slog.Logger, clock clock) *watchdog {
	w := &watchdog{cell: cell, log: log, clock: clock}
	w.timer = time.AfterFunc(time.Hour, w.look)
	w.timer.Stop()
	return w
}

func (w *watchdog) begin(in runtime.Input, now actor.Time) {
	w.step.Store(&step{in, now})
	w.rouse()
}

// end tells how long the step took, if there was one.
func (w *watchdog) end() (took time.Duration) {
	if s := w.step.Load(); s != nil {
		w.step.Store(nil)
		took = w.clock.now().Sub(s.began)
	}
	return took
}

func (w *watchdog) rouse() {
	if !w.awake.Load() && w.awake.CompareAndSwap(false, true) {
		w.timer.Reset(StepMax / 2)
	}
}

func (w *watchdog) look() {
	s := w.step.Load()
	if s == nil {
		w.awake.Store(false)
		if w.step.Load() != nil { // begun just now, and found it awake
			w.rouse()
		}
		return
	}
	if took := w.clock.now().Sub(s.began); took >= StepMax && s != w.named {
		w.named = s
		w.log.Warn("a step takes long: every actor of its cell waits", "cell", w.cell, "at", inputName(s.input), "ms", took.Milliseconds())
	}
	w.timer.Reset(StepMax / 2)
}

// inputName is what a cell is busy with, in a few words; never content.
func inputName(in runtime.Input) string {
	switch in := in.(type) {
	case runtime.Deliver:
		env := in.Envelope
		if r, ok := env.Body.(actor.Request); ok {
			return fmt.Sprintf("request %s for %s", r.Call.ID, env.To)
		}
		return fmt.Sprintf("%T for %s", env.Body, env.To)
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
