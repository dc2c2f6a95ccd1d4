// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

func callID(n uint64) actor.CallID { return actor.NewCallID(0, 0, n) }

// TestMailboxAgainstModel compares the mailbox with a list. An accepted message is
// returned exactly once, in FIFO order within its lane, and the limits are never
// exceeded.
func TestMailboxAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := DefaultLimits()
		limits.MaxPendingPerActor = rapid.IntRange(1, 6).Draw(t, "count")
		limits.MailboxBytesMax = rapid.IntRange(1, 40).Draw(t, "bytes")
		var m Mailbox
		var model []Queued
		id := actor.NewID("a", "")
		now, next := actor.Time(0), uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				next++
				q := Queued{Call: callID(next), Lane: actor.Lane(rapid.IntRange(1, 3).Draw(t, "lane")), Bytes: rapid.IntRange(0, 50).Draw(t, "weight"), At: now}
				sum := 0
				for _, w := range model {
					sum += w.Bytes
				}
				full := len(model) > 0 && (len(model) >= limits.MaxPendingPerActor || sum+q.Bytes > limits.MailboxBytesMax || tooOld(model, now, limits))
				refusal := m.Admit(limits, now, id, q.Bytes)
				if (refusal != nil) != full {
					t.Fatalf("%d messages with %d bytes waiting, %d bytes more: got refusal %v", len(model), sum, q.Bytes, refusal)
				}
				if refusal != nil {
					if refusal.Reason != actor.Busy || refusal.Scope != actor.ScopeCallee || refusal.RetryAfter <= 0 {
						t.Fatalf("got refusal %+v, want Busy of the callee with a retry delay", refusal)
					}
					return
				}
				m.Push(q)
				model = append(model, q)
			},
			"take": func(t *rapid.T) {
				q, ok := m.Pop(now)
				if ok != (len(model) > 0) {
					t.Fatalf("Pop returned %v with %d messages waiting", ok, len(model))
				}
				if !ok {
					return
				}
				first := slices.IndexFunc(model, func(w Queued) bool { return w.Lane == q.Lane })
				if model[first].Call != q.Call {
					t.Fatalf("%v overtook %v in its lane", q, model[first])
				}
				model = slices.Delete(model, first, first+1)
			},
			"remove": func(t *rapid.T) {
				call := callID(rapid.Uint64Range(0, next).Draw(t, "call"))
				i := slices.IndexFunc(model, func(w Queued) bool { return w.Call == call })
				if m.Remove(call) != (i >= 0) {
					t.Fatalf("Remove(%v): wrong result for position %d", call, i)
				}
				if i >= 0 {
					model = slices.Delete(model, i, i+1)
				}
			},
			"wait": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{1, time.Second, time.Minute}).Draw(t, "time"))
			},
			"": func(t *rapid.T) {
				sum := 0
				for _, w := range model {
					sum += w.Bytes
				}
				if m.Count() != len(model) || m.Bytes() != sum || len(m.Calls()) != len(model) {
					t.Fatalf("got %d messages with %d bytes, want %d with %d", m.Count(), m.Bytes(), len(model), sum)
				}
			},
		})
	})
}

func tooOld(model []Queued, now actor.Time, l Limits) bool {
	return slices.ContainsFunc(model, func(w Queued) bool { return now.Sub(w.At) > l.MailboxAgeMax })
}

func TestLowLaneIsNotStarved(t *testing.T) {
	var m Mailbox
	m.Push(Queued{Call: callID(1), Lane: actor.Low})
	m.Push(Queued{Call: callID(2), Lane: actor.Normal})
	for n := range uint64(40) {
		m.Push(Queued{Call: callID(100 + n), Lane: actor.High})
	}
	place := map[actor.CallID]int{}
	for i := range m.Count() {
		q, _ := m.Pop(0)
		place[q.Call] = i
	}
	if first, low, normal := place[callID(100)], place[callID(1)], place[callID(2)]; first != 0 || low > OvertakenMax || normal > 2*OvertakenMax {
		t.Errorf("positions: high %d, normal %d, low %d", first, normal, low)
	}
}

func TestHeldTurnDoesNotAgeMailbox(t *testing.T) {
	var m Mailbox
	l := DefaultLimits()
	m.Push(Queued{Call: callID(1), Lane: actor.Normal, At: 0})
	late := actor.Time(0).Add(l.MailboxAgeMax + 1)
	if m.Admit(l, late, actor.NewID("a", ""), 1) == nil {
		t.Error("admitted a message behind one that has waited too long")
	}
	m.SuspendAging(late)
	if r := m.Admit(l, late.Add(time.Second), actor.NewID("a", ""), 1); r != nil {
		t.Errorf("refused a message behind a held turn: %v", r)
	}
}
