// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Operations on an actor that holds a value. The sequential machine is a swap register: each
// message stores a unique value and returns the previous one.
type (
	pendingSwap struct{ value string }
	swap        struct{ value, previous string }
)

var swapsModel = &model{spec: LinearKept, init: "",
	step: func(state, op any) (any, bool) {
		switch op := op.(type) {
		case pendingSwap: // It may take effect at any time after its call, also after all other operations.
			return op.value, true
		case swap:
			return op.value, state == op.previous
		}
		return state, true
	},
	describe: func(op any) string {
		switch op := op.(type) {
		case pendingSwap:
			return fmt.Sprintf("stores %q", op.value)
		case swap:
			return fmt.Sprintf("stores %q, finds %q", op.value, op.previous)
		}
		return ""
	},
	premise: func(ops []*Op) (n int) {
		for _, o := range ops {
			if l, ok := o.operation.(swap); ok && l.previous != "" {
				n++
			}
		}
		return n
	},
	reduce: reduceSwaps,
}

// reduceSwaps removes each swap that never returned and whose value no other swap returned. Such
// a swap changes nothing at the end of a linearization, and a linearization remains valid without
// the swap. reduceSwaps then merges pairs until no more can be merged.
func reduceSwaps(ops []*Op) (reduced []*Op) {
	observed := map[string]bool{}
	for _, o := range ops {
		if l, ok := o.operation.(swap); ok {
			observed[l.previous] = true
		}
	}
	for _, o := range ops {
		if l, ok := o.operation.(pendingSwap); !ok || observed[l.value] {
			reduced = append(reduced, o)
		}
	}
	for next := mergeSwaps(reduced); len(next) < len(reduced); next = mergeSwaps(reduced) {
		reduced = next
	}
	return reduced
}

// mergeSwaps merges a swap with the swap that observed its value. Values are unique, so nothing
// can be linearized between the two swaps. The pair takes effect within the intersection of both
// intervals. A pair is not merged if its intervals do not overlap or if the two swaps cannot be
// linearized in this order.
func mergeSwaps(ops []*Op) []*Op {
	byValue := map[string]int{} // index of the swap that stores a value
	for i, o := range ops {
		byValue[swappedIn(o)] = i
	}
	absorbed := make([]bool, len(ops))
	next := slices.Clone(ops)
	for i, o := range ops {
		second, ok := o.operation.(swap)
		if !ok || absorbed[i] {
			continue
		}
		k, ok := byValue[second.previous]
		if !ok || k == i || absorbed[k] || next[k] != ops[k] {
			continue
		}
		first := ops[k]
		from, to := max(first.from, o.from), min(first.to, o.to)
		if from > to {
			continue
		}
		merged := *o
		merged.process, merged.from, merged.to = first.process+", then "+o.process, from, to
		merged.startTime, merged.endTime = max(first.startTime, o.startTime), o.endTime
		if l, ok := first.operation.(swap); ok {
			merged.operation, merged.endTime = swap{second.value, l.previous}, min(first.endTime, o.endTime)
		} else {
			merged.operation = pendingSwap{second.value}
		}
		next[i], absorbed[k] = &merged, true
	}
	reduced := next[:0]
	for i, o := range next {
		if !absorbed[i] {
			reduced = append(reduced, o)
		}
	}
	slices.SortStableFunc(reduced, func(a, b *Op) int { return cmp.Compare(a.from, b.from) })
	return reduced
}

// swappedIn returns the value that an operation stores.
func swappedIn(o *Op) string {
	if l, ok := o.operation.(swap); ok {
		return l.value
	}
	return o.operation.(pendingSwap).value
}

// BeginSwap records that a message with a new value is sent to an actor.
func (j *Checker) BeginSwap(now actor.Time, id actor.ID, process, value string) *Op {
	return j.begin(&j.swaps, id.String(), process, now, pendingSwap{value})
}

// EndSwap records the previous value, as returned by the actor.
func (j *Checker) EndSwap(now actor.Time, o *Op, previous string) {
	j.end(o, now, swap{o.operation.(pendingSwap).value, previous})
}
