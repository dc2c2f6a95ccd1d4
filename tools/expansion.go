// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of the validation of a declared tool's input, which runs within a step of a cell.
// The number of pairs of a subschema and a value that it compares is at most validationMax.
const (
	SubschemasMax  = 1000 // of an input schema whose references are expanded
	InputValuesMax = 4096 // JSON values of the input; fewer for a schema of more than 128 subschemas
	validationMax  = 1 << 19
	constantsMax   = 8192 // entries of enum and required of the expanded schema
)

// expansion counts the subschemas of a schema as if each reference were replaced by its
// target, because each of them is validated.
type expansion struct {
	subschemas int
	constants  int
	steps      int                         // of patterns
	open       map[*jsonschema.Schema]bool // subschemas that contain the current one
}

// bound sets the bound of the input. It returns an error if the validation of the input
// would not be bounded.
func (s *schema) bound() error {
	e := expansion{open: map[*jsonschema.Schema]bool{}}
	if err := e.add(s.Schema); err != nil {
		return err
	}
	s.valuesMax = min(InputValuesMax, validationMax/e.subschemas)
	s.bytesMax = min(InputBytesMax, matchMax/max(e.steps, 1))
	return nil
}

func (e *expansion) add(s *jsonschema.Schema) error {
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return fmt.Errorf("$dynamicRef and $recursiveRef are not allowed; use $ref")
	}
	if e.open[s] {
		return fmt.Errorf("a $ref leads back to the subschema that contains it; recursion is not allowed")
	}
	e.subschemas++
	e.constants += len(s.Required)
	for _, name := range slices.Sorted(maps.Keys(s.DependentRequired)) {
		e.constants += len(s.DependentRequired[name])
	}
	if s.Enum != nil {
		e.constants += len(s.Enum.Values)
	}
	e.steps += stepsOfSchema(s)
	switch {
	case e.subschemas > SubschemasMax:
		return fmt.Errorf("more than %d subschemas, counted with every $ref replaced by its target", SubschemasMax)
	case e.constants > constantsMax:
		return fmt.Errorf("more than %d entries of enum and required, counted with every $ref replaced by its target", constantsMax)
	}
	if e.steps > PatternStepsMax {
		return fmt.Errorf("patterns with more than %d instructions, counted with every {n,m} written out and every $ref replaced by its target", PatternStepsMax)
	}
	e.open[s] = true
	defer delete(e.open, s)
	for _, child := range children(s) {
		if err := e.add(child); err != nil {
			return err
		}
	}
	return nil
}

// stepsOfSchema returns the instructions of the patterns of a schema without its subschemas.
func stepsOfSchema(s *jsonschema.Schema) (steps int) {
	if p, ok := s.Pattern.(*pattern); ok {
		steps = p.steps
	}
	for _, p := range namePatterns(s) {
		steps += p.(*pattern).steps
	}
	return steps
}

// namePatterns returns the patterns of names of properties.
func namePatterns(s *jsonschema.Schema) []jsonschema.Regexp {
	return slices.SortedFunc(maps.Keys(s.PatternProperties), func(a, b jsonschema.Regexp) int { return strings.Compare(a.String(), b.String()) })
}

// children returns the subschemas of a schema and the target of its reference.
func children(s *jsonschema.Schema) []*jsonschema.Schema {
	all := []*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else, s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020,
		s.UnevaluatedItems, s.ContentSchema}
	all = slices.Concat(all, s.AllOf, s.AnyOf, s.OneOf, s.PrefixItems)
	for _, named := range [...]map[string]*jsonschema.Schema{s.Properties, s.DependentSchemas} {
		for _, name := range slices.Sorted(maps.Keys(named)) {
			all = append(all, named[name])
		}
	}
	for _, p := range namePatterns(s) {
		all = append(all, s.PatternProperties[p])
	}
	for _, name := range slices.Sorted(maps.Keys(s.Dependencies)) {
		if child, ok := s.Dependencies[name].(*jsonschema.Schema); ok {
			all = append(all, child)
		}
	}
	for _, keyword := range [...]any{s.Items, s.AdditionalItems, s.AdditionalProperties} {
		switch v := keyword.(type) {
		case *jsonschema.Schema:
			all = append(all, v)
		case []*jsonschema.Schema:
			all = append(all, v...)
		}
	}
	return slices.DeleteFunc(all, func(child *jsonschema.Schema) bool { return child == nil })
}

// moreValues reports whether JSON has more than limit values. It reads no further, and not
// beyond a syntax error.
func moreValues(b []byte, limit int) bool {
	d := jsontext.NewDecoder(bytes.NewReader(b))
	for n := 0; ; {
		token, err := d.ReadToken()
		if err != nil {
			return false
		}
		switch kind, entries := d.StackIndex(d.StackDepth()); {
		case token.Kind() == '}' || token.Kind() == ']':
		case token.Kind() == '"' && kind == '{' && entries%2 == 1: // a name
		default:
			n++
		}
		if n > limit {
			return true
		}
	}
}
