// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/tools"
)

// listed returns n texts joined by commas.
func listed(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(format, "#", fmt.Sprint(i))
	}
	return strings.Join(all, ",")
}

// schemaOfList returns the schema of an object whose member a is a list of items.
func schemaOfList(items string) string {
	return `{"type":"object","properties":{"a":{"type":"array","items":` + items + `}}}`
}

// doubling returns a schema whose validation takes 2^n steps.
func doubling(n int) string {
	var defs strings.Builder
	for i := range n {
		fmt.Fprintf(&defs, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	return fmt.Sprintf(`{"type":"object","properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{%s"d%d":{"type":"string"}}}`, defs.String(), n)
}

func TestUnboundedSchemasAreRefused(t *testing.T) {
	recursion := "a $ref leads back to the subschema that contains it; recursion is not allowed"
	expanded := "more than 1000 subschemas, counted with every $ref replaced by its target"
	entries := "more than 8192 entries of enum and required"
	for name, c := range map[string]struct{ schema, want string }{
		"recursive anyOf":   {`{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/n"}},{"type":"array","items":{"$ref":"#/$defs/n"}}]}}}`, recursion},
		"recursive root":    {`{"type":"object","properties":{"a":{"$ref":"#"}}}`, recursion},
		"recursive pattern": {`{"type":"object","patternProperties":{"a":{"$ref":"#"}}}`, recursion},
		"recursive draft 7": {`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","dependencies":{"a":{"$ref":"#"}}}`, recursion},
		"dynamic":           {`{"type":"object","properties":{"a":{"$dynamicRef":"#x"}},"$defs":{"n":{"$dynamicAnchor":"x"}}}`, "$dynamicRef and $recursiveRef are not allowed; use $ref"},
		"metaschema":        {`{"type":"object","properties":{"a":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`, "$dynamicRef"},
		"40 doublings":      {doubling(40), expanded},
		"7 doublings":       {doubling(7), ""},
		"999 alternatives":  {schemaOfList(`{"anyOf":[` + listed(997, `{"const":#}`) + `]}`), ""},
		"1000 alternatives": {schemaOfList(`{"anyOf":[` + listed(998, `{"const":#}`) + `]}`), expanded},
		"unused recursion":  {`{"type":"object","$defs":{"n":{"items":{"$ref":"#/$defs/n"}}}}`, ""},
		"large enum":        {schemaOfList(`{"enum":[` + listed(4500, `#`) + `]}`), ""},
		"repeated enum":     {`{"type":"object","properties":{"a":{"$ref":"#d"},"b":{"$ref":"#d"}},"$defs":{"d":{"$anchor":"d","enum":[` + listed(4500, `#`) + `]}}}`, entries},
	} {
		d := tools.Declared{Name: "a", URL: "http://h", InputSchema: []byte(c.schema)}
		_, registered := tools.NewRegistry().With([]tools.Declared{d}, nil)
		for _, err := range []error{d.Check(), registered} {
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", name, err, c.want)
			}
		}
	}
}

// TestValidationIsBounded bounds the memory that the validation of one input allocates. The
// garbage of the validator is proportional to its steps.
func TestValidationIsBounded(t *testing.T) {
	const allocatedMax = 256 << 20
	thirty := schemaOfList(`{"anyOf":[` + listed(30, `{"const":"c#"}`) + `]}`)
	hundreds := schemaOfList(`{"anyOf":[` + listed(997, `{"const":"c#"}`) + `]}`)
	enum := schemaOfList(`{"enum":[` + listed(4500, `"e#"`) + `]}`)
	for name, c := range map[string]struct{ schema, input, want string }{
		"300,000 numbers":  {thirty, `{"a":[` + listed(300_000, `1`) + `]}`, "a: more than 4096 JSON values; send fewer at once"},
		"100,000 in enum":  {enum, `{"a":[` + listed(100_000, `1`) + `]}`, "a: more than 4096 JSON values"},
		"4,097 values":     {thirty, `{"a":[` + listed(4095, `1`) + `]}`, "a: more than 4096 JSON values"},
		"4,097 members":    {`{"type":"object"}`, `{` + listed(4096, `"m#":"x"`) + `}`, "a: more than 4096 JSON values"},
		"4,096 members":    {`{"type":"object"}`, `{` + listed(4095, `"m#":"x"`) + `}`, ""},
		"4,096 values":     {thirty, `{"a":[` + listed(4094, `1`) + `]}`, "a: a/0: want c0; a/0: want c1; "},
		"large schema":     {hundreds, `{"a":[` + listed(524, `1`) + `]}`, "a: more than 524 JSON values"},
		"large schema fit": {hundreds, `{"a":[` + listed(522, `1`) + `]}`, "and 520426 more"},
		"enum":             {enum, `{"a":[` + listed(4094, `1`) + `]}`, "; and 4086 more"},
		"long names":       {schemaOfList(`{"type":"string"}`), `{"a":[` + listed(4094, `1`) + `]}`, "a/0: want string, got number; a/1: want"},
		"deep long names":  {`{"type":"object","additionalProperties":{"items":{"type":"string"}}}`, `{"` + strings.Repeat("k", 900_000) + `":[` + listed(4094, `1`) + `]}`, "kkk…"},
		"long text":        {`{"type":"object"}`, `{"a":"` + strings.Repeat("x", 1_000_000) + `"}`, ""},
		"empty enum match": {enum, `{"a":["e7"]}`, ""},
	} {
		d := tools.Declared{Name: "a", URL: "http://h", InputSchema: []byte(c.schema)}
		r, err := tools.NewRegistry().With([]tools.Declared{d}, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, result := r.Plan(fullContext(), askTool("a", c.input))
		runtime.ReadMemStats(&after)
		t.Logf("%s: %d KiB allocated", name, (after.TotalAlloc-before.TotalAlloc)>>10)
		if n := after.TotalAlloc - before.TotalAlloc; n > allocatedMax {
			t.Errorf("%s: %d MiB allocated, want at most %d", name, n>>20, allocatedMax>>20)
		}
		detail := ""
		if result != nil {
			detail = result.Refusal.Detail
		}
		if !strings.Contains(detail, c.want) || (c.want == "") != (detail == "") || len(detail) > 8*260+100 {
			t.Errorf("%s: got %d bytes: %.600s, want %q", name, len(detail), detail, c.want)
		}
	}
}
