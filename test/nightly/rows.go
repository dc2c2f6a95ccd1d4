// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/internal/mdsection"
)

// row is the last result of a lane.
type row struct {
	Lane, Command, Result string
	Passed                bool
	Seconds               int
	Commit, Date, Machine string
}

func (r *row) verdict() string {
	if r.Passed {
		return "passed"
	}
	return "**failed**"
}

// rows holds at most one row per lane.
type rows []row

func (all rows) find(lane string) *row {
	if i := slices.IndexFunc(all, func(r row) bool { return r.Lane == lane }); i >= 0 {
		return &all[i]
	}
	return nil
}

func (all *rows) put(r row) {
	if old := all.find(r.Lane); old != nil {
		*old = r
		return
	}
	*all = append(*all, r)
}

// markdown returns the table in the order of the lanes. Lanes that never ran are
// listed as such.
func (all rows) markdown(lanes []lane) string {
	var b strings.Builder
	b.WriteString("| lane | command | verdict | result | seconds | commit | date | machine |\n|---|---|---|---|---:|---|---|---|\n")
	for _, l := range lanes {
		r := all.find(l.name)
		if r == nil {
			fmt.Fprintf(&b, "| %s | `%s` | never run | | | | | |\n", l.name, strings.Join(l.command, " "))
			continue
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %d | %s | %s | %s |\n", r.Lane, cell(r.Command), r.verdict(), cell(r.Result), r.Seconds, r.Commit, r.Date, r.Machine)
	}
	return b.String()
}

// cell returns text that is safe in a table.
func cell(text string) string {
	text = strings.NewReplacer("|", "/", "\n", " ").Replace(text)
	if r := []rune(text); len(r) > 240 {
		text = string(r[:240]) + "…"
	}
	return text
}

var rowPattern = regexp.MustCompile("(?m)^\\| ([^|]+) \\| `([^|`]*)` \\| (passed|\\*\\*failed\\*\\*) \\| ([^|]*) \\| (\\d+) \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$")

// readRows reads the rows of a page.
func readRows(page string) (all rows, err error) {
	text, err := mdsection.Text(page, "nightly")
	for _, m := range rowPattern.FindAllStringSubmatch(text, -1) {
		seconds, _ := strconv.Atoi(m[5]) // the pattern admits digits only
		all = append(all, row{Lane: m[1], Command: m[2], Passed: m[3] == "passed", Result: m[4], Seconds: seconds, Commit: m[6], Date: m[7], Machine: m[8]})
	}
	return all, err
}
