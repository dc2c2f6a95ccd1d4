// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Numbers of mutants that are drawn, besides those that the change touches.
const (
	drawnOutside = 4  // for a change outside the simulator
	drawnInside  = 12 // for any other
	drawnWhole   = 40 // if there is no base
)

// plan are the stages that a change needs.
type plan struct {
	core     bool // the change may alter a simulation
	tla      bool
	trace    bool
	inert    bool
	recovery bool
	postgres bool     // the store in a database
	raced    []string // packages for the race detector
	mutants  []string
}

// everything is the plan without a base. Without names of packages, make race takes its own.
func everything(rows map[string][]string, head string) plan {
	return plan{core: true, tla: true, trace: true, inert: true, recovery: true, postgres: true, raced: []string{"all"}, mutants: drawn(rows, head, drawnWhole)}
}

// pkg is a package of the repository.
type pkg struct {
	dir   string          // relative to the root
	deps  map[string]bool // import paths of all packages that it imports, also indirectly
	tests map[string]bool // likewise for its tests
}

// traceInputs are the folders besides tla that make trace compares with each other.
var traceInputs = []string{"runtime", "history"}

// planOf returns the plan for a change. A change is core if it touches a package that package
// sim imports, the specs or the model. Files that only their own tests read are not core.
func planOf(c change, packages map[string]pkg, raced []string, rows map[string][]string, head string) plan {
	const simPackage = module + "/sim"
	var p plan
	touched := map[string]bool{} // import paths of changed packages, and changed modules
	tests := map[string]bool{}   // import paths of packages with changed tests
	for _, file := range c.files {
		owner, isTest := ownerOf(file, packages), strings.HasSuffix(file, "_test.go")
		if isTest {
			tests[owner] = true
		} else if owner != "" && !strings.HasSuffix(file, ".md") { // embedded pages are shown as they are
			touched[owner] = true
		}
		in := func(folders ...string) bool {
			return slices.ContainsFunc(folders, func(f string) bool { return strings.HasPrefix(file, f+"/") })
		}
		core := !isTest && (owner == simPackage || packages[simPackage].deps[owner]) || in("specs", "tla")
		p.core = p.core || core
		p.tla = p.tla || in("tla")
		p.trace = p.trace || in("tla") || !isTest && in(traceInputs...)
		p.inert = p.inert || !isTest && in("sim")
		rowFile, isRow := strings.CutPrefix(file, "test/mutants/")
		if isRow {
			file = strings.TrimSuffix(rowFile, ".txt") + ".go"
		}
		p.mutants = append(p.mutants, rows[file]...)
	}
	for _, m := range c.modules {
		touched[m] = true
	}
	p.core = p.core || packages[simPackage].imports(touched, false)
	for _, name := range raced {
		if tests[name] || touched[name] || packages[name].imports(touched, true) {
			p.raced = append(p.raced, strings.TrimSuffix("./"+packages[name].dir, "/."))
		}
	}
	for name, one := range packages {
		if one.dir == "sim" || one.dir == "host/disk" {
			p.recovery = p.recovery || tests[name] || touched[name] || one.imports(touched, true)
		}
		if one.dir == "host/postgres" {
			p.postgres = tests[name] || touched[name] || one.imports(touched, false)
		}
	}
	known := slices.Concat(slices.Collect(maps.Values(rows))...)
	guards := slices.DeleteFunc(slices.Clone(c.guards), func(name string) bool { return !slices.Contains(known, name) })
	n := drawnOutside
	if p.core {
		n = drawnInside
	}
	p.mutants = sorted(p.mutants, guards, drawn(rows, head, n))
	return p
}

// imports reports whether a package imports one of the packages, or one of a module.
func (p pkg) imports(touched map[string]bool, withTests bool) bool {
	for name := range touched {
		for _, deps := range []map[string]bool{p.deps, p.tests} {
			if deps[name] {
				return true
			}
			if strings.HasPrefix(name, module) { // otherwise a module
				continue
			}
			for dep := range deps {
				if strings.HasPrefix(dep, name+"/") {
					return true
				}
			}
			if !withTests {
				break
			}
		}
	}
	return false
}

// ownerOf returns the package of the innermost folder around a file; "" if that is the root,
// unless the file is Go of the root.
func ownerOf(file string, packages map[string]pkg) string {
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if _, ok := packages[module+"/"+dir]; ok {
			return module + "/" + dir
		}
	}
	if path.Dir(file) == "." && path.Ext(file) == ".go" {
		return module
	}
	return ""
}

// drawn returns n mutants that are drawn by the commit, so that no change chooses them.
func drawn(rows map[string][]string, head string, n int) []string {
	all := sorted(slices.Collect(maps.Values(rows))...)
	order := func(name string) string { sum := sha256.Sum256([]byte(head + name)); return string(sum[:]) }
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	return sorted(all[:min(n, len(all))])
}

const module = "github.com/troupe-run/troupe"

// packages returns the packages of the repository by import path.
func (c checkout) packages() (map[string]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Deps,TestImports,XTestImports", "./...")
	cmd.Dir, cmd.Stderr = string(c), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	root, err := filepath.EvalSymlinks(string(c))
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, err
	}
	packages := map[string]pkg{}
	imports := map[string][]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir                 string
			Deps, TestImports, XTestImports []string
		}
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return nil, err
		}
		packages[p.ImportPath] = pkg{dir: filepath.ToSlash(dir), deps: set(p.Deps)}
		imports[p.ImportPath] = slices.Concat(p.TestImports, p.XTestImports)
	}
	for name, p := range packages {
		p.tests = set(imports[name])
		for _, other := range imports[name] {
			maps.Copy(p.tests, packages[other].deps)
		}
		packages[name] = p
	}
	return packages, nil
}

func set(names []string) map[string]bool {
	s := make(map[string]bool, len(names))
	for _, name := range names {
		s[name] = true
	}
	return s
}

var racedLine = regexp.MustCompile(`(?m)^RACED = (.*)$`)

// racedPackages returns the packages that make race tests.
func racedPackages(c checkout) ([]string, error) {
	makefile, err := os.ReadFile(filepath.Join(string(c), "Makefile"))
	if err != nil {
		return nil, err
	}
	m := racedLine.FindSubmatch(makefile)
	if m == nil {
		return nil, fmt.Errorf("the Makefile has no line RACED = PACKAGES")
	}
	cmd := exec.Command("go", append([]string{"list"}, strings.Fields(string(m[1]))...)...)
	cmd.Dir, cmd.Stderr = string(c), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return strings.Fields(string(out)), nil
}
