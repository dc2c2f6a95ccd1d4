// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"math/bits"

	"github.com/troupe-run/troupe/actor"
)

// Price is the price of a model in micros, millionths of the currency, for a million tokens.
//
//  1. A price that is not Known costs 0, which says nothing: see Usage.Priced.
//  2. Cost and Worst round up once, and are at most CostMax.
//  3. Worst of a prompt is at least Cost of each answer to it.
type Price struct {
	Known       bool
	Input       int64 // tokens of a prompt
	CachedInput int64 // those of them that the provider had cached
	Output      int64 // tokens of an answer, with those of its reasoning
}

// Bounds of prices.
const (
	Micro    = actor.Micro           // micros of one unit of the currency
	PriceMax = Micro * 1_000_000     // micros for a million tokens
	CostMax  = int64(actor.UsageMax) // micros
)

const pricedTokens = 1_000_000 // tokens that a price is for

// Cost returns the micros that an answer cost. At some providers only the total includes some tokens, such as tokens of
// the reasoning; they cost as much as output. Cached tokens are a part of the input.
func (p Price) Cost(u Usage) int64 {
	if !p.Known || !u.Known {
		return 0
	}
	count := func(n int64) int64 { return min(max(n, 0), tokensMax) }
	input, output := count(u.Input), count(u.Output)
	cached := min(count(u.Cached), input)
	output = max(output, count(u.Total)-input)
	return micros([3][2]int64{{input - cached, p.Input}, {cached, p.CachedInput}, {output, p.Output}})
}

// Worst returns the maximum of micros that an answer costs, of a prompt and an answer of at most so many tokens.
func (p Price) Worst(inputTokens, outputTokensMax int64) int64 {
	if !p.Known {
		return 0
	}
	return micros([3][2]int64{{max(inputTokens, 0), max(p.Input, p.CachedInput)}, {max(outputTokensMax, 0), p.Output}})
}

// Priced returns the usage with its cost.
func (p Price) Priced(u Usage) Usage {
	u.Priced, u.Cost = p.Known && u.Known, p.Cost(u)
	return u
}

// micros returns the sum of tokens times their price, in micros.
func micros(all [3][2]int64) int64 {
	var high, low uint64
	for _, one := range all {
		h, l := bits.Mul64(uint64(one[0]), uint64(one[1]))
		var carry uint64
		low, carry = bits.Add64(low, l, 0)
		high, _ = bits.Add64(high, h, carry)
	}
	var carry uint64
	low, carry = bits.Add64(low, pricedTokens-1, 0)
	high += carry
	if high >= pricedTokens { // the quotient has more than 64 bits
		return CostMax
	}
	quotient, _ := bits.Div64(high, low, pricedTokens)
	return int64(min(quotient, uint64(CostMax)))
}

// ParsePrice returns the micros of a price in units of the currency, such as 0.15.
func ParsePrice(units float64) (int64, error) {
	return actor.ParseMicros(units, PriceMax, "a price for a million tokens")
}
