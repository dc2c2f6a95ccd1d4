// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tree is a small repository. The lane of the tests builds ./program and tests ./tested.
var tree = map[string]string{
	"go.mod":                "module example.com/m\n\ngo 1.26\n\n// a\n",
	".ci/run":               "#",
	"models/a.tla":          "a",
	"models/README.md":      "a",
	"program/main.go":       "package main\n\nimport _ \"example.com/m/used\"\n\nfunc main() {} // a\n",
	"program/mutants.go":    "//go:build mutants\n\npackage main\n\nimport _ \"example.com/m/mutants\" // a\n",
	"program/main_test.go":  "package main // a\n",
	"mutants/mutants.go":    "package mutants // a\n",
	"used/used.go":          "package used\n\nimport _ \"embed\"\n\n//go:embed pages/page.html\nvar Page string // a\n",
	"used/pages/page.html":  "a",
	"used/pages/other.html": "a",
	"unused/unused.go":      "package unused // a\n",
	"tested/tested.go":      "package tested // a\n",
	"tested/tested_test.go": "package tested\n\nimport (\n\t\"testing\"\n\t\"example.com/m/helper\"\n)\n\nfunc Test(*testing.T) { helper.Help() } // a\n",
	"tested/x_test.go":      "package tested_test // a\n",
	"helper/helper.go":      "package helper\n\nfunc Help() {} // a\n",
}

var treeInputs = inputs{programs: []string{"./program"}, tests: []string{"./tested"}, files: []string{".ci/run", "models/*.tla"}, tools: [][]string{{"cat", "version"}}}

// run runs the lane with a command and returns its output. Each test begins with a copy of tree.
func run(t *testing.T, root string, command ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := (lane{"tla", root, treeInputs, &out}).run(t.Context(), command); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	return out.String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func copyOfTree(t *testing.T) string {
	root := t.TempDir()
	for path, text := range tree {
		write(t, filepath.Join(root, path), text)
	}
	write(t, filepath.Join(root, "version"), "1")
	return root
}

const skipped = "skipped: unchanged since unknown\n"

func TestOneChangedByteRunsTheLaneAgain(t *testing.T) {
	root := copyOfTree(t)
	for _, step := range []struct{ model, want string }{
		{"a", "ran\n"}, {"a", skipped}, {"b", "ran\n"},
	} {
		write(t, filepath.Join(root, "models/a.tla"), step.model)
		if out := run(t, root, "echo", "ran"); out != step.want {
			t.Errorf("with the model %s: %q, want %q", step.model, out, step.want)
		}
	}
	write(t, filepath.Join(root, "models/a.tla"), "a")
	hash := func() string {
		t.Helper()
		h, err := treeInputs.hash(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	before := hash()
	noInput := []string{"go.mod", "models/README.md", "program/main_test.go", "used/pages/other.html", "unused/unused.go"}
	for _, path := range append(slices.Sorted(maps.Keys(tree)), "version") {
		text := read(t, filepath.Join(root, path))
		last := len(strings.TrimSuffix(text, "\n")) - 1
		changed := text[:last] + "7" + text[last+1:]
		write(t, filepath.Join(root, path), changed)
		if isInput := !slices.Contains(noInput, path); (hash() != before) != isInput {
			t.Errorf("%s: its change changes the hash: %v, want %v", path, !isInput, isInput)
		}
		write(t, filepath.Join(root, path), text)
	}
	for _, path := range []string{"models/b.tla", "program/more.go", "tested/y_test.go"} {
		write(t, filepath.Join(root, path), "package "+strings.Replace(filepath.Dir(path), "program", "main", 1))
		if hash() == before {
			t.Errorf("the new file %s is no input", path)
		}
		if err := os.Remove(filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(root, "models/a.tla"), filepath.Join(root, "models/c.tla")); err != nil {
		t.Fatal(err)
	}
	if hash() == before {
		t.Error("a renamed file has the same hash")
	}
}

func TestOnlyAPassedRunIsRecorded(t *testing.T) {
	root := copyOfTree(t)
	passed := filepath.Join(root, passedFile)
	if err := (lane{"tla", root, treeInputs, &bytes.Buffer{}}).run(t.Context(), []string{"false"}); err == nil {
		t.Error("a command that fails passed")
	}
	if out := run(t, root, "sh", "-c", "echo 2 >models/a.tla"); !strings.Contains(out, "changed while it ran: not recorded") {
		t.Errorf("printed %q", out)
	}
	if _, err := os.Stat(passed); !os.IsNotExist(err) {
		t.Errorf("%s exists: %v", passedFile, err)
	}
	run(t, root, "true")
	run(t, root, "false") // skipped
	if err := os.Remove(filepath.Join(root, "version")); err != nil {
		t.Fatal(err)
	}
	if err := (lane{"tla", root, treeInputs, &bytes.Buffer{}}).run(t.Context(), []string{"true"}); err == nil {
		t.Error("a lane without one of its tools was skipped")
	}
}

func TestRows(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	rows := withRow(withRow(withRow("", "tla", a, "c1"), "inert", b, "c2"), "tla", b, "c3")
	if _, text, _ := strings.Cut(rows, "\n"); text != "inert "+b+" c2\ntla "+b+" c3\n" {
		t.Errorf("got %s", rows)
	}
	for name, hash := range map[string]string{"tla": a, "trace": b} {
		if commit := passedAt(rows, name, hash); commit != "" {
			t.Errorf("%s with another hash passed at %s", name, commit)
		}
	}
	if commit := passedAt(rows, "tla", b); commit != "c3" {
		t.Errorf("tla passed at %q", commit)
	}
}

// The lanes of .ci/run are those of the table, and their inputs include files that a lane must
// not miss.
func TestLanesOfCI(t *testing.T) {
	const root = "../../.."
	script := read(t, filepath.Join(root, ".ci/run"))
	for _, m := range regexp.MustCompile(`bin/lane (\S+) `).FindAllStringSubmatch(script, -1) {
		if _, ok := lanes[m[1]]; !ok {
			t.Errorf(".ci/run has a lane %s without inputs", m[1])
		}
	}
	var mutants string // the inputs of the program with mutants alone
	if err := filepath.WalkDir(filepath.Join(root, "test/mutants"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			mutants += " " + strings.TrimPrefix(filepath.ToSlash(path), root+"/")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	mutants += " test/internal/overlay/main.go internal/mutant/on.go"
	for name, want := range map[string]string{
		"tla":     "tla/Calls.tla tla/Calls_chain.cfg tla/derived.txt tla/tlc/run.go",
		"trace":   "tla/Trace.tla tla/tlc/traces.go runtime/cell.go runtime/walk_test.go specs/work_walks_test.go host/gateway/server.go runtime/testdata/walks.json" + mutants,
		"mutants": "cmd/troupe/mutants_on.go sim/guards.go specs/calls.go sim/page/page.html runtime/cell.go internal/failpoint/failpoint.go" + mutants,
		"inert":   "cmd/troupe/inert_on.go sim/faults.go" + mutants,
	} {
		if !strings.Contains(script, "bin/lane "+name+" ") {
			t.Errorf(".ci/run has no lane %s", name)
		}
		paths, err := lanes[name].paths(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range strings.Fields(want + " .ci/run Makefile go.mod go.sum test/internal/lane/inputs.go") {
			if !slices.Contains(paths, path) {
				t.Errorf("%s is no input of %s", path, name)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
