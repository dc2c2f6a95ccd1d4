// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
)

// quickSecondsMax is the maximum number of seconds that a config of -quick took in its last complete run, which
// shares the cores with other work.
const quickSecondsMax = 60

// quick chooses the configs that show in two minutes, on two idle cores, whether a change broke a model. For each
// property of a module these are the smallest config in which the property holds and the smallest in which a defect
// violates it. For each module the smallest config that reaches a goal is added. A config that took more than
// quickSecondsMax is left to a complete run, even if no other config checks its properties.
func quick(all []Config, found map[string]figures) []Config {
	type result struct {
		module   string
		kind     Kind
		property string
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c Config) bool {
		f, known := found[rowKey(c)]
		took, err := strconv.ParseFloat(f.seconds, 64)
		return !known || err != nil || took > quickSecondsMax
	})
	slices.SortStableFunc(all, func(a, b Config) int { return cmp.Compare(found[rowKey(a)].distinct, found[rowKey(b)].distinct) })
	shown := map[result]bool{}
	chosen := slices.DeleteFunc(all, func(c Config) bool {
		var results []result
		switch c.Expect.Kind {
		case Holds:
			for _, p := range slices.Concat(c.Invariants, c.Properties) {
				results = append(results, result{c.Module, Holds, p})
			}
		case Violates:
			results = []result{{c.Module, Violates, c.Expect.Name}}
		case Reaches:
			results = []result{{module: c.Module, kind: Reaches}}
		}
		superfluous := true
		for _, r := range results {
			superfluous = superfluous && shown[r]
			shown[r] = true
		}
		return superfluous
	})
	slices.SortFunc(chosen, byExpectation)
	return chosen
}

// quickConfigs returns the choice of quick among the configs of a folder, by the figures of its last complete run.
func quickConfigs(dir string, all []Config) ([]Config, error) {
	found, err := readTable(filepath.Join(dir, resultsName))
	return quick(all, found), err
}
