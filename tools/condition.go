// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/runs"
)

// Operators of conditions. An operator that begins with another one, as <= with <, MUST come before
// it.
var operators = []string{"==", "!=", "<=", ">=", "<", ">", "in", "matches"}

// condition is a comparison of an argument of a call with a constant, such as
// args.amount > 100.
//
// A comparison is undetermined if
//
//   - the argument is missing,
//   - it has another type than the constant, or than each constant of a list,
//   - it is a text that is too long to be matched, or
//   - the name of another argument looks like its name.
//
// An undetermined comparison is true in a rule that blocks a call or requires
// approval, and false in a rule that allows it. So a call cannot avoid a rule with an argument that
// is not comparable.
type condition struct {
	path     []string
	operator string
	constant any // a list for in, a text for matches
	pattern  *regexp.Regexp
}

// arguments decodes the arguments of a call at their first use.
type arguments struct {
	input   []byte
	decoded bool
	value   any
}

// parseCondition parses args.path OPERATOR CONSTANT.
func parseCondition(text string) (*condition, error) {
	const want = `want a comparison like args.amount > 100`
	if len(text) > whenBytesMax {
		return nil, fmt.Errorf("%d bytes, at most %d allowed", len(text), whenBytesMax)
	}
	rest, ok := strings.CutPrefix(strings.TrimSpace(text), "args.")
	if !ok {
		return nil, fmt.Errorf("%s, got %.80q", want, text)
	}
	end := strings.IndexAny(rest, " \t<>=!")
	if end < 0 {
		return nil, fmt.Errorf("%s; the operator is missing in %.80q", want, text)
	}
	c := &condition{path: strings.Split(rest[:end], ".")}
	for _, name := range c.path {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r > 0x7f || !isNameByte(byte(r)) }) {
			return nil, fmt.Errorf("args.%.80s: want names of letters, digits, '_' and '-', separated by dots", rest[:end])
		}
	}
	if len(c.path) > DepthMax {
		return nil, fmt.Errorf("a path of %d names, at most %d allowed", len(c.path), DepthMax)
	}
	rest = strings.TrimSpace(rest[end:])
	i := slices.IndexFunc(operators, func(operator string) bool { return strings.HasPrefix(rest, operator) })
	if i < 0 {
		return nil, fmt.Errorf("want one of the operators %s, got %.40q", strings.Join(operators, " "), rest)
	}
	c.operator = operators[i]
	rest = strings.TrimSpace(rest[len(c.operator):])
	constant, p := parse([]byte(rest))
	if p != nil {
		return nil, fmt.Errorf(`want a constant in JSON after %s, such as 100, "text" or true: %s`, c.operator, p)
	}
	c.constant = constant
	return c, c.checkConstant()
}

// checkConstant returns an error unless the operator accepts the constant.
func (c *condition) checkConstant() (err error) {
	scalar := func(v any) bool {
		switch v.(type) {
		case []any, map[string]any:
			return false
		}
		return true
	}
	switch constant := c.constant.(type) {
	case []any:
		if c.operator != "in" || !slices.ContainsFunc(constant, scalar) || slices.ContainsFunc(constant, func(v any) bool { return !scalar(v) }) {
			return fmt.Errorf(`want a list of numbers, texts, true, false and null after in, and no list after another operator`)
		}
	case string:
		switch c.operator {
		case "matches":
			if c.pattern, err = regexp.Compile(constant); err != nil {
				return fmt.Errorf("want a regular expression after matches: %.200w", err)
			}
		case "in":
			return fmt.Errorf(`want a list after in, like ["a", "b"]`)
		}
	default:
		switch {
		case c.operator == "in":
			return fmt.Errorf(`want a list after in, like ["a", "b"]`)
		case c.operator == "matches":
			return fmt.Errorf(`want a regular expression in quotes after matches, like "^prod-"`)
		case !scalar(constant):
			return fmt.Errorf("want a number, a text, true, false or null after %s", c.operator)
		case !isNumber(constant) && c.operator != "==" && c.operator != "!=":
			return fmt.Errorf("want a number or a text after %s", c.operator)
		}
	}
	return nil
}

// holds reports whether the condition holds in a rule with the given decision.
func (c *condition) holds(args *arguments, decision runs.Decision) bool {
	if value, found := args.at(c.path); found {
		if result, determined := c.compare(value); determined {
			return result
		}
	}
	return decision != runs.Allow
}

// compare returns the result of the comparison with a value, and false if it is
// undetermined. Numbers are compared by their digits.
func (c *condition) compare(value any) (result, determined bool) {
	switch c.operator {
	case "in":
		for _, constant := range c.constant.([]any) {
			result = result || sameScalar(constant, value)
			determined = determined || sameType(constant, value)
		}
		return result, determined
	case "matches":
		text, ok := value.(string)
		if !ok || len(text) > matchBytesMax {
			return false, false
		}
		return c.pattern.MatchString(text), true
	case "==", "!=":
		return sameScalar(c.constant, value) == (c.operator == "=="), c.constant == nil || sameType(c.constant, value)
	}
	if !sameType(c.constant, value) {
		return false, false
	}
	var order int
	if constant, ok := c.constant.(string); ok {
		order = strings.Compare(value.(string), constant)
	} else {
		order = compareNumbers(value, c.constant)
	}
	switch c.operator {
	case "<":
		return order < 0, true
	case "<=":
		return order <= 0, true
	case ">":
		return order > 0, true
	default:
		return order >= 0, true
	}
}

// sameType reports whether a value has the type of a constant.
func sameType(constant, value any) (same bool) {
	switch constant.(type) {
	case nil:
		return value == nil
	case bool:
		_, same = value.(bool)
	case float64, json.Number:
		same = isNumber(value)
	case string:
		_, same = value.(string)
	}
	return same
}

// sameScalar reports whether two values are equal and neither a list nor an object.
func sameScalar(a, b any) bool {
	switch a := a.(type) {
	case nil:
		return b == nil
	case bool:
		other, ok := b.(bool)
		return ok && a == other
	case float64, json.Number:
		return isNumber(b) && compareNumbers(a, b) == 0
	case string:
		other, ok := b.(string)
		return ok && a == other
	}
	return false
}

// at returns the argument at a path. Input that is not valid has no arguments. An argument counts
// as absent if its object has another name that is alike, because a service may read either.
func (a *arguments) at(path []string) (any, bool) {
	if !a.decoded {
		a.decoded = true
		if value, p := parse(a.input); p == nil {
			a.value = value
		}
	}
	value := a.value
	for _, name := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = object[name]; !ok {
			return nil, false
		}
		if len(object) > 1 && slices.ContainsFunc(slices.Sorted(maps.Keys(object)), func(other string) bool { return other != name && alike(other, name) }) {
			return nil, false
		}
	}
	return value, true
}

// alike reports whether two names differ in case, '_' and '-' only. Decoders of JSON take one for
// the other: that of Go ignores case, and that of Protocol Buffers reads userId as user_id.
func alike(a, b string) bool {
	return strings.EqualFold(nameSeparators.Replace(a), nameSeparators.Replace(b))
}

var nameSeparators = strings.NewReplacer("_", "", "-", "")
