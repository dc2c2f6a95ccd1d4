// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// runProgram builds the module of a tree with these replaced files, and returns what it
// prints.
func runProgram(t *testing.T, tree *tree, overlay, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-tags", "mutants", "-overlay", overlay, "-o", program, ".")
	build.Dir = tree.root
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return runMutant(t, program, name)
}

func runMutant(t *testing.T, program, name string) string {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "MUTANT="+name)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return string(output)
}

// One program with all mutants behaves like the unchanged program without a selection,
// and like the program with one changed line for each selection. The sites are of every
// form, one inside of another.
func TestSchemaBehavesLikeEachMutant(t *testing.T) {
	tree := loadText(t, `package p

import "strconv"

func f(n int) (out string, ok bool) {
	v, err := strconv.Atoi("12")
	if err != nil || n < 3 && v > 11 {
		return "early", true
	}
	total := bigger(n+1, v)
	out += strconv.Itoa(total)
	if _, err := strconv.Atoi("x"); err != nil {
		out += "!"
	}
	w, err := strconv.Atoi(out)
	if err != nil {
		return out + "?", false
	}
	return strconv.Itoa(w), n > 4
}

func bigger(a, b int) int { return 3*a - b }

func Run() (all []string) {
	for n := range 7 {
		out, ok := f(n)
		all = append(all, out+strconv.FormatBool(ok))
	}
	return all
}
`)
	var drawn []*site
	byOperator := tree.sites()
	for _, o := range []string{"guard", "operand", "boundary", "swap", "literal", "statement", "result", "return"} {
		drawn = append(drawn, byOperator[o]...)
	}
	drawn = slices.DeleteFunc(drawn, func(s *site) bool { return !tree.compiles(s.file, s.mutated()) })
	forms := map[form]bool{}
	for _, s := range drawn {
		forms[s.form] = true
	}
	if len(forms) != 4 {
		t.Fatalf("the mutants have %d forms, want 4", len(forms))
	}
	dir := t.TempDir()
	overlay, err := tree.writeOverlay(dir, drawn)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := filepath.Glob(filepath.Join(dir, "*", "*.go")); err != nil || len(found) > 0 {
		t.Errorf("./... matches a folder with the rewritten files %q, %v", found, err)
	}
	program := filepath.Join(t.TempDir(), "all")
	build := exec.Command("go", "build", "-tags", "mutants", "-overlay", overlay, "-o", program, ".")
	build.Dir = tree.root
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	unchanged := runProgram(t, tree, writeReplacement(t, tree, nil), "")
	if got := runMutant(t, program, ""); got != unchanged {
		t.Errorf("without a selection: got %s, want %s", got, unchanged)
	}
	compared := map[string]int{}
	for n, s := range drawn {
		if compared[s.operator]++; compared[s.operator] > 1 {
			continue // a build for each takes too long
		}
		want := runProgram(t, tree, writeReplacement(t, tree, s), "")
		if got := runMutant(t, program, "drawn:"+strconv.Itoa(n)); got != want {
			t.Errorf("%v: got %s, want %s", s, got, want)
		}
		if s.operator != "result" && want == unchanged {
			t.Errorf("%v changes nothing here, so it compares nothing", s)
		}
	}
}

// writeReplacement writes the list of replaced files of a program with one mutant; nil
// replaces none.
func writeReplacement(t *testing.T, tree *tree, s *site) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	if s != nil {
		path := filepath.Join(dir, "changed.go")
		replace[filepath.Join(tree.root, s.file.path)] = path
		if err := os.WriteFile(path, s.mutated(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, list, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A mutant is reached where its value differs, or where comparing it could have an effect.
func TestMutantsWithEqualValuesAreNotReached(t *testing.T) {
	tree := loadText(t, `package p

import (
	"fmt"

	"example.test/m/internal/mutant"
)

var calls int

func g(n int) int {
	calls++
	return n
}

func f(n int) bool {
	if n < 3 {
		return true
	}
	return g(n) >= 100
}

func h(b []int, n int) bool { return n < len(b) && b[n] > 1 }

func Run() (all []string) {
	for n := range 4 {
		mutant.Reached, calls = make([]bool, 6), 0
		f(n)
		h([]int{2}, n)
		line := fmt.Sprint(n, calls)
		for i, reached := range mutant.Reached {
			if reached {
				line += fmt.Sprint(" ", i)
			}
		}
		all = append(all, line)
	}
	return all
}
`)
	byOperator := tree.sites()
	drawn := slices.Concat(byOperator["boundary"], byOperator["operand"])
	overlay, err := tree.writeOverlay(t.TempDir(), drawn)
	if err != nil {
		t.Fatal(err)
	}
	// 0: n <= 3, 1: g(n) > 100, 2: n <= len(b), 3: b[n] >= 1, 4: n < len(b), 5: b[n] > 1, which panics
	if got, want := runProgram(t, tree, overlay, ""), "[0 0 1 0 2 5 2 0 5 3 1 0 1 5]\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
