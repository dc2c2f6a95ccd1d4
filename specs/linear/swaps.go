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
	pendingSwap struct{ value string }
	swap        struct{ value, previous string }
)

var swapsModel = &model{spec: LinearKept, init: "",
	step: func(state, did any) (any, bool) {
		switch did := did.(type) {
		case pendingSwap: // it may have been done: then, later, or after all that was heard of
			return did.value, true
		case swap:
			return did.value, state == did.previous
		}
		return state, true
	},
	describe: func(did any) string {
		switch did := did.(type) {
		case pendingSwap:
			return fmt.Sprintf("leaves %q", did.value)
		case swap:
			return fmt.Sprintf("leaves %q, finds %q", did.value, did.previous)
		}
		return ""
	},
	reduce: reduceSwaps,
}

// reduceSwaps leaves out what never came back and whose value nobody found: put at
// the end it disturbs no order, and an order from which it is taken stays one.
func reduceSwaps(ops []*Op) (lean []*Op) {
	found := map[string]bool{}
	for _, o := range ops {
		if l, ok := o.operation.(swap); ok {
			found[l.previous] = true
		}
	}
	for _, o := range ops {
		if l, ok := o.operation.(pendingSwap); !ok || found[l.value] {
			lean = append(lean, o)
		}
	}
	for next := mergeSwaps(lean); len(next) < len(lean); next = mergeSwaps(lean) {
		lean = next
	}
	return lean
}

// mergeSwaps makes one of who left a value and who found it, for some: nobody comes
// between, as everybody leaves another. Both together happen while both are under
// way; where they never were at once, or cannot have been in that order, they are
// left as they are.
func mergeSwaps(ops []*Op) []*Op {
	by := map[string]int{} // who leaves a value
	for i, o := range ops {
		by[swappedIn(o)] = i
	}
	gone := make([]bool, len(ops))
	next := slices.Clone(ops)
	for i, o := range ops {
		second, ok := o.operation.(swap)
		if !ok || gone[i] {
			continue
		}
		k, ok := by[second.previous]
		if !ok || k == i || gone[k] || next[k] != ops[k] {
			continue
		}
		first := ops[k]
		from, to := max(first.from, o.from), min(first.to, o.to)
		if from > to {
			continue
		}
		both := *o
		both.process, both.from, both.to = first.process+", then "+o.process, from, to
		both.startTime, both.endTime = max(first.startTime, o.startTime), o.endTime
		if l, ok := first.operation.(swap); ok {
			both.operation, both.endTime = swap{second.value, l.previous}, min(first.endTime, o.endTime)
		} else {
			both.operation = pendingSwap{second.value}
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

// swappedIn is the value that an operation leaves.
func swappedIn(o *Op) string {
	if l, ok := o.operation.(swap); ok {
		return l.value
	}
	return o.operation.(pendingSwap).value
}

// Leaves begins a message that leaves a value with an actor.
func (j *Judge) Leaves(now actor.Time, id actor.ID, who, value string) *Op {
	return j.begin(&j.swaps, id.String(), who, now, pendingSwap{value})
}

// Left ends it: the actor says what was there before.
func (j *Judge) Left(now actor.Time, o *Op, found string) {
	j.end(o, now, swap{o.operation.(pendingSwap).value, found})
}
