// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Confidence is the confidence of an agent in its result. Higher values are more confident.
type Confidence uint8

// The levels. The zero value is no statement.
const (
	Unstated Confidence = iota
	Speculative
	Low
	Medium
	High
)

var confidenceNames = []string{"", "SPECULATIVE", "LOW", "MEDIUM", "HIGH"}

// String returns the name of the level.
func (c Confidence) String() string { return confidenceNames[min(int(c), len(confidenceNames)-1)] }

// Levels are the least numbers of the levels; a smaller number is Speculative.
type Levels struct{ High, Medium, Low float64 }

// DefaultLevels returns the levels of a configuration without any.
func DefaultLevels() Levels { return Levels{High: 0.8, Medium: 0.5, Low: 0.3} }

// Check returns an error unless the levels descend within 0 and 1.
func (l Levels) Check() error {
	if !(0 < l.Low && l.Low < l.Medium && l.Medium < l.High && l.High <= 1) {
		return fmt.Errorf("levels of confidence %v, %v and %v: want them to descend within 0 and 1", l.High, l.Medium, l.Low)
	}
	return nil
}

// Of returns the level of a number.
func (l Levels) Of(number float64) Confidence {
	switch {
	case number >= l.High:
		return High
	case number >= l.Medium:
		return Medium
	case number >= l.Low:
		return Low
	}
	return Speculative
}

// Number returns a number for a level, for callers that know numbers only.
func (c Confidence) Number() float64 {
	return [...]float64{0, 0.15, 0.4, 0.65, 0.9}[min(int(c), int(High))]
}

// The confidence in an answer that states none: a text, and one that looks like JSON and is not.
const (
	TextConfidence   = 0.5
	BrokenConfidence = 0.3
)

// readConfidence reads a level, or a number from 0 to 1.
func (l Levels) readConfidence(v jsontext.Value) (c Confidence, ok bool) {
	if text, isText := textOf(v); isText {
		i := slices.Index(confidenceNames, strings.ToUpper(strings.TrimSpace(text)))
		return Confidence(max(i, 0)), i > 0
	}
	number, err := strconv.ParseFloat(string(v), 64)
	if err != nil || number < 0 || number > 1 {
		return Unstated, false
	}
	return l.Of(number), true
}
