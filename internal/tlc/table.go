// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	row    = "%-42s %-32s %9s %6s %6s  %s"
	intro  = "# What TLC finds\n\nWritten by `make tla ARGS=-write`; TLC %s, one thread per model, two models at a time; all in %v.\n"
	legend = "\nStates and depth of a config that holds are of the whole search; of the others, up to where TLC stopped.\n\n"
)

var header = strings.TrimRight(fmt.Sprintf(row, "config", "expected", "distinct", "depth", "s", "verdict"), " ")

// String is the result's line in the table.
func (r Result) String() string {
	verdict := "ok"
	if m := r.Mismatch(); m != "" {
		verdict = "MISMATCH: " + m + " (" + r.Output + ")"
	}
	return fmt.Sprintf(row, r.Config.Name, r.Config.Expect,
		fmt.Sprint(r.Report.Distinct), fmt.Sprint(r.Report.Depth), seconds(r.Took), verdict)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }

// WriteTable writes all results as Markdown.
func WriteTable(path string, results []Result, took time.Duration) error {
	var b strings.Builder
	fmt.Fprintf(&b, intro, results[0].Report.Version, took)
	b.WriteString(legend)
	b.WriteString("| config | found, as expected | distinct states | depth | seconds |\n|---|---|---:|---:|---:|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %s |\n",
			r.Config.Name, r.Config.Expect, r.Report.Distinct, r.Report.Depth, seconds(r.Took))
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
