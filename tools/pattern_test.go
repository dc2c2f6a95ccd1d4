// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"fmt"
	"os"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/tools"
)

// patternSchema returns the schema of an object whose member a matches a pattern.
func patternSchema(pattern string) string {
	return fmt.Sprintf(`{"type":"object","properties":{"a":{"type":"string","pattern":%q}}}`, pattern)
}

// A schema is refused before its patterns take the memory of their instructions.
func TestPatternsAreBounded(t *testing.T) {
	const allocatedMax = 32 << 20
	instructions := "more than 8192 instructions"
	heavy := `{"pattern":"^a{1,1000}b{1,1000}#$"}`
	for name, c := range map[string]struct{ schema, want string }{
		"300 repeats":      {`{"type":"object","properties":{` + listed(300, `"p#":`+heavy) + `}}`, instructions},
		"300 names":        {`{"type":"object","patternProperties":{` + listed(300, `"^a{1,1000}#$":{}`) + `}}`, instructions},
		"draft 7":          {`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{` + listed(300, `"p#":`+heavy) + `}}`, instructions},
		"same in two refs": {`{"type":"object","properties":{` + strings.ReplaceAll(listed(9, `"p#":{"$ref":"ROOT/$defs/d"}`), "ROOT", "#") + `},"$defs":{"d":{"pattern":"^[a-z]{1,500}$"}}}`, "and every $ref replaced by its target"},
		"nested repeats":   {patternSchema(strings.Repeat("((a{20}){20}b|c){2}", 12)), instructions},
		"long":             {patternSchema(strings.Repeat("a", 4097)), `pattern "aaa`},
		"many classes":     {patternSchema(strings.Repeat(`\pL`, 1300)), instructions},
		"not a pattern":    {patternSchema("a("), "missing closing )"},
		"one repeat":       {patternSchema("^[a-z0-9._-]{1,255}$"), ""},
		"1000":             {patternSchema("^a{1,1000}$"), ""},
		"names":            {patternSchema(`^[\pL\pN' -]{1,64}$`), ""},
		"100 same":         {`{"type":"object","properties":{` + listed(100, `"p#":{"pattern":"^[0-9a-f]{8}-[0-9a-f]{4}$"}`) + `}}`, ""},
	} {
		d := tools.Declared{Name: "a", URL: "http://h", InputSchema: []byte(c.schema)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := d.Check()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > allocatedMax {
			t.Errorf("%s: %d MiB allocated, want at most %d", name, n>>20, allocatedMax>>20)
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// The counted instructions are no fewer than half of the compiled ones.
func TestPatternsAreCounted(t *testing.T) {
	for _, p := range []string{"a", "", "^a{1,1000}$", "(a|bc|d*)+?", "((ab?){3,9}){20,}", `[\pL\pN]{4}\w+\s*\b`, "(?i)grüße{5}", "(x{2}){2,3}(y{0,7}|z){11}"} {
		prog, err := syntax.Compile(mustParse(t, p))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := tools.StepsOf(p); err != nil || 2*n < len(prog.Inst) || n > 4*len(prog.Inst)+300 { // ranges of classes count too
			t.Errorf("%s: counted %d (%v), compiled %d", p, n, err, len(prog.Inst))
		}
	}
}

func mustParse(t *testing.T, text string) *syntax.Regexp {
	t.Helper()
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	return re.Simplify()
}

// Input is the smaller the more instructions the patterns have. A string with the format regex is
// parsed, not compiled.
func TestMatchingIsBounded(t *testing.T) {
	plan := func(schema, input string) string {
		r, err := tools.NewRegistry().With([]tools.Declared{{Name: "a", URL: "http://h", InputSchema: []byte(schema)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, result := r.Plan(fullContext(), askTool("a", input)); result != nil {
			return result.Refusal.Detail
		}
		return ""
	}
	text := func(n int) string { return `{"a":"` + strings.Repeat("a", n) + `"}` }
	if got := plan(patternSchema("^a*$"), text(1_000_000)); got != "" {
		t.Errorf("a short pattern: %s", got)
	}
	if got := plan(patternSchema("^a{1,1000}$"), text(100_000)); !strings.Contains(got, "exceed the maximum of 66") || !strings.Contains(got, "which the patterns of the schema leave") {
		t.Errorf("a long pattern and 100 kB: %.200s", got)
	}
	if got := plan(patternSchema("^a{1,1000}$"), text(999)); got != "" {
		t.Errorf("a long pattern: %s", got)
	}
	format := `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"format":"regex"}}}`
	if got := plan(format, `{"a":"((a{30}){30}b|c)(x{1000}){1}"}`); got != "" {
		t.Errorf("a regular expression: %s", got)
	}
	if got := plan(format, `{"a":"a("}`); !strings.Contains(got, "a: violates format") {
		t.Errorf("no regular expression: %q", got)
	}
}

// The page has the bounds.
func TestLimitsPageListsBoundsOfSchemas(t *testing.T) {
	page, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	for what, bound := range map[string]int{"bytes of a schema": tools.SchemaBytesMax, "subschemas, with every `$ref` replaced by its target": tools.SubschemasMax,
		"bytes of a pattern (`pattern`, and names of `patternProperties`)":              tools.PatternBytesMax,
		"instructions of all patterns, likewise, with every repeat `{n,m}` written out": tools.PatternStepsMax} {
		if row := fmt.Sprintf("| %s | %d |", what, bound); !strings.Contains(string(page), row) {
			t.Errorf("docs/limits.md lacks the row %s", row)
		}
	}
}
