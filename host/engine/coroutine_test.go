// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// A cell that was never stepped has no time. A runner that passes it neither uses
// up its time nor gets more of it.
func TestRunnerTimeIgnoresUnsteppedCells(t *testing.T) {
	wall := actor.Time(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC).UnixNano())
	for _, step := range []struct {
		runner  runner
		times   []actor.Time
		expired bool
	}{
		{times: []actor.Time{0, wall}},
		{times: []actor.Time{0, wall, 0, wall.Add(helpTimeMax)}},
		{times: []actor.Time{wall, 0}},
		{times: []actor.Time{0, wall, 0, wall.Add(helpTimeMax + 1)}, expired: true},
	} {
		for i, now := range step.times {
			if want := step.expired && i == len(step.times)-1; step.runner.expired(now) != want {
				t.Errorf("times %v: expired at %d is %t", step.times, i, !want)
			}
		}
	}
}
