// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tested returns a nightly run of the given lanes whose page has no rows, and the
// function that returns the page's text.
func tested(t *testing.T, lanes ...lane) (*nightly, *strings.Builder, func() string) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	if err := os.WriteFile(page, []byte("# Page\n\n<!-- nightly:begin -->\n<!-- nightly:end -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := &strings.Builder{}
	return &nightly{page: page, lanes: lanes, out: out, now: time.Now, timeout: time.Minute, logs: filepath.Join(dir, "logs"), commit: "abc"}, out, func() string {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func shell(name, script, last string) lane { return lane{name, []string{"sh", "-c", script}, last} }

func TestLanesAreKeptAndSkipped(t *testing.T) {
	n, out, page := tested(t, shell("good", "echo first; echo 12 of 12; echo trailing", "of 12"), shell("bad", "echo broken; exit 3", ""))
	if err := n.run(t.Context()); err == nil || !strings.Contains(err.Error(), "failed: bad") {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"| passed | 12 of 12 |", "| **failed** | broken |", "| abc |"} {
		if !strings.Contains(page(), want) {
			t.Errorf("the page lacks %q:\n%s", want, page())
		}
	}
	out.Reset()
	n.lanes[1] = shell("bad", "echo mended", "")
	if err := n.run(t.Context()); err != nil {
		t.Error(err)
	}
	if text := out.String(); strings.Contains(text, "== good") || !strings.Contains(text, "== bad") || !strings.Contains(page(), "| passed | mended |") {
		t.Errorf("printed %s", text)
	}
	n.commit = "def+" // a changed tree: nothing is skipped
	for range 2 {
		out.Reset()
		if err := n.run(t.Context()); err != nil || !strings.Contains(out.String(), "== good") {
			t.Errorf("error %v, printed %s", err, out)
		}
	}
	n.only = "none"
	if err := n.run(t.Context()); err == nil || !strings.Contains(err.Error(), "good, bad") {
		t.Errorf("error %v", err)
	}
}

func TestLaneThatHangsIsEnded(t *testing.T) {
	n, _, page := tested(t, shell("slow", "echo before; sleep 600 & wait", ""))
	n.timeout = 200 * time.Millisecond
	if err := n.run(t.Context()); err == nil {
		t.Error("a lane that hangs passed")
	}
	if !strings.Contains(page(), "| **failed** | not ended after 200ms: before |") {
		t.Error(page())
	}
}

func TestRowsSurviveThePage(t *testing.T) {
	n, _, page := tested(t, shell("odd", "echo 'a | b'", ""), shell("later", "true", ""))
	n.only = "odd"
	if err := n.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := readRows(n.page)
	if err != nil || len(all) != 1 || all[0].Result != "a / b" || !all[0].Passed || all[0].Machine == "" {
		t.Errorf("rows %+v, %v", all, err)
	}
	if !strings.Contains(page(), "| later | `sh -c true` | never run |") {
		t.Error(page())
	}
}

func TestLanesHaveTargets(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, l := range lanes(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		if l.command[0] != "make" || !strings.Contains(string(makefile), "\n"+l.command[1]+":") {
			t.Errorf("lane %s: no target %s", l.name, l.command[1])
		}
		if names[l.name] {
			t.Errorf("two lanes are named %s", l.name)
		}
		names[l.name] = true
	}
}
