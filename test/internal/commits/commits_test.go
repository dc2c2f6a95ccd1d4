// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

func TestProblem(t *testing.T) {
	for message, ok := range map[string]bool{
		"runtime: deliver cancels to runs of deleted agents\n\nWhy.": true,
		"host/engine, host/disk: rename identifiers\n\nWhy.":         true,
		"Revert \"sim: drop faults\"\n\nThis reverts commit 1.":      true,
		"runtime: deliver cancels\n":                                 false,
		"runtime: deliver cancels\n\n \n":                            false,
		"runtime: a cancel reaches a run\n\nWhy.":                    false,
		"runtime: delivered cancels\n\nWhy.":                         false,
		"Fix things\n\nWhy.":                                         false,
		"sim:no space\n\nWhy.":                                       false,
		"sim: " + strings.Repeat("x", titleMax-4) + "\n\nWhy.":       false,
	} {
		title, body, _ := strings.Cut(message, "\n")
		if err := problem(title, body); (err == nil) != ok {
			t.Errorf("%q: problem %v, want none: %v", message, err, ok)
		}
	}
}

// History is not changed for its form: commits that are on a base are not checked.
func TestOnlyNewCommitsAreChecked(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=T", "-c", "user.email=t@example.com"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	check := func(code int, want string, bases ...string) {
		t.Helper()
		var out strings.Builder
		got, err := run(dir, bases, &out)
		if err != nil || got != code || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "Old") {
			t.Errorf("bases %v: %d, %v, %q; want %d and %q", bases, got, err, &out, code, want)
		}
	}
	check(0, "no git repository", "main")
	git("init", "-q", "-b", "main")
	git("commit", "-q", "--allow-empty", "-m", "Old commit")
	check(0, "none is checked", "origin/main", "main")
	git("checkout", "-q", "-b", "work")
	git("commit", "-q", "--allow-empty", "-m", "sim: add faults", "-m", "They were missing.")
	check(0, "0 of 1 have", "origin/main", "main")
	git("commit", "-q", "--allow-empty", "-m", "sim: add more")
	check(1, `"sim: add more": want a body`, "origin/main", "main")
	git("branch", "-f", "main", "work")
	check(0, "none is checked", "main")
	check(1, "want a body", "main", "main~1")
}
