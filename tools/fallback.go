// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// FallBack returns the refusal of a call that is known not to have been performed. If it is one of a tool that is
// not available, it names the tool that can be called in its place.
func (d *Declared) FallBack(r *actor.Refusal) *actor.Refusal {
	if d.Fallback == "" || r == nil || r.Reason != actor.Unavailable && r.Reason != actor.NoDevice && (r.Reason != actor.Busy || r.Scope != actor.ScopeCallee) {
		return r
	}
	named := *r
	named.Field = actor.FallbackField + d.Fallback
	return &named
}

// CanStandIn reports whether a tool can be called in place of another one. Tools of this program cannot: an agent has
// them only if its definition says so.
func CanStandIn(name string) bool { return checkStandIn(name) == nil }

func checkStandIn(name string) error {
	if IsSession(name) || IsMemory(name) || IsBuiltin(name) {
		return fmt.Errorf("%s is a tool of this program, which stands in for no other", name)
	}
	return checkDeclaredName(name)
}

// inputShape is what CheckFallback compares of a schema.
type inputShape struct {
	Properties map[string]jsontext.Value `json:"properties"`
	Required   []string                  `json:"required"`
	Additional jsontext.Value            `json:"additionalProperties"`
}

func shapeOf(schema string) (s inputShape) {
	_ = json.Unmarshal([]byte(schema), &s) // it was compiled
	return s
}

// typeOf returns the type that a schema names; "" if it names none or several.
func typeOf(schema jsontext.Value) string {
	var s struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(schema, &s)
	return s.Type
}

// CheckFallback returns an error if the other tool refuses arguments that the tool accepts, because of their names
// or types at the top. Other rules of its schema are checked when it is called.
func (d *Declared) CheckFallback(other *Tool) error {
	from, to := shapeOf(string(d.InputSchema)), shapeOf(other.Schema)
	for _, name := range to.Required {
		if !slices.Contains(from.Required, name) {
			return fmt.Errorf("%s requires the argument %.80q, which this tool does not", other.Name, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(from.Properties)) {
		schema, known := to.Properties[name]
		have, want := typeOf(from.Properties[name]), typeOf(schema)
		switch {
		case !known && string(to.Additional) == "false":
			return fmt.Errorf("%s does not know the argument %.80q", other.Name, name)
		case have != "" && want != "" && have != want && !(have == "integer" && want == "number"):
			return fmt.Errorf("the argument %.80q is of type %s here, and %s takes %s", name, have, other.Name, want)
		}
	}
	return nil
}
