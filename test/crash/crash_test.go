// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
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

// TestKillsWithDetachedCalls runs the program with six kills while detached calls are pending.
func TestKillsWithDetachedCalls(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "troupe")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/troupe").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out, stderr strings.Builder
	c := &harness{kills: 6, bin: bin, within: 5 * time.Minute, detached: true}
	if code := c.main(&out, &stderr); code != 0 || !strings.Contains(out.String(), "24 calls") {
		t.Errorf("code %d\n%s\n%s", code, out.String(), stderr.String())
	}
	t.Log(out.String())
}

// Each defect of the outcomes is reported by its kind.
func TestDefectsOfOutcomesAreReported(t *testing.T) {
	message := func(of, word string) delivered {
		m := delivered{Content: `{"kind":"skill_response","status":"completed","output":"` + word + `"}`}
		m.Provenance.Correlation = of
		return m
	}
	a, b := message("1", "a"), message("2", "b")
	for name, c := range map[string]struct {
		all   []delivered
		turns []string
		want  [kinds]int
	}{
		"none":               {[]delivered{a, b}, []string{"1", "2"}, [kinds]int{}},
		"lost":               {[]delivered{a}, []string{"1"}, [kinds]int{lost: 1}},
		"twice":              {[]delivered{a, b, b}, []string{"1", "2", "2"}, [kinds]int{duplicated: 1}},
		"in the wrong order": {[]delivered{b, a}, []string{"2", "1"}, [kinds]int{reordered: 1}},
		"other turns":        {[]delivered{a, b}, []string{"2", "1"}, [kinds]int{reordered: 1}},
		"wrong content":      {[]delivered{a, message("2", "x")}, []string{"1", "2"}, [kinds]int{wrong: 1}},
		"unknown":            {[]delivered{a, b, message("3", "x")}, []string{"1", "2", "3"}, [kinds]int{wrong: 1}},
	} {
		now := time.Now()
		d := &detachedCalls{harness: &harness{ledger: newLedger(io.Discard)}, turns: c.turns,
			calls: map[string]*detachedCall{"1": {"a", now, now}, "2": {"b", now.Add(time.Second), now.Add(time.Second)}}}
		d.compare(c.all)
		if d.ledger.counts != c.want {
			t.Errorf("%s: got %v, want %v", name, d.ledger.counts, c.want)
		}
	}
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

// TestKillsWithBudgets runs the program with five kills while users spend the tokens of a day.
func TestKillsWithBudgets(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "troupe")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/troupe").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("TROUPE_CONFIG", "") // the run sets it
	var out, stderr strings.Builder
	c := &harness{kills: 5, bin: bin, within: 5 * time.Minute, budgets: true}
	if code := c.main(&out, &stderr); code != 0 || !strings.Contains(out.String(), "30 messages") {
		t.Errorf("code %d\n%s\n%s", code, out.String(), stderr.String())
	}
	t.Log(out.String())
}
