// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

func TestQuickTakesTheFewestStatesOfEachProperty(t *testing.T) {
	holds := func(name string, properties ...string) Config {
		return Config{Name: "M_" + name, Module: "M", Invariants: properties}
	}
	violates := func(name, property string) Config {
		return Config{Name: "M_" + name, Module: "M", Expect: Expectation{Violates, property}, Invariants: []string{"A", "B"}}
	}
	all := []Config{holds("both", "A", "B"), holds("small", "A"), holds("medium", "A"), holds("slow", "C"), holds("new", "D"),
		violates("A_broken", "A"), violates("A_late_broken", "A"), violates("B_broken", "B"),
		{Name: "M_Not_E", Module: "M", Expect: Expectation{Reaches, "Not_E"}}, {Name: "M_Not_F", Module: "M", Expect: Expectation{Reaches, "Not_F"}}}
	found := map[string]figures{}
	for name, f := range map[string]figures{
		"M_both": {distinct: 30, seconds: "60.0"}, "M_small": {distinct: 10, seconds: "2.0"}, "M_medium": {distinct: 20, seconds: "1.0"},
		"M_slow":     {distinct: 5, seconds: "60.1"},
		"M_A_broken": {distinct: 9, seconds: "1.0"}, "M_A_late_broken": {distinct: 8, seconds: "1.0"}, "M_B_broken": {distinct: 99, seconds: "1.0"},
		"M_Not_E": {distinct: 7, seconds: "1.0"}, "M_Not_F": {distinct: 6, seconds: "1.0"},
	} {
		found[rowKey(all[slices.IndexFunc(all, func(c Config) bool { return c.Name == name })])] = f
	}
	var got []string
	for _, c := range quick(all, found) {
		got = append(got, c.Name)
	}
	if want := []string{"M_both", "M_small", "M_A_late_broken", "M_B_broken", "M_Not_F"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The quick configs have, of each module, one that holds, one that reaches a goal, and for each property that a defect
// violates one in which it does.
func TestQuickCoversEveryModule(t *testing.T) {
	all := configs(t)
	chosen, err := quickConfigs(tla, all)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if !slices.ContainsFunc(chosen, func(q Config) bool {
			return q.Module == c.Module && q.Expect.Kind == c.Expect.Kind && (c.Expect.Kind != Violates || q.Expect.Name == c.Expect.Name)
		}) {
			t.Errorf("no quick config of %s %s, as %s does", c.Module, c.Expect, c.Name)
		}
	}
}
