// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// trialsWanted is the minimum number of damages tried.
const trialsWanted = 5000

// report counts the outcomes of all damages by class of file.
type report struct {
	Trust   bool         `json:"trust"`
	Seconds float64      `json:"seconds"`
	Classes []*row       `json:"classes"`
	Total   row          `json:"total"`
	Bad     []badOutcome `json:"bad"` // the first badOutcomesMax outcomes that must never occur
	Floors  []floor      `json:"floors"`
	began   time.Time
}

// row holds the counts of one class of files.
type row struct {
	Class    string          `json:"class"`
	Files    int             `json:"files"`
	Bytes    int             `json:"bytes"`
	Trials   int             `json:"trials"`
	Outcomes map[Outcome]int `json:"outcomes"`
	Warned   int             `json:"warned"` // harmless damages that troupe doctor reports
}

type badOutcome struct {
	Damage  string  `json:"damage"`
	Outcome Outcome `json:"outcome"`
	Message string  `json:"said"`
}

type floor struct {
	Name string `json:"says"`
	Got  int    `json:"got"`
	Met  bool   `json:"met"`
}

// badOutcomesMax is the maximum number of bad outcomes in the report.
const badOutcomesMax = 20

var outcomes = []Outcome{Detected, Harmless, ByDoctor, SilentLoss, SilentWrong, Vague, Unseen, NoEnd}

func (r *report) row(store, file string) *row {
	name := fileClass(file)
	if store == backupName {
		name = "of a backup"
	}
	return r.class(name)
}

func (r *report) class(name string) *row {
	for _, c := range r.Classes {
		if c.Class == name {
			return c
		}
	}
	c := &row{Class: name, Outcomes: map[Outcome]int{}}
	r.Classes = append(r.Classes, c)
	return c
}

// countFiles adds the files of a store to the report.
func (r *report) countFiles(store string, original storeFiles) {
	for name, content := range original {
		c := r.row(store, name)
		c.Files++
		c.Bytes += len(content)
	}
	slices.SortFunc(r.Classes, func(a, b *row) int { return b.Bytes - a.Bytes })
}

// add records the outcome of a damage.
func (r *report) add(d damage, v verdict) {
	var c *row
	if d.isForgery() {
		c = r.class(d.Kind)
	} else {
		c = r.row(d.Store, d.File)
	}
	c.Trials++
	c.Outcomes[v.Outcome]++
	if v.Outcome == Harmless && v.Warned {
		c.Warned++
	}
	if v.Outcome != Detected && v.Outcome != Harmless && v.Outcome != ByDoctor && len(r.Bad) < badOutcomesMax {
		r.Bad = append(r.Bad, badOutcome{d.String(), v.Outcome, v.Said})
	}
}

func (r *report) trials() int {
	n := 0
	for _, c := range r.Classes {
		n += c.Trials
	}
	return n
}

// finish computes the totals and compares them with the floors.
func (r *report) finish(took time.Duration) {
	r.Seconds = took.Seconds()
	r.Total = row{Class: "all", Outcomes: map[Outcome]int{}}
	for _, c := range r.Classes {
		r.Total.Files += c.Files
		r.Total.Bytes += c.Bytes
		r.Total.Trials += c.Trials
		r.Total.Warned += c.Warned
		for o, n := range c.Outcomes {
			r.Total.Outcomes[o] += n
		}
	}
	atLeast := func(name string, got, want int) { r.Floors = append(r.Floors, floor{name, got, got >= want}) }
	none := func(name string, o Outcome) {
		r.Floors = append(r.Floors, floor{name, r.Total.Outcomes[o], r.Total.Outcomes[o] == 0})
	}
	atLeast(fmt.Sprintf("%d trials or more", trialsWanted), r.Total.Trials, trialsWanted)
	none("no silent losses", SilentLoss)
	none("no silent wrong answers", SilentWrong)
	none("no vague error messages", Vague)
	none("no damage missed by troupe doctor", Unseen)
	none("no trials without an end", NoEnd)
}

func (r *report) missed() int {
	n := 0
	for _, f := range r.Floors {
		if !f.Met {
			n++
		}
	}
	return n
}

// lastLine returns the last line of the output, which counts the floors met and
// missed.
func (r *report) lastLine() string {
	var missed []string
	for _, f := range r.Floors {
		if !f.Met {
			missed = append(missed, fmt.Sprintf("%s (%d)", f.Name, f.Got))
		}
	}
	line := fmt.Sprintf("floors: %d met, %d missed", len(r.Floors)-len(missed), len(missed))
	if len(missed) > 0 {
		line += ": " + strings.Join(missed, ", ")
	}
	return line
}

func (r *report) header() []string {
	return []string{"files", "number", "bytes", "trials", "detected", "harmless", "of these doctor warns", "by doctor", "silent loss", "silent wrong", "vague", "unseen", "no end"}
}

func (c *row) cells() []string {
	out := []string{c.Class, fmt.Sprint(c.Files), fmt.Sprint(c.Bytes), fmt.Sprint(c.Trials)}
	for _, o := range outcomes {
		out = append(out, fmt.Sprint(c.Outcomes[o]))
		if o == Harmless {
			out = append(out, fmt.Sprint(c.Warned))
		}
	}
	return out
}

func (r *report) rows() [][]string {
	var all [][]string
	for _, c := range r.Classes {
		all = append(all, c.cells())
	}
	return append(all, r.Total.cells())
}

// text returns the table for a terminal.
func (r *report) text() string {
	table := append([][]string{r.header()}, r.rows()...)
	wide := make([]int, len(table[0]))
	for _, line := range table {
		for i, cell := range line {
			wide[i] = max(wide[i], len(cell))
		}
	}
	var b strings.Builder
	for _, line := range table {
		for i, cell := range line {
			if i == 0 {
				fmt.Fprintf(&b, "%-*s", wide[i], cell)
			} else {
				fmt.Fprintf(&b, "  %*s", wide[i], cell)
			}
		}
		b.WriteByte('\n')
	}
	for _, x := range r.Bad {
		fmt.Fprintf(&b, "%s: %s: %s\n", x.Outcome, x.Damage, firstLine(x.Message))
	}
	fmt.Fprintf(&b, "%.0f s\n%s\n", r.Seconds, r.lastLine())
	return b.String()
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// markdown returns the section of the page.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## Damaged stores\n\nWritten by `make corruption` on %s in %.0f s. Each trial damages one file of a store or a backup, then opens, reads, examines or restores it.\n\n",
		r.began.UTC().Format("2006-01-02"), r.Seconds)
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(r.header())
	b.WriteString("|---|" + strings.Repeat("---:|", len(r.header())-1) + "\n")
	for _, cells := range r.rows() {
		line(cells)
	}
	fmt.Fprintf(&b, "\n%s\n", r.lastLine())
	return b.String()
}

func (r *report) writeJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(r)
}
