// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The command for people: it finds the bug of the example, says how to see it
// again, and ends with 1.
func TestSimProject(t *testing.T) {
	project := filepath.Join("..", "..", "examples", "project")
	sim := func(args ...string) (int, string, string) {
		var out, talk bytes.Buffer
		code := run(append([]string{"sim", "--dir", t.TempDir()}, args...), streams{&out, &talk})
		return code, out.String(), talk.String()
	}
	code, out, talk := sim("--project", project, "--seeds", "2", "--faults", "none")
	if code != exitFailed || !strings.Contains(out, "FAILED in 2 of 2 worlds: at most 0 Cycle refusals") || !strings.Contains(out, "troupe sim --project "+project+" --seed 1 --faults none\n") {
		t.Errorf("ends with %d:\n%s", code, out)
	}
	if !strings.Contains(talk, "calls may go round") || strings.Contains(talk, "orders") {
		t.Errorf("it doubts\n%s", talk)
	}
	if code, out, _ = sim("--project", project, "--seed", "1", "--faults", "none"); code != exitFailed || !strings.Contains(out, "refused: Cycle") || !strings.Contains(out, "1 worlds from seed 1 on") {
		t.Errorf("one seed in columns ends with %d:\n%.2000s", code, out)
	}
	if code, out, _ = sim("--project", filepath.Join("..", "..", "examples", "team"), "--seeds", "1", "--faults", "none"); code != 0 || !strings.Contains(out, "ok: no rule of the runtime was broken") {
		t.Errorf("a folder of agents ends with %d:\n%s", code, out)
	}
	for _, args := range [][]string{{"--seeds", "3"}, {"--seeds", "-1", "--project", project}, {"--project", project, "--events"}, {"--project", project, "--fault", "LoadPoison:1"}, {"--project", filepath.Join(t.TempDir(), "x")}} {
		if code, out, talk := sim(args...); code == 0 || talk == "" {
			t.Errorf("%v ends with %d: %s%s", args, code, out, talk)
		}
	}
	odd := t.TempDir()
	if err := os.WriteFile(filepath.Join(odd, "a.toml"), []byte("name = \"a\"\ntools = [\"oders\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, talk := sim("--project", odd, "--seeds", "1", "--faults", "none"); code != 0 || !strings.Contains(talk, "a: warning: no [[tool]] in sim.toml stands in for oders") {
		t.Errorf("a tool without a stand-in ends with %d: %s", code, talk)
	}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "a.toml"), []byte("nmae = 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, talk := sim("--project", broken); code != exitFailed || !strings.Contains(talk, "a.toml:1:1") {
		t.Errorf("a broken file ends with %d: %s", code, talk)
	}
}
