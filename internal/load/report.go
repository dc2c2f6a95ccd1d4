// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"io"
	"strings"
)

// CountFloors returns the numbers of met and missed floors.
func (r *Report) CountFloors() (met, missed int) {
	for _, f := range r.Floors {
		if f.Met {
			met++
		} else {
			missed++
		}
	}
	return met, missed
}

// Verdict returns one line with the numbers of met and missed floors. The line lists
// the missed floors.
func (r *Report) Verdict() string {
	met, missed := r.CountFloors()
	var names []string
	for _, f := range r.Floors {
		if !f.Met {
			names = append(names, fmt.Sprintf("%s (%s, want %s)", f.Name, f.Got, f.Want))
		}
	}
	if missed == 0 {
		return fmt.Sprintf("floors: %d met, 0 missed", met)
	}
	return fmt.Sprintf("floors: %d met, %d missed: %s", met, missed, strings.Join(names, "; "))
}

// Markdown returns the report as Markdown tables.
func (r *Report) Markdown() string {
	var b strings.Builder
	for i := range r.Parts {
		r.Parts[i].writeMarkdown(&b)
	}
	b.WriteString("### Floors\n\n| what | seen | wanted | |\n|---|---|---|---|\n")
	for _, f := range r.Floors {
		verdict := "met"
		if !f.Met {
			verdict = "**missed**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, f.Got, f.Want, verdict)
	}
	fmt.Fprintf(&b, "\n%s\n", r.Verdict())
	return b.String()
}

func (p *Part) writeMarkdown(b *strings.Builder) {
	fmt.Fprintf(b, "### %s\n\nPeak %s/s: the best %v of the closed loops.\n\n", strings.ToUpper(p.Name()[:1])+p.Name()[1:], formatRate(p.Peak), PeakWindow)
	b.WriteString(tableHead)
	all := p.rows()
	for _, r := range all {
		b.WriteString(r.row())
	}
	b.WriteByte('\n')
	for _, r := range all {
		if why := r.refusalText(); why != "" {
			fmt.Fprintf(b, "- %s: %s.\n", r.Name, why)
		}
	}
	for _, r := range []*Result{&p.Saturated, &p.Overload} {
		fmt.Fprintf(b, "- Memory, %s: %s at first, %s at most, %s at last; %+.2f MB/s in the second half.\n",
			r.Name, megabytes(r.Memory.First), megabytes(r.Memory.Max), megabytes(r.Memory.Last), r.Memory.Slope/1e6)
	}
	b.WriteByte('\n')
}

// rows returns the results of the part in the order of its table. Of the rounds
// without a slow agent it includes only the round with the median p99, and likewise of
// the rounds with a slow agent.
func (p *Part) rows() (all []*Result) {
	for _, list := range [][]Result{p.Sweep, p.Shapes, p.Fractions} {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	all = append(all, &p.Saturated, &p.WorkSweep, &p.Overload, &p.After)
	for _, list := range [][]Result{p.Alone, p.Beside} {
		for i := range list {
			if list[i].Latency.P99 == medianP99(list) {
				all = append(all, &list[i])
				break
			}
		}
	}
	if n := len(p.Crowd); n > 0 {
		all = append(all, &p.Crowd[n-1])
	}
	return all
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// Print writes one result as a table.
func (r *Result) Print(w io.Writer) error {
	text := tableHead + r.row()
	if why := r.refusalText(); why != "" {
		text += "\n" + why + "\n"
	}
	of := "memory"
	if r.Remote {
		of = "memory of the load generator, not of the server:"
	}
	_, err := fmt.Fprintf(w, "%s%s %s at first, %s at most, %+.2f MB/s in the second half\n", text, of, megabytes(r.Memory.First), megabytes(r.Memory.Max), r.Memory.Slope/1e6)
	return err
}
