// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// The studies of growth measure everything at small sizes, write their section of a page and leave
// their folder empty.
func TestQuickGrowth(t *testing.T) {
	dir := t.TempDir()
	var out, stderr bytes.Buffer
	if code := run([]string{"-quick", "-json", "-only", growthName, "-dir", dir}, &out, &stderr); code != 0 || stderr.Len() > 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	g := r.Growth
	if len(g.Curves) != 13 || len(g.Limits) != 6 || slices.ContainsFunc(g.Limits, func(l *limit) bool { return !l.Found }) {
		t.Errorf("got %d curves and %d limits, want 13 and 6 found", len(g.Curves), len(g.Limits))
	}
	if len(g.Notes) != 5 {
		t.Errorf("got %d notes on idle memory and conversations, want 5: %q", len(g.Notes), g.Notes)
	}
	for _, l := range g.Limits {
		if strings.HasPrefix(l.Name, "disk space") && !l.Met { // it does not depend on the machine
			t.Errorf("%s: %s, want at most %.0f", l.Name, l.value(), l.Most)
		}
	}
	for _, c := range g.Curves {
		if len(c.Points) < 3 || slices.ContainsFunc(c.Points, func(p point) bool { return p.Cost <= 0 }) {
			t.Errorf("%s against %s: want three points or more with costs: %+v", c.Name, c.Of, c.Points)
		}
	}
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("Prose.\n\n<!-- growth:begin -->\n<!-- growth:end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.writePage(page); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(page)
	if err != nil || !strings.HasPrefix(string(b), "Prose.\n") || !strings.Contains(string(b), "| a restart | entries | 100: ") || !strings.Contains(string(b), "\nfloors: ") {
		t.Errorf("%s, %v", b, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files left behind: %v, %v", left, err)
	}
}

func TestSlopeVerdict(t *testing.T) {
	for _, test := range []struct {
		name string
		cost func(n float64) float64
		each bool
		met  bool
	}{
		{"constant per item", func(float64) float64 { return 5 }, true, true},
		{"constant in total", func(float64) float64 { return 5 }, false, true},
		{"linear in total", func(n float64) float64 { return n / 100 }, false, true},
		{"linear per item", func(n float64) float64 { return n / 100 }, true, false},
		{"quadratic in total", func(n float64) float64 { return n * n }, false, false},
		{"growing per item", func(n float64) float64 { return 1 + n/1e3 }, true, false},
	} {
		c := curve{Each: test.each}
		for n := 1000; n <= 1_000_000; n *= 10 {
			c.add(n, test.cost(float64(n)))
		}
		if c.Met != test.met {
			t.Errorf("%s: slope %.2f", test.name, c.Slope)
		}
	}
	if c := (curve{}); c.Met {
		t.Error("a curve without points meets its floor")
	}
}

func TestGrowthLastLine(t *testing.T) {
	g := growth{Curves: []*curve{{Name: "a", Of: "b", Met: true}, {Name: "c", Of: "d"}}}
	g.limit("e", 2, "ms").record(3)
	g.limit("f", 2, "ms").record(1)
	g.limit("g", 2, "ms")
	if got, want := g.lastLine(), "floors: 2 met, 3 missed: c against d; e; g"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
