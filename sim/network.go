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
	blocked       [][]linkCut  // from, to
	storeCutUntil []actor.Time // until when a node cannot reach the store
	links         [][]link     // from, to
	inFlight      int          // messages that have left and not arrived
	delayed       int          // those of them that a fault keeps up
}

// linkCut is a link that lets nothing through for a while, and why.
type linkCut struct {
	until actor.Time
	fault Fault
}

// link is what lies between two nodes, in one direction. It numbers the messages,
// so that overtaking shows.
type link struct {
	sent, arrived uint64
	resets        uint64     // how often its connection broke
	inFlight      int        // messages of the connection that there is
	jitterUntil   actor.Time // until when some take longer
	slowUntil     actor.Time // until when it carries few bytes a second
	freeAt        actor.Time // when all that was sent before is through, if it is slow
}

func newNetwork(nodes int) network {
	n := network{storeCutUntil: make([]actor.Time, nodes)}
	for range nodes {
		n.blocked = append(n.blocked, make([]linkCut, nodes))
		n.links = append(n.links, make([]link, nodes))
	}
	return n
}

// storeUnreachable tells whether a node cannot reach the store just now.
func (n *network) storeUnreachable(at *node, now actor.Time) bool {
	return n.storeCutUntil[at.index] > now
}

// storeRetryInterval is how often a node that cannot reach the store tries again.
const storeRetryInterval = 50 * time.Millisecond

// heal lets everything through again.
func (n *network) heal() {
	clear(n.storeCutUntil)
	for i := range n.blocked {
		clear(n.blocked[i])
		for j := range n.links[i] {
			n.links[i][j].jitterUntil, n.links[i][j].slowUntil = 0, 0
		}
	}
}

// transmit carries bytes from one node to another, if the network lets them.
func (w *Simulation) transmit(from *node, op runtime.Send, bytes []byte) {
	to := w.nodeByID(op.Node)
	if to == nil {
		return
	}
	defer w.setStream(w.setStream(topicLink + StreamID(from.index)<<8 + StreamID(to.index)))
	w.addToCorpus(frameCodec, bytes)
	m := &message{from: from, to: to, cell: op.Cell, bytes: bytes, kind: op.Envelope.Body.Name()}
	_, answer := op.Envelope.Body.(actor.Answered)
	_, request := op.Envelope.Body.(actor.Request)
	switch block := w.net.blocked[from.index][to.index]; {
	case block.until > w.now:
		w.recordFault(block.fault, "%s is lost", m)
		return
	case w.faultFires(NetworkLoss):
		w.recordFault(NetworkLoss, "%s is lost", m)
		return
	case answer && w.faultFires(AgentReplyLost):
		w.recordFault(AgentReplyLost, "%s is lost", m)
		return
	}
	delay := w.between(100*time.Microsecond, 3*time.Millisecond)
	if w.faultFires(NetworkDelay) {
		more := w.between(20*time.Millisecond, 3*time.Second)
		w.recordFault(NetworkDelay, "%s comes %v later", m, more)
		m.delayed = true
		delay += more
	}
	if request && w.faultFires(AgentCallNetworkDelay) {
		more := w.between(100*time.Millisecond, 10*time.Second)
		w.recordFault(AgentCallNetworkDelay, "%s comes %v later", m, more)
		m.delayed = true
		delay += more
	}
	delay += w.linkDelay(m)
	if w.faultFires(NetworkReorder) {
		m.reordered, m.delayed = true, true
		delay += w.between(2*time.Millisecond, 200*time.Millisecond)
	}
	if w.faultFires(NetworkDuplicate) {
		w.recordFault(NetworkDuplicate, "%s comes twice", m)
		m.delayed = true
		w.scheduleDelivery(m, w.between(100*time.Microsecond, 3*time.Second))
	}
	if w.faultFires(NetworkOversized) {
		over := *m
		over.bytes = append(bytes[:len(bytes):len(bytes)], make([]byte, actor.MessageBytesMax)...)
		over.oversized, over.delayed = true, true
		m = &over
	}
	w.scheduleDelivery(m, delay)
}

// message is bytes under way.
type message struct {
	from, to  *node
	cell      uint16
	bytes     []byte
	kind      string
	reordered bool
	delayed   bool
	oversized bool
}

// String says who sends what to whom.
func (m *message) String() string {
	return m.kind + " from " + string(m.from.id) + " to " + string(m.to.id)
}

func (w *Simulation) scheduleDelivery(m *message, delay time.Duration) {
	l := w.net.link(m.from, m.to)
	l.sent++
	l.inFlight++
	number, resets := l.sent, l.resets
	w.net.inFlight++
	if m.delayed {
		w.net.delayed++
	}
	w.after(delay, func() {
		w.net.inFlight--
		if m.delayed {
			w.net.delayed--
			w.lastDisturbance = w.now
		}
		if l.resets != resets {
			return // lost with its connection
		}
		l.inFlight--
		if m.reordered && number < l.arrived {
			w.recordFault(NetworkReorder, "%s was overtaken", m)
		}
		l.arrived = max(l.arrived, number)
		if !m.to.up || int(m.cell) >= len(m.to.cells) {
			return
		}
		env, err := actor.Decode(m.bytes)
		switch {
		case m.oversized && err == nil:
			w.fail(CodecRoundTrip, fmt.Sprintf("%s reads a frame of %d bytes", m.to.id, len(m.bytes)))
			return
		case m.oversized:
			w.recordFault(NetworkOversized, "%s has %d bytes, which ends the connection", m, len(m.bytes))
			w.resetConnection(m.from, m.to)
			return
		case err != nil:
			w.fail(CodecRoundTrip, fmt.Sprintf("%s cannot read what it was sent: %v", m.to.id, err))
			return
		}
		m.to.cells[m.cell].enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: env}, bytes: m.bytes})
	})
}
