// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A floor is the minimum share of mutants, in percent, that a group of layers finds.
type floor struct {
	name    string
	layers  []layer
	percent int
}

// The share of the own tests is printed without a floor.
var floors = []floor{
	{fmt.Sprintf("%d worlds", worldsMax), []layer{byWorlds}, 60},
	{fmt.Sprintf("%d worlds", moreWorldsMax), []layer{byWorlds, byMoreWorlds}, 80},
	{"own tests", []layer{byOwnTests}, 0},
	{"everything", layers, 95},
}

// String returns the place of the mutant and its change.
func (s *site) String() string {
	before, after := s.lines()
	return fmt.Sprintf("%s:%d %s %s\n  - %s\n  + %s\n", s.file.path, s.line(), s.function, s.operator, before, after)
}

// survives reports whether every layer that ran lets the mutant pass.
func (t *trial) survives(m mutant) bool { return t.foundBy(m, layers) == "" }

// foundBy returns the first killer in some layers, or "".
func (t *trial) foundBy(m mutant, by []layer) string {
	for _, l := range by {
		if k := t.rows.killer(m.name, l); k != "" {
			return k
		}
	}
	return ""
}

// print writes the survivors and the table. It returns false if a floor was missed.
func (t *trial) print(out io.Writer, seed uint64, verdicts judgements) bool {
	judged := slices.DeleteFunc(slices.Clone(t.mutants), func(m mutant) bool { return verdicts.isEquivalent(m.site) })
	for _, m := range t.mutants {
		if t.survives(m) {
			fmt.Fprintf(out, "%s survives (%s), evaluated by %d of %d worlds: %v", m.name,
				cmp.Or(verdicts[m.site.key()], "not judged"), t.reachOf(m), len(t.reached), m.site)
		} else if verdicts[m.site.key()] != "" {
			fmt.Fprintf(out, "%s is found by %s: remove it from %s: %v", m.name, t.foundBy(m, layers), judgementsPath, m.site)
		}
	}
	t.printKillers(out)
	fmt.Fprintf(out, "seed %d: %d mutants, %d of them judged equivalent\n", seed, len(t.mutants), len(t.mutants)-len(judged))
	fmt.Fprintf(out, "  %-12s %6s %7s %7s\n", "found by", "number", "share", "floor")
	met := true
	for _, f := range floors {
		found := 0
		for _, m := range judged {
			if t.foundBy(m, f.layers) != "" {
				found++
			}
		}
		share := 100 * float64(found) / float64(max(len(judged), 1))
		verdict := ""
		switch {
		case slices.ContainsFunc(judged, func(m mutant) bool { return !t.measured(m, f.layers) }):
			verdict = "at least"
		case f.percent == 0:
		case share >= float64(f.percent):
			verdict = fmt.Sprintf("%5d %%  met", f.percent)
		default:
			verdict, met = fmt.Sprintf("%5d %%  missed", f.percent), false
		}
		fmt.Fprintf(out, "  %-12s %6d %5.1f %%  %s\n", f.name, found, share, verdict)
	}
	return met
}

// measured reports whether a layer of these finds the mutant, or all of them ran.
func (t *trial) measured(m mutant, all []layer) bool {
	return t.foundBy(m, all) != "" || !slices.ContainsFunc(all, func(l layer) bool { return !t.rows.has(m.name, l) })
}

// reachOf returns the number of simulated seeds that evaluate the mutant.
func (t *trial) reachOf(m mutant) (n int) {
	number := slices.IndexFunc(t.mutants, func(o mutant) bool { return o.name == m.name })
	for _, reached := range t.reached {
		if slices.Contains(reached, number) {
			n++
		}
	}
	return n
}

// printKillers writes how many mutants each spec and test finds first.
func (t *trial) printKillers(out io.Writer) {
	counts := map[string]int{}
	for _, m := range t.mutants {
		for _, l := range layers {
			if k := t.rows.killer(m.name, l); k != "" {
				counts[string(l)+": "+k]++
			}
		}
	}
	for _, k := range sortedKeys(counts) {
		fmt.Fprintf(out, "  %3d  %s\n", counts[k], k)
	}
}

// writeSurvivors writes lines for survivors.txt: the survivors that have no verdict yet.
func (t *trial) writeSurvivors(verdicts judgements) error {
	var b strings.Builder
	for _, m := range t.mutants {
		if t.survives(m) && verdicts[m.site.key()] == "" {
			fmt.Fprintf(&b, "%s\topen\n", m.site.key())
		}
	}
	return os.WriteFile(filepath.Join(t.dir, "survivors.txt"), []byte(b.String()), 0o644)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
