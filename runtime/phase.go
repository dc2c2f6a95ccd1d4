// SPDX-License-Identifier: Apache-2.0

package runtime

import "github.com/troupe-run/troupe/store"

// phase is what an ask waits for. An ask moves from phaseDecision to phaseEffect or phaseAnswered,
// and from every other phase to phaseAnswered only.
type phase uint8

const (
	phaseAnswered phase = iota // nothing: it has its answer
	phaseDecision              // a person, who decides about the call of a tool
	phaseCall                  // the answer of another actor
	phaseEffect                // the outcome of an effect of this cell
	phaseReport                // the gateway, which performs the model request of an external agent and reports its outcome
	phaseTime                  // a time, or a signal until then
)

// phaseOf returns the phase of an ask.
func phaseOf(a *store.Asked) phase {
	switch {
	case !a.Open():
		return phaseAnswered
	case a.IsCall():
		return phaseCall
	case a.Waits():
		return phaseDecision
	case isAddedModel(a):
		return phaseReport
	case a.Out().RunsOutsideCell():
		return phaseEffect
	}
	return phaseTime
}
