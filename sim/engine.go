// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// Engine has seats on which the cells of a world are stepped: when, and with what,
// is the world's to choose.
type Engine interface {
	// NewSlot is a place for one cell, and for those that come after it.
	NewSlot(name string) (Slot, error)
	Close()
}

// Slot steps the cell that sits on it.
type Slot interface {
	// Step has a cell take in one input. If it panicked the cell is gone, and
	// another may take its place.
	Step(cell *runtime.Cell, now actor.Time, in runtime.Input) (runtime.Ready, *StepPanic)
}

// StepPanic is how a step ended that panicked.
type StepPanic struct {
	Reason any
	Stack  string // where it began
}

// directEngine is the drive that does nothing but step.
type directEngine struct{}

func (directEngine) NewSlot(string) (Slot, error) { return directEngine{}, nil }

func (directEngine) Close() {}

func (directEngine) Step(cell *runtime.Cell, now actor.Time, in runtime.Input) (ready runtime.Ready, fall *StepPanic) {
	defer func() {
		if p := recover(); p != nil {
			fall = &StepPanic{p, panicStack()}
		}
	}()
	return cell.Step(now, in), nil
}
