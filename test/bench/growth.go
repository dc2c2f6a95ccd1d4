// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/troupe-run/troupe/internal/mdsection"
)

// growthLimit is the maximum duration of all studies of growth but idle. A size that would exceed
// it is omitted, and the table names it.
const growthLimit = 9 * time.Minute

// growth holds the results of the studies of growth: costs at several sizes, each a multiple of the
// one before. The verdict on a curve is the slope of the total cost divided by n log n, on logarithmic
// axes. A cost that grows no faster has a slope of at most 0. Other load on the machine shifts
// the slope a little.
type growth struct {
	Curves []*curve `json:"curves,omitempty"`
	Limits []*limit `json:"limits,omitempty"`
	Notes  []string `json:"notes,omitempty"`

	deadline   time.Time
	dir        string // temporary folder of all studies of growth
	allEntries bool   // the log reached its largest size
}

// growing returns a study of growth. Its results are in bench.growth.
func growing(one func(*bench) error) func(*bench) ([]row, error) {
	return func(b *bench) ([]row, error) {
		if b.growth.dir == "" {
			dir, err := os.MkdirTemp(b.dir, "troupe-bench-")
			if err != nil {
				return nil, err
			}
			b.growth.dir, b.growth.deadline = dir, time.Now().Add(growthLimit)
		}
		return nil, one(b)
	}
}

// newDir returns the path of a folder that does not exist yet.
func (b *bench) newDir(what string) string { return filepath.Join(b.growth.dir, what) }

// sizes returns the powers of ten in the range, a hundred times smaller in a quick
// run.
func (b *bench) sizes(from, to int) []int {
	if b.quick {
		from, to = from/100, to/100
	}
	var all []int
	for n := from; n <= to; n *= 10 {
		all = append(all, n)
	}
	return all
}

// iterations returns the number of repetitions of a measured call, fewer in a quick
// run.
func (b *bench) iterations(n int) int {
	if b.quick {
		return max(n/100, 20)
	}
	return n
}

func (g *growth) curve(name, of, unit string, each bool) *curve {
	c := &curve{Name: name, Of: of, Unit: unit, Each: each}
	g.Curves = append(g.Curves, c)
	return c
}

func (c *curve) add(n int, cost float64) {
	c.Points = append(c.Points, point{n, cost})
	c.fit()
}

// omitFrom notes in curves that the size count and all larger sizes were not
// measured.
func omitFrom(count int, curves ...*curve) {
	for _, c := range curves {
		c.Omitted = fmt.Sprintf("%s and more omitted for lack of time", formatSize(count))
	}
}

func (g *growth) limit(name string, most float64, unit string) *limit {
	l := &limit{Name: name, Most: most, Unit: unit}
	g.Limits = append(g.Limits, l)
	return l
}

func (g *growth) note(format string, args ...any) {
	g.Notes = append(g.Notes, fmt.Sprintf(format, args...))
}

// markdown returns the table of all curves and limits with the notes; "" if there are none.
func (g *growth) markdown() string {
	if len(g.Curves)+len(g.Limits) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| cost | against | sizes | verdict |\n|---|---|---|---|\n")
	for _, c := range g.Curves {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Name, c.Of, c.sizes(), c.verdict())
	}
	for _, l := range g.Limits {
		fmt.Fprintf(&b, "| %s | | %s | %s |\n", l.Name, l.value(), l.verdict())
	}
	for _, note := range g.Notes {
		fmt.Fprintf(&b, "\n- %s.", note)
	}
	fmt.Fprintf(&b, "\n\n%s\n", g.lastLine())
	return b.String()
}

// sizes returns the points of a curve in one line.
func (c *curve) sizes() string {
	var all []string
	for _, p := range c.Points {
		all = append(all, formatSize(p.N)+": "+formatCost(p.Cost))
	}
	line := strings.Join(all, ", ") + " " + c.Unit
	if c.Omitted != "" {
		line += "; " + c.Omitted
	}
	return line
}

func (l *limit) verdict() string {
	if l.Met {
		return fmt.Sprintf("≤ %.0f: met", l.Most)
	}
	return fmt.Sprintf("≤ %.0f: missed", l.Most)
}

// lastLine counts the curves and limits met and missed.
func (g *growth) lastLine() string {
	met, missed := 0, []string(nil)
	count := func(ok bool, name string) {
		if ok {
			met++
		} else {
			missed = append(missed, name)
		}
	}
	for _, c := range g.Curves {
		count(c.Met, c.Name+" against "+c.Of)
	}
	for _, l := range g.Limits {
		count(l.Met, l.Name)
	}
	return countFloors(met, missed)
}

// writePage writes the table into its section of a Markdown page.
func (g *growth) writePage(page string, m *machine) error {
	return mdsection.Replace(page, growthSection, fmt.Sprintf("`make growth` on %s, %d cores, commit %s, %s.\n\n%s", m.Go, m.Cores, m.Commit, m.Date, g.markdown()))
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
