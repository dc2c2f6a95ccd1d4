// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// canonical returns input in a form in which equal inputs have equal bytes. So the bytes that are sent are
// those that were approved. The form is that of RFC 8785, except that a whole number keeps its digits and
// is not rounded to a float64. A fraction with more digits than a float64 is refused, because different
// receivers would read different values.
func canonical(tool string, input []byte) ([]byte, *actor.Refusal) {
	d := jsontext.NewDecoder(bytes.NewReader(input))
	var respelt bytes.Buffer
	e := jsontext.NewEncoder(&respelt)
	for {
		token, err := d.ReadToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && token.Kind() == '0' {
			spelling, ok := spellNumber(token.String())
			if !ok {
				refusal := invalid(tool, "", fmt.Sprintf("the number %.40s has more digits than receivers keep, or is out of their range; send it with at most 15 digits, or as a string", token.String()))
				refusal.Field = strings.TrimPrefix(string(d.StackPointer()), "/")
				return nil, refusal
			}
			err = e.WriteValue(jsontext.Value(spelling))
		} else if err == nil {
			err = e.WriteToken(token)
		}
		if err != nil {
			return nil, invalid(tool, "", "want valid JSON")
		}
	}
	out := jsontext.Value(bytes.TrimSpace(respelt.Bytes()))
	if err := out.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return nil, invalid(tool, "", "want valid JSON")
	}
	return out, nil
}

// spellNumber returns the canonical spelling of a number, or false if there is none: that of RFC 8785
// for a float64, and the digits of another whole number.
func spellNumber(text string) (string, bool) {
	number, err := readNumber(text)
	if err != nil {
		return "", false
	}
	digits, exponent := decimal(text)
	f, ok := number.(float64)
	switch {
	case ok && f == 0:
		return "0", true // also for -0
	case ok && isExact(f, text, digits, exponent):
		return jsontext.Float(f).String(), true
	case ok:
		return "", false
	}
	return wholeDigits(text, digits, exponent)
}
