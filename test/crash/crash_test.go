// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRepeatedKills runs the program with three kills. The program keeps its folder
// after a failure, so that folder is not one of the test.
func TestRepeatedKills(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "troupe")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/troupe").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out, stderr strings.Builder
	c := &harness{kills: 3, bin: bin, within: 5 * time.Minute}
	if code := c.main(&out, &stderr); code != 0 {
		t.Errorf("code %d\n%s\n%s", code, out.String(), stderr.String())
	}
	if !strings.Contains(out.String(), " lost=0 duplicated=0 reordered=0 wrong=0\n") || len(c.cycles) != 3 {
		t.Errorf("unexpected output:\n%s", out.String())
	}
	t.Log(out.String())
}

func TestServerThatCannotStartIsReported(t *testing.T) {
	for bin, want := range map[string]string{
		filepath.Join(t.TempDir(), "troupe"): "run make build first",
		"/bin/false":                         "did not start: exit status 1",
	} {
		t.Setenv("TMPDIR", t.TempDir())
		var out, stderr strings.Builder
		c := &harness{kills: 1, bin: bin, within: time.Minute}
		if code := c.main(&out, &stderr); code != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: got code %d and %s", bin, code, stderr.String())
		}
	}
}
