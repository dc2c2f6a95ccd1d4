// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// transmit carries bytes from one node to another, if the network lets them.
func (w *World) transmit(from *node, op runtime.Send, bytes []byte) {
	to := w.node(op.Node)
	if to == nil {
		return
	}
	w.arrive(to, op.Cell, bytes, w.between(100*time.Microsecond, 3*time.Millisecond))
}

func (w *World) arrive(to *node, cell uint16, bytes []byte, delay time.Duration) {
	w.after(delay, func() {
		if !to.up || int(cell) >= len(to.cells) {
			return
		}
		env, err := actor.Decode(bytes)
		if err != nil {
			w.violate("CodecRoundTrip", fmt.Sprintf("%s cannot read what it was sent: %v", to.id, err))
			return
		}
		to.cells[cell].put(input{anyOrder, runtime.Deliver{Envelope: env}, bytes})
	})
}
