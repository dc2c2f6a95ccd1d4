// SPDX-License-Identifier: Apache-2.0

package actor

import "time"

// NoLimit is the amount of a Purse that is not limited.
const NoLimit = 1<<63 - 1

// Purse is what a run and the calls below it may still spend on models. nil is any amount. A Purse never
// changes: its methods return another.
//
// A run takes a part of its purse for each call, and for each request to a model the most that the answer
// can cost. It gets back what was not spent. What is spent in a tree is therefore never more than the purse of its root, if no model
// reports more than was taken for its answer.
//
// Each limited amount is between -UsageMax and UsageMax. A decoder refuses others.
type Purse struct {
	Tokens int64 // NoLimit: any
	Micros int64 // millionths of the currency; NoLimit: any
	Day    int64 // day, in UTC from 1 for 1 January 1970, of the user's account that gave it; 0: no account did
}

// DayMax is the maximum of Purse.Day.
const DayMax = 1 << 20

// DayOf returns the day of a time, as in Purse.Day.
func DayOf(at Time) int64 { return min(max(int64(at)/int64(24*time.Hour), 0)+1, DayMax) }

// EndOfDay returns the time at which a day ends, as in Purse.Day.
func EndOfDay(day int64) Time { return Time(day * int64(24*time.Hour)) }

// Covers reports whether a purse has an amount. The limits of the amount do not matter.
func (p *Purse) Covers(amount Purse) bool {
	return p == nil || amount.Tokens <= p.Tokens && amount.Micros <= p.Micros
}

// Less returns the purse without an amount that was taken from it. It is empty if the amount is larger.
func (p *Purse) Less(amount *Purse) *Purse {
	return p.with(amount, func(a, b int64) int64 { return max(a-b, min(a, 0)) })
}

// Plus returns the purse with an amount that comes back. The amount is negative if more was spent than taken, and so
// may be the purse: the callers above are charged too.
func (p *Purse) Plus(amount *Purse) *Purse {
	return p.with(amount, func(a, b int64) int64 { return a + b })
}

// with combines the limited amounts.
func (p *Purse) with(amount *Purse, f func(a, b int64) int64) *Purse {
	if p == nil || amount == nil {
		return p
	}
	combine := func(a, b int64) int64 {
		if a == NoLimit || b == NoLimit {
			return a
		}
		return inRange(f(a, b))
	}
	return &Purse{combine(p.Tokens, amount.Tokens), combine(p.Micros, amount.Micros), p.Day}
}

// inRange returns the nearest amount that a decoder accepts.
func inRange(n int64) int64 { return min(max(n, -UsageMax), UsageMax) }

// Empty returns a purse with the same limits and nothing in it.
func (p *Purse) Empty() *Purse { return p.Less(p) }

// Part returns one of n equal parts of what a purse has beyond an amount that is kept.
func (p *Purse) Part(n int, keep *Purse) *Purse {
	if p == nil {
		return nil
	}
	part := func(a int64) int64 {
		if a == NoLimit {
			return a
		}
		return max(a, 0) / int64(max(n, 1))
	}
	left := p.Less(keep)
	return &Purse{part(left.Tokens), part(left.Micros), p.Day}
}

// Capped returns the smaller one of each amount of two purses.
func (p *Purse) Capped(most *Purse) *Purse {
	switch {
	case p == nil:
		return most
	case most == nil:
		return p
	}
	return &Purse{min(p.Tokens, most.Tokens), min(p.Micros, most.Micros), p.Day}
}

// Left returns what is left of an amount that was taken, after what was spent. It is negative if that is more. A total
// below its parts is not believed.
func (p *Purse) Left(spent Usage) *Purse {
	if p == nil {
		return nil
	}
	left := func(a, spent int64) int64 {
		if a == NoLimit {
			return a
		}
		return inRange(a - spent)
	}
	return &Purse{left(p.Tokens, max(spent.Total, spent.Input+spent.Output)), left(p.Micros, spent.Cost), p.Day}
}

// Purse appends a purse that is not nil.
func (e *Encoder) Purse(p *Purse) {
	e.Int(p.Tokens)
	e.Int(p.Micros)
	e.Uint(uint64(p.Day))
}

// Purse reads a purse.
func (d *Decoder) Purse() *Purse {
	p := &Purse{d.Int(), d.Int(), int64(d.UintMax(DayMax, "day"))}
	for _, n := range []int64{p.Tokens, p.Micros} {
		if n != NoLimit && (n > UsageMax || n < -UsageMax) {
			d.Fail("purse of %d", n)
		}
	}
	return p
}
