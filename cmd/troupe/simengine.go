// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/sim"
)

// stepperEngine has the cells of a world stepped as those of a node are.
type stepperEngine struct{ *engine.Stepper }

// NewSlot implements sim.Drive.
func (d stepperEngine) NewSlot(name string) (sim.Slot, error) {
	slot, err := d.Stepper.NewSlot(name)
	return stepperSlot{slot}, err
}

type stepperSlot struct{ *engine.StepperSlot }

// Step implements sim.Seat.
func (s stepperSlot) Step(cell *runtime.Cell, now actor.Time, in runtime.Input) (runtime.Ready, *sim.StepPanic) {
	ready, reason, stack := s.StepperSlot.Step(cell, now, in)
	if reason == nil {
		return ready, nil
	}
	return ready, &sim.StepPanic{Reason: reason, Stack: string(stack)}
}
