// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"math"
	"strings"
)

// MoneyMax is the largest amount that ParseMoney reads, in micros.
const MoneyMax = Micro * 1_000_000_000

// ParseMoney returns the micros of an amount in units of the currency, such as 2.50.
func ParseMoney(units float64) (int64, error) { return ParseMicros(units, MoneyMax, "an amount") }

// ParseMicros returns the micros of a number of units, at most most. The argument what names it in errors.
func ParseMicros(units float64, most int64, what string) (int64, error) {
	const rounding = 1e-3 // of a micro: more than the error of a float64
	switch n := math.Round(units * Micro); {
	case !(units >= 0 && units <= float64(most/Micro)):
		return 0, fmt.Errorf("got %v, want %s from 0 to %d", units, what, most/Micro)
	case math.Abs(n-units*Micro) > max(rounding, n*1e-12):
		return 0, fmt.Errorf("got %v, want at most 6 decimals", units)
	default:
		return int64(n), nil
	}
}

// ShowMoney returns an amount in units of the currency, such as 2.50 or 0.000125.
func ShowMoney(micros int64) string {
	sign := ""
	if micros < 0 {
		sign, micros = "-", -micros
	}
	text := strings.TrimRight(fmt.Sprintf("%06d", micros%Micro), "0")
	for len(text) < 2 {
		text += "0"
	}
	return fmt.Sprintf("%s%d.%s", sign, micros/Micro, text)
}
