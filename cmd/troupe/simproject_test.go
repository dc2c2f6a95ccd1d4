// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The command finds the bug of the example, prints the command to reproduce it, and
// exits with code 1.
func TestSimProject(t *testing.T) {
	project := filepath.Join("..", "..", "examples", "project")
	sim := func(args ...string) (int, string, string) {
		var out, stderr bytes.Buffer
		code := run(append([]string{"sim", "--dir", t.TempDir()}, args...), streams{&out, &stderr})
		return code, out.String(), stderr.String()
	}
	code, out, stderr := sim("--project", project, "--seeds", "2", "--faults", "none")
	if code != exitFailed || !strings.Contains(out, "FAILED in 2 of 2 simulations: at most 0 Cycle refusals") || !strings.Contains(out, "troupe sim --project "+project+" --seed 1 --faults none\n") {
		t.Errorf("example project: exit code %d:\n%s", code, out)
	}
	if !strings.Contains(stderr, "possible call cycle") || strings.Contains(stderr, "orders") {
		t.Errorf("want a warning about the call cycle only, got\n%s", stderr)
	}
	if code, out, _ = sim("--project", project, "--seed", "1", "--faults", "none"); code != exitFailed || !strings.Contains(out, "refused: Cycle") || !strings.Contains(out, "1 simulations from seed 1,") {
		t.Errorf("one seed in columns: exit code %d:\n%.2000s", code, out)
	}
	if code, out, _ = sim("--project", filepath.Join("..", "..", "examples", "team"), "--seeds", "1", "--faults", "none"); code != 0 || !strings.Contains(out, "ok: no rule of the runtime was broken") {
		t.Errorf("folder of agents: exit code %d:\n%s", code, out)
	}
	for _, args := range [][]string{{"--seeds", "3"}, {"--seeds", "-1", "--project", project}, {"--project", project, "--events"}, {"--project", project, "--fault", "LoadPoison:1"}, {"--project", filepath.Join(t.TempDir(), "x")}} {
		if code, out, stderr := sim(args...); code == 0 || stderr == "" {
			t.Errorf("%v: exit code %d: %s%s", args, code, out, stderr)
		}
	}
	if code, out, stderr = sim("--project", filepath.Join("..", "..", "examples", "mcp"), "--seeds", "2", "--faults", "none"); code != 0 || stderr != "" {
		t.Errorf("folder with an MCP server: exit code %d:\n%s%s", code, out, stderr)
	}
	missingTool := t.TempDir()
	if err := os.WriteFile(filepath.Join(missingTool, "a.toml"), []byte("name = \"a\"\ntools = [\"oders\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := sim("--project", missingTool, "--seeds", "1", "--faults", "none"); code != 0 || !strings.Contains(stderr, "a: warning: no [[tool]] in sim.toml replaces oders") {
		t.Errorf("tool without a replacement: exit code %d: %s", code, stderr)
	}
	invalid := t.TempDir()
	if err := os.WriteFile(filepath.Join(invalid, "a.toml"), []byte("nmae = 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := sim("--project", invalid); code != exitFailed || !strings.Contains(stderr, "a.toml:1:1") {
		t.Errorf("invalid agent file: exit code %d: %s", code, stderr)
	}
}

// The pages show the report of the example in the form that the command prints. Its numbers change with the
// simulator.
func TestPagesShowReportOfProject(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	var out, stderr bytes.Buffer
	if code := run([]string{"sim", "--dir", t.TempDir(), "--project", "examples/project", "--seeds", "2"}, streams{&out, &stderr}); code != exitFailed {
		t.Fatalf("exit code %d: %s%s", code, &out, &stderr)
	}
	form := regexp.MustCompile(`(?m)^ *FAILED in \d+ of \d+ simulations: at most 0 Cycle refusals in a simulation\n` +
		` +seeds 1(, \d+)*(, …)?\n +seed 1: \d+, the first: Cycle, \S+ → \S+ → \S+ → \S+ at [0-9.ms]+\n +troupe sim --project examples/project --seed 1$`)
	if !form.Match(out.Bytes()) {
		t.Errorf("the command prints\n%s", &out)
	}
	for _, page := range []string{"docs/guide-testing.md", "examples/project/README.md"} {
		if text, err := os.ReadFile(page); err != nil || !form.Match(text) {
			t.Errorf("%s: want the form that the command prints, %v", page, err)
		}
	}
}
