// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/troupe-run/troupe/internal/failpoint"

// failpointPeriod is every how manieth time a place where rare things may happen is come
// by that one does, in a seed that has it.
const failpointPeriod = 16

// drawFailpoints says which of them a seed has: each in one of four.
func drawFailpoints(c Entropy) (all []failpoint.Point) {
	for _, p := range failpoint.All() {
		if c.Int(4) == 3 {
			all = append(all, p)
		}
	}
	return all
}

// failpointFires is what product code asks at these places.
func (w *Simulation) failpointFires(at failpoint.Point) bool {
	if w.recovering || w.failpoints&(1<<at) == 0 {
		return false
	}
	before := w.setStream(topicFailpoint + StreamID(at))
	happens := w.entropy.Int(failpointPeriod) == failpointPeriod-1
	w.setStream(before)
	if happens {
		w.Stats.Failpoints[at]++
		w.log.note(w.now, "rare: %s", at)
	}
	return happens
}
