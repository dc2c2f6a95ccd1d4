// SPDX-License-Identifier: Apache-2.0

package tools

import "github.com/troupe-run/troupe/actor"

// ObjectSchema is a compiled schema of objects that are no input of a tool. It has the bounds of the
// schemas of tools.
type ObjectSchema struct{ tool Tool }

// NewObjectSchema compiles the JSON Schema of an object. Name begins the refusals of Check. A
// schema that refers to itself is refused, because its values have no bound.
func NewObjectSchema(name, text string) (*ObjectSchema, error) {
	_, s, err := compileInput(text, false)
	if err != nil {
		return nil, err
	}
	return &ObjectSchema{Tool{Name: name, Schema: text, schema: s}}, nil
}

// Check refuses an object that violates the schema. The refusal names the field.
func (s *ObjectSchema) Check(object []byte) *actor.Refusal { return s.tool.validate(object) }
