// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

const (
	row   = "%-42s %-32s %9s %6s %6s  %s"
	intro = `# What TLC finds

Written by "make tla ARGS=-write", with TLC %s, one thread to a model, two models at a time on two
cores that had other work too. States and depth of a config that holds are of the whole search; of the
others, up to where TLC stopped.

| config | found, as expected | distinct states | depth | seconds |
|---|---|---:|---:|---:|
`
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

// WriteTable writes the results into the table of all configs. A config that
// did not run keeps the figures it has there.
func WriteTable(path string, all []Config, results []Result) error {
	rows := map[string]string{} // by their first two cells
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(old)) {
		if cells := strings.SplitAfterN(line, " | ", 3); len(cells) == 3 {
			rows[cells[0]+cells[1]] = line
		}
	}
	for _, r := range results {
		rows[key(r.Config)] = fmt.Sprintf("%s%d | %d | %s |\n",
			key(r.Config), r.Report.Distinct, r.Report.Depth, seconds(r.Took))
	}
	var b strings.Builder
	fmt.Fprintf(&b, intro, results[0].Report.Version)
	for _, c := range all {
		if rows[key(c)] == "" {
			return fmt.Errorf("%s has no figures yet: run it too", c.Name)
		}
		b.WriteString(rows[key(c)])
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func key(c Config) string { return fmt.Sprintf("| %s | %s | ", c.Name, c.Expect) }
