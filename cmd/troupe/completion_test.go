// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

func completion(t *testing.T, shell string) string {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := run([]string{"completion", shell}, streams{&out, &stderr}); code != 0 || stderr.Len() > 0 {
		t.Fatalf("exit code %d, stderr %s", code, stderr.String())
	}
	return out.String()
}

func TestBashCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed: apt-get install bash")
	}
	script := completion(t, "bash")
	for _, c := range []struct{ typed, want string }{
		{"", "serve"},
		{"ser", "serve"},
		{"runs sh", "show"},
		{"runs show 7 --tr", "--tree"},
		{"serve --data x --ag", "--agents"},
		{"agents ", "list"},
		{"completion ", "fish"},
		{"completion ", "--help"},
	} {
		words := append([]string{"troupe"}, strings.Split(c.typed, " ")...)
		line := script + "\nCOMP_WORDS=("
		for _, w := range words {
			line += "'" + w + "' "
		}
		cmd := exec.Command(bash, "--norc", "-c", line+")\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n_troupe\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
		out, err := cmd.CombinedOutput()
		if err != nil || !slices.Contains(strings.Fields(string(out)), c.want) {
			t.Errorf("%q completes to %q, %v; want it to include %s", c.typed, out, err, c.want)
		}
	}
}

func TestCompletionScriptsListCommands(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := completion(t, shell)
		for _, want := range []string{"serve", "check", "signal", "log-level", "tree", "completion"} {
			if !strings.Contains(script, want) {
				t.Errorf("%s: completion script lacks %s", shell, want)
			}
		}
	}
	var out, stderr bytes.Buffer
	if code := run([]string{"completion", "tcsh"}, streams{&out, &stderr}); code != exitUsage || !strings.Contains(stderr.String(), "bash") {
		t.Errorf("tcsh: exit code %d, stderr %s", code, stderr.String())
	}
}

func TestEveryCommandHasExamples(t *testing.T) {
	commands := 0
	var visit func(*kong.Node)
	visit = func(n *kong.Node) {
		if len(n.Children) == 0 {
			commands++
			if n.Help == "" || !strings.Contains(n.Detail, "Examples:\n  troupe ") && !strings.Contains(n.Detail, "Examples:\n  source <(troupe ") {
				t.Errorf("%s --help has no examples", n.FullPath())
			}
		}
		for _, child := range n.Children {
			visit(child)
		}
	}
	visit(newParser(&CLI{}, streams{io.Discard, io.Discard}).Model.Node)
	if commands < 15 {
		t.Errorf("want at least 15 commands, got %d", commands)
	}
}
