// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// What is done about a group of shards. The machine is the shared store's row:
// who owns the group, under which epoch; an epoch never comes back.
type (
	claimed  struct{ owner Owner }
	released struct{}
	wrote    struct { // a conditional write
		owner Owner // of any cell of the node
		ok    bool
	}
	turnStart struct{ owner Owner }
)

// Owner is a cell, under the epoch of its claim.
type Owner struct {
	Cell  actor.Address
	Epoch actor.Epoch
}

// String names it.
func (o Owner) String() string {
	if o.Epoch == 0 {
		return "nobody"
	}
	return fmt.Sprintf("%s under epoch %d", o.Cell, o.Epoch)
}

type ownerState struct {
	owner Owner
	epoch actor.Epoch // the last that was claimed
}

// String names the owner.
func (s ownerState) String() string { return s.owner.String() }

func (s ownerState) accepts(o Owner) bool {
	return s.owner.Epoch != 0 && s.owner.Cell.Node == o.Cell.Node && s.owner.Epoch == o.Epoch
}

var ownersModel = &model{spec: LinearOwners, init: ownerState{},
	step: func(state, did any) (any, bool) {
		s := state.(ownerState)
		switch did := did.(type) {
		case claimed:
			return ownerState{did.owner, did.owner.Epoch}, did.owner.Epoch > s.epoch
		case released:
			return ownerState{epoch: s.epoch}, true
		case wrote:
			return s, s.accepts(did.owner) == did.ok
		case turnStart:
			return s, s.owner == did.owner
		}
		return s, true
	},
	describe: func(did any) string {
		switch did := did.(type) {
		case claimed:
			return "claim for " + did.owner.String()
		case released:
			return "release"
		case wrote:
			if !did.ok {
				return fmt.Sprintf("write by %s under epoch %d: refused", did.owner.Cell.Node, did.owner.Epoch)
			}
			return fmt.Sprintf("write by %s under epoch %d", did.owner.Cell.Node, did.owner.Epoch)
		case turnStart:
			return "turn at " + did.owner.String()
		}
		return "write"
	},
	reduce: reduceOwners,
}

// reduceOwners keeps, of all that is done under one claim, what begins last and
// what ends first. Since an epoch never comes back, the time of a claim is one
// span, and whatever began before the one and ended after the other fits into it
// too. What never came back changes nothing.
func reduceOwners(ops []*Op) []*Op {
	last, first := map[any]*Op{}, map[any]*Op{}
	for _, o := range ops {
		if !withinClaim(o) {
			continue
		}
		if l := last[o.operation]; l == nil || o.from > l.from {
			last[o.operation] = o
		}
		if f := first[o.operation]; f == nil || o.to < f.to {
			first[o.operation] = o
		}
	}
	var lean []*Op
	for _, o := range ops {
		if o.returned() && (!withinClaim(o) || last[o.operation] == o || first[o.operation] == o) {
			lean = append(lean, o)
		}
	}
	return lean
}

// withinClaim tells whether an operation needs nothing but that its claim stands.
func withinClaim(o *Op) bool {
	w, write := o.operation.(wrote)
	_, serve := o.operation.(turnStart)
	return o.returned() && (serve || write && w.ok)
}

// Claims says that a cell has claimed a group.
func (j *Judge) Claims(now actor.Time, group string, o Owner) {
	j.record(&j.owners, group, string(o.Cell.Node), now, claimed{o})
}

// Releases says that a group is nobody's any more.
func (j *Judge) Releases(now actor.Time, group string, node actor.NodeID) {
	j.record(&j.owners, group, string(node), now, released{})
}

// Writes begins a write of what a node decided under an epoch.
func (j *Judge) Writes(now actor.Time, group string, node actor.NodeID) *Op {
	return j.begin(&j.owners, group, string(node), now, nil)
}

// Wrote ends it, done or refused.
func (j *Judge) Wrote(now actor.Time, o *Op, epoch actor.Epoch, ok bool) {
	j.end(o, now, wrote{Owner{actor.Address{Node: actor.NodeID(o.process)}, epoch}, ok})
}

// Serves says that a cell begins a turn of an actor of a group.
func (j *Judge) Serves(now actor.Time, group string, o Owner) {
	j.record(&j.owners, group, string(o.Cell.Node), now, turnStart{o})
}
