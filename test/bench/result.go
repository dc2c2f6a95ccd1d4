// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/internal/mdsection"
)

// result holds the measurements of one run of this program.
type result struct {
	Machine machine `json:"machine"`
	Rounds  int     `json:"rounds"`
	Quick   bool    `json:"quick"`
	Took    float64 `json:"took_s"`
	Rows    []row   `json:"rows"`
	Growth  growth  `json:"growth,omitzero"`
}

// writeJSON writes the result as indented JSON.
func (r *result) writeJSON(out io.Writer) error {
	b, err := json.Marshal(r, jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	_, err = out.Write(append(b, '\n'))
	return err
}

// writeText writes the result as an aligned table.
func (r *result) writeText(out io.Writer) error {
	if table := r.Growth.markdown(); len(r.Rows) == 0 && table != "" {
		_, err := io.WriteString(out, table)
		return err
	}
	lines := [][]string{tableHeader}
	for i := range r.Rows {
		lines = append(lines, r.Rows[i].cells(!r.Quick))
	}
	width := make([]int, len(tableHeader))
	for _, cells := range lines {
		for i, cell := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for i, cells := range lines {
		var line strings.Builder
		for j, cell := range cells {
			pad := strings.Repeat(" ", width[j]-utf8.RuneCountInString(cell))
			if j == 1 || j == 2 || j == 4 {
				cell, pad = pad+cell, ""
			}
			line.WriteString(cell + pad + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		if i > 0 && len(r.Rows[i-1].Notes) > 0 {
			b.WriteString("    " + r.Rows[i-1].notes() + "\n")
		}
	}
	b.WriteString(r.lastLine() + "\n" + r.Growth.markdown())
	_, err := io.WriteString(out, b.String())
	return err
}

// lastLine returns the last line of the output, which counts the floors met and
// missed.
func (r *result) lastLine() string {
	if r.Quick {
		return fmt.Sprintf("%d rows ran once; no floor is judged", len(r.Rows))
	}
	met := 0
	var missed []string
	for i := range r.Rows {
		switch row := &r.Rows[i]; row.verdict() {
		case "met":
			met++
		case "missed":
			missed = append(missed, row.Name)
		}
	}
	return countFloors(met, missed)
}

func countFloors(met int, missed []string) string {
	text := fmt.Sprintf("floors: %d met, %d missed", met, len(missed))
	if len(missed) > 0 {
		text += ": " + strings.Join(missed, "; ")
	}
	return text
}

// The names of the sections that a page reserves for the tables.
const (
	pageSection   = "bench"
	growthSection = "growth"
)

// writePage writes the result into its section of a Markdown page.
func (r *result) writePage(page string) error {
	if len(r.Rows) == 0 {
		return r.Growth.writePage(page, &r.Machine)
	}
	var b strings.Builder
	m := &r.Machine
	fmt.Fprintf(&b, "Written by `make bench` on %s at commit %s in %v. Each value is the median of %d rounds.\n\n",
		m.Date, m.Commit, (time.Duration(r.Took * float64(time.Second))).Round(time.Second), r.Rounds)
	fmt.Fprintf(&b, "Machine: %s, %d cores, %d GiB of memory, Linux %s, %s.\n\n", m.CPU, m.Cores, m.MemoryGiB, m.Kernel, m.Go)
	line := func(cells []string) {
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	line(tableHeader)
	b.WriteString("|---|--:|--:|---|--:|---|---|---|\n")
	for i := range r.Rows {
		line(r.Rows[i].cells(true))
	}
	b.WriteString("\nNotes:\n\n")
	for i := range r.Rows {
		if row := &r.Rows[i]; len(row.Notes) > 0 {
			fmt.Fprintf(&b, "- %s: %s.\n", row.Name, row.notes())
		}
	}
	fmt.Fprintf(&b, "\n%s.\n", r.lastLine())
	return mdsection.Replace(page, pageSection, b.String())
}
