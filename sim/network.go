// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// network simulates the links between the nodes, and those from the nodes to the
// shared store. It delivers bytes after a delay and does not preserve their order.
type network struct {
	blocked       [][]linkCut  // by sender and receiver
	storeCutUntil []actor.Time // by node: end of its disconnection from the store
	links         [][]link     // by sender and receiver
	flights       []flight     // messages sent and not yet delivered, in no particular order
	delayed       int          // number of messages in flight that a fault delays
}

// linkCut is a period in which a link delivers nothing, with the fault that caused it.
type linkCut struct {
	until actor.Time
	fault Fault
}

// link is the state of one direction between two nodes. Its message numbers make
// reordering visible.
type link struct {
	sent, arrived uint64
	resets        uint64     // number of broken connections so far
	inFlight      int        // messages in flight on the current connection
	jitterUntil   actor.Time // end of the period with random extra delays
	slowUntil     actor.Time // end of the period with limited bandwidth
	freeAt        actor.Time // for a slow link: time at which all earlier bytes have been sent
}

func newNetwork(nodes int) network {
	n := network{storeCutUntil: make([]actor.Time, nodes)}
	for range nodes {
		n.blocked = append(n.blocked, make([]linkCut, nodes))
		n.links = append(n.links, make([]link, nodes))
	}
	return n
}

// storeUnreachable reports whether a node cannot reach the store now.
func (n *network) storeUnreachable(at *node, now actor.Time) bool {
	return n.storeCutUntil[at.index] > now
}

// storeRetryInterval is the time between two attempts of a disconnected node to
// reach the store.
const storeRetryInterval = 50 * time.Millisecond

// heal removes all link faults.
func (n *network) heal() {
	clear(n.storeCutUntil)
	for i := range n.blocked {
		clear(n.blocked[i])
		for j := range n.links[i] {
			n.links[i][j].jitterUntil, n.links[i][j].slowUntil = 0, 0
		}
	}
}

// transmit sends bytes from one node to another, subject to the network faults.
func (w *Simulation) transmit(from *node, op runtime.Send, bytes []byte) {
	to := w.nodeByID(op.Node)
	if to == nil {
		return
	}
	defer w.setStream(w.setStream(topicLink + StreamID(from.index)<<8 + StreamID(to.index)))
	w.addToCorpus(frameCodec, bytes)
	m := &message{from: from, to: to, cell: op.Cell, bytes: bytes, kind: op.Envelope.Body.Name()}
	_, isReply := op.Envelope.Body.(actor.Answered)
	_, isRequest := op.Envelope.Body.(actor.Request)
	switch cut := w.net.blocked[from.index][to.index]; {
	case cut.until > w.now:
		w.recordFault(cut.fault, "%s is lost", m)
		return
	case w.faultFires(NetworkLoss):
		w.recordFault(NetworkLoss, "%s is lost", m)
		return
	case isReply && w.faultFires(AgentReplyLost):
		w.recordFault(AgentReplyLost, "%s is lost", m)
		return
	}
	delay := w.between(100*time.Microsecond, 3*time.Millisecond)
	if w.faultFires(NetworkDelay) {
		extra := w.between(20*time.Millisecond, 3*time.Second)
		w.recordFault(NetworkDelay, "%s is delayed by %v", m, extra)
		m.delayed = true
		delay += extra
	}
	if isRequest && w.faultFires(AgentCallNetworkDelay) {
		extra := w.between(100*time.Millisecond, 10*time.Second)
		w.recordFault(AgentCallNetworkDelay, "%s is delayed by %v", m, extra)
		m.delayed = true
		delay += extra
	}
	delay += w.linkDelay(m)
	if w.faultFires(NetworkReorder) {
		m.reordered, m.delayed = true, true
		delay += w.between(2*time.Millisecond, 200*time.Millisecond)
	}
	if w.faultFires(NetworkDuplicate) {
		w.recordFault(NetworkDuplicate, "%s is duplicated", m)
		m.delayed = true
		w.scheduleDelivery(m, w.between(100*time.Microsecond, 3*time.Second))
	}
	if w.faultFires(NetworkOversized) {
		large := *m
		large.bytes = append(bytes[:len(bytes):len(bytes)], make([]byte, actor.MessageBytesMax)...)
		large.oversized, large.delayed = true, true
		m = &large
	}
	w.scheduleDelivery(m, delay)
}

// flight is one delivery of a message.
type flight struct {
	message *message
	number  uint64 // on its link
	resets  uint64 // number of connections of its link that had broken when it was sent
}

// land removes a flight.
func (n *network) land(f flight) {
	i, last := slices.Index(n.flights, f), len(n.flights)-1
	n.flights[i] = n.flights[last]
	n.flights = slices.Delete(n.flights, last, last+1)
}

// lost reports whether the connection of the flight has broken.
func (n *network) lost(f *flight) bool {
	return n.link(f.message.from, f.message.to).resets != f.resets
}

// message is an encoded envelope in flight.
type message struct {
	from, to  *node
	cell      uint16
	bytes     []byte
	kind      string
	reordered bool
	delayed   bool
	oversized bool
}

// String returns the kind of message, its sender and its receiver.
func (m *message) String() string {
	return m.kind + " from " + string(m.from.id) + " to " + string(m.to.id)
}

func (w *Simulation) scheduleDelivery(m *message, delay time.Duration) {
	l := w.net.link(m.from, m.to)
	l.sent++
	l.inFlight++
	f := flight{m, l.sent, l.resets}
	w.net.flights = append(w.net.flights, f)
	if m.delayed {
		w.net.delayed++
	}
	w.after(delay, func() {
		w.net.land(f)
		if m.delayed {
			w.net.delayed--
			w.lastDisturbance = w.now
		}
		if w.net.lost(&f) {
			return
		}
		l.inFlight--
		if m.reordered && f.number < l.arrived {
			w.recordFault(NetworkReorder, "%s was overtaken", m)
		}
		l.arrived = max(l.arrived, f.number)
		if !m.to.up || int(m.cell) >= len(m.to.cells) {
			return
		}
		env, err := actor.Decode(m.bytes)
		switch {
		case m.oversized && err == nil:
			w.fail(CodecRoundTrip, fmt.Sprintf("%s accepted an oversized frame of %d bytes", m.to.id, len(m.bytes)))
			return
		case m.oversized:
			w.recordFault(NetworkOversized, "%s has %d bytes and ends the connection", m, len(m.bytes))
			w.resetConnection(m.from, m.to)
			return
		case err != nil:
			w.fail(CodecRoundTrip, fmt.Sprintf("%s cannot decode a message: %v", m.to.id, err))
			return
		}
		m.to.cells[m.cell].enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: env}, bytes: m.bytes})
	})
}
