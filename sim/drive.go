// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// Drive has seats on which the cells of a world are stepped: when, and with what,
// is the world's to choose.
type Drive interface {
	// Seat is a place for one cell, and for those that come after it.
	Seat(name string) (Seat, error)
	Close()
}

// Seat steps the cell that sits on it.
type Seat interface {
	// Step has a cell take in one input. If it panicked the cell is gone, and
	// another may take its place.
	Step(cell *runtime.Cell, now actor.Time, in runtime.Input) (runtime.Ready, *Fall)
}

// Fall is how a step ended that panicked.
type Fall struct {
	Reason any
	Stack  string // where it began
}

// direct is the drive that does nothing but step.
type direct struct{}

func (direct) Seat(string) (Seat, error) { return direct{}, nil }

func (direct) Close() {}

func (direct) Step(cell *runtime.Cell, now actor.Time, in runtime.Input) (ready runtime.Ready, fall *Fall) {
	defer func() {
		if p := recover(); p != nil {
			fall = &Fall{p, shortStack()}
		}
	}()
	return cell.Step(now, in), nil
}
