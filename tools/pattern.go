// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of the regular expressions in a schema: of the memory that they take, and of the time of
// matching the input of a declared tool, which is at most matchMax steps.
const (
	PatternBytesMax = 4096 // of one pattern
	PatternStepsMax = 8192 // instructions of all patterns
	matchMax        = 1 << 27
)

// classRanges is the number of ranges of characters that count as an instruction.
const classRanges = 16

// pattern is a compiled regular expression.
type pattern struct {
	*regexp.Regexp
	steps int // about the number of its instructions
}

// patterns compiles the regular expressions of one schema, each once.
type patterns struct {
	known  map[string]*pattern // nil once the schema is compiled
	steps  int
	failed error // the first one
}

// compile implements jsonschema.RegexpEngine. Once the schema is compiled it only checks the
// syntax, which the format regex asks for.
func (p *patterns) compile(text string) (jsonschema.Regexp, error) {
	if found := p.known[text]; found != nil {
		return found, nil
	}
	steps, err := stepsOf(text)
	switch {
	case err != nil:
	case p.known == nil:
		return nil, nil
	case steps > PatternStepsMax-p.steps:
		err = fmt.Errorf("pattern %.40q: the patterns of a schema have more than %d instructions, counted with every {n,m} written out; use shorter repeats, or maxLength",
			text, PatternStepsMax)
	}
	made := &pattern{steps: steps}
	if err == nil {
		made.Regexp, err = regexp.Compile(text)
	}
	if err != nil {
		if p.known != nil && p.failed == nil {
			p.failed = err
		}
		return nil, err
	}
	p.known[text], p.steps = made, p.steps+steps
	return made, nil
}

// stepsOf returns about the number of instructions that a pattern compiles to. It does not
// compile it, which would take memory for each of them.
func stepsOf(text string) (int, error) {
	if len(text) > PatternBytesMax {
		return 0, fmt.Errorf("pattern %.40q: %d bytes exceed the maximum of %d", text, len(text), PatternBytesMax)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0, fmt.Errorf("pattern %.40q: %w", text, err)
	}
	return 2 + stepsOfNode(parsed), nil
}

// stepsOfNode recurses to the depth that the parser allows.
func stepsOfNode(re *syntax.Regexp) int {
	steps := 0
	for _, sub := range re.Sub {
		steps = min(steps+stepsOfNode(sub), math.MaxInt32)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpCharClass:
		return 1 + len(re.Rune)/2/classRanges
	case syntax.OpCapture:
		return steps + 2
	case syntax.OpAlternate:
		return steps + len(re.Sub)
	case syntax.OpRepeat:
		return min((steps+1)*max(re.Min+1, re.Max), math.MaxInt32)
	default:
		return steps + 1
	}
}
