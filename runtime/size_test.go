// SPDX-License-Identifier: Apache-2.0

package runtime

// checkSize compares what a cell says of its size with all it has, after every step.
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
	if got := c.Size(); got != want {
		n.t.Fatalf("%v says that it has %+v, and has %+v", c.Self(), got, want)
	}
}
