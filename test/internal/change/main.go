// SPDX-License-Identifier: Apache-2.0

// Command change prints which stages of .ci/run a change needs, as assignments for a shell.
//
//	change [-all]
//
// The change is everything that differs from its base: commits, and files that are not
// committed. The base is the commit of origin/main that HEAD was started from, or, if HEAD is on
// origin/main, the commit that the file .ci/base names. Without a base, or with -all, everything
// counts as changed.
//
// A base is a point to compare with and no proof that its commit passed anything. Whatever it is,
// .ci/run runs all tests, clients and demos, and samples of simulations and mutants, which HEAD
// draws. The nightly run compares with nothing.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// baseFile has the recorded base; lines that begin with # are comments.
const baseFile = ".ci/base"

func main() {
	all := len(os.Args) == 2 && os.Args[1] == "-all"
	if len(os.Args) > 1 && !all {
		fmt.Fprintln(os.Stderr, "usage: change [-all]")
		os.Exit(2)
	}
	if err := run(checkout("."), all); err != nil {
		fmt.Fprintln(os.Stderr, "change:", err)
		os.Exit(1)
	}
}

func run(dir checkout, all bool) error {
	packages, err := dir.packages()
	if err != nil {
		return err
	}
	rows, err := mutantRows(os.DirFS(string(dir)))
	if err != nil {
		return err
	}
	head, err := dir.git("rev-parse", "HEAD")
	base, source := "", "none: everything counts as changed"
	if err == nil && !all {
		base, source = dir.base()
	}
	if base == "" {
		print(source, everything(rows, head))
		return nil
	}
	changed, err := dir.changed(base)
	if err != nil {
		return err
	}
	raced, err := racedPackages(dir)
	if err != nil {
		return err
	}
	p := planOf(changed, packages, raced, rows, head)
	print(fmt.Sprintf("%.12s, %s; %d files differ", base, source, len(changed.files)), p)
	return nil
}

// print prints the assignments.
func print(base string, p plan) {
	yes := func(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }
	fmt.Printf("base='%s'\ncore=%s\ntla=%s\ntrace=%s\ninert=%s\nrecovery=%s\npostgres=%s\nraced='%s'\nmutants='%s'\n",
		base, yes(p.core), yes(p.tla), yes(p.trace), yes(p.inert), yes(p.recovery), yes(p.postgres), strings.Join(p.raced, " "), strings.Join(p.mutants, " "))
}

// checkout is the folder of a repository.
type checkout string

func (c checkout) git(args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...) // a checkout may belong to another user
	cmd.Dir = string(c)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// base returns the commit to compare with, and where its name is from; "" if there is none.
func (c checkout) base() (commit, source string) {
	head, _ := c.git("rev-parse", "HEAD")
	if from, err := c.git("merge-base", "HEAD", "origin/main"); err == nil && from != head {
		return from, "where HEAD left origin/main"
	}
	text, _ := os.ReadFile(filepath.Join(string(c), baseFile))
	for line := range strings.Lines(string(text)) {
		recorded := strings.TrimSpace(line)
		if recorded == "" || strings.HasPrefix(recorded, "#") {
			continue
		}
		if _, err := c.git("merge-base", "--is-ancestor", recorded+"^{commit}", "HEAD"); err != nil {
			return "", baseFile + " names no ancestor of HEAD: everything counts as changed"
		}
		commit, _ = c.git("rev-parse", recorded+"^{commit}")
		return commit, "recorded in " + baseFile
	}
	return "", "none: everything counts as changed"
}

// change is the difference from the base.
type change struct {
	files   []string // sorted paths, also of deleted and new files
	modules []string // modules whose version in go.mod differs
	guards  []string // mutants whose row in sim/guards.go is new
}

var (
	moduleLine = regexp.MustCompile(`(?m)^[+-]\s*(?:require |replace )?([a-z0-9.-]+\.[a-z]+/\S+) `)
	guardLine  = regexp.MustCompile(`(?m)^\+.*Mutant: "([a-z-]+)"`)
)

func (c checkout) changed(base string) (change, error) {
	diff, err := c.git("diff", "--name-only", "--no-renames", base)
	if err != nil {
		return change{}, fmt.Errorf("git diff: %w", err)
	}
	added, err := c.git("ls-files", "--others", "--exclude-standard")
	if err != nil {
		return change{}, fmt.Errorf("git ls-files: %w", err)
	}
	lines := func(file string, pattern *regexp.Regexp) (found []string) {
		text, _ := c.git("diff", "-U0", base, "--", file)
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			found = append(found, m[1])
		}
		return found
	}
	return change{
		files:   sorted(strings.Fields(diff), strings.Fields(added)),
		modules: lines("go.mod", moduleLine),
		guards:  lines("sim/guards.go", guardLine),
	}, nil
}

// mutantRows returns the names of the mutants of each source file.
func mutantRows(root fs.FS) (map[string][]string, error) {
	const folder = "test/mutants"
	rows := map[string][]string{}
	err := fs.WalkDir(root, folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, path)
		source := strings.TrimSuffix(strings.TrimPrefix(path, folder+"/"), ".txt") + ".go"
		for line := range strings.Lines(string(text)) {
			if names, ok := strings.CutPrefix(line, "@ "); ok {
				rows[source] = append(rows[source], strings.Fields(names)...)
			}
		}
		return err
	})
	return rows, err
}

// sorted returns the distinct elements of all lists.
func sorted(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}
