// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

// slopeMax is the maximum slope that is accepted on a shared machine. Over three
// powers of ten it lets a cost grow by four times more than n log n does.
const slopeMax = 0.2

// row is one cost at several sizes.
type row struct {
	Name    string  `json:"name"`
	Of      string  `json:"of"`   // the size that varies
	Unit    string  `json:"unit"` // unit of the cost
	Each    bool    `json:"each"` // true: the cost is per item; false: it is the total
	Points  []point `json:"points"`
	Slope   float64 `json:"slope"`
	Met     bool    `json:"met"`
	Omitted string  `json:"left_out,omitempty"` // the sizes not measured, and the reason
}

type point struct {
	N    int     `json:"n"`
	Cost float64 `json:"cost"`
}

// fit fits a line through the logarithms of size and of total cost divided by n log
// n.
func (r *row) fit() {
	var x, y []float64
	for _, p := range r.Points {
		n, cost := float64(p.N), math.Max(p.Cost, 1e-9)
		if r.Each {
			cost *= n
		}
		x = append(x, math.Log(n))
		y = append(y, math.Log(cost/(n*math.Log(n+1))))
	}
	r.Slope = slope(x, y)
	r.Met = len(x) > 1 && r.Slope <= slopeMax
}

// slope returns the slope of the least-squares line.
func slope(x, y []float64) float64 {
	n := float64(len(x))
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	if d := n*sxx - sx*sx; d != 0 {
		return (n*sxy - sx*sy) / d
	}
	return 0
}

func (r *row) verdict() string {
	if r.Met {
		return "n log n or better"
	}
	return fmt.Sprintf("worse than n log n (slope %.2f)", r.Slope)
}

// floor is a bound on one figure. A figure that was not measured misses its floor.
type floor struct {
	Name  string  `json:"name"`
	Found bool    `json:"found"`
	Value float64 `json:"value"`
	Most  float64 `json:"most"`
	Unit  string  `json:"unit"`
	Met   bool    `json:"met"`
}

func (f *floor) record(value float64) { f.Found, f.Value, f.Met = true, value, value <= f.Most }

func (f *floor) value() string {
	if !f.Found {
		return "not measured for lack of time"
	}
	return fmt.Sprintf("%.0f %s", f.Value, f.Unit)
}
