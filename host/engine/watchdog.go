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
// the cell wait for it. It costs nothing while no step is under way.
type watchdog struct {
	cell  uint16
	log   *slog.Logger
	timer *time.Timer
	step  atomic.Pointer[step]
}

type step struct {
	input runtime.Input
	began time.Time
}

func newWatchdog(cell uint16, log *slog.Logger) *watchdog {
	w := &watchdog{cell: cell, log: log}
	w.timer = time.AfterFunc(time.Hour, w.bark)
	w.timer.Stop()
	return w
}

func (w *watchdog) begin(in runtime.Input) {
	w.step.Store(&step{in, time.Now()})
	w.timer.Reset(StepMax)
}

// end tells how long the step took, if there was one.
func (w *watchdog) end() (took time.Duration) {
	w.timer.Stop()
	if s := w.step.Swap(nil); s != nil {
		took = time.Since(s.began)
	}
	return took
}

func (w *watchdog) bark() {
	s := w.step.Load()
	if s == nil {
		return
	}
	took := time.Since(s.began)
	if took < StepMax {
		return // it is the next one already
	}
	w.log.Warn("a step takes long: every actor of its cell waits", "cell", w.cell, "at", inputName(s.input), "ms", took.Milliseconds())
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
	case runtime.Loaded:
		return fmt.Sprintf("loaded %s", in.Actor)
	default:
		return fmt.Sprintf("%T", in)
	}
}
