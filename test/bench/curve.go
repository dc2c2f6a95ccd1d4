// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

// slopeMax is the maximum slope that is accepted on a shared machine. Over three
// powers of ten it lets a cost grow by four times more than n log n does.
const slopeMax = 0.2

// curve is one cost at several sizes.
type curve struct {
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
func (c *curve) fit() {
	var x, y []float64
	for _, p := range c.Points {
		n, cost := float64(p.N), math.Max(p.Cost, 1e-9)
		if c.Each {
			cost *= n
		}
		x = append(x, math.Log(n))
		y = append(y, math.Log(cost/(n*math.Log(n+1))))
	}
	c.Slope = slope(x, y)
	c.Met = len(x) > 1 && c.Slope <= slopeMax
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

func (c *curve) verdict() string {
	if c.Met {
		return "n log n or better"
	}
	return fmt.Sprintf("worse than n log n (slope %.2f)", c.Slope)
}

// limit is a bound on one figure. A figure that was not measured misses it.
type limit struct {
	Name  string  `json:"name"`
	Found bool    `json:"found"`
	Value float64 `json:"value"`
	Most  float64 `json:"most"`
	Unit  string  `json:"unit"`
	Met   bool    `json:"met"`
}

func (l *limit) record(value float64) { l.Found, l.Value, l.Met = true, value, value <= l.Most }

func (l *limit) value() string {
	if !l.Found {
		return "not measured for lack of time"
	}
	return fmt.Sprintf("%.0f %s", l.Value, l.Unit)
}
