// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/troupe-run/troupe/actor"
)

// Names of the specs.
const (
	LinearKeys   = "LinearKeys"
	LinearOwners = "LinearOwners"
	LinearKept   = "LinearKept"
)

// Specs returns the name and the meaning of each spec.
func Specs() [][2]string {
	return [][2]string{
		{LinearKeys, "All responses under one key name the same run and outcome, and no other run performs effects for the key."},
		{LinearOwners, "Shards have one owner at a time: writes and turns under a claim precede the next claim."},
		{LinearKept, "The values returned by an actor fit one order of all messages, in which each returns the value stored by the one before it."},
	}
}

// model is the sequential machine that a history is compared with.
type model struct {
	spec     string
	init     any
	step     func(state, op any) (any, bool)
	describe func(op any) string
	// premise returns the number of operations of a history that could violate the spec.
	premise func([]*Op) int
	// reduce removes operations without changing the verdict.
	reduce func([]*Op) []*Op
}

func (m *model) porcupine() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return m.init },
		Step: func(state, op, _ any) (bool, any) {
			next, ok := m.step(state, op)
			return ok, next
		},
		DescribeOperation: func(op, _ any) string { return m.describe(op) },
		DescribeState:     func(state any) string { return fmt.Sprint(state) },
	}
}

// operations converts a history for porcupine. Operations are assigned to lanes such that the
// operations of one lane do not overlap.
func operations(ops []*Op) []porcupine.Operation {
	all := make([]porcupine.Operation, 0, len(ops))
	var lanes []int64 // return time of the last operation in each lane
	for _, o := range ops {
		lane := slices.IndexFunc(lanes, func(until int64) bool { return until < o.from })
		if lane < 0 {
			lane, lanes = len(lanes), append(lanes, 0)
		}
		lanes[lane] = o.to
		all = append(all, porcupine.Operation{ClientId: lane, Input: o.operation, Call: o.from, Return: o.to, Metadata: o.String()})
	}
	return all
}

// String returns the process and the interval of the operation.
func (o *Op) String() string {
	at := func(t actor.Time) string { return time.Duration(t % actor.Time(24*time.Hour)).String() }
	if !o.returned() {
		return o.process + " from " + at(o.startTime) + ", no response"
	}
	return o.process + " from " + at(o.startTime) + " to " + at(o.endTime)
}

// byCall orders operations by their call time.
func byCall(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) }

// explain describes where the longest partial linearization ends.
func (b *historySet) explain(s *history, ops []porcupine.Operation, info *porcupine.LinearizationInfo) string {
	var best []porcupine.Operation
	for _, lines := range info.PartialLinearizationsOperations() {
		for _, line := range lines { // in random order; ties are broken by call times so that the text is deterministic
			if len(line) > len(best) || len(line) == len(best) && slices.CompareFunc(line, best, byCall) < 0 {
				best = line
			}
		}
	}
	state := b.init
	done := map[int64]bool{}
	for _, o := range best {
		state, _ = b.step(state, o.Input)
		done[o.Call] = true
	}
	rest := slices.DeleteFunc(slices.Clone(ops), func(o porcupine.Operation) bool { return done[o.Call] || o.Return == notReturned })
	detail := fmt.Sprintf("no order explains the %d operations of %s; the longest reaches %q after %d of them", len(ops), s.name, fmt.Sprint(state), len(best))
	if len(rest) > 0 { // of the rest, the operation that returned first cannot be linearized after any other
		next := slices.MinFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
		detail += fmt.Sprintf(", and cannot continue with: %s (%s)", b.describe(next.Input), next.Metadata)
	}
	return detail
}
