// SPDX-License-Identifier: Apache-2.0

package svgplot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata")

func draw(t *testing.T, c Chart) string {
	t.Helper()
	var b bytes.Buffer
	if n, err := c.WriteTo(&b); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return b.String()
		} else if err != nil {
			t.Fatalf("%v in %s", err, b.String())
		}
	}
}

func TestChartMatchesGoldenFile(t *testing.T) {
	got := draw(t, Chart{Title: "Cost of a call", X: Axis{Name: "actors", Log: true}, Y: Axis{Name: "µs"}, Series: []Series{
		{Name: "measured", Points: []Point{{1e3, 12}, {1e4, 13}, {1e5, 15.5}, {1e6, 21}}},
		{Name: "n log n", Dashed: true, Points: []Point{{1e3, 10}, {1e6, 20}}},
		{Name: "with a gap", Points: []Point{{1e3, 2}, {1e4, math.NaN()}, {1e5, 4}}},
	}})
	const file = "testdata/chart.svg"
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the chart differs from %s: check it, then run go test -rewrite; got\n%s", file, got)
	}
}

func TestUnusualChartsAreValidXML(t *testing.T) {
	odd := []Point{{0, 0}, {-1, math.Inf(1)}, {math.NaN(), 5}, {3, 3}}
	for _, c := range []Chart{
		{},
		{Title: `<&">`, X: Axis{Name: "</text>"}, Series: []Series{{Name: "a & b"}}},
		{X: Axis{Log: true}, Y: Axis{Log: true}, Series: []Series{{Points: odd}}},
		{Series: []Series{{Points: odd}}},
		{Y: Axis{Min: 5, Max: 5}, Series: []Series{{Points: []Point{{1, 5}}}}},
		{Series: make([]Series, 12)},
	} {
		if s := draw(t, c); strings.Contains(s, "NaN") || strings.Contains(s, "Inf") {
			t.Errorf("%+v: %s", c, s)
		}
	}
}

func TestTicksAreRoundNumbers(t *testing.T) {
	for _, test := range []struct {
		s    scale
		want []float64
	}{
		{scale{low: 0, high: 10}, []float64{0, 2, 4, 6, 8, 10}},
		{scale{low: 0, high: 21}, []float64{0, 5, 10, 15, 20}},
		{scale{low: 0, high: 1}, []float64{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}},
		{scale{low: -50, high: 50}, []float64{-40, -20, 0, 20, 40}},
		{scale{low: 3, high: 6, log: true}, []float64{1e3, 1e4, 1e5, 1e6}},
	} {
		if got := test.s.ticks(); !slices.Equal(got, test.want) {
			t.Errorf("%+v: got %v, want %v", test.s, got, test.want)
		}
	}
	for v, want := range map[float64]string{0: "0", 12_500: "12.5k", 3e6: "3M", 0.02: "0.02", -2e9: "-2G"} {
		if got := number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
