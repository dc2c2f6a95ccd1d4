// SPDX-License-Identifier: Apache-2.0

package runtime

import "reflect"

// checkSize compares the cell's Size with its State after every step, and checks
// that idleState was not changed.
func (n *node) checkSize(c *Cell) {
	n.t.Helper()
	var want Size
	for _, a := range c.State().Actors {
		want.Actors++
		want.Queued += len(a.Queue)
		for _, t := range a.Turns {
			want.Outstanding += len(t.Open)
		}
	}
	for _, act := range c.actors.ordered() {
		for _, q := range act.mailbox.Calls() {
			want.ByLane[q.Lane-1]++
		}
		if act.durable {
			want.Remembered += act.journal.OutcomeBytes()
		}
	}
	if want.Remembered > c.limits.RememberBytes {
		n.t.Fatalf("%v holds %d bytes of outcomes, want at most %d", c.Self(), want.Remembered, c.limits.RememberBytes)
	}
	if !reflect.DeepEqual(*c.idleState, activeState{}) {
		n.t.Fatalf("%v: idleState was changed: %+v", c.Self(), *c.idleState)
	}
	if got := c.Size(); got != want {
		n.t.Fatalf("%v: got size %+v, want %+v", c.Self(), got, want)
	}
}
