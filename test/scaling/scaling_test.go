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

// TestQuickRun measures everything at small sizes and requires an empty folder
// afterwards.
func TestQuickRun(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("Prose.\n\n<!-- growth:begin -->\n<!-- growth:end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	if code := run([]string{"-quick", "-json", "-dir", dir, "-page", page}, &out, &stderr); code != 0 || stderr.Len() > 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 13 || len(r.Floors) != 6 || slices.ContainsFunc(r.Floors, func(f *floor) bool { return !f.Found }) {
		t.Errorf("got %d rows and %d floors, want 13 and 6 found", len(r.Rows), len(r.Floors))
	}
	if len(r.Notes) != 5 {
		t.Errorf("got %d notes on idle memory and conversations, want 5: %q", len(r.Notes), r.Notes)
	}
	for _, f := range r.Floors {
		if strings.HasPrefix(f.Name, "disk space") && !f.Met { // it does not depend on the machine
			t.Errorf("%s: %s, want at most %.0f", f.Name, f.value(), f.Most)
		}
	}
	for _, row := range r.Rows {
		if len(row.Points) < 3 {
			t.Errorf("%s against %s: too few points: %+v", row.Name, row.Of, row.Points)
		}
		for _, p := range row.Points {
			if p.Cost <= 0 {
				t.Errorf("%s against %s: cost is not positive: %+v", row.Name, row.Of, p)
			}
		}
	}
	b, err := os.ReadFile(page)
	if err != nil || !strings.HasPrefix(string(b), "Prose.\n") || !strings.Contains(string(b), "| a restart | entries | 100: ") || !strings.Contains(string(b), "\nfloors: ") {
		t.Errorf("%s, %v", b, err)
	}
	for _, name := range []string{"growth-calls.svg", "growth-restarts.svg", "growth-memory.svg"} {
		if b, err := os.ReadFile(filepath.Join(filepath.Dir(page), name)); err != nil || !bytes.HasPrefix(b, []byte("<svg")) || !strings.Contains(out.String(), "rows") {
			t.Errorf("%s: %.20s, %v", name, b, err)
		}
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
		r := row{Each: test.each}
		for n := 1000; n <= 1_000_000; n *= 10 {
			r.add(n, test.cost(float64(n)))
		}
		if r.Met != test.met {
			t.Errorf("%s: slope %.2f", test.name, r.Slope)
		}
	}
	if r := (row{}); r.Met {
		t.Error("a row without points meets its floor")
	}
}

func TestLastLine(t *testing.T) {
	r := report{Rows: []*row{{Name: "a", Of: "b", Met: true}, {Name: "c", Of: "d"}}}
	r.floor("e", 2, "ms").record(3)
	r.floor("f", 2, "ms").record(1)
	r.floor("g", 2, "ms")
	if got, want := r.lastLine(), "floors: 2 met, 3 missed: c against d; e; g"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{{"-only", "nothing"}, {"-nothing"}, {"word"}} {
		var out, stderr bytes.Buffer
		if code := run(args, &out, &stderr); code != 2 || stderr.Len() == 0 || out.Len() > 0 {
			t.Errorf("%v: code %d, %q", args, code, stderr.String())
		}
	}
}
