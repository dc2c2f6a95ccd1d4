// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// A step of a history of detached calls, with the error that the fold wants, and the state after it.
type mailStep struct {
	record Record
	fails  bool
	rows   int
	due    actor.Time
	budget uint32 // of the asking run
}

func TestMail(t *testing.T) {
	call := func(n uint64) actor.CallID { return actor.NewCallID(1, 0, n) }
	run := call(99)
	detached := func(n uint64, at actor.Time, left actor.Duration) Detached {
		c := actor.Call{ID: call(n), Root: run, Parent: run, To: actor.NewID("b", ""), Budget: 5, Chain: []actor.ID{actor.NewID("a", "")},
			Operation: actor.HandleMessageFull, Kind: actor.Detached, Lane: actor.Normal, Origin: actor.Agent, Attempt: 1}
		return Detached{Pending{Call: c, At: at, Clock: actor.NewClock(at, left)}}
	}
	answer := func(n uint64, at actor.Time) Settled { return Settled{Call: call(n), At: at, Run: call(n + 100)} }
	timeout := func(n uint64, at actor.Time, left actor.Duration) Settled {
		return Settled{Call: call(n), At: at, Run: call(n + 100), Left: left}
	}
	begin := mailStep{record: Accepted{Call: actor.Call{ID: run, Root: run, To: actor.NewID("a", ""), Left: 1000, Budget: 100,
		Operation: actor.HandleMessageFull, Kind: actor.Waiting, Origin: actor.Human, Attempt: 1}, At: 1}, due: 1001, budget: 100}
	end := func(rows int, due actor.Time) mailStep {
		return mailStep{record: Ended{Call: run, At: 5}, rows: rows, due: due}
	}
	for name, steps := range map[string][]mailStep{
		"an answer ends the wait once": {begin,
			{record: detached(1, 10, 50), rows: 1, due: 60, budget: 94},
			{record: answer(1, 20), due: 1001, budget: 94},
			{record: answer(1, 21), fails: true, due: 1001, budget: 94},
			{record: timeout(1, 60, 9), fails: true, due: 1001, budget: 94},
			{record: Late{Call: call(1), At: 70}, fails: true, due: 1001, budget: 94}},
		"a time-out ends the wait, and the late answer the row": {begin,
			{record: detached(1, 10, 50), rows: 1, due: 60, budget: 94},
			{record: timeout(1, 60, 300), rows: 1, due: 360, budget: 94},
			{record: answer(1, 70), fails: true, rows: 1, due: 360, budget: 94},
			{record: timeout(1, 70, 300), fails: true, rows: 1, due: 360, budget: 94},
			{record: Late{Call: call(1), At: 80, Status: actor.Succeeded}, due: 1001, budget: 94},
			{record: answer(1, 90), fails: true, due: 1001, budget: 94}},
		"rows outlive the turn that made the calls": {begin,
			{record: detached(1, 2, 50), rows: 1, due: 52, budget: 94},
			{record: detached(2, 3, 40), rows: 2, due: 43, budget: 88},
			end(2, 43),
			{record: answer(2, 20), rows: 1, due: 52},
			{record: detached(3, 21, 40), fails: true, rows: 1, due: 52}, // its run has ended
			{record: answer(1, 30)}},
		"a call is made once": {begin,
			{record: detached(1, 2, 50), rows: 1, due: 52, budget: 94},
			{record: detached(1, 3, 50), fails: true, rows: 1, due: 52, budget: 94}},
		"a wait for a person is no outcome": {begin,
			{record: detached(1, 2, 50), rows: 1, due: 52, budget: 94},
			{record: Noticed{Call: call(1), At: 3, For: actor.Hold{Reason: actor.HoldApproval, Subject: "x"}}, rows: 1, due: 52, budget: 94},
			{record: timeout(1, 52, 9), rows: 1, due: 61, budget: 94},
			{record: Noticed{Call: call(1), At: 53}, fails: true, rows: 1, due: 61, budget: 94}},
		"a cancellation ends the wait once, and its row stays for a while": {begin,
			{record: detached(1, 2, 50), rows: 1, due: 52, budget: 94},
			{record: Late{Call: call(1), At: 9, Left: -1}, fails: true, rows: 1, due: 52, budget: 94},
			{record: Late{Call: call(1), At: 10, Left: 70}, rows: 1, due: 80, budget: 94},
			{record: Late{Call: call(1), At: 11, Left: 70}, fails: true, rows: 1, due: 80, budget: 94},
			{record: answer(1, 12), fails: true, rows: 1, due: 80, budget: 94},
			{record: Late{Call: call(1), At: 80}, due: 1001, budget: 94}},
		"the deletion of the session drops rows": {begin,
			{record: detached(1, 2, 50), rows: 1, due: 52, budget: 94},
			end(1, 52),
			{record: Late{Call: call(1), At: 9}}},
		"clocks of the future start now": {begin,
			{record: detached(1, 500, 50), rows: 1, due: 550, budget: 94},
			{record: Rebased{At: 100}, rows: 1, due: 150, budget: 94}},
	} {
		t.Run(name, func(t *testing.T) {
			var j Journal
			for i, s := range steps {
				n := j.N
				if err := j.Apply(s.record); (err != nil) != s.fails {
					t.Fatalf("step %d, %+v: error %v, want one: %v", i, s.record, err, s.fails)
				} else if err != nil && j.N != n {
					t.Fatalf("step %d has failed and is counted", i)
				}
				var budget uint32
				if r := j.Run(run); r != nil {
					budget = r.Budget
				}
				if len(j.Mail.Rows) != s.rows || j.Due() != s.due || budget != s.budget {
					t.Fatalf("after step %d: %d rows, due %d, budget %d, want %d, %d and %d", i, len(j.Mail.Rows), j.Due(), budget, s.rows, s.due, s.budget)
				}
				again, err := DecodeJournal(EncodeJournal(&j))
				if err != nil || len(again.Mail.Rows) != s.rows || again.Due() != s.due {
					t.Fatalf("after step %d, a snapshot has %d rows, due %d: %v", i, len(again.Mail.Rows), again.Due(), err)
				}
			}
		})
	}
}

// Late responses are kept, the newest ones, within bounds.
func TestLateResponsesAreBounded(t *testing.T) {
	for _, c := range []struct{ size, want int }{{10, lateMax}, {128 << 10, lateBytesMax / (128 << 10)}, {lateBytesMax, 1}} {
		var m Mail
		for n := range uint64(40) {
			id := actor.NewCallID(1, 0, n)
			if err := cmp.Or(m.add(Pending{Call: actor.Call{ID: id}, Late: true}), m.end(Late{Call: id, Response: make([]byte, c.size)})); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(m.Late); n != c.want || m.LateTo(actor.NewCallID(1, 0, 39)) == nil || m.LateTo(actor.NewCallID(1, 0, 0)) != nil {
			t.Errorf("%d responses of %d bytes are kept, want %d", n, c.size, c.want)
		}
	}
}

// What a run has left of its budget is divided among the turns for the outcomes of its detached calls, those that
// are pending and those that wait.
func TestBudgetIsLeftToOutcomes(t *testing.T) {
	id := func(n uint64) actor.CallID { return actor.NewCallID(1, 0, n) }
	call := func(n, parent uint64, kind actor.Kind, budget uint32) actor.Call {
		c := actor.Call{ID: id(n), To: actor.NewID("a", ""), Kind: kind, Left: 100, Budget: budget}
		if parent > 0 {
			c.Parent = id(parent)
		}
		return c
	}
	var j Journal
	for _, r := range []Record{
		Accepted{Call: call(1, 0, actor.Waiting, 20), At: 1}, Accepted{Call: call(9, 0, actor.Waiting, 50), At: 1},
		Detached{Pending{Call: call(2, 1, actor.Detached, 1), At: 2}}, Detached{Pending{Call: call(3, 1, actor.Detached, 1), At: 2}}, Detached{Pending{Call: call(4, 9, actor.Detached, 1), At: 2}},
		Settled{Call: id(2), At: 3, Run: id(22)}, Accepted{Call: call(22, 1, actor.OneWay, 1), At: 3},
	} {
		if err := j.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	if !j.HasHeirs(j.Run(id(1))) || j.HasHeirs(j.Run(id(22))) {
		t.Error("the wrong run leaves its budget")
	}
	if err := j.Apply(Ended{Call: id(1), At: 4, Reply: actor.Reply{Call: id(1), Status: actor.Succeeded}}); err != nil {
		t.Fatal(err)
	}
	if waits, pending, other := j.Run(id(22)).Budget, j.Mail.Row(id(3)).Reserve, j.Mail.Row(id(4)).Reserve; waits != 1+8 || pending != 8 || other != 0 {
		t.Errorf("the turns have %d, %d and %d calls, want 9, 8 and 0", waits, pending, other)
	}
}

// The message of a run for an outcome is in the transcript as delivered, with its provenance.
func TestDeliveredMessageHasProvenance(t *testing.T) {
	of := actor.Provenance{Tool: "agent_call", Correlation: actor.NewCallID(1, 2, 3)}
	c := actor.Call{ID: actor.NewCallID(4, 5, 6), To: actor.NewID("a", ""), Operation: actor.HandleMessageFull, Left: 9, Parts: actor.Text("outcome")}
	c.Root, c.Extensions = c.ID, c.Extensions.WithProvenance(of).WithRounds(3)
	var j Journal
	for _, r := range []Record{Accepted{Call: c, At: 1}, Ended{Call: c.ID, At: 2, Reply: actor.Reply{Call: c.ID, Status: actor.Succeeded, Parts: actor.Text("thanks")}}} {
		if err := j.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	m := j.Transcript.Tail[0]
	got, ok := m.Extensions.Provenance()
	if m.Source != actor.FromDelivered || m.Role != actor.RoleUser || !ok || got != of {
		t.Errorf("got %s %s with %+v, %v", m.Role, m.Source, got, ok)
	}
	if m := j.Transcript.Tail[1]; m.Source != actor.FromAgent || m.Extensions != "" {
		t.Errorf("the answer is %+v", m)
	}
	if n := c.Extensions.Inherited().Rounds(); n != 3 {
		t.Errorf("calls of the turn have %d rounds, want 3", n)
	}
	if _, ok := c.Extensions.Inherited().Provenance(); ok {
		t.Error("calls of the turn have the provenance of its message")
	}
}
