// SPDX-License-Identifier: Apache-2.0

package actor

// Usage is a number of tokens that models and external agents reported for their
// answers. No count is negative or above UsageMax.
type Usage struct{ Input, Output, Total int64 }

// UsageMax is the maximum of each count. JSON represents every count up to it exactly.
const UsageMax = 1<<53 - 1

// Add returns the sum of u and o. A sum above UsageMax is UsageMax.
func (u Usage) Add(o Usage) Usage {
	return Usage{min(u.Input+o.Input, UsageMax), min(u.Output+o.Output, UsageMax), min(u.Total+o.Total, UsageMax)}
}

// Usage appends the three counts.
func (e *Encoder) Usage(u Usage) {
	e.Uint(uint64(u.Input))
	e.Uint(uint64(u.Output))
	e.Uint(uint64(u.Total))
}

// Usage reads three counts.
func (d *Decoder) Usage() Usage {
	count := func() int64 { return int64(d.UintMax(UsageMax, "tokens")) }
	return Usage{count(), count(), count()}
}
