// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A run of some configs rewrites only their rows. The rows of the other configs keep their figures,
// and rows of removed configs are deleted.
func TestWriteTableKeepsOtherRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "RESULTS.md")
	a, b := Config{Name: "M_a"}, Config{Name: "M_b", Expect: Expectation{Violates, "P"}}
	result := func(c Config, states int) Result {
		return Result{Config: c, Report: Report{Version: "2.18", Distinct: states, Depth: 3, Length: 7 * int(c.Expect.Kind)}, Took: 1500 * time.Millisecond}
	}
	rows := func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, rows, _ := strings.Cut(string(text), "---:|\n")
		return rows
	}
	if err := WriteTable(path, []Config{a, b}, []Result{result(a, 1)}, false); err == nil || !strings.Contains(err.Error(), "M_b has no figures yet") {
		t.Errorf("missing row: %v", err)
	}
	for _, test := range []struct {
		all  []Config
		ran  []Result
		want string
	}{
		{[]Config{a, b}, []Result{result(a, 1), result(b, 2)}, "| M_a | holds | 1 | 3 | 1.5 | |\n| M_b | violates P | 2 | 3 | 1.5 | 7 |\n"},
		{[]Config{a, b}, []Result{result(a, 4)}, "| M_a | holds | 4 | 3 | 1.5 | |\n| M_b | violates P | 2 | 3 | 1.5 | 7 |\n"},
		{[]Config{b}, []Result{result(b, 5)}, "| M_b | violates P | 5 | 3 | 1.5 | 7 |\n"},
	} {
		if err := WriteTable(path, test.all, test.ran, false); err != nil {
			t.Fatal(err)
		}
		if got := rows(); got != test.want {
			t.Errorf("rows\n%swant\n%s", got, test.want)
		}
	}
	if err := WriteTable(path, []Config{a, b}, []Result{result(a, 6)}, true); err != nil || rows() != "| M_a | holds | 6 | 3 | 1.5 | |\n| M_b | violates P | 5 | 3 | 1.5 | 7 |\n" {
		t.Errorf("%v\n%s", err, rows())
	}
	if err := WriteTable(path, []Config{a, {Name: "M_c"}}, []Result{result(a, 6)}, true); err != nil || !strings.Contains(rows(), "| M_c | holds | not searched to the end yet | | | |\n") {
		t.Errorf("%v\n%s", err, rows())
	}
}
