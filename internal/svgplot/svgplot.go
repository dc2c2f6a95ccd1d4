// SPDX-License-Identifier: Apache-2.0

// Package svgplot draws line charts as self-contained SVG files for light and dark pages.
package svgplot

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Chart is a line chart.
type Chart struct {
	Title  string
	X, Y   Axis
	Series []Series // at most as many as there are colours: 8
}

// Axis is the X or the Y axis.
type Axis struct {
	Name string
	Log  bool // logarithmic scale; values of 0 and less are omitted
	// Min and Max are the range that is always visible. If both are 0, the range
	// follows the series, and a linear axis includes 0.
	Min, Max float64
}

// Series is one line through its points, in their order.
type Series struct {
	Name   string
	Dashed bool
	Points []Point
}

// Point is a point of a series. A coordinate that is not finite interrupts the line.
type Point struct{ X, Y float64 }

// Dimensions of the drawing in user units.
const (
	width, height = 720, 420
	left, right   = 72, 24
	top, bottom   = 48, 56
	lineHeight    = 18
)

// Colours are distinguishable on white and on black, and with red-green colour blindness.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#b8860b"}

const style = `
svg { font: 13px system-ui, sans-serif; --ink: #1b1b1b; --faint: #d8d8d8; --paper: #ffffff }
@media (prefers-color-scheme: dark) { svg { --ink: #e8e8e8; --faint: #3a3a3a; --paper: #16181b } }
text { fill: var(--ink) } .paper { fill: var(--paper) } .title { font-size: 16px; font-weight: 600 }
.grid { stroke: var(--faint) } .axis { stroke: var(--ink) } .line { fill: none; stroke-width: 2 }
`

// WriteTo writes the chart as SVG. It implements io.WriterTo.
func (c Chart) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	rows := (len(c.Series) + 1) / 2
	tall := height + rows*lineHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, tall, html.EscapeString(c.Title))
	fmt.Fprintf(&b, "<style>%s</style>\n<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", style, width, tall)
	fmt.Fprintf(&b, "<text class=\"title\" x=\"%d\" y=\"28\">%s</text>\n", left, html.EscapeString(c.Title))
	x := c.scale(c.X, func(p Point) float64 { return p.X }, left, width-right)
	y := c.scale(c.Y, func(p Point) float64 { return p.Y }, height-bottom, top)
	for _, v := range x.ticks() {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x.at(v), top, height-bottom, x.at(v), height-bottom+18, number(v))
	}
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left, y.at(v), width-right, left-8, y.at(v)+4, number(v))
	}
	fmt.Fprintf(&b, "<path class=\"axis\" fill=\"none\" d=\"M%d %dV%dH%d\"/>\n", left, top, height-bottom, width-right)
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (left+width-right)/2, height-bottom+38, html.EscapeString(c.X.Name))
	fmt.Fprintf(&b, "<text x=\"16\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 16 %d)\">%s</text>\n", (top+height-bottom)/2, (top+height-bottom)/2, html.EscapeString(c.Y.Name))
	for i, s := range c.Series {
		drawSeries(&b, s, i, x, y)
	}
	b.WriteString("</svg>\n")
	return b.WriteTo(w)
}

func drawSeries(b *bytes.Buffer, s Series, i int, x, y scale) {
	colour := colours[i%len(colours)]
	dash := ""
	if s.Dashed {
		dash = ` stroke-dasharray="6 4"`
	}
	var line strings.Builder
	pen := "M"
	for _, p := range s.Points {
		if !x.shows(p.X) || !y.shows(p.Y) {
			pen = "M"
			continue
		}
		fmt.Fprintf(&line, "%s%.1f %.1f", pen, x.at(p.X), y.at(p.Y))
		pen = "L"
		if !s.Dashed {
			fmt.Fprintf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s: %s, %s</title></circle>\n", x.at(p.X), y.at(p.Y), colour,
				html.EscapeString(s.Name), number(p.X), number(p.Y))
		}
	}
	if line.Len() > 0 {
		fmt.Fprintf(b, "<path class=\"line\" stroke=\"%s\"%s d=\"%s\"/>\n", colour, dash, line.String())
	}
	atX, atY := left+(i%2)*(width-left-right)/2, height+(i/2)*lineHeight
	fmt.Fprintf(b, "<path class=\"line\" stroke=\"%s\"%s d=\"M%d %dh24\"/><text x=\"%d\" y=\"%d\">%s</text>\n", colour, dash, atX, atY-4, atX+32, atY, html.EscapeString(s.Name))
}

// scale maps values of an axis to coordinates.
type scale struct {
	low, high float64 // visible range; its logarithms if log is set
	from, to  float64
	log       bool
}

func (c Chart) scale(a Axis, of func(Point) float64, from, to int) scale {
	s := scale{from: float64(from), to: float64(to), log: a.Log, low: math.Inf(1), high: math.Inf(-1)}
	see := func(v float64) {
		if s.shows(v) {
			s.low, s.high = min(s.low, s.value(v)), max(s.high, s.value(v))
		}
	}
	if a.Min != 0 || a.Max != 0 || !a.Log {
		see(a.Min)
		see(a.Max)
	}
	for _, line := range c.Series {
		for _, p := range line.Points {
			see(of(p))
		}
	}
	switch {
	case s.low > s.high: // no visible value
		s.low, s.high = 0, 1
	case a.Log:
		s.low, s.high = math.Floor(s.low), math.Ceil(s.high)
	}
	if s.low == s.high {
		s.high++
	}
	return s
}

func (s scale) shows(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!s.log || v > 0)
}

func (s scale) value(v float64) float64 {
	if s.log {
		return math.Log10(v)
	}
	return v
}

func (s scale) at(v float64) float64 {
	return s.from + (s.value(v)-s.low)/(s.high-s.low)*(s.to-s.from)
}

// ticks returns about six round values.
func (s scale) ticks() []float64 {
	var ticks []float64
	if s.log {
		every := math.Ceil((s.high - s.low) / 8)
		for e := s.low; e <= s.high; e += every {
			ticks = append(ticks, math.Pow(10, e))
		}
		return ticks
	}
	step := math.Pow(10, math.Floor(math.Log10((s.high-s.low)/5)))
	for _, k := range []float64{2, 2.5, 2} { // 2, 5, 10
		if (s.high-s.low)/step > 7 {
			step *= k
		}
	}
	for n := math.Ceil(s.low / step); n*step <= s.high*(1+1e-12); n++ {
		ticks = append(ticks, n*step)
	}
	return ticks
}

// number formats v briefly: 12.5k, 3M, 0.02.
func number(v float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= unit.of {
			return strconv.FormatFloat(v/unit.of, 'g', 4, 64) + unit.name
		}
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
