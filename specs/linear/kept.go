// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"fmt"

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
	return lean
}

// Leaves begins a message that leaves a value with an actor.
func (j *Judge) Leaves(now actor.Time, id actor.ID, who, value string) *Op {
	return j.begin(&j.kept, id.String(), who, now, leaves{value})
}

// Left ends it: the actor says what was there before.
func (j *Judge) Left(now actor.Time, o *Op, found string) {
	j.end(o, now, left{o.did.(leaves).value, found})
}
