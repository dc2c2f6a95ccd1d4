// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
)

// toolTable is the table of a file that declares a tool.
const toolTable = "tool"

// IsToolTOML reports whether a file declares a tool, and not an agent. A text that is not
// TOML declares none.
func IsToolTOML(text string) bool { return hasTable(text, toolTable) }

// IsServerTOML reports whether a file declares MCP servers. A text that is not TOML declares none.
func IsServerTOML(text string) bool { return hasTable(text, "mcp") }

func hasTable(text, name string) bool {
	if len(text) > SourceBytesMax || findExcessNesting(text, toolNestingMax) >= 0 {
		return false
	}
	var top map[string]toml.Primitive
	_, err := toml.Decode(text, &top)
	_, ok := top[name]
	return err == nil && ok
}

// ReadToolTOML parses the definition of a tool in TOML: the table [tool] with the fields of
// tools.Declared. The error is of type Problems.
func ReadToolTOML(text string) (tools.Declared, error) {
	if err := checkSource(text, toolNestingMax); err != nil {
		return tools.Declared{}, err
	}
	var top map[string]toml.Primitive
	meta, err := toml.Decode(text, &top)
	if err != nil {
		return tools.Declared{}, Problems{problemOfTOML(err)}
	}
	lines := strings.Split(text, "\n")
	var problems Problems
	report := func(m member, field, text string) {
		problems = append(problems, Problem{Line: m.line, Column: m.col, Field: fmt.Sprintf("%.80s", field), Text: text})
	}
	for _, name := range slices.Sorted(maps.Keys(top)) {
		if len(problems) < problemsMax && name != toolTable {
			value, line := decodePrimitive(&meta, top[name])
			report(newMember(lines, name, name, value, line), name, "is unknown in the file of a tool; move it below [tool], or to a file of its own")
		}
	}
	if _, ok := top[toolTable]; !ok {
		return tools.Declared{}, append(problems, Problem{Field: toolTable, Text: "is missing; want a table [tool] with the fields of the tool"})
	}
	fields, positions := map[string]any{}, map[string]member{}
	var sub map[string]toml.Primitive
	value, line := decodePrimitive(&meta, top[toolTable])
	if _, ok := value.(map[string]any); !ok || meta.PrimitiveDecode(top[toolTable], &sub) != nil || len(sub) > membersMax {
		report(newMember(lines, toolTable, toolTable, value, line), toolTable, fmt.Sprintf("want one table [tool] of at most %d fields, got %s", membersMax, describeValue(fieldValue(value))))
		return tools.Declared{}, problems
	}
	for _, name := range slices.Sorted(maps.Keys(sub)) {
		value, line := decodePrimitive(&meta, sub[name])
		positions[name] = newMember(lines, name, name, value, line)
		if what := notJSON(value); what != "" {
			report(positions[name], name, "contains "+what+", which JSON does not have")
			continue
		}
		fields[name] = value
	}
	declared, err := tools.ReadDeclared(invariant.Must(json.Marshal(fields, json.Deterministic(true))))
	var errs tools.FieldErrors
	if errors.As(err, &errs) {
		for _, e := range errs {
			report(positionOf(lines, positions, e.Field), e.Field, e.Text)
		}
	}
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
		return tools.Declared{}, problems
	}
	return declared, nil
}

// positionOf returns the position of a field, which may be a header.
func positionOf(lines []string, positions map[string]member, field string) member {
	name, key, nested := strings.Cut(field, ".")
	at, ok := positions[name]
	if !ok || !nested || at.line == 0 || at.line > len(lines) {
		return at
	}
	for i := at.line - 1; i < len(lines); i++ {
		if strings.Contains(lines[i], key) {
			return newMember(lines, field, key, nil, i+1)
		}
	}
	return at
}

// notJSON returns the description of the first value that JSON cannot hold, or "".
func notJSON(value any) string {
	switch v := value.(type) {
	case string, bool, int64:
		return ""
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
		return ""
	case []any:
		for _, item := range v {
			if what := notJSON(item); what != "" {
				return what
			}
		}
		return ""
	case []map[string]any:
		for _, item := range v {
			if what := notJSON(item); what != "" {
				return what
			}
		}
		return ""
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if what := notJSON(v[key]); what != "" {
				return what
			}
		}
		return ""
	default:
		return "a date or time"
	}
}
