// SPDX-License-Identifier: Apache-2.0

package actor

// Usage is a number of tokens that models and external agents reported for their
// answers, and what they cost. No count is negative or above UsageMax.
type Usage struct {
	Input, Output, Total int64
	Cached               int64 // tokens of Input that the provider had cached
	Priced               int64 // tokens of Total of models that had a price when they answered
	Cost                 int64 // of these, in millionths of the currency of the configuration; 0 without them
}

// Micro is the number of Usage.Cost of one unit of the currency.
const Micro = 1_000_000

// UsageMax is the maximum of each count. JSON represents every count up to it exactly.
const UsageMax = 1<<53 - 1

// Add returns the sum of u and o. A sum above UsageMax is UsageMax.
func (u Usage) Add(o Usage) Usage {
	sum := func(a, b int64) int64 { return min(a+b, UsageMax) }
	return Usage{sum(u.Input, o.Input), sum(u.Output, o.Output), sum(u.Total, o.Total), sum(u.Cached, o.Cached), sum(u.Priced, o.Priced), sum(u.Cost, o.Cost)}
}

// Unpriced returns the tokens of models that had no price when they answered.
func (u Usage) Unpriced() int64 { return max(u.Total-u.Priced, 0) }

// Check reports whether all counts are in range, and a cost belongs to priced tokens.
func (u Usage) Check() bool {
	for _, n := range [...]int64{u.Input, u.Output, u.Total, u.Cached, u.Priced, u.Cost} {
		if n < 0 || n > UsageMax {
			return false
		}
	}
	return u.Priced > 0 || u.Cost == 0
}

// withPrice is added to the first count of an encoded usage that has more than the first three.
const withPrice = UsageMax + 1

// Usage appends the counts.
func (e *Encoder) Usage(u Usage) {
	more := u.Cached != 0 || u.Priced != 0
	if more {
		e.Uint(uint64(u.Input) + withPrice)
	} else {
		e.Uint(uint64(u.Input))
	}
	e.Uint(uint64(u.Output))
	e.Uint(uint64(u.Total))
	if more {
		e.Uint(uint64(u.Cached))
		e.Uint(uint64(u.Priced))
		e.Uint(uint64(u.Cost))
	}
}

// Usage reads the counts.
func (d *Decoder) Usage() Usage {
	count := func() int64 { return int64(d.UintMax(UsageMax, "tokens")) }
	first := d.UintMax(withPrice+UsageMax, "tokens")
	u := Usage{Input: int64(first &^ withPrice), Output: count(), Total: count()}
	if first&withPrice == 0 {
		return u
	}
	u.Cached, u.Priced, u.Cost = count(), count(), count()
	if u.Cached == 0 && u.Priced == 0 || !u.Check() {
		d.Fail("usage without price")
	}
	return u
}
