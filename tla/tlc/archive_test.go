// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An archive keeps the output of configs that did not run again, and drops that of removed configs.
func TestArchiveKeepsOtherSections(t *testing.T) {
	dir := t.TempDir()
	path, output := filepath.Join(dir, archiveName), filepath.Join(dir, "M.txt")
	keep := func(text, commit string, name string, all ...string) Archive {
		t.Helper()
		if err := os.WriteFile(output, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := ReadArchive(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Keep(Result{Config: Config{Name: name}, Output: output}, commit); err != nil {
			t.Fatal(err)
		}
		var configs []Config
		for _, name := range all {
			configs = append(configs, Config{Name: name})
		}
		if err := a.Write(path, configs); err != nil {
			t.Fatal(err)
		}
		if a, err = ReadArchive(path); err != nil {
			t.Fatal(err)
		}
		return a
	}
	keep("Parsing file /tmp/tlc123/M.tla\n==== no head\n", "c1", "M_a", "M_a", "M_b")
	a := keep("second", "c2 with changes", "M_b", "M_a", "M_b")
	if len(a) != 2 || a["M_a"] != (Section{"c1", "Parsing file M.tla\n==== no head\n"}) || a["M_b"] != (Section{"c2 with changes", "second\n"}) {
		t.Errorf("%q", a)
	}
	a = keep(strings.Repeat("x", 3*sectionBytesMax), "c3", "M_b", "M_b")
	if got := a["M_b"].Output; len(a) != 1 || len(got) > sectionBytesMax+100 || !strings.Contains(got, "bytes left out") {
		t.Errorf("%d sections, the first of %d bytes", len(a), len(got))
	}
}

// The archive in the repository holds what TLC found: the output of each section meets the expectation of
// its config, and a complete search has the figures of RESULTS.md.
func TestArchiveAgreesWithResults(t *testing.T) {
	a, err := ReadArchive(filepath.Join(tla, archiveName))
	if err != nil || len(a) == 0 {
		t.Fatalf("%d sections, %v", len(a), err)
	}
	results, err := readTable(filepath.Join(tla, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Config{}
	for _, c := range configs(t) {
		all[c.Name] = c
	}
	for name, section := range a {
		c, ok := all[name]
		if !ok {
			t.Errorf("%s: no such config; make tla ARGS='-keep -run %[1]s' drops it", name)
			continue
		}
		r := Result{Config: c, Report: ParseReport(c, section.Output)}
		if mismatch := r.Mismatch(); mismatch != "" {
			t.Errorf("%s at %s: %s", name, section.Commit, mismatch)
		}
		got, want := figuresOf(r), results[rowKey(c)]
		got.seconds, want.seconds = "", ""
		if c.Expect.Kind == Holds && got != want {
			t.Errorf("%s at %s: got %+v, RESULTS.md has %+v", name, section.Commit, got, want)
		}
	}
}
