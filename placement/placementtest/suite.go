// SPDX-License-Identifier: Apache-2.0

// Package placementtest checks that a placement.Table follows its rules. The table of a database and
// that of the simulator pass it, so what the simulator finds is true of the database.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package placementtest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/placement"
)

// World is a new table.
type World struct {
	Table placement.Table
	// Expire ends the lease of a member, which may have none.
	Expire func(member string)
	Close  func()
}

// ttl is longer than a test.
const ttl = actor.Duration(time.Hour)

// model is what the table must do, written down without a table.
type model struct {
	leases map[string]bool // members with a row; true: the lease is valid
	owner  []string        // by log
	epoch  []actor.Epoch
}

// Run draws histories of members.
func Run(t *testing.T, open func(logs int) World) {
	rapid.Check(t, func(t *rapid.T) {
		logs := rapid.IntRange(1, 5).Draw(t, "logs")
		w := open(logs)
		defer w.Close()
		m := model{leases: map[string]bool{}, owner: make([]string, logs), epoch: make([]actor.Epoch, logs)}
		names := []string{"a", "b", "c"}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "member")
			switch rapid.IntRange(0, 9).Draw(t, "action") {
			case 0, 1:
				w.Expire(name)
				if _, known := m.leases[name]; known {
					m.leases[name] = false
				}
			case 2:
				log := rapid.IntRange(0, logs-1).Draw(t, "log")
				epoch := m.epoch[log] - actor.Epoch(rapid.IntRange(0, 1).Draw(t, "older"))
				if err := w.Table.Release(name, uint16(log), epoch); err != nil {
					t.Fatal(err)
				}
				if m.owner[log] == name && m.epoch[log] == epoch {
					m.owner[log] = ""
				}
			default:
				r := placement.Request{Member: name, Address: "at " + name, TTL: ttl, Joined: rapid.IntRange(0, 3).Draw(t, "joins") > 0, Want: rapid.IntRange(0, logs).Draw(t, "want")}
				got, err := w.Table.Beat(r)
				if err != nil {
					t.Fatal(err)
				}
				if want := m.beat(r); !equal(got, want) {
					t.Fatalf("%+v: got %+v, want %+v", r, got, want)
				}
			}
		}
	})
}

func equal(a, b placement.Answer) bool {
	return a.Renewed == b.Renewed && a.Members == b.Members && slices.Equal(a.Owners, b.Owners)
}

func (m *model) beat(r placement.Request) (a placement.Answer) {
	if _, known := m.leases[r.Member]; r.Joined && !known {
		return a
	}
	if !r.Joined { // a member of this name was another process
		for log := range m.owner {
			if m.owner[log] == r.Member {
				m.owner[log] = ""
			}
		}
	}
	m.leases[r.Member] = true
	if r.Want > 0 {
		maps.DeleteFunc(m.leases, func(_ string, valid bool) bool { return !valid })
	}
	for log, left := 0, r.Want; log < len(m.owner) && left > 0; log++ {
		if _, known := m.leases[m.owner[log]]; !known {
			m.owner[log] = r.Member
			m.epoch[log]++
			left--
		}
	}
	a.Renewed = true
	for _, name := range slices.Sorted(maps.Keys(m.leases)) {
		if m.leases[name] {
			a.Members++
		}
	}
	for log, owner := range m.owner {
		o := placement.Owner{Log: uint16(log)}
		if m.leases[owner] {
			o.Member, o.Address, o.Epoch = owner, "at "+owner, m.epoch[log]
		}
		a.Owners = append(a.Owners, o)
	}
	if len(a.Owners) == 0 {
		panic(fmt.Sprint("no logs: ", r))
	}
	return a
}
