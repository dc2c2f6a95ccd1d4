// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
)

// Stats counts what was seen of a world.
type Stats struct {
	Steps   int
	Calls   int // requests that were given a turn
	Faults  int
	Replies int // that clients got
	Depth   int // the deepest call that had a turn
	Events  [32]int
}

func (s *Stats) input(c *cell, in runtime.Input) {}

func (s *Stats) event(e *history.Event) {
	s.Events[e.Kind]++
	switch e.Kind {
	case history.Start:
		s.Calls++
	case history.Admit:
		s.Depth = max(s.Depth, len(e.Chain))
	}
}
