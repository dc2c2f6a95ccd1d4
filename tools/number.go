// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// numberBytesMax is the maximum length of a fraction that is compared digit by digit. No condition
// is longer, so all constants are compared in this way.
const numberBytesMax = whenBytesMax

// readNumber returns the value of a number in JSON: a float64 that has the digits as written, else a
// json.Number with them. Whole numbers have at most 309 digits, because others are out of range.
func readNumber(text string) (any, error) {
	f, err := strconv.ParseFloat(text, 64)
	digits, exponent := decimal(text)
	switch {
	case err != nil || math.IsInf(f, 0) || f == 0 && digits != "":
		return nil, fmt.Errorf("%.40s is out of the range of a float", text)
	case isExact(f, text, digits, exponent):
		return f, nil
	}
	if whole, ok := wholeDigits(text, digits, exponent); ok {
		return json.Number(whole), nil
	}
	if len(text) <= numberBytesMax {
		return json.Number(text), nil
	}
	return f, nil
}

// isExact reports whether the shortest form of the float64 nearest to a number has its digits.
func isExact(f float64, text, digits string, exponent int64) bool {
	if len(text) <= 15 && !strings.ContainsAny(text, "eE") { // as many as each float64 keeps
		return true
	}
	shortest, of := decimal(strconv.FormatFloat(f, 'e', -1, 64))
	return digits == shortest && exponent == of
}

// wholeDigits returns a whole number without exponent and fraction, or false for another one.
func wholeDigits(text, digits string, exponent int64) (string, bool) {
	zeros := int(exponent) + 1 - len(digits)
	if zeros < 0 {
		return "", false
	}
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign = "-"
	}
	return sign + digits + strings.Repeat("0", zeros), true
}

// decimal returns the significant digits of a number without leading and trailing zeros,
// and the power of ten of the first one.
func decimal(number string) (digits string, exponent int64) {
	number = strings.TrimPrefix(number, "-")
	mantissa, power, _ := strings.Cut(strings.ToLower(number), "e")
	if power != "" {
		exponent, _ = strconv.ParseInt(power, 10, 32) // out of range only if ParseFloat fails or the number is 0
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits = whole + fraction
	exponent += int64(len(whole)) - 1
	trimmed := strings.TrimLeft(digits, "0")
	exponent -= int64(len(digits) - len(trimmed))
	if trimmed = strings.TrimRight(trimmed, "0"); trimmed == "" {
		return "", 0
	}
	return trimmed, exponent
}

func isNumber(value any) bool {
	switch value.(type) {
	case float64, json.Number:
		return true
	}
	return false
}

// compareNumbers compares two results of readNumber by their digits.
func compareNumbers(a, b any) int {
	if x, ok := a.(float64); ok {
		if y, ok := b.(float64); ok {
			return cmp.Compare(x, y)
		}
	}
	return ratOf(a).Cmp(ratOf(b))
}

func ratOf(number any) *big.Rat {
	text := fmt.Sprint(number)
	if f, ok := number.(float64); ok {
		text = strconv.FormatFloat(f, 'e', -1, 64)
	}
	r, _ := new(big.Rat).SetString(text)
	return r
}
