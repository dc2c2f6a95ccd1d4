// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPlanOfThisRepository checks the plan of changes of single files. A wanted mutant is one of
// the changed file; there are always drawn ones.
func TestPlanOfThisRepository(t *testing.T) {
	const root = checkout("../../..")
	packages, err := root.packages()
	if err != nil {
		t.Fatal(err)
	}
	rows, err := mutantRows(os.DirFS(string(root)))
	if err != nil {
		t.Fatal(err)
	}
	raced, err := racedPackages(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change
		stages  string   // those of the plan
		raced   []string // some of the packages
		mutants []string // some of the mutants
	}{
		{change{files: []string{"cmd/troupe/call.go"}}, "", nil, nil},
		{change{files: []string{"docs/api.md", "Makefile", ".ci/run", "sdk/python/src/troupe/client.py", "go.mod", "go.sum"}}, "", nil, nil},
		{change{files: []string{"host/gateway/web/run.js"}}, "", []string{"./host/gateway", "./internal/link", "./internal/service", "."}, nil},
		{change{files: []string{"host/disk/log.go"}}, "recovery postgres", []string{"./host/disk", "./host/gateway", "./internal/node"}, nil},
		{change{files: []string{"host/disk/testdata/x"}}, "recovery postgres", []string{"./host/disk"}, nil},
		{change{files: []string{"server.go"}}, "", []string{"."}, nil},
		{change{files: []string{"runtime/turn.go"}}, "core trace recovery", []string{"./host/engine"}, []string{"chain-not-copied", "reply-to-another"}},
		{change{files: []string{"runtime/turn_test.go"}}, "", nil, nil},
		{change{files: []string{"tools/schema_test.go"}}, "", []string{"./tools"}, nil},
		{change{files: []string{"runtime/testdata/walks.json"}}, "core trace recovery", nil, nil},
		{change{files: []string{"tools/schema.go"}}, "core recovery postgres", []string{"./tools"}, nil},
		{change{files: []string{"sim/faults.go"}}, "core inert recovery", nil, nil},
		{change{files: []string{"specs/calls.go"}}, "core recovery", nil, nil},
		{change{files: []string{"tla/Calls.tla"}}, "core tla trace", nil, nil},
		{change{files: []string{"tla/tlc/run.go"}}, "core tla trace", nil, nil},
		{change{files: []string{"test/mutants/store/log.txt"}}, "", nil, []string{"unknown-taken-as-stored"}},
		{change{files: []string{"sim/guards.go"}, guards: []string{"cycle-check", "gone"}}, "core inert recovery", nil, []string{"cycle-check"}},
		{change{files: []string{"go.mod"}, modules: []string{"github.com/cespare/xxhash/v2"}}, "core recovery postgres", nil, nil},
		{change{files: []string{"go.mod"}, modules: []string{"github.com/fasthttp/router"}}, "", []string{"./host/gateway"}, nil},
	} {
		p := planOf(c.change, packages, raced, rows, "a commit")
		var stages []string
		for _, stage := range []struct {
			name string
			runs bool
		}{{"core", p.core}, {"tla", p.tla}, {"trace", p.trace}, {"inert", p.inert}, {"recovery", p.recovery}, {"postgres", p.postgres}} {
			if stage.runs {
				stages = append(stages, stage.name)
			}
		}
		if got := strings.Join(stages, " "); got != c.stages {
			t.Errorf("%v: stages %q, want %q", c.files, got, c.stages)
		}
		if (len(c.raced) > 0) != (len(p.raced) > 0) && !p.core {
			t.Errorf("%v: raced %v, want %v", c.files, p.raced, c.raced)
		}
		for _, name := range c.raced {
			if !slices.Contains(p.raced, name) {
				t.Errorf("%v: raced %v, want %s too", c.files, p.raced, name)
			}
		}
		for _, name := range c.mutants {
			if !slices.Contains(p.mutants, name) {
				t.Errorf("%v: mutants %v, want %s too", c.files, p.mutants, name)
			}
		}
		if n := len(p.mutants); n < drawnOutside || n > drawnInside+40 || slices.Contains(p.mutants, "gone") {
			t.Errorf("%v: mutants %v", c.files, p.mutants)
		}
	}
	if p := everything(rows, "a commit"); len(p.mutants) != drawnWhole || !p.core || !p.tla || !p.trace || !p.inert || !p.recovery || !p.postgres {
		t.Errorf("without a base: %+v", p)
	}
	if slices.Equal(drawn(rows, "a", drawnInside), drawn(rows, "b", drawnInside)) {
		t.Error("two commits draw the same mutants")
	}
}

// repository is a new git repository with one commit.
func repository(t *testing.T) (c checkout, git func(args ...string) string) {
	t.Helper()
	c = checkout(t.TempDir())
	git = func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=T", "-c", "user.email=t@example.com"}, args...)...)
		cmd.Dir = string(c)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "-b", "main")
	c.write(t, "a.go", "package a")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	return c, git
}

func (c checkout) write(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(string(c), path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestBase(t *testing.T) {
	c, git := repository(t)
	first := git("rev-parse", "HEAD")
	want := func(commit, source string) {
		t.Helper()
		if got, from := c.base(); got != commit || !strings.Contains(from, source) {
			t.Errorf("base %q, %q; want %q, %q", got, from, commit, source)
		}
	}
	want("", "none")
	git("update-ref", "refs/remotes/origin/main", "HEAD")
	want("", "none") // a clone of main
	git("commit", "-q", "--allow-empty", "-m", "second")
	second := git("rev-parse", "HEAD")
	want(first, "origin/main")
	git("update-ref", "refs/remotes/origin/main", "HEAD")
	c.write(t, baseFile, "# comment\n"+first+"\n")
	want(first, "recorded")
	c.write(t, baseFile, second+"\n") // an uncommitted change on top of it
	want(second, "recorded")
	for _, bad := range []string{"main~7", strings.Repeat("0", 40), "--all"} {
		c.write(t, baseFile, bad+"\n")
		want("", "no ancestor")
	}
	git("checkout", "-q", "-b", "other", first)
	git("commit", "-q", "--allow-empty", "-m", "other")
	git("update-ref", "-d", "refs/remotes/origin/main")
	c.write(t, baseFile, second+"\n")
	want("", "no ancestor")
}

func TestChangedFilesModulesAndGuards(t *testing.T) {
	c, git := repository(t)
	c.write(t, "go.mod", "module m\n\nrequire (\n\tgithub.com/x/a v1.0.0\n\tgithub.com/x/b v1.0.0 // indirect\n)\n")
	c.write(t, "sim/guards.go", "\t{Mutant: \"a-b\", Spec: X},\n\t{Mutant: \"c\", Spec: X},\n")
	c.write(t, "old.go", "package a")
	git("add", ".")
	git("commit", "-q", "-m", "second")
	base := git("rev-parse", "HEAD")
	c.write(t, "go.mod", "module m\n\nrequire (\n\tgithub.com/x/a v1.0.0\n\tgithub.com/x/b v1.0.1 // indirect\n)\n")
	c.write(t, "sim/guards.go", "\t{Mutant: \"a-b\", Spec: Y},\n\t{Mutant: \"c\", Spec: X},\n")
	git("mv", "old.go", "new.go")
	git("commit", "-q", "-a", "-m", "third")
	c.write(t, "a.go", "package b")
	c.write(t, "more/b.go", "package b")
	got, err := c.changed(base)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields("a.go go.mod more/b.go new.go old.go sim/guards.go"); !slices.Equal(got.files, want) {
		t.Errorf("files %v, want %v", got.files, want)
	}
	if !slices.Contains(got.modules, "github.com/x/b") || slices.Contains(got.modules, "github.com/x/a") || !slices.Equal(got.guards, []string{"a-b"}) {
		t.Errorf("modules %v, guards %v", got.modules, got.guards)
	}
}
