// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/sim"
)

// stepperEngine implements sim.Engine with the engine of a node: simulated cells run
// behind real mailboxes and supervision.
type stepperEngine struct{ *engine.Stepper }

// NewSlot implements sim.Engine.
func (d stepperEngine) NewSlot(name string) (sim.Slot, error) {
	slot, err := d.Stepper.NewSlot(name)
	return stepperSlot{slot}, err
}

type stepperSlot struct{ *engine.StepperSlot }

// Step implements sim.Slot.
func (s stepperSlot) Step(cell *runtime.Cell, now actor.Time, in runtime.Input) (runtime.Ready, *sim.StepPanic) {
	ready, reason, stack := s.StepperSlot.Step(cell, now, in)
	if reason == nil {
		return ready, nil
	}
	return ready, &sim.StepPanic{Reason: reason, Stack: string(stack)}
}
