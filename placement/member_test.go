// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

func at(d time.Duration) actor.Time { return actor.Time(d) }

func answer(members int, owners ...Owner) Answer {
	return Answer{Renewed: true, Members: members, Owners: owners}
}

// A lease is counted from the sending of its renewal, less the margin.
func TestLeaseIsCountedFromSending(t *testing.T) {
	m := NewMember("a", "", Default)
	if m.Serves(at(0)) {
		t.Error("a member serves before it has joined")
	}
	r := m.Beat(at(10 * time.Second))
	m.Answered(r, answer(1, Owner{Log: 0})) // however late it comes
	if end := at(10*time.Second + Default.TTL - Default.Margin); !m.Serves(end-1) || m.Serves(end) || m.Until() != end {
		t.Errorf("the lease ends at %v, want %v", m.Until(), end)
	}
	m.Answered(Request{Sent: at(9 * time.Second), TTL: Default.TTL}, answer(1, Owner{Log: 0}))
	if m.Until() != at(10*time.Second+Default.TTL-Default.Margin) {
		t.Error("the answer to an earlier request has shortened the lease")
	}
}

// A lease that has run out is valid again once it is renewed: the row was still there.
func TestLeaseIsRenewedLate(t *testing.T) {
	m := NewMember("a", "", Default)
	m.Answered(m.Beat(at(0)), answer(1, Owner{Log: 0}))
	m.Answered(m.Beat(at(1)), answer(1, Owner{Log: 0, Member: "a", Epoch: 1}))
	late := at(time.Minute)
	if m.Serves(late) {
		t.Error("a member serves after its lease")
	}
	m.Failed(late)
	r := m.Beat(late)
	if !r.Joined {
		t.Error("a member joins twice")
	}
	m.Answered(r, answer(1, Owner{Log: 0, Member: "a", Epoch: 1}))
	if !m.Serves(late) || m.Ended() != "" || len(m.Held()) != 1 {
		t.Errorf("serves %v, ended %q, holds %v", m.Serves(late), m.Ended(), m.Held())
	}
}

func TestMemberEnds(t *testing.T) {
	for name, test := range map[string]struct {
		a    Answer
		want string
	}{
		"removed":     {Answer{}, "another member removed it"},
		"taken":       {answer(2, Owner{Log: 3, Member: "b", Epoch: 8}), `log 3 belongs to "b" under epoch 8`},
		"own, raised": {answer(2, Owner{Log: 3, Member: "a", Epoch: 8}), `log 3 belongs to "a" under epoch 8`},
		"released":    {answer(2, Owner{Log: 3}), `log 3 belongs to "" under epoch 0`},
		"not listed":  {answer(2), `log 3 belongs to ""`},
	} {
		m := NewMember("a", "", Default)
		m.Answered(m.Beat(at(0)), answer(1, Owner{Log: 3, Member: "a", Epoch: 7}))
		if !m.Serves(at(1)) {
			t.Fatal("does not serve")
		}
		m.Answered(m.Beat(at(1)), test.a)
		if m.Serves(at(1)) || !strings.Contains(m.Ended(), test.want) {
			t.Errorf("%s: serves %v, ended %q, want %q", name, m.Serves(at(1)), m.Ended(), test.want)
		}
		first := m.Ended()
		if c := m.Answered(m.Beat(at(2)), answer(1, Owner{Log: 4, Member: "a", Epoch: 1})); len(c.Adopted) > 0 || m.Serves(at(2)) || m.Ended() != first {
			t.Errorf("%s: a member that has ended goes on", name)
		}
	}
}

// A log that the member has released is not missed, and may come back under a later epoch.
func TestReleasedLogComesBack(t *testing.T) {
	m := NewMember("a", "", Default)
	m.Answered(m.Beat(at(0)), answer(1, Owner{Log: 3, Member: "a", Epoch: 7}))
	m.Dropped(3)
	if c := m.Answered(m.Beat(at(1)), answer(1, Owner{Log: 3})); m.Ended() != "" || len(m.Held()) != 0 || len(c.Adopted) != 0 {
		t.Errorf("ended %q, holds %v", m.Ended(), m.Held())
	}
	if r := m.Beat(at(2)); r.Want != 1 {
		t.Errorf("wants %d", r.Want)
	}
	if c := m.Answered(m.Beat(at(2)), answer(1, Owner{Log: 3, Member: "a", Epoch: 8})); len(c.Adopted) != 1 || !m.Serves(at(3)) {
		t.Errorf("adopted %v, ended %q", c.Adopted, m.Ended())
	}
}

// Members claim their shares; what has an owner stays where it is.
func TestShares(t *testing.T) {
	for _, test := range []struct{ logs, members, held, want int }{
		{1, 1, 0, 1}, {1, 2, 0, 1}, {1, 2, 1, 0}, {16, 3, 0, 6}, {16, 3, 6, 0}, {16, 3, 8, 0}, {16, 1, 3, 13}, {16, 20, 0, 1},
	} {
		m := NewMember("a", "", Default)
		owners := make([]Owner, test.logs)
		for i := range owners {
			if owners[i].Log = uint16(i); i < test.held {
				owners[i].Member, owners[i].Epoch = "a", 1
			}
		}
		if r := m.Beat(at(0)); r.Want != 0 || r.Joined {
			t.Error("a member claims before it knows how many there are")
		}
		c := m.Answered(m.Beat(at(0)), answer(test.members, owners...))
		if r := m.Beat(at(1)); r.Want != test.want || len(c.Adopted) != test.held || c.Again != (test.want > 0) {
			t.Errorf("%+v: got %d, adopted %d, again %v", test, r.Want, len(c.Adopted), c.Again)
		}
	}
}

// After a time without the table, owners may renew their leases before others claim their logs.
func TestClaimsWaitAfterAnOutage(t *testing.T) {
	m := NewMember("a", "", Default)
	m.Answered(m.Beat(at(0)), answer(2, Owner{Log: 0, Member: "b", Epoch: 1}))
	m.Failed(at(time.Second))
	for _, test := range []struct {
		at   time.Duration
		want int
	}{{time.Second, 0}, {time.Second + Default.TTL - 1, 0}, {time.Second + Default.TTL, 1}} {
		r := m.Beat(at(test.at))
		if r.Want != test.want {
			t.Errorf("at %v: wants %d, expected %d", test.at, r.Want, test.want)
		}
		if c := m.Answered(r, answer(1, Owner{Log: 0})); c.Again {
			t.Errorf("at %v: asks again at once", test.at)
		}
	}
}

func TestTiming(t *testing.T) {
	if err := Default.Check(); err != nil {
		t.Error(err)
	}
	for _, bad := range []Timing{{}, {TTL: time.Second, Margin: 200 * time.Millisecond, Beat: 800 * time.Millisecond}, {TTL: time.Hour, Beat: time.Second}, {TTL: time.Hour, Margin: 1}} {
		if bad.Check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// A member with more than its share should release what is beyond it.
func TestSurplus(t *testing.T) {
	var owners []Owner
	for log := range 4 {
		owners = append(owners, Owner{Log: uint16(log), Member: "a", Epoch: 1})
	}
	m := NewMember("a", "", Default)
	if c := m.Answered(m.Beat(0), answer(1, owners...)); len(c.Surplus) != 0 {
		t.Fatalf("alone: %v", c.Surplus)
	}
	c := m.Answered(m.Beat(1), answer(2, owners...))
	if len(c.Surplus) != 2 || c.Surplus[0] != (Held{2, 1}) || c.Surplus[1] != (Held{3, 1}) {
		t.Fatalf("beside another: %v", c.Surplus)
	}
	m.Dropped(3)
	owners[3] = Owner{Log: 3}
	if c := m.Answered(m.Beat(2), answer(2, owners...)); len(c.Surplus) != 1 || m.Ended() != "" || c.Again {
		t.Errorf("after one release: %+v, %s", c, m.Ended())
	}
	m.Dropped(2)
	owners[2] = Owner{Log: 2, Member: "b", Epoch: 2}
	owners[3] = Owner{Log: 3, Member: "b", Epoch: 2}
	if c := m.Answered(m.Beat(3), answer(2, owners...)); len(c.Surplus) != 0 || len(m.Held()) != 2 {
		t.Errorf("after both: %+v", c)
	}
}
