// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/internal/mdsection"
	"github.com/troupe-run/troupe/sim"
)

// The kept mutants are those of sim.Guards, each with the spec that must detect it. This
// program measures which layers find them. make mutants enforces the spec.

const keptPage = "docs/benchmarks/mutants.md"

// runKept runs the layers for every kept mutant, and writes the table if all are complete.
func (c command) runKept(ctx context.Context) (bool, error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return false, err
	}
	guards := sim.Guards()
	t := &trial{tree: &tree{root: root}, dir: filepath.Join(root, c.dir, "kept"), tests: map[string]tested{}, report: report}
	dirs, err := keptPackages(root)
	if err != nil {
		return false, err
	}
	for _, g := range guards {
		if len(dirs[g.Mutant]) == 0 {
			return false, fmt.Errorf("no package in %v removes the guard %s", mutatedPackages, g.Mutant)
		}
		t.mutants = append(t.mutants, mutant{name: g.Mutant, dirs: dirs[g.Mutant]})
	}
	version, err := fingerprint(root)
	if err != nil {
		return false, err
	}
	if t.rows, err = openRows(t.dir, version); err != nil {
		return false, err
	}
	t.worlds = filepath.Join(t.dir, "worlds")
	err = t.compile(ctx, "build", "-o", t.worlds, "./test/mutation/worlds")
	for _, l := range []layer{byWorlds, byOwnTests} {
		if err == nil && slices.Contains(c.layers, l) {
			err = t.run(ctx, l, c.survivors)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		report("stopped by the budget; the same command continues")
		return true, nil
	}
	if err != nil {
		return false, err
	}
	table, missed, err := t.keptTable(guards)
	if err != nil {
		return false, err
	}
	fmt.Print(table)
	if slices.ContainsFunc(t.mutants, func(m mutant) bool { return !t.rows.has(m.name, byWorlds) || !t.rows.has(m.name, byOwnTests) }) {
		return missed == 0, nil
	}
	return missed == 0, mdsection.Replace(filepath.Join(root, keptPage), "mutants", table)
}

var keptName = regexp.MustCompile(`\bmutant\.On\("([^"]+)"\)`)

// keptPackages returns the packages that contain the guard of each kept mutant.
func keptPackages(root string) (map[string][]string, error) {
	dirs := map[string][]string{}
	for _, dir := range mutatedPackages {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			for _, m := range keptName.FindAllSubmatch(text, -1) {
				if name := string(m[1]); !slices.Contains(dirs[name], dir) {
					dirs[name] = append(dirs[name], dir)
				}
			}
		}
	}
	return dirs, nil
}

// keptTable returns the table of the page, and the number of mutants that no layer finds.
func (t *trial) keptTable(guards []sim.Guard) (table string, missed int, err error) {
	traced, err := tracedMutants(t.tree.root)
	if err != nil {
		return "", 0, err
	}
	var b strings.Builder
	found := map[string]int{}
	for i, g := range guards {
		m := t.mutants[i]
		w := t.rows.all[m.name][byWorlds]
		worlds := ""
		if w.Killer != "" {
			found["worlds"]++
			worlds = fmt.Sprintf("seed %d", w.Seed)
			if w.Killer != g.Spec {
				found["first by another"]++
				worlds += ", first " + w.Killer
			}
		}
		own := t.rows.killer(m.name, byOwnTests)
		if own != "" {
			found["own tests"]++
			own, _, _ = strings.Cut(own, ": ")
			own = "`" + own + "`"
		}
		trace := ""
		if slices.Contains(traced, g.Mutant) {
			found["traces"]++
			trace = "rejected"
		}
		models, err := brokenModels(t.tree.root, g.Spec)
		if err != nil {
			return "", 0, err
		}
		if models != "" {
			found["models"]++
		}
		if w.Killer == "" && own == "" {
			missed++
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", g.Mutant, strings.Join(m.dirs, ", "), g.Spec, cmp.Or(worlds, "—"), cmp.Or(own, "—"), cmp.Or(trace, "—"), cmp.Or(models, "—"))
	}
	head := fmt.Sprintf("Commit %s. Of %d mutants, %d worlds find %d (%d of them first by another spec than the named one), own tests %d, traces %d; %d specs have a broken model.\n\n",
		mdsection.Commit(), len(guards), worldsMax, found["worlds"], found["first by another"], found["own tests"], found["traces"], found["models"])
	return head + "| mutant | package | spec | worlds | own tests | traces | broken models |\n|---|---|---|---|---|---|---|\n" + b.String(), missed, nil
}

// tracedMutants returns the mutants whose histories make trace requires TLC to reject.
func tracedMutants(root string) (names []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "tla/tlc/traces.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "tracedMutants" || len(spec.Values) != 1 {
			return true
		}
		ast.Inspect(spec.Values[0], func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok {
				name, _ := strconv.Unquote(lit.Value)
				names = append(names, name)
			}
			return true
		})
		return false
	})
	if names == nil {
		return nil, errors.New("tla/tlc/traces.go: no list tracedMutants")
	}
	return names, nil
}

// brokenModels returns the models in which TLC must report this spec, with the number of
// their broken configurations.
func brokenModels(root, spec string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, "tla/broken", "*.cfg"))
	if err != nil {
		return "", err
	}
	counts := map[string]int{}
	for _, path := range files {
		module, rest, _ := strings.Cut(filepath.Base(path), "_")
		if property, _, _ := strings.Cut(rest, "_"); property == spec {
			counts[module]++
		}
	}
	var all []string
	for _, module := range sortedKeys(counts) {
		all = append(all, fmt.Sprintf("%s %d", module, counts[module]))
	}
	return strings.Join(all, ", "), nil
}
