// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"maps"
	"slices"
)

// relaxed removes from a schema the patterns that cannot be checked here, such as patterns with a
// lookahead. It also removes the keywords that would refuse valid input without these patterns. It
// returns the places of both. The server of the tool checks its input itself.
func relaxed(doc any) (unchecked []string) {
	r := &relaxation{expressions: &patterns{known: map[string]*pattern{}}}
	r.relax(doc, "")
	return r.unchecked
}

type relaxation struct {
	expressions *patterns
	unchecked   []string
}

func (r *relaxation) isChecked(pattern, at string) bool {
	_, err := r.expressions.compile(pattern)
	if err != nil {
		r.unchecked = append(r.unchecked, at)
	}
	return err == nil
}

// relax reports whether it has removed something from a schema, or from one of a list.
func (r *relaxation) relax(value any, at string) (removed bool) {
	if list, ok := value.([]any); ok {
		for _, item := range list {
			removed = r.relax(item, at) || removed
		}
		return removed
	}
	schema, ok := value.(map[string]any)
	if !ok {
		return false
	}
	for _, key := range slices.Sorted(maps.Keys(schema)) {
		before := len(r.unchecked)
		place := at + "/" + key
		switch key {
		case "const", "enum", "default", "examples":
		case "pattern":
			if text, ok := schema[key].(string); ok && !r.isChecked(text, place) {
				delete(schema, key)
			}
		case "patternProperties":
			named, _ := schema[key].(map[string]any)
			for _, text := range slices.Sorted(maps.Keys(named)) {
				if !r.isChecked(text, place) {
					without(schema, key, "additionalProperties", "unevaluatedProperties")
					break
				}
				r.relax(named[text], place)
			}
		case "properties", "$defs", "definitions", "dependentSchemas", "dependencies":
			named, _ := schema[key].(map[string]any)
			for _, name := range slices.Sorted(maps.Keys(named)) {
				r.relax(named[name], place+"/"+name)
			}
		default:
			if r.relax(schema[key], place) {
				// These refuse an input because a part of them accepts it.
				switch key {
				case "not", "oneOf":
					without(schema, key, "unevaluatedProperties", "unevaluatedItems")
				case "if":
					without(schema, key, "then", "else", "unevaluatedProperties", "unevaluatedItems")
				case "contains":
					without(schema, key, "minContains", "maxContains", "unevaluatedItems")
				}
			}
		}
		removed = removed || len(r.unchecked) > before
	}
	return removed
}

func without(schema map[string]any, keys ...string) {
	for _, key := range keys {
		delete(schema, key)
	}
}
