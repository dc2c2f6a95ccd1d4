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
	storeCutFelt  []bool       // by node: an operation was refused because of it
	links         [][]link     // by sender and receiver
	flights       []flight     // messages sent and not yet delivered, in no particular order
	delayed       int          // number of messages in flight that a fault delays
	resetNext     bool         // NetworkReset breaks the connection of the next message
}

// linkCut is a period in which a link delivers nothing, with the fault that caused it.
type linkCut struct {
	until actor.Time
	fault Fault
}

// link is the state of one direction between two nodes.
type link struct {
	sent        uint64     // number of the last message sent
	resets      uint64     // number of broken connections so far
	resetBy     Fault      // fault that broke the last connection
	reordered   []flight   // those that later ones may overtake
	jitterUntil actor.Time // end of the period with random extra delays
	slowUntil   actor.Time // end of the period with limited bandwidth
	freeAt      actor.Time // for a slow link: time at which all earlier bytes have been sent
}

// noteArrival records the arrival of message number: it overtakes the earlier ones that
// are still in flight.
func (l *link) noteArrival(number uint64, now actor.Time) {
	l.reordered = slices.DeleteFunc(l.reordered, func(f flight) bool { return f.number == number })
	for _, f := range l.reordered {
		if f.number < number && f.message.overtakenAt == 0 {
			f.message.overtakenAt = now
		}
	}
}

func newNetwork(nodes int) network {
	n := network{storeCutUntil: make([]actor.Time, nodes), storeCutFelt: make([]bool, nodes)}
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

// storeRefuses reports whether an operation of a node fails now because the node cannot
// reach the store. The first such operation counts the fault.
func (w *Simulation) storeRefuses(n *node) bool {
	refused := w.net.storeUnreachable(n, w.now)
	if felt := &w.net.storeCutFelt[n.index]; refused && !*felt {
		*felt = recordChange(w, StoreCutOff, false, refused, "%s cannot reach the store until %v", n.id, w.net.storeCutUntil[n.index].Sub(Origin))
	}
	return refused
}

// storeRetryInterval is the time between two attempts of a disconnected node to
// reach the store.
const storeRetryInterval = 50 * time.Millisecond

// heal removes all link faults.
func (n *network) heal() {
	clear(n.storeCutUntil)
	n.resetNext = false
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
	m := &message{from: from, to: to, cell: op.Cell, bytes: bytes, kind: op.Envelope.Body.Name(), lostTo: noFault, arrived: new(int)}
	_, isReply := op.Envelope.Body.(actor.Answered)
	_, isRequest := op.Envelope.Body.(actor.Request)
	delay := w.between(100*time.Microsecond, 3*time.Millisecond)
	m.due = w.now.Add(delay)
	switch cut := w.net.blocked[from.index][to.index]; {
	case cut.until > w.now:
		m.lostTo = cut.fault
	case w.faultFires(NetworkLoss):
		m.lostTo = NetworkLoss
	case isReply && w.faultFires(AgentReplyLost):
		m.lostTo = AgentReplyLost
	}
	if m.lostTo != noFault && w.acts(m.lostTo) {
		w.after(delay, func() { w.receive(m) })
		return
	}
	if w.faultFires(NetworkDelay) {
		delay += m.delayBy(NetworkDelay, w.between(20*time.Millisecond, 3*time.Second))
	}
	if isRequest && w.faultFires(AgentCallNetworkDelay) {
		delay += m.delayBy(AgentCallNetworkDelay, w.between(100*time.Millisecond, 10*time.Second))
	}
	delay += w.linkDelay(m)
	if w.faultFires(NetworkReorder) {
		m.reordered = true
		delay += m.delayBy(NetworkReorder, w.between(2*time.Millisecond, 200*time.Millisecond))
	}
	if w.faultFires(NetworkDuplicate) {
		again := *m
		again.delays, again.reordered, again.delayed = nil, false, true
		if wait := w.between(100*time.Microsecond, 3*time.Second); w.acts(NetworkDuplicate) {
			w.scheduleDelivery(&again, wait)
		}
	}
	if w.faultFires(NetworkOversized) {
		m.bytes = w.faultyBytes(NetworkOversized, bytes, append(bytes[:len(bytes):len(bytes)], make([]byte, actor.MessageBytesMax)...))
		m.oversized, m.delayed = true, true
	}
	w.scheduleDelivery(m, delay)
	if w.net.resetNext {
		w.net.resetNext = false
		w.after(w.between(0, delay), func() {
			if !w.recovering {
				w.resetConnection(from, to, NetworkReset)
			}
		})
	}
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
	from, to    *node
	cell        uint16
	bytes       []byte
	kind        string
	due         actor.Time // arrival without faults
	delays      []Fault    // faults that delay it
	lostTo      Fault      // fault to which it is lost, or noFault
	arrived     *int       // number of copies received, shared by all copies
	overtakenAt actor.Time // when a later message first overtook it; 0: not overtaken
	reordered   bool
	delayed     bool
	oversized   bool
}

// String returns the kind of message, its sender and its receiver.
func (m *message) String() string {
	return m.kind + " from " + string(m.from.id) + " to " + string(m.to.id)
}

// delayBy adds a delay to the message, and returns the applied part of it.
func (m *message) delayBy(f Fault, delay time.Duration) time.Duration {
	if delay = m.from.w.extraDelay(f, delay); delay > 0 {
		m.delays, m.delayed = append(m.delays, f), true
	}
	return delay
}

func (w *Simulation) scheduleDelivery(m *message, delay time.Duration) {
	l := w.net.link(m.from, m.to)
	l.sent++
	f := flight{m, l.sent, l.resets}
	w.net.flights = append(w.net.flights, f)
	if m.reordered {
		l.reordered = append(l.reordered, f)
	}
	if m.delayed {
		w.net.delayed++
	}
	w.after(delay, func() {
		w.net.land(f)
		if m.delayed {
			w.net.delayed--
			w.lastDisturbance = w.now
		}
		l.noteArrival(f.number, w.now)
		if w.net.lost(&f) { // with its connection
			m.lostTo = l.resetBy
		}
		w.receive(m)
	})
}

// receive delivers a message to its cell, unless it is lost, and counts the faults that
// changed its delivery. A message that its receiver could not take anyway counts for no
// fault.
func (w *Simulation) receive(m *message) {
	if !m.to.up || int(m.cell) >= len(m.to.cells) {
		return
	}
	lost := m.lostTo != noFault && w.acts(m.lostTo)
	taken := !lost && w.takeFrame(m)
	recordChange(w, m.lostTo, true, taken, "%s is lost", m)
	if m.oversized && recordChange(w, NetworkOversized, true, taken, "%s has %d bytes and ends the connection", m, len(m.bytes)) {
		w.resetConnection(m.from, m.to, NetworkOversized)
	}
	if !taken {
		return
	}
	*m.arrived++
	recordChange(w, NetworkDuplicate, 1, *m.arrived, "%s is duplicated", m)
	for _, f := range m.delays {
		if f == NetworkReorder {
			recordChange(w, f, m.due, max(m.due, m.overtakenAt), "%s was overtaken", m)
			continue
		}
		recordChange(w, f, m.due, w.now, "%s is delayed by %v", m, w.now.Sub(m.due))
	}
}

// decode decodes a message from a buffer that is used again, as that of a connection is.
func (w *Simulation) decode(b []byte) (actor.Envelope, error) {
	w.frame = append(w.frame[:0], b...)
	env, err := actor.Decode(w.frame)
	overwrite(w.frame)
	return env, err
}

// takeFrame decodes the bytes of a message and delivers the envelope. It reports whether
// the receiver accepted them.
func (w *Simulation) takeFrame(m *message) bool {
	env, err := w.decode(m.bytes)
	switch {
	case err != nil && !m.oversized:
		w.fail(CodecRoundTrip, fmt.Sprintf("%s cannot decode a message: %v", m.to.id, err))
		return true
	case err != nil:
		return false
	case len(m.bytes) > actor.MessageBytesMax && m.oversized:
		w.fail(CodecRoundTrip, fmt.Sprintf("%s accepted an oversized frame of %d bytes", m.to.id, len(m.bytes)))
	}
	m.to.cells[m.cell].enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: env}, bytes: m.bytes})
	return true
}
