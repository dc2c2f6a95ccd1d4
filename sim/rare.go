// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/troupe-run/troupe/internal/failpoint"

// rareIn is every how manieth time a place where rare things may happen is come
// by that one does, in a seed that has it.
const rareIn = 16

// drawRare says which of them a seed has: each in one of four.
func drawRare(c Chooser) (all []failpoint.Point) {
	for _, p := range failpoint.All() {
		if c.Int(4) == 3 {
			all = append(all, p)
		}
	}
	return all
}

// rare is what product code asks at these places.
func (w *World) rare(at failpoint.Point) bool {
	if w.calm || w.rares&(1<<at) == 0 {
		return false
	}
	before := w.turn(aboutRare + StreamID(at))
	happens := w.choose.Int(rareIn) == rareIn-1
	w.turn(before)
	if happens {
		w.Stats.Rare[at]++
		w.log.world(w.now, "rare: %s", at)
	}
	return happens
}
