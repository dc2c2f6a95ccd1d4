// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// What is done to an actor that keeps a value. The machine swaps: each message
// leaves a value that nobody else leaves, and is told the one that was there.
type (
	leaves struct{ value string }
	left   struct{ value, found string }
)

var keptModel = &model{spec: LinearKept, init: "",
	step: func(state, did any) (any, bool) {
		switch did := did.(type) {
		case leaves: // it may have been done: then, later, or after all that was heard of
			return did.value, true
		case left:
			return did.value, state == did.found
		}
		return state, true
	},
	show: func(did any) string {
		switch did := did.(type) {
		case leaves:
			return fmt.Sprintf("leaves %q", did.value)
		case left:
			return fmt.Sprintf("leaves %q, finds %q", did.value, did.found)
		}
		return ""
	},
	lean: leanKept,
}

// leanKept leaves out what never came back and whose value nobody found: put at
// the end it disturbs no order, and an order from which it is taken stays one.
func leanKept(ops []*Op) (lean []*Op) {
	found := map[string]bool{}
	for _, o := range ops {
		if l, ok := o.did.(left); ok {
			found[l.found] = true
		}
	}
	for _, o := range ops {
		if l, ok := o.did.(leaves); !ok || found[l.value] {
			lean = append(lean, o)
		}
	}
	for next := joined(lean); len(next) < len(lean); next = joined(lean) {
		lean = next
	}
	return lean
}

// joined makes one of who left a value and who found it, for some: nobody comes
// between, as everybody leaves another. Both together happen while both are under
// way; where they never were at once, or cannot have been in that order, they are
// left as they are.
func joined(ops []*Op) []*Op {
	by := map[string]int{} // who leaves a value
	for i, o := range ops {
		by[leftBy(o)] = i
	}
	gone := make([]bool, len(ops))
	next := slices.Clone(ops)
	for i, o := range ops {
		second, ok := o.did.(left)
		if !ok || gone[i] {
			continue
		}
		k, ok := by[second.found]
		if !ok || k == i || gone[k] || next[k] != ops[k] {
			continue
		}
		first := ops[k]
		from, to := max(first.from, o.from), min(first.to, o.to)
		if from > to {
			continue
		}
		both := *o
		both.who, both.from, both.to = first.who+", then "+o.who, from, to
		both.begun, both.ended = max(first.begun, o.begun), o.ended
		if l, ok := first.did.(left); ok {
			both.did, both.ended = left{second.value, l.found}, min(first.ended, o.ended)
		} else {
			both.did = leaves{second.value}
		}
		next[i], gone[k] = &both, true
	}
	lean := next[:0]
	for i, o := range next {
		if !gone[i] {
			lean = append(lean, o)
		}
	}
	slices.SortStableFunc(lean, func(a, b *Op) int { return cmp.Compare(a.from, b.from) })
	return lean
}

// leftBy is the value that an operation leaves.
func leftBy(o *Op) string {
	if l, ok := o.did.(left); ok {
		return l.value
	}
	return o.did.(leaves).value
}

// Leaves begins a message that leaves a value with an actor.
func (j *Judge) Leaves(now actor.Time, id actor.ID, who, value string) *Op {
	return j.begin(&j.kept, id.String(), who, now, leaves{value})
}

// Left ends it: the actor says what was there before.
func (j *Judge) Left(now actor.Time, o *Op, found string) {
	j.end(o, now, left{o.did.(leaves).value, found})
}
