// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// Engine provides the slots in which cells are stepped. The simulation decides when to
// step a cell, and with which input.
type Engine interface {
	// NewSlot returns a slot for one cell and its successors.
	NewSlot(name string) (Slot, error)
	Close()
}

// Slot steps the cell that occupies it.
type Slot interface {
	// Step steps the cell with one input. If the cell panics it is lost, and its
	// successor may use the slot.
	Step(cell *runtime.Cell, now actor.Time, in runtime.Input) (runtime.Ready, *StepPanic)
}

// StepPanic describes a step that panicked.
type StepPanic struct {
	Reason any
	Stack  string // frames from the origin of the panic
}

// directEngine steps cells by calling Step.
type directEngine struct{}

func (directEngine) NewSlot(string) (Slot, error) { return directEngine{}, nil }

func (directEngine) Close() {}

func (directEngine) Step(cell *runtime.Cell, now actor.Time, in runtime.Input) (ready runtime.Ready, panicked *StepPanic) {
	defer func() {
		if p := recover(); p != nil {
			panicked = &StepPanic{p, panicStack()}
		}
	}()
	return cell.Step(now, in), nil
}
