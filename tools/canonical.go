// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// canonical returns input in the form of RFC 8785, in which equal inputs have equal bytes: the
// approved bytes are sent. That form has only numbers that a float64
// represents exactly as written. Others are refused, because they would change.
func canonical(tool string, input []byte) ([]byte, *actor.Refusal) {
	d := jsontext.NewDecoder(bytes.NewReader(input))
	for {
		token, err := d.ReadToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, invalid(tool, "", "want valid JSON")
		}
		if token.Kind() == '0' && !exact(token.String()) {
			refusal := invalid(tool, "", fmt.Sprintf("the number %.40s would change, because it has more digits than a float64 or is out of its range; send it as a string", token.String()))
			refusal.Field = strings.TrimPrefix(string(d.StackPointer()), "/")
			return nil, refusal
		}
	}
	out := jsontext.Value(bytes.Clone(input))
	if err := out.Canonicalize(); err != nil {
		return nil, invalid(tool, "", "want valid JSON")
	}
	return out, nil
}

// exact reports whether the shortest form of the float64 nearest to a JSON number has the
// same digits and exponent.
func exact(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return false
	}
	digits, exponent := decimal(number)
	shortest, of := decimal(strconv.FormatFloat(f, 'e', -1, 64))
	return digits == shortest && exponent == of
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
