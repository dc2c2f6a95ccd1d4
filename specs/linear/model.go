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

// The names of the specs.
const (
	LinearKeys   = "LinearKeys"
	LinearOwners = "LinearOwners"
	LinearKept   = "LinearKept"
)

// Specs lists the specs, each with its sentence.
func Specs() [][2]string {
	return [][2]string{
		{LinearKeys, "All who ask under one key are told of one run and one outcome, and no other run does anything for them."},
		{LinearOwners, "Shards have one owner at a time: what is written or begun under a claim is so before the next claim."},
		{LinearKept, "What an actor keeps is what the message before left there, in one order that all who asked could have seen."},
	}
}

// model is the machine that a history is compared with.
type model struct {
	spec     string
	init     any
	step     func(state, did any) (any, bool)
	describe func(did any) string
	// reduce leaves out operations without which the verdict is the same.
	reduce func([]*Op) []*Op
}

func (m *model) porcupine() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return m.init },
		Step: func(state, did, _ any) (bool, any) {
			next, ok := m.step(state, did)
			return ok, next
		},
		DescribeOperation: func(did, _ any) string { return m.describe(did) },
		DescribeState:     func(state any) string { return fmt.Sprint(state) },
	}
}

// operations is a history as porcupine reads it. Who did what stands in lanes
// in which nothing overlaps.
func operations(ops []*Op) []porcupine.Operation {
	all := make([]porcupine.Operation, 0, len(ops))
	var lanes []int64 // until when each is taken
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

// String says who, and when.
func (o *Op) String() string {
	at := func(t actor.Time) string { return time.Duration(t % actor.Time(24*time.Hour)).String() }
	if !o.returned() {
		return o.process + " from " + at(o.startTime) + ", and never heard of it"
	}
	return o.process + " from " + at(o.startTime) + " to " + at(o.endTime)
}

// byCall orders operations by when they began.
func byCall(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) }

// explain says where the order that comes farthest ends.
func (b *historySet) explain(s *history, ops []porcupine.Operation, info *porcupine.LinearizationInfo) string {
	var best []porcupine.Operation
	for _, lines := range info.PartialLinearizationsOperations() {
		for _, line := range lines { // in any order, so that of those as long as each other one has to be chosen
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
	sentence := fmt.Sprintf("no order explains the %d operations of %s; one comes to %q after %d of them", len(ops), s.name, fmt.Sprint(state), len(best))
	if len(rest) > 0 { // what ended first has to be next, or before
		next := slices.MinFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
		sentence += fmt.Sprintf(", and cannot go on to: %s (%s)", b.describe(next.Input), next.Metadata)
	}
	return sentence
}
