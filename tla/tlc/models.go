// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// modelTable returns the table of models. The row of a model has its constants, the properties
// checked, the defects found and the situations reached. Each defect and situation has the
// number of states that lead to it.
func modelTable(all []Config, found map[string]figures) string {
	var b strings.Builder
	fmt.Fprintf(&b, "By TLC %s; of each defect and goal, how many states lead to it. Times are of cores that may have had\nother work too.\n\n", tlcVersion)
	b.WriteString("| model | constants | holds | distinct states | depth | seconds | defects found | goals reached |\n|---|---|---|---:|---:|---:|---|---|\n")
	count := [3]int{}
	states := 0
	for _, c := range all {
		f := found[rowKey(c)]
		count[c.Expect.Kind]++
		if c.Expect.Kind != Holds {
			continue
		}
		states += f.distinct
		var defects, goals []string
		for _, d := range all {
			if d.Base != c.Name+".cfg" {
				continue
			}
			switch length := found[rowKey(d)].length; d.Expect.Kind {
			case Violates:
				defects = append(defects, fmt.Sprintf("%s: %s %d", d.Expect.Name, strings.Trim(d.Value("Bug"), `"`), length))
			case Reaches:
				goals = append(goals, fmt.Sprintf("%s %d", strings.TrimPrefix(d.Expect.Name, "Not_"), length))
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %s | %s | %s |\n", c.Name, strings.Join(c.constants(), ", "),
			strings.Join(slices.Concat(c.Invariants, c.Properties), ", "), f.distinct, f.depth, f.seconds,
			strings.Join(defects, ", "), strings.Join(goals, ", "))
	}
	fmt.Fprintf(&b, "\n%d models hold, with %d distinct states in all; in copies of them that lack a guard, %d of %d defects were\nfound, and %d of %d situations were reached.\n",
		count[Holds], states, count[Violates], count[Violates], count[Reaches], count[Reaches])
	return b.String()
}

// constants returns the bounds of a config, except those bounds that are equal in all configs.
func (c Config) constants() []string {
	var out []string
	for _, line := range c.Lines {
		name, value, ok := strings.Cut(line, "=")
		if name, value = strings.TrimSpace(name), strings.TrimSpace(value); !ok {
			name, value, ok = strings.Cut(line, "<-")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		}
		if ok && name != "Client" && name != "None" && name != "Bug" {
			out = append(out, name+" "+value)
		}
	}
	return out
}

// totalStates returns the number of distinct states of all models that hold.
func totalStates(all []Config, found map[string]figures) int {
	n := 0
	for _, c := range all {
		if c.Expect.Kind == Holds {
			n += found[rowKey(c)].distinct
		}
	}
	return n
}
