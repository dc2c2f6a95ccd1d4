// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/internal/mdsection"
	"github.com/troupe-run/troupe/internal/svgplot"
)

// report holds all measurements. It MUST NOT contain a host name or a path, because
// it is published.
type report struct {
	Go     string   `json:"go"`
	Cores  int      `json:"cores"`
	Commit string   `json:"commit"`
	Date   string   `json:"date"`
	Quick  bool     `json:"quick"`
	Rows   []*row   `json:"rows"`
	Floors []*floor `json:"floors"`
	Notes  []string `json:"notes"`
}

func (r *report) reset(quick bool) {
	*r = report{Go: runtime.Version(), Cores: runtime.GOMAXPROCS(0), Commit: mdsection.Commit(), Date: time.Now().UTC().Format(time.DateOnly), Quick: quick}
}

func (r *report) row(name, of, unit string, each bool) *row {
	new := &row{Name: name, Of: of, Unit: unit, Each: each}
	r.Rows = append(r.Rows, new)
	return new
}

func (r *row) add(n int, cost float64) {
	r.Points = append(r.Points, point{n, cost})
	r.fit()
}

// omitFrom notes in rows that the size count and all larger sizes were not
// measured.
func omitFrom(count int, rows ...*row) {
	for _, r := range rows {
		r.Omitted = fmt.Sprintf("%s and more omitted for lack of time", formatSize(count))
	}
}

func (r *report) floor(name string, most float64, unit string) *floor {
	f := &floor{Name: name, Most: most, Unit: unit}
	r.Floors = append(r.Floors, f)
	return f
}

func (r *report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *report) writeJSON(w io.Writer) error {
	return json.MarshalWrite(w, r, jsontext.Multiline(true))
}

func (r *report) writeText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "cost\tagainst\tsizes\tverdict")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", row.Name, row.Of, row.sizes(": ", "  "), row.verdict())
	}
	for _, f := range r.Floors {
		fmt.Fprintf(t, "%s\t\t%s\t%s\n", f.Name, f.value(), f.verdict())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, note) //nolint:errcheck // as the next one
	}
	_, err := fmt.Fprintln(w, r.lastLine())
	return err
}

// sizes returns the points of a row in one line.
func (r *row) sizes(of, between string) string {
	var all []string
	for _, p := range r.Points {
		all = append(all, formatSize(p.N)+of+formatCost(p.Cost))
	}
	line := strings.Join(all, between) + " " + r.Unit
	if r.Omitted != "" {
		line += "; " + r.Omitted
	}
	return line
}

func (f *floor) verdict() string {
	if f.Met {
		return fmt.Sprintf("≤ %.0f: met", f.Most)
	}
	return fmt.Sprintf("≤ %.0f: missed", f.Most)
}

// lastLine returns the last line of the output, which counts the floors met and
// missed.
func (r *report) lastLine() string {
	met, missed := 0, []string(nil)
	for _, row := range r.Rows {
		if row.Met {
			met++
		} else {
			missed = append(missed, row.Name+" against "+row.Of)
		}
	}
	for _, f := range r.Floors {
		if f.Met {
			met++
		} else {
			missed = append(missed, f.Name)
		}
	}
	text := fmt.Sprintf("floors: %d met, %d missed", met, len(missed))
	if len(missed) > 0 {
		text += ": " + strings.Join(missed, "; ")
	}
	return text
}

// writePage writes the report into its section of a Markdown page, and the plots
// into the folder of the page.
func (r *report) writePage(file string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "`make growth` on %s, %d cores, commit %s, %s.\n\n", r.Go, r.Cores, r.Commit, r.Date)
	b.WriteString("| cost | against | sizes | verdict |\n|---|---|---|---|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.Name, row.Of, row.sizes(": ", "<br>"), row.verdict())
	}
	for _, f := range r.Floors {
		fmt.Fprintf(&b, "| %s | | %s | %s |\n", f.Name, f.value(), f.verdict())
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\n- %s.", note)
	}
	fmt.Fprintf(&b, "\n\n%s\n", r.lastLine())
	for _, d := range []struct {
		file, title, unit string
		each              bool
	}{{"growth-calls.svg", "Cost of a call", "µs", true}, {"growth-restarts.svg", "Duration of a restart", "ms", false}, {"growth-memory.svg", "Memory", "MiB", false}} {
		chart := svgplot.Chart{Title: d.title, X: svgplot.Axis{Name: "number", Log: true}, Y: svgplot.Axis{Name: d.unit, Log: true}}
		for _, row := range r.Rows {
			if row.Unit == d.unit {
				chart.Series = append(chart.Series, row.series())
			}
		}
		if len(chart.Series) == 0 {
			continue
		}
		if err := writePlot(filepath.Join(filepath.Dir(file), d.file), chart); err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n![%s](%s)\n", d.title, d.file)
	}
	return mdsection.Replace(file, "growth", b.String())
}

func (r *row) series() svgplot.Series {
	s := svgplot.Series{Name: r.Name + ", " + r.Of}
	for _, p := range r.Points {
		s.Points = append(s.Points, svgplot.Point{X: float64(p.N), Y: p.Cost})
	}
	return s
}

func writePlot(file string, chart svgplot.Chart) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := chart.WriteTo(f); err != nil {
		f.Close() //nolint:errcheck // the write error is returned
		return err
	}
	return f.Close()
}

// formatCost returns a cost with three significant digits, or with all digits
// before the decimal point.
func formatCost(cost float64) string {
	if cost >= 100 {
		return fmt.Sprintf("%.0f", cost)
	}
	return fmt.Sprintf("%.3g", cost)
}

// formatSize formats 10000 as 10k and 1000000 as 1M.
func formatSize(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return fmt.Sprintf("%dM", n/1_000_000)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprint(n)
}
