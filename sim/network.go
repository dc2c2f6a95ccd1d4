// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// network is what lies between the nodes, and between them and the shared store.
// It carries bytes, and takes its time; it promises no order.
type network struct {
	block [][]cutting  // from, to
	cut   []actor.Time // until when a node cannot reach the store
	links [][]link     // from, to
	onWay int          // messages that have left and not arrived
	late  int          // those of them that a fault keeps up
}

// cutting is a link that lets nothing through for a while, and why.
type cutting struct {
	until actor.Time
	fault Fault
}

// link is what lies between two nodes, in one direction. It numbers the messages,
// so that overtaking shows.
type link struct {
	sent, arrived uint64
	resets        uint64     // how often its connection broke
	onWay         int        // messages of the connection that there is
	jitter        actor.Time // until when some take longer
	slow          actor.Time // until when it carries few bytes a second
	free          actor.Time // when all that was sent before is through, if it is slow
}

func newNetwork(nodes int) network {
	n := network{cut: make([]actor.Time, nodes)}
	for range nodes {
		n.block = append(n.block, make([]cutting, nodes))
		n.links = append(n.links, make([]link, nodes))
	}
	return n
}

// isCut tells whether a node cannot reach the store just now.
func (n *network) isCut(at *node, now actor.Time) bool { return n.cut[at.index] > now }

// storeAsked is how often a node that cannot reach the store tries again.
const storeAsked = 50 * time.Millisecond

// heal lets everything through again.
func (n *network) heal() {
	clear(n.cut)
	for i := range n.block {
		clear(n.block[i])
		for j := range n.links[i] {
			n.links[i][j].jitter, n.links[i][j].slow = 0, 0
		}
	}
}

// transmit carries bytes from one node to another, if the network lets them.
func (w *World) transmit(from *node, op runtime.Send, bytes []byte) {
	to := w.node(op.Node)
	if to == nil {
		return
	}
	defer w.turn(w.turn(aboutLink + StreamID(from.index)<<8 + StreamID(to.index)))
	w.keepSpecimen(frameCodec, bytes)
	m := &message{from: from, to: to, cell: op.Cell, bytes: bytes, what: op.Envelope.Body.Name()}
	_, answer := op.Envelope.Body.(actor.Answered)
	_, request := op.Envelope.Body.(actor.Request)
	switch block := w.net.block[from.index][to.index]; {
	case block.until > w.now:
		w.hit(block.fault, "%s is lost", m)
		return
	case w.fault(NetworkLoss):
		w.hit(NetworkLoss, "%s is lost", m)
		return
	case answer && w.fault(AgentReplyLost):
		w.hit(AgentReplyLost, "%s is lost", m)
		return
	}
	delay := w.between(100*time.Microsecond, 3*time.Millisecond)
	if w.fault(NetworkDelay) {
		more := w.between(20*time.Millisecond, 3*time.Second)
		w.hit(NetworkDelay, "%s comes %v later", m, more)
		m.late = true
		delay += more
	}
	if request && w.fault(AgentCallNetworkDelay) {
		more := w.between(100*time.Millisecond, 10*time.Second)
		w.hit(AgentCallNetworkDelay, "%s comes %v later", m, more)
		m.late = true
		delay += more
	}
	delay += w.strained(m)
	if w.fault(NetworkReorder) {
		m.reordered, m.late = true, true
		delay += w.between(2*time.Millisecond, 200*time.Millisecond)
	}
	if w.fault(NetworkDuplicate) {
		w.hit(NetworkDuplicate, "%s comes twice", m)
		m.late = true
		w.carry(m, w.between(100*time.Microsecond, 3*time.Second))
	}
	if w.fault(NetworkOversized) {
		over := *m
		over.bytes = append(bytes[:len(bytes):len(bytes)], make([]byte, actor.MessageBytesMax)...)
		over.oversized, over.late = true, true
		m = &over
	}
	w.carry(m, delay)
}

// message is bytes under way.
type message struct {
	from, to  *node
	cell      uint16
	bytes     []byte
	what      string
	reordered bool
	late      bool
	oversized bool
}

// String says who sends what to whom.
func (m *message) String() string {
	return m.what + " from " + string(m.from.id) + " to " + string(m.to.id)
}

func (w *World) carry(m *message, delay time.Duration) {
	l := w.net.link(m.from, m.to)
	l.sent++
	l.onWay++
	number, resets := l.sent, l.resets
	w.net.onWay++
	if m.late {
		w.net.late++
	}
	w.after(delay, func() {
		w.net.onWay--
		if m.late {
			w.net.late--
			w.trouble = w.now
		}
		if l.resets != resets {
			return // lost with its connection
		}
		l.onWay--
		if m.reordered && number < l.arrived {
			w.hit(NetworkReorder, "%s was overtaken", m)
		}
		l.arrived = max(l.arrived, number)
		if !m.to.up || int(m.cell) >= len(m.to.cells) {
			return
		}
		env, err := actor.Decode(m.bytes)
		switch {
		case m.oversized && err == nil:
			w.violate(CodecRoundTrip, fmt.Sprintf("%s reads a frame of %d bytes", m.to.id, len(m.bytes)))
			return
		case m.oversized:
			w.hit(NetworkOversized, "%s has %d bytes, which ends the connection", m, len(m.bytes))
			w.reset(m.from, m.to)
			return
		case err != nil:
			w.violate(CodecRoundTrip, fmt.Sprintf("%s cannot read what it was sent: %v", m.to.id, err))
			return
		}
		m.to.cells[m.cell].put(input{stream: anyOrder, in: runtime.Deliver{Envelope: env}, bytes: m.bytes})
	})
}
