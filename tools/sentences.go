// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Sentences are what a schema says in x-error-message about violations at its properties, for those who read
// no schemas.
type Sentences []sentence

type sentence struct{ field, text string }

// sentenceBytesMax is the maximum length of a sentence; a longer one is cut.
const sentenceBytesMax = 256

// ReadHints returns the required members of an object schema, and the sentences of its properties.
func ReadHints(schema string) (required []string, all Sentences) {
	var walk func(v jsontext.Value, path string) []string
	walk = func(v jsontext.Value, path string) []string {
		var p struct {
			Sentence   string                    `json:"x-error-message"`
			Required   []string                  `json:"required"`
			Properties map[string]jsontext.Value `json:"properties"`
		}
		if json.Unmarshal(v, &p) != nil {
			return nil
		}
		if p.Sentence != "" && path != "" {
			all = append(all, sentence{path, actor.FitText(p.Sentence, sentenceBytesMax)})
		}
		for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
			walk(p.Properties[name], strings.TrimPrefix(path+"/"+name, "/"))
		}
		return p.Required
	}
	return walk(jsontext.Value(schema), ""), all
}

// For returns the sentence for violations at a field or within it, or "".
func (all Sentences) For(field string) string {
	for _, s := range all {
		if field == s.field || strings.HasPrefix(field, s.field+"/") {
			return s.text
		}
	}
	return ""
}

// InputSentence returns the sentence that the schema of a capability has about inputs that request_capability has
// refused, or "". Other refusals begin with the code.
func InputSentence(code string, r *actor.Refusal) string {
	if !strings.HasPrefix(r.Field, inputsField) || strings.HasPrefix(r.Detail, code+": ") {
		return ""
	}
	return r.Detail
}

const inputsField = "inputs_json/"
