// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Timing are the durations of leases. All members of a cluster have the same.
type Timing struct {
	TTL    actor.Duration // of a lease, by the clock of the table
	Margin actor.Duration // by which a member stops earlier, for clocks that drift
	Beat   actor.Duration // between two renewals
}

// Default is the timing of a cluster: another member serves a log about four seconds after its owner
// was killed.
var Default = Timing{TTL: 3 * time.Second, Margin: 200 * time.Millisecond, Beat: 800 * time.Millisecond}

// Check returns an error if a lease would end between two beats.
func (t Timing) Check() error {
	if t.Beat <= 0 || t.Margin <= 0 || t.TTL < 2*t.Beat+t.Margin {
		return fmt.Errorf("lease of %v: want at least two beats of %v and the margin of %v", t.TTL, t.Beat, t.Margin)
	}
	return nil
}

// Held is a log that a member owns.
type Held struct {
	Log   uint16
	Epoch actor.Epoch
}

// Member is one process of a cluster. Its times are of a monotonic clock of its own.
type Member struct {
	name, address string
	timing        Timing
	joined        bool
	until         actor.Time // the lease is valid before it
	quiet         actor.Time // no claims before it
	want          int
	leaving       bool
	held          []Held // by number
	owners        []Owner
	ended         string
}

// NewMember returns a member that has not joined yet. Its name MUST differ from that of every process
// that may still run.
func NewMember(name, address string, t Timing) *Member {
	return &Member{name: name, address: address, timing: t}
}

// Beat returns the next request. A request MUST be answered, or reported to Failed, before the next one.
func (m *Member) Beat(now actor.Time) Request {
	r := Request{Member: m.name, Address: m.address, TTL: m.timing.TTL, Joined: m.joined, Sent: now}
	if now >= m.quiet && !m.leaving {
		r.Want = m.want
	}
	return r
}

// Leave makes the member claim nothing any more. Others claim what it releases.
func (m *Member) Leave() { m.leaving = true }

// Change is what an answer changes.
type Change struct {
	Adopted []Held // logs that the member owns from now on
	Surplus []Held // logs beyond its share, which it should release: others have less than theirs
	Owners  bool   // the owners have changed
	Again   bool   // the next request should follow at once: there are logs without an owner
	Soon    bool   // the next request should follow early: another member should release logs that this one has a share in
}

// Answered takes the answer to a request.
func (m *Member) Answered(r Request, a Answer) (c Change) {
	if m.ended != "" {
		return c
	}
	if !a.Renewed {
		m.end("its lease ran out, and another member removed it")
		return c
	}
	m.joined = true
	m.until = max(m.until, r.Sent.Add(r.TTL-m.timing.Margin))
	for _, h := range m.held {
		if o := ownerOf(a.Owners, h.Log); o.Member != m.name || o.Epoch != h.Epoch {
			m.end(fmt.Sprintf("log %d belongs to %q under epoch %d", h.Log, o.Member, o.Epoch))
			return c
		}
	}
	free, most, owned := 0, 0, map[string]int{}
	for _, o := range a.Owners {
		if owned[o.Member]++; o.Member != "" {
			most = max(most, owned[o.Member])
		}
		switch {
		case o.Member == "":
			free++
		case o.Member == m.name && !slices.Contains(m.held, Held{o.Log, o.Epoch}):
			c.Adopted = append(c.Adopted, Held{o.Log, o.Epoch})
		}
	}
	m.held = append(m.held, c.Adopted...)
	slices.SortFunc(m.held, func(a, b Held) int { return int(a.Log) - int(b.Log) })
	share := fairShare(len(a.Owners), a.Members)
	m.want = max(0, share-len(m.held))
	c.Surplus = slices.Clone(m.held[min(share, len(m.held)):])
	c.Soon = m.want > 0 && most > share
	c.Again = free > 0 && m.want > 0 && !m.leaving && r.Want == 0 && r.Sent >= m.quiet
	c.Owners = !slices.Equal(m.owners, a.Owners)
	m.owners = a.Owners
	return c
}

// Dropped notes that the member is about to release a log: it serves it no longer. No request MUST be
// unanswered then, since its answer would give the log back.
func (m *Member) Dropped(log uint16) {
	m.held = slices.DeleteFunc(m.held, func(h Held) bool { return h.Log == log })
}

func ownerOf(all []Owner, log uint16) Owner {
	for _, o := range all {
		if o.Log == log {
			return o
		}
	}
	return Owner{Log: log}
}

// fairShare returns the number of logs that one of several members owns at most.
func fairShare(logs, members int) int {
	members = max(members, 1)
	return (logs + members - 1) / members
}

// Failed notes that the table did not answer a request. The owners are given the time to renew their
// leases before this member claims anything: all of them have run out if the table was away.
func (m *Member) Failed(now actor.Time) { m.quiet = now.Add(m.timing.TTL) }

// Serves reports whether the lease is valid. A member that does not serve MUST NOT take a step, begin
// an effect or answer.
func (m *Member) Serves(now actor.Time) bool { return m.ended == "" && m.joined && now < m.until }

// Until returns the end of the lease.
func (m *Member) Until() actor.Time { return m.until }

// Held returns the logs of the member, by number. The caller MUST NOT change them.
func (m *Member) Held() []Held { return m.held }

// Owners returns the owners in the last answer. The caller MUST NOT change them.
func (m *Member) Owners() []Owner { return m.owners }

func (m *Member) end(why string) {
	if m.ended == "" {
		m.ended = why
	}
}

// Ended returns why the member has ended, or "". It MUST join anew under another name then, without
// the logs that it held.
func (m *Member) Ended() string { return m.ended }
