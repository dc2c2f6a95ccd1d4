// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// resultsName is the file of the table, in the folder of the configs.
const resultsName = "RESULTS.md"

const (
	row   = "%-44s %-34s %9s %6s %6s %6s  %s"
	intro = `# What TLC finds

Written by "make tla", with TLC %s, %s on two
cores that may have had other work too. States and depth of a config that holds are of the whole search; of
the others, up to where TLC stopped, with the number of states on the way to what it found.

| config | found, as expected | distinct states | depth | seconds | way |
|---|---|---:|---:|---:|---:|
`
)

var header = strings.TrimRight(fmt.Sprintf(row, "config", "expected", "distinct", "depth", "s", "way", "verdict"), " ")

// String returns the line of the result in the table.
func (r Result) String() string {
	verdict := "ok"
	if m := r.Mismatch(); m != "" {
		verdict = "MISMATCH: " + m + " (" + r.Output + ")"
	}
	return fmt.Sprintf(row, r.Config.Name, r.Config.Expect,
		fmt.Sprint(r.Report.Distinct), fmt.Sprint(r.Report.Depth), seconds(r.Took), pathLength(r.Report.Length), verdict)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }

func pathLength(length int) string {
	if length == 0 {
		return ""
	}
	return fmt.Sprint(length)
}

// figures are the columns of the table for one config.
type figures struct {
	distinct, depth int
	seconds         string
	length          int
}

func figuresOf(r Result) figures {
	return figures{r.Report.Distinct, r.Report.Depth, seconds(r.Took), r.Report.Length}
}

func (f figures) row(c Config) string {
	row := fmt.Sprintf("%s%d | %d | %s | %s |\n", rowKey(c), f.distinct, f.depth, f.seconds, pathLength(f.length))
	return strings.Replace(row, "|  |", "| |", 1)
}

// readTable reads the table written by WriteTable. The keys are the first two cells of each row.
func readTable(path string) (map[string]figures, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := map[string]figures{}
	for line := range strings.Lines(string(text)) {
		var f figures
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		if len(cells) != 6 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		var errs [2]error
		f.distinct, errs[0] = strconv.Atoi(cells[2])
		f.depth, errs[1] = strconv.Atoi(cells[3])
		if errors.Join(errs[:]...) != nil {
			continue // the head of the table
		}
		f.seconds = cells[4]
		f.length, _ = strconv.Atoi(cells[5]) // empty if the config holds
		all["| "+cells[0]+" | "+cells[1]+" | "] = f
	}
	return all, nil
}

// WriteTable writes the results into the table of all configs. A config that did not run keeps its
// figures. A config that never had figures is an error, or if large is set a row without figures.
func WriteTable(path string, all []Config, results []Result, large bool) error {
	found, err := readTable(path)
	if err != nil {
		return err
	}
	for _, r := range results {
		found[rowKey(r.Config)] = figuresOf(r)
	}
	var b strings.Builder
	how := "one thread to a model, two models at a time"
	if large {
		how = "two threads to a model, one model at a time"
	}
	fmt.Fprintf(&b, intro, results[0].Report.Version, how)
	for _, c := range all {
		f, ok := found[rowKey(c)]
		switch {
		case ok:
			b.WriteString(f.row(c))
		case large:
			fmt.Fprintf(&b, "%snot searched to the end yet | | | |\n", rowKey(c))
		default:
			return fmt.Errorf("%s has no figures yet: run it too", c.Name)
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func rowKey(c Config) string { return fmt.Sprintf("| %s | %s | ", c.Name, c.Expect) }
