// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/troupe-run/troupe/internal/failpoint"

// failpointPeriod is the mean number of evaluations per activation of an enabled
// failpoint.
const failpointPeriod = 16

// drawFailpoints selects the failpoints that a seed enables, each with probability
// 1/4.
func drawFailpoints(c Entropy) (all []failpoint.Point) {
	for _, p := range failpoint.All() {
		if c.Int(4) == 3 {
			all = append(all, p)
		}
	}
	return all
}

// failpointFires reports whether a failpoint of the product code fires at this
// evaluation. It never fires in the recovery phase.
func (w *Simulation) failpointFires(point failpoint.Point) bool {
	if w.recovering || w.failpoints&(1<<point) == 0 {
		return false
	}
	previous := w.setStream(topicFailpoint + StreamID(point))
	fires := w.entropy.Int(failpointPeriod) == failpointPeriod-1
	w.setStream(previous)
	if fires {
		w.Stats.Failpoints[point]++
		w.log.note(w.now, "failpoint: %s", point)
	}
	return fires
}
