// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"
)

// Dose is the share of a fault's effect that is applied. The code that injects the
// fault runs with every dose; only the functions of this file apply the effect. A
// fault whose effect is removed MUST NOT be counted.
type Dose uint8

// The doses.
const (
	WholeDose Dose = iota
	HalfDose       // the smallest effect: a millisecond, a byte, one thing of several, half of a period
	NoDose         // no effect

	doses = int(NoDose) + 1
)

// acts reports whether an effect that cannot be divided is applied.
func (w *Simulation) acts(f Fault) bool { return w.doses[f] != NoDose }

// extraDelay returns the delay that fault f adds.
func (w *Simulation) extraDelay(f Fault, delay time.Duration) time.Duration {
	switch w.doses[f] {
	case NoDose:
		return 0
	case HalfDose:
		return min(delay, time.Millisecond)
	}
	return delay
}

// faultPeriod draws the duration for which fault f lasts.
func (w *Simulation) faultPeriod(f Fault, least, most time.Duration) time.Duration {
	d := w.between(least, most)
	switch w.doses[f] {
	case NoDose:
		return 0
	case HalfDose:
		return d / 2
	}
	return d
}

// affectedCount returns how many of count things fault f affects. A negative count
// stays negative.
func (w *Simulation) affectedCount(f Fault, count int) int {
	switch w.doses[f] {
	case NoDose:
		return 0
	case HalfDose:
		return min(max(count, -1), 1)
	}
	return count
}

// faultyBytes returns the bytes that are delivered in place of plain: those that fault f
// made of them, or with half a dose plain with the first different byte of them.
func (w *Simulation) faultyBytes(f Fault, plain, faulty []byte) []byte {
	switch w.doses[f] {
	case NoDose:
		return plain
	case HalfDose:
		at := 0
		for at < len(plain) && at < len(faulty) && plain[at] == faulty[at] {
			at++
		}
		if at == len(faulty) { // faulty is a part of plain: one byte is lost
			return append(plain[:at:at], plain[min(at+1, len(plain)):]...)
		}
		return append(append(plain[:at:at], faulty[at]), plain[min(at+1, len(plain)):]...)
	}
	return faulty
}

// recordChange counts and logs fault f if it changed the delivery: if the value
// differs from the value without the fault. It reports whether the values differ. Only
// recordChange counts faults.
func recordChange[T comparable](w *Simulation, f Fault, without, delivered T, format string, args ...any) bool {
	if without == delivered || f == noFault { // noFault: a panic that was not injected; it is reported as a violation
		return false
	}
	w.noteDisturbance(f)
	w.Stats.Faults[f]++
	if w.log == nil && len(w.observers) == 0 {
		return true
	}
	detail := fmt.Sprintf(format, args...)
	w.log.note(w.now, "fault %s: %s", f, detail)
	for _, o := range w.observers {
		o.fault(w.now, f, detail)
	}
	return true
}
