// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/sim"
)

// Each guard of the repository is in some package, and each traced mutant is a guard.
func TestKeptMutantsAreInTheSource(t *testing.T) {
	root := filepath.Join("..", "..")
	dirs, err := keptPackages(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range sim.Guards() {
		if names = append(names, g.Mutant); len(dirs[g.Mutant]) == 0 {
			t.Errorf("%s is in no package", g.Mutant)
		}
	}
	for name := range dirs {
		if !slices.Contains(names, name) {
			t.Errorf("%s in %v is not listed in sim.Guards", name, dirs[name])
		}
	}
	traced, err := tracedMutants(root)
	if err != nil || len(traced) == 0 {
		t.Errorf("traced: %q, %v", traced, err)
	}
	for _, name := range traced {
		if !slices.Contains(names, name) {
			t.Errorf("traces expect the mutant %q", name)
		}
	}
}

func TestKeptTable(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"tla/tlc/traces.go":             "package main\n\nvar other = []string{\"c\"}\n\nvar tracedMutants = []string{\"a\",\n\t\"x\"}\n",
		"tla/broken/M_SpecA_broken.cfg": "1", "tla/broken/M_SpecA_again_broken.cfg": "2", "tla/broken/N_SpecA_broken.cfg": "3", "tla/broken/N_SpecAB_broken.cfg": "4",
	} {
		if err := writeIfChanged(filepath.Join(root, path), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := openRows(t.TempDir(), version{"v", "t"})
	if err != nil {
		t.Fatal(err)
	}
	tr := &trial{tree: &tree{root: root}, rows: r}
	guards := []sim.Guard{{Mutant: "a", Spec: "SpecA"}, {Mutant: "b", Spec: "SpecB"}, {Mutant: "c", Spec: "SpecC"}}
	for _, g := range guards {
		tr.mutants = append(tr.mutants, mutant{name: g.Mutant, dirs: []string{"p", "q"}})
	}
	for _, one := range []row{
		{Mutant: "a", Layer: byWorlds, Killer: "SpecA", Seed: 4}, {Mutant: "a", Layer: byOwnTests, Killer: "p.TestA: panic: x"},
		{Mutant: "b", Layer: byWorlds, Killer: "SpecA", Seed: 5}, {Mutant: "b", Layer: byOwnTests},
		{Mutant: "c", Layer: byWorlds}, {Mutant: "c", Layer: byOwnTests},
	} {
		if err := tr.rows.add(one); err != nil {
			t.Fatal(err)
		}
	}
	table, missed, err := tr.keptTable(guards)
	if err != nil || missed != 1 {
		t.Errorf("%d missed, %v; want 1", missed, err)
	}
	for _, want := range []string{
		"Of 3 mutants, 300 worlds find 2 (1 of them first by another spec than the named one), own tests 1, traces 1; 1 specs have a broken model.",
		"| a | p, q | SpecA | seed 4 | `p.TestA` | rejected | M 2, N 1 |",
		"| b | p, q | SpecB | seed 5, first SpecA | — | — | — |",
		"| c | p, q | SpecC | — | — | — | — |",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}
