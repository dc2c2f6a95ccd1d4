// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/placement"
)

// leaseTable is the placement.Table of a simulation. It passes placementtest, as that of the database does.
type leaseTable struct {
	now     func() actor.Time
	members []tableMember // those with a row, by name
	logs    []tableLog    // by number
	// pinned reports a member whose lease counts as valid. It may be nil.
	pinned func(member string) bool
	// claimed is called for each log that a member claims. It may be nil.
	claimed func(log int, before tableLog)
}

type tableMember struct {
	name, address string
	until         actor.Time // end of the lease
}

type tableLog struct {
	owner string // empty: none
	epoch actor.Epoch
}

var _ placement.Table = (*leaseTable)(nil)

func (t *leaseTable) find(member string) (at int, found bool) {
	return slices.BinarySearchFunc(t.members, member, func(m tableMember, name string) int {
		switch {
		case m.name < name:
			return -1
		case m.name > name:
			return 1
		}
		return 0
	})
}

func (t *leaseTable) valid(m *tableMember) bool {
	return m.until > t.now() || t.pinned != nil && t.pinned(m.name)
}

// Beat implements placement.Table.
func (t *leaseTable) Beat(r placement.Request) (a placement.Answer, err error) {
	at, known := t.find(r.Member)
	switch {
	case r.Joined && !known:
		return a, nil
	case !r.Joined:
		for i := range t.logs {
			if t.logs[i].owner == r.Member {
				t.logs[i].owner = ""
			}
		}
	}
	row := tableMember{r.Member, r.Address, t.now().Add(r.TTL)}
	if known {
		t.members[at] = row
	} else {
		t.members = slices.Insert(t.members, at, row)
	}
	if r.Want > 0 {
		t.members = slices.DeleteFunc(t.members, func(m tableMember) bool { return !t.valid(&m) })
	}
	for i, left := 0, r.Want; i < len(t.logs) && left > 0; i++ {
		if _, owned := t.find(t.logs[i].owner); !owned {
			t.claim(i, r.Member)
			left--
		}
	}
	a.Renewed, a.Owners = true, make([]placement.Owner, 0, len(t.logs))
	for i := range t.members {
		if t.valid(&t.members[i]) {
			a.Members++
		}
	}
	for i, l := range t.logs {
		o := placement.Owner{Log: uint16(i)}
		if at, owned := t.find(l.owner); owned && t.valid(&t.members[at]) {
			o.Member, o.Address, o.Epoch = l.owner, t.members[at].address, l.epoch
		}
		a.Owners = append(a.Owners, o)
	}
	return a, nil
}

// claim gives a log to a member, which hears of it with its next beat.
func (t *leaseTable) claim(log int, member string) {
	before := t.logs[log]
	t.logs[log] = tableLog{member, before.epoch + 1}
	if t.claimed != nil {
		t.claimed(log, before)
	}
}

// Release implements placement.Table.
func (t *leaseTable) Release(member string, log uint16, epoch actor.Epoch) error {
	if l := &t.logs[log]; l.owner == member && l.epoch == epoch {
		l.owner = ""
	}
	return nil
}
