// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// row is one line of the table.
type row struct {
	Name        string   `json:"name"`
	Ours        figure   `json:"ours"`
	Theirs      figure   `json:"counterpart_value"`
	Counterpart string   `json:"counterpart"`
	Ratio       float64  `json:"ratio"` // factor by which the result is better than the counterpart; 0 means not applicable
	Low         float64  `json:"low"`   // Low and High are the range over the rounds of the value that the floor limits
	High        float64  `json:"high"`
	Floor       floor    `json:"floor,omitzero"`
	Met         bool     `json:"met"`
	Notes       []string `json:"beside,omitempty"`
}

// figure is a number with its unit.
type figure struct {
	Value float64 `json:"value"`
	Unit  unit    `json:"unit"`
}

type unit string

const (
	nanoseconds unit = "ns"
	perSecond   unit = "/s"
	bytesEach   unit = "B"
	times       unit = "x"
)

// String returns the figure with a readable unit: 1234 ns is "1.23 µs".
func (f figure) String() string {
	switch {
	case f == figure{}:
		return "–"
	case f.Unit == nanoseconds && f.Value >= 1e6:
		return formatNumber(f.Value/1e6) + " ms"
	case f.Unit == nanoseconds && f.Value >= 1e3:
		return formatNumber(f.Value/1e3) + " µs"
	case f.Unit == times:
		return formatNumber(f.Value) + "×"
	}
	return formatNumber(f.Value) + " " + string(f.Unit)
}

// formatNumber returns v with three significant digits, or with all digits before
// the decimal point.
func formatNumber(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return groupDigits(int64(math.Round(v)))
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// groupDigits formats 300000 as 300,000.
func groupDigits(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// floor is a bound on a row. The zero floor is no bound.
type floor struct {
	Of    string  `json:"of"` // "ratio" or "ours"
	Least bool    `json:"least"`
	Value float64 `json:"value"`
}

func ratioAtLeast(v float64) floor { return floor{"ratio", true, v} }
func atMost(v float64) floor       { return floor{"ours", false, v} }
func atLeast(v float64) floor      { return floor{"ours", true, v} }

// met reports whether the row satisfies the floor.
func (f floor) met(r *row) bool {
	v := r.Ours.Value
	if f.Of == "ratio" {
		v = r.Ratio
	}
	return f.Least && v >= f.Value || !f.Least && v <= f.Value
}

func (f floor) describe(r *row) string {
	sign := "≤ "
	if f.Least {
		sign = "≥ "
	}
	switch f.Of {
	case "":
		return "–"
	case "ratio":
		return sign + fmt.Sprintf("%.2f", f.Value)
	default:
		return sign + figure{f.Value, r.Ours.Unit}.String()
	}
}

// latencyRow returns the row of a comparison in time per operation.
func latencyRow(name, counterpart string, rounds []roundCost, f floor) row {
	return comparisonRow(name, counterpart, nanoseconds, rounds, func(v float64) float64 { return v }, f)
}

// throughputRow returns the row of a comparison in operations per second.
func throughputRow(name, counterpart string, rounds []roundCost, f floor) row {
	return comparisonRow(name, counterpart, perSecond, rounds, func(v float64) float64 { return 1e9 / v }, f)
}

func comparisonRow(name, counterpart string, u unit, rounds []roundCost, value func(ns float64) float64, f floor) row {
	ratios := column(rounds, func(p roundCost) float64 { return p.theirs / p.ours })
	r := row{Name: name, Counterpart: counterpart, Floor: f,
		Ours:   figure{median(column(rounds, func(p roundCost) float64 { return value(p.ours) })), u},
		Theirs: figure{median(column(rounds, func(p roundCost) float64 { return value(p.theirs) })), u},
		Ratio:  median(ratios)}
	spread := ratios
	if f.Of == "ours" {
		spread = column(rounds, func(p roundCost) float64 { return value(p.ours) })
	}
	r.Low, r.High = slices.Min(spread), slices.Max(spread)
	if ours := median(column(rounds, func(p roundCost) float64 { return p.oursCPU })); ours > 0 {
		theirs := median(column(rounds, func(p roundCost) float64 { return p.theirsCPU }))
		r.addNote("processor time ours %v, counterpart %v", figure{ours, nanoseconds}, figure{theirs, nanoseconds})
	}
	return r.withVerdict()
}

// withVerdict returns the row with Met set.
func (r row) withVerdict() row {
	r.Met = r.Floor.Of != "" && r.Floor.met(&r)
	return r
}

// verdict returns "met", "missed", or "" for a row without a floor.
func (r *row) verdict() string {
	switch {
	case r.Floor.Of == "":
		return ""
	case r.Met:
		return "met"
	default:
		return "missed"
	}
}

// spread returns the range over the rounds.
func (r *row) spread() string {
	if r.Floor.Of == "ours" {
		return fmt.Sprintf("%v to %v", figure{r.Low, r.Ours.Unit}, figure{r.High, r.Ours.Unit})
	}
	return formatNumber(r.Low) + " to " + formatNumber(r.High)
}

func (r *row) ratio() string {
	if r.Ratio == 0 {
		return "–"
	}
	return formatNumber(r.Ratio)
}

func (r *row) addNote(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// cells returns the columns of the row. The verdict is empty if judged is false.
func (r *row) cells(judged bool) []string {
	verdict := r.verdict()
	if !judged {
		verdict = ""
	}
	return []string{r.Name, r.Ours.String(), r.Theirs.String(), r.Counterpart, r.ratio(), r.spread(), r.Floor.describe(r), verdict}
}

var tableHeader = []string{"what", "ours", "counterpart", "which is", "ratio", "from to", "floor", ""}

// notes returns all notes of the row in one line.
func (r *row) notes() string { return strings.Join(r.Notes, "; ") }
