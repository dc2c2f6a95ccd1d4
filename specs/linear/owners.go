// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// Operations on a group of shards. The sequential machine is the row of the shared store: the
// owner of the group and its epoch. An epoch is never reused.
type (
	claimed  struct{ owner Owner }
	released struct{}
	wrote    struct { // a conditional write
		owner Owner // matches every cell of the node
		ok    bool
	}
	turnStart struct{ owner Owner }
)

// Owner is a cell and the epoch of its claim.
type Owner struct {
	Cell  actor.Address
	Epoch actor.Epoch
}

// String returns the cell and the epoch.
func (o Owner) String() string {
	if o.Epoch == 0 {
		return "no owner"
	}
	return fmt.Sprintf("%s under epoch %d", o.Cell, o.Epoch)
}

type ownerState struct {
	owner Owner
	epoch actor.Epoch // epoch of the last claim
}

// String returns the owner.
func (s ownerState) String() string { return s.owner.String() }

func (s ownerState) accepts(o Owner) bool {
	return s.owner.Epoch != 0 && s.owner.Cell.Node == o.Cell.Node && s.owner.Epoch == o.Epoch
}

var ownersModel = &model{spec: LinearOwners, init: ownerState{},
	step: func(state, op any) (any, bool) {
		s := state.(ownerState)
		switch op := op.(type) {
		case claimed:
			return ownerState{op.owner, op.owner.Epoch}, op.owner.Epoch > s.epoch
		case released:
			return ownerState{epoch: s.epoch}, true
		case wrote:
			return s, s.accepts(op.owner) == op.ok
		case turnStart:
			return s, s.owner == op.owner
		}
		return s, true
	},
	describe: func(op any) string {
		switch op := op.(type) {
		case claimed:
			return "claim for " + op.owner.String()
		case released:
			return "release"
		case wrote:
			if !op.ok {
				return fmt.Sprintf("write by %s under epoch %d: refused", op.owner.Cell.Node, op.owner.Epoch)
			}
			return fmt.Sprintf("write by %s under epoch %d", op.owner.Cell.Node, op.owner.Epoch)
		case turnStart:
			return "turn at " + op.owner.String()
		}
		return "write"
	},
	premise: func(ops []*Op) int {
		claims := 0
		for _, o := range ops {
			if _, ok := o.operation.(claimed); ok {
				claims++
			}
		}
		return max(0, claims-1)
	},
	reduce: reduceOwners,
}

// reduceOwners keeps two of the operations that need the same claim: the operation that begins
// last and the operation that returns first. An epoch is never reused, so a claim is in force
// during one interval. If that interval overlaps both operations kept, it overlaps all operations.
// The reason is that every operation begins no later than the operation that begins last and
// returns no earlier than the operation that returns first. Operations that never returned do not
// affect the verdict.
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
	var reduced []*Op
	for _, o := range ops {
		if o.returned() && (!withinClaim(o) || last[o.operation] == o || first[o.operation] == o) {
			reduced = append(reduced, o)
		}
	}
	return reduced
}

// withinClaim reports whether an operation is legal at every instant at which its claim is in
// force.
func withinClaim(o *Op) bool {
	w, write := o.operation.(wrote)
	_, serve := o.operation.(turnStart)
	return o.returned() && (serve || write && w.ok)
}

// RecordClaim records that a cell has claimed a group.
func (j *Checker) RecordClaim(now actor.Time, group string, o Owner) {
	j.record(&j.owners, group, string(o.Cell.Node), now, claimed{o})
}

// RecordRelease records that a group no longer has an owner.
func (j *Checker) RecordRelease(now actor.Time, group string, node actor.NodeID) {
	j.record(&j.owners, group, string(node), now, released{})
}

// BeginWrite records that a node starts to write data decided under an epoch.
func (j *Checker) BeginWrite(now actor.Time, group string, node actor.NodeID) *Op {
	return j.begin(&j.owners, group, string(node), now, nil)
}

// EndWrite records whether the write was accepted.
func (j *Checker) EndWrite(now actor.Time, o *Op, epoch actor.Epoch, ok bool) {
	j.end(o, now, wrote{Owner{actor.Address{Node: actor.NodeID(o.process)}, epoch}, ok})
}

// RecordTurn records that a cell starts a turn of an actor of the group.
func (j *Checker) RecordTurn(now actor.Time, group string, o Owner) {
	j.record(&j.owners, group, string(o.Cell.Node), now, turnStart{o})
}
