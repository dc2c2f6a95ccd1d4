// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// laneCapMax is the maximum capacity that an empty lane retains.
const laneCapMax = 4

// OvertakenMax is the number of messages of higher lanes that may overtake the head of a lane.
const OvertakenMax = 8

// Queued is a call that waits in a mailbox for its turn.
type Queued struct {
	Call  actor.CallID
	Lane  actor.Lane
	Bytes int
	At    actor.Time // arrival
}

// Mailbox is the queue of one actor. It has three FIFO lanes and is bounded by count,
// bytes and the age of its oldest message. It never drops an accepted message.
type Mailbox struct {
	lanes     [actor.Low][]Queued
	overtaken [actor.Low]int // number of messages that overtook the head of each lane
	bytes     int
	agingFrom actor.Time // end of the current turn's hold; the age of a message counts from its arrival or from this time, whichever is later

	lastPop  actor.Time     // 0 if no message was removed by Pop
	interval actor.Duration // moving average of the time between two pops of an actor with waiting messages; 0 if unknown
}

// Count returns the number of waiting messages.
func (m *Mailbox) Count() int {
	n := 0
	for _, lane := range m.lanes {
		n += len(lane)
	}
	return n
}

// CountByLane returns the number of waiting messages of each lane, from High to Low.
func (m *Mailbox) CountByLane() (n [actor.Low]int) {
	for i := range m.lanes {
		n[i] = len(m.lanes[i])
	}
	return n
}

// Bytes returns the total size of the waiting messages.
func (m *Mailbox) Bytes() int { return m.bytes }

// Calls returns the waiting messages by lane, in order of arrival within a lane.
func (m *Mailbox) Calls() []Queued { return slices.Concat(m.lanes[:]...) }

// SuspendAging records that the current turn is held until an instant. The age of a
// message does not include the time before that instant.
func (m *Mailbox) SuspendAging(until actor.Time) { m.agingFrom = until }

// Admit returns a refusal if the mailbox cannot accept a message of this size now. It
// does not change the mailbox.
func (m *Mailbox) Admit(l Limits, now actor.Time, id actor.ID, bytes int) *actor.Refusal {
	n := m.Count()
	switch {
	case n == 0:
		return nil
	case n >= l.MaxPendingPerActor:
		return actor.RefuseBusy(actor.ScopeCallee, m.RetryAfter(now), "%s has %d messages waiting, at most %d allowed", id, n, l.MaxPendingPerActor)
	case m.bytes+bytes > l.MailboxBytesMax:
		return actor.RefuseBusy(actor.ScopeCallee, m.RetryAfter(now), "%s has %d bytes waiting, %d more exceed the limit of %d", id, m.bytes, bytes, l.MailboxBytesMax)
	}
	if age := now.Sub(max(m.oldest(), m.agingFrom)); age > l.MailboxAgeMax {
		return actor.RefuseBusy(actor.ScopeCallee, m.RetryAfter(now), "the oldest message of %s has waited %v, at most %v allowed", id, age, l.MailboxAgeMax)
	}
	return nil
}

// intervalWeight is the weight of all earlier intervals in the moving average, in units
// of the newest one.
const intervalWeight = 3

// RetryAfter estimates the time until the actor has started all waiting messages, within
// actor.RetryAfterMin and actor.RetryAfterMax. A turn that lasts longer than the average counts in
// its place.
func (m *Mailbox) RetryAfter(now actor.Time) actor.Duration {
	interval := m.interval
	if m.lastPop != 0 {
		interval = max(interval, min(now.Sub(m.lastPop), actor.RetryAfterMax))
	}
	return min(max(actor.Duration(m.Count())*interval, actor.RetryAfterMin), actor.RetryAfterMax)
}

// Reset returns the empty mailbox of another actor, which reuses the memory of m.
func (m *Mailbox) Reset() Mailbox { return Mailbox{lanes: m.lanes} }

// measureInterval adds the time since the last pop to the moving average. A message that
// did not wait reveals nothing: the actor was idle.
func (m *Mailbox) measureInterval(q Queued, now actor.Time) {
	if sample := min(now.Sub(m.lastPop), actor.RetryAfterMax); m.lastPop == 0 || q.At >= now {
	} else if m.interval == 0 {
		m.interval = sample
	} else {
		m.interval = (intervalWeight*m.interval + sample) / (intervalWeight + 1)
	}
	m.lastPop = now
}

// Bypass records that a message began its turn without waiting in the mailbox, which is empty.
func (m *Mailbox) Bypass(now actor.Time) { m.lastPop = now }

func (m *Mailbox) oldest() actor.Time {
	t := actor.Forever
	for _, lane := range m.lanes {
		if len(lane) > 0 {
			t = min(t, lane[0].At)
		}
	}
	return t
}

// Push appends a message to its lane. It checks no limits.
func (m *Mailbox) Push(q Queued) {
	lane := max(q.Lane, actor.High) - 1
	m.lanes[lane] = append(m.lanes[lane], q)
	m.bytes += q.Bytes
}

// Pop removes and returns the next message, normally the head of the highest lane.
// Exception: a head of a lower lane that has been overtaken OvertakenMax times goes
// first.
func (m *Mailbox) Pop(now actor.Time) (Queued, bool) {
	pick := m.next()
	if pick < 0 {
		return Queued{}, false
	}
	for i := range m.lanes {
		if i > pick && len(m.lanes[i]) > 0 {
			m.overtaken[i]++
		}
	}
	m.overtaken[pick] = 0
	q := m.lanes[pick][0]
	m.remove(pick, 0)
	m.measureInterval(q, now)
	return q, true
}

// Peek returns the message that Pop would return.
func (m *Mailbox) Peek() (Queued, bool) {
	pick := m.next()
	if pick < 0 {
		return Queued{}, false
	}
	return m.lanes[pick][0], true
}

// next returns the lane of the next message, or -1.
func (m *Mailbox) next() int {
	pick := -1
	for i := range m.lanes {
		if len(m.lanes[i]) == 0 {
			continue
		}
		if pick < 0 || m.overtaken[i] >= OvertakenMax {
			pick = i
		}
	}
	return pick
}

// Remove removes the message of a call and reports whether it was in the queue.
func (m *Mailbox) Remove(call actor.CallID) bool {
	for i := range m.lanes {
		for j := range m.lanes[i] {
			if m.lanes[i][j].Call == call {
				m.remove(i, j)
				return true
			}
		}
	}
	return false
}

func (m *Mailbox) remove(lane, at int) {
	m.bytes -= m.lanes[lane][at].Bytes
	m.lanes[lane] = slices.Delete(m.lanes[lane], at, at+1)
	if len(m.lanes[lane]) == 0 {
		m.overtaken[lane] = 0
		if cap(m.lanes[lane]) > laneCapMax {
			m.lanes[lane] = nil
		}
	}
}
