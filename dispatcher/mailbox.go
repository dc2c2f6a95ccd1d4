// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
)

// laneCapMax is how much room for waiting messages an empty lane keeps.
const laneCapMax = 4

// OvertakenMax is how many messages of higher lanes may overtake a waiting one.
const OvertakenMax = 8

// Queued is a call that waits for its actor's turn.
type Queued struct {
	Call  actor.CallID
	Lane  actor.Lane
	Bytes int
	At    actor.Time // since when
}

// Mailbox is the queue in front of one actor: three lanes, first in first out
// in each, bounded by count, bytes and the age of the oldest. What it has
// accepted it never drops.
type Mailbox struct {
	lanes     [actor.Low][]Queued
	overtaken [actor.Low]int // how often the head of a lane was overtaken
	bytes     int
	agingFrom actor.Time // ages do not grow before this instant: the turn is held
}

// Count is the number of messages that wait.
func (m *Mailbox) Count() int {
	n := 0
	for _, lane := range m.lanes {
		n += len(lane)
	}
	return n
}

// Bytes is what they weigh.
func (m *Mailbox) Bytes() int { return m.bytes }

// Calls lists who waits, by lane and order.
func (m *Mailbox) Calls() []Queued { return slices.Concat(m.lanes[:]...) }

// StandStill says that the turn in front is held until an instant: the time
// until then does not count as waiting.
func (m *Mailbox) StandStill(until actor.Time) { m.agingFrom = until }

// Admit says whether the mailbox takes a message of so many bytes now. It
// changes nothing.
func (m *Mailbox) Admit(l Limits, now actor.Time, id actor.ID, bytes int) *actor.Refusal {
	if mutant.On("unbounded-mailbox") {
		return nil
	}
	n := m.Count()
	switch {
	case n == 0:
		return nil
	case n >= l.MaxPendingPerActor:
		return actor.RefuseBusy(actor.ScopeCallee, time.Second, "%s has %d messages waiting, at most %d allowed", id, n, l.MaxPendingPerActor)
	case m.bytes+bytes > l.MailboxBytesMax && !mutant.On("mailbox-weighs-nothing"):
		return actor.RefuseBusy(actor.ScopeCallee, time.Second, "%s has %d bytes waiting, %d more are over %d", id, m.bytes, bytes, l.MailboxBytesMax)
	}
	if age := now.Sub(max(m.oldest(), m.agingFrom)); age > l.MailboxAgeMax {
		return actor.RefuseBusy(actor.ScopeCallee, 5*time.Second, "%s has kept a message waiting for %v, over %v", id, age, l.MailboxAgeMax)
	}
	return nil
}

func (m *Mailbox) oldest() actor.Time {
	t := actor.Forever
	for _, lane := range m.lanes {
		if len(lane) > 0 {
			t = min(t, lane[0].At)
		}
	}
	return t
}

// Push puts a message behind the others of its lane.
func (m *Mailbox) Push(q Queued) {
	m.lanes[q.Lane-1] = append(m.lanes[q.Lane-1], q)
	m.bytes += q.Bytes
}

// Pop takes the message whose turn it is: the first of the highest lane, unless
// one below has been overtaken StarvedMax times.
func (m *Mailbox) Pop() (Queued, bool) {
	pick := -1
	for i := range m.lanes {
		if len(m.lanes[i]) == 0 {
			continue
		}
		if pick < 0 || m.overtaken[i] >= OvertakenMax {
			pick = i
		}
	}
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
	return q, true
}

// Remove takes a message out of the queue; false if it is not there.
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
