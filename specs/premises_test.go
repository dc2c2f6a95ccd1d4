// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"
	"testing"
)

// Every spec has a counter of its premise, and a description.
func TestEverySpecHasPremise(t *testing.T) {
	var counted, names []string
	for _, p := range new(Premises).List() {
		counted = append(counted, p.Spec)
		if p.Situation == "" {
			t.Errorf("%s: no description of its premise", p.Spec)
		}
	}
	for _, s := range All() {
		names = append(names, s.Name)
	}
	if !slices.Equal(counted, names) {
		t.Errorf("premises of %v\nspecs         %v", counted, names)
	}
}

func TestPremisesAdd(t *testing.T) {
	sum := Premises{OneAnswer: 2}
	sum.Add(&Premises{OneAnswer: 3, LinearKept: 4})
	if want := (Premises{OneAnswer: 5, LinearKept: 4}); sum != want {
		t.Errorf("got %+v", sum)
	}
}
