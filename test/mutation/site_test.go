// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeModule writes a module with the package p, whose file has this text, and returns
// its folder.
func writeModule(t *testing.T, text string) string {
	t.Helper()
	root := t.TempDir()
	on, err := os.ReadFile("../../internal/mutant/on.go")
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		"go.mod":                   "module example.test/m\n\ngo 1.26\n",
		"internal/mutant/on.go":    string(on),
		"internal/failpoint/on.go": "package failpoint\n\nfunc On() bool { return false }\n",
		"main.go":                  "package main\n\nimport (\n\t\"fmt\"\n\n\t\"example.test/m/p\"\n)\n\nfunc main() { fmt.Println(p.Run()) }\n",
		"p/p.go":                   text,
	} {
		if err := writeIfChanged(filepath.Join(root, path), []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// loadText loads a module whose package p has this text.
func loadText(t *testing.T, text string) *tree {
	t.Helper()
	tree, err := load(writeModule(t, text), []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestOperatorsFindTheirSites(t *testing.T) {
	tree := loadText(t, `package p

import (
	"bytes"
	"strconv"
)

type Kind uint8

const (
	Low Kind = iota
	High
)

type job struct{ a, b int }

func (j *job) emit(int) {}

func guard(n int, more bool) int {
	if n == 7 {
		return 3
	}
	if more {
		n++
	}
	return n
}

func choose(a, b bool) string {
	switch {
	case a && b:
		return "x"
	}
	return "y"
}

func bound(n, limit int) int { return min(n, limit) }

func boundary(n, limit int) bool { return n < limit }

func swap(a, b int) int { return bound(a-b, b) }

func event(j *job) {
	j.emit(0)
	j.a += 0
}

func result(s string) (int, error) {
	n, err := strconv.Atoi(s)
	return n, err
}

func field(b []byte) (*job, []byte, Kind) {
	for range b {
		if len(b) > 5 {
			continue
		}
	}
	return &job{a: len(b), b: cap(b)}, bytes.Clone(b), Low
}
`)
	want := map[string][]string{
		"guard":      {"if n == 7 { => if false {", "if len(b) > 5 { => if false {"},
		"case":       {"case a && b: => case false:"},
		"negate":     {"if n == 7 { => if !(n == 7) {", "if more { => if !(more) {", "if len(b) > 5 { => if !(len(b) > 5) {"},
		"operand":    {"case a && b: => case (a):", "case a && b: => case (b):"},
		"boundary":   {"return n < limit => return n <= limit", "if len(b) > 5 { => if len(b) >= 5 {"},
		"arithmetic": {"bound(a-b, b) => bound(a + b, b)"},
		"literal": {"if n == 7 { => if n == 8 {", "if n == 7 { => if n == 6 {", "return 3 => return 4", "return 3 => return 2", "j.emit(0) => j.emit(1)",
			"j.a += 0 => j.a += 1", "if len(b) > 5 { => if len(b) > 6 {", "if len(b) > 5 { => if len(b) > 4 {"},
		"bound":     {"min(n, limit) => int(n)", "min(n, limit) => int(limit)", "min(n, limit) => max(n, limit)", "return n < limit => return n < 2*(limit)"},
		"swap":      {"bound(a-b, b) => bound(b, a-b)", "bound(a-b, b) => bound(b - a, b)"},
		"copy":      {"bytes.Clone(b), Low => b, Low"},
		"event":     {"j.emit(0) => "},
		"statement": {"n++ => ", "j.a += 0 => "},
		"result":    {"n, err := strconv.Atoi(s) => n, err := strconv.Atoi(s); err = nil"},
		"return": {"return n < limit => return !(n < limit)", "return n, err => return n, nil",
			"return &job{a: len(b), b: cap(b)}, bytes.Clone(b), Low => return nil, bytes.Clone(b), Low",
			"return &job{a: len(b), b: cap(b)}, bytes.Clone(b), Low => return &job{a: len(b), b: cap(b)}, nil, Low"},
		"constant": {"bytes.Clone(b), Low => bytes.Clone(b), High"},
		"field":    {"&job{a: len(b), b: cap(b)} => &job{b: cap(b)}", "&job{a: len(b), b: cap(b)} => &job{a: len(b)}"},
		"jump":     {"continue => break"},
	}
	for name, all := range tree.sites() {
		if want[name] == nil {
			t.Errorf("%s: no expectation", name)
		}
		for i, s := range all {
			before, after := s.lines()
			if i >= len(want[name]) {
				t.Errorf("%s: unexpected %s => %s", name, before, after)
				continue
			}
			from, to, _ := strings.Cut(want[name][i], " => ")
			if changed := strings.Replace(before, from, to, 1); !strings.Contains(before, from) || changed != after && to != "" || to == "" && after != "" {
				t.Errorf("%s: got %s => %s, want %s", name, before, after, want[name][i])
			}
		}
		if len(all) < len(want[name]) {
			t.Errorf("%s: %d sites, want %d", name, len(all), len(want[name]))
		}
	}
	for _, o := range operators {
		if want[o.name] == nil {
			t.Errorf("operator %s has no expectation", o.name)
		}
	}
}

func TestExcludedPositionsHaveNoSites(t *testing.T) {
	tree := loadText(t, `package p

import (
	"errors"
	"fmt"
	"slices"

	"example.test/m/internal/failpoint"
	"example.test/m/internal/mutant"
)

const limit = 1 + 2

var table = []int{1, 2, 3 + 4}

type counter struct{ stats [2]int }

func (c counter) String() string { return fmt.Sprint(c.stats[0] + 1) }

func assertion(n int) {
	if mutant.On("x") {
		n = n + 5
	}
	if n == 1 && !mutant.On("y") {
	}
	known := n > 3 || mutant.On("z")
	_ = known || failpoint.On()
}

func wording(n int) (error, []byte) {
	return errors.New("x" + fmt.Sprint(n+1)), slices.Grow(make([]byte, n, n+1), n+2)
}

func chosen(n int) {
	switch n {
	case 1, 2:
	}
}
`)
	for name, all := range tree.sites() {
		for _, s := range all {
			if s.function == "wording" && name == "return" {
				continue
			}
			t.Errorf("%s: %v", name, s)
		}
	}
}

// Mutants with equal lines have different keys, and the same draw has equal mutants in
// two trees.
func TestKeysAndDrawsAreRepeatable(t *testing.T) {
	const text = "package p\n\nfunc f(a, b int) int {\n\tif a > 1 {\n\t\tb++\n\t}\n\tif a > 1 {\n\t\tb++\n\t}\n\treturn a + b\n}\n\nfunc Run() int { return f(1, 2) }\n"
	draw := func(seed uint64) (keys []string) {
		all, err := loadText(t, text).draw(seed, 6)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			keys = append(keys, s.key())
		}
		return keys
	}
	first := draw(1)
	if again := draw(1); !slices.Equal(first, again) {
		t.Errorf("seed 1 draws %q, and then %q", first, again)
	}
	if other := draw(2); slices.Equal(first, other) {
		t.Errorf("seeds 1 and 2 draw the same: %q", other)
	}
	seen := map[string]bool{}
	for _, all := range loadText(t, text).sites() {
		for _, s := range all {
			if seen[s.key()] {
				t.Errorf("two mutants have the key %q", s.key())
			}
			seen[s.key()] = true
		}
	}
}
