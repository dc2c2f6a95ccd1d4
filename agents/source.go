// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Problem is one error in a spec.
type Problem struct {
	Line, Column int    // position in a TOML file, from 1; 0 in JSON and for a missing field
	Field        string // path of the field, such as parameters.temperature
	Text         string // description of the error and of valid values
}

// String returns line:column, the field and the text. It omits an unknown position
// or field.
func (p Problem) String() string {
	s := p.Text
	if p.Field != "" {
		s = p.Field + ": " + s
	}
	if p.Line > 0 {
		s = fmt.Sprintf("%d:%d: %s", p.Line, p.Column, s)
	}
	return s
}

// Problems is the error of a spec. It lists all problems in the order of the
// source.
type Problems []Problem

// problemsMax is the maximum number of problems in a report.
const problemsMax = 20

// Error returns one problem per line.
func (p Problems) Error() string {
	var lines []string
	for _, problem := range p {
		lines = append(lines, problem.String())
	}
	return strings.Join(lines, "\n")
}

// member is one value in a source. The value has one of the types string, bool,
// int64, float64, []any, emptyTable and unsupported.
type member struct {
	path  string
	value any
	line  int
	col   int
}

// unsupported describes a value of a type that no field accepts.
type unsupported string

// ReadTOML parses a spec in TOML. The error is of type Problems.
func ReadTOML(text string) (Spec, error) {
	if err := checkSource(text, nestingMax); err != nil {
		return Spec{}, err
	}
	members, err := tomlMembers(text)
	if err != nil {
		return Spec{}, Problems{problemOfTOML(err)}
	}
	for _, m := range members {
		if m.path == sealedField || m.path == detailsField {
			return Spec{}, Problems{{Line: m.line, Column: m.col, Field: m.path, Text: "is set by the server; remove it"}}
		}
	}
	return newSpecOf(members)
}

// checkSource returns an error if a file is too large, or nests too deeply to be parsed.
func checkSource(text string, levels int) error {
	if len(text) > SourceBytesMax {
		return Problems{{Text: fmt.Sprintf("the file has %d bytes, at most %d allowed", len(text), SourceBytesMax)}}
	}
	if at := findExcessNesting(text, levels); at >= 0 {
		line := strings.Count(text[:at], "\n") + 1
		column := utf8.RuneCountInString(text[strings.LastIndexByte(text[:at], '\n')+1:at]) + 1
		return Problems{{Line: line, Column: column, Text: fmt.Sprintf("nests deeper than %d levels", levels)}}
	}
	return nil
}

// ReadJSON parses a spec encoded by Encode, also by an earlier version. The error is of
// type Problems.
func ReadJSON(b []byte) (Spec, error) { return readJSON(b, specOf) }

// readNewJSON parses a spec sent by a client. The error is of type Problems.
func readNewJSON(b []byte) (Spec, error) { return readJSON(b, newSpecOf) }

func readJSON(b []byte, specOf func([]member) (Spec, error)) (Spec, error) {
	if len(b) > SourceBytesMax {
		return Spec{}, Problems{{Text: fmt.Sprintf("%d bytes, at most %d allowed", len(b), SourceBytesMax)}}
	}
	members, err := jsonMembers("", b)
	if err != nil {
		return Spec{}, Problems{problemOfJSON(err)}
	}
	return specOf(members)
}

// tomlMembers returns the members of a file with their positions. It descends one
// level into tables.
func tomlMembers(text string) ([]member, error) {
	var top map[string]toml.Primitive
	meta, err := toml.Decode(text, &top)
	if err != nil {
		return nil, err
	}
	// specOf rejects more than membersMax members. These members stay empty here,
	// because looking up all positions takes too long.
	if n := len(meta.Keys()); n > membersMax {
		return make([]member, n), nil
	}
	lines := strings.Split(text, "\n")
	var all []member
	for _, name := range slices.Sorted(maps.Keys(top)) {
		value, line := decodePrimitive(&meta, top[name])
		if _, table := value.(map[string]any); !table {
			all = append(all, newMember(lines, name, name, value, line))
			continue
		}
		var sub map[string]toml.Primitive
		if err := meta.PrimitiveDecode(top[name], &sub); err != nil {
			return nil, err
		}
		if name == outputField {
			all = append(all, newMember(lines, name, name, value, line))
			continue
		}
		if len(sub) == 0 || !isTable(name) {
			all = append(all, newMember(lines, name, name, emptyTable{}, line))
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(sub)) {
			value, at := decodePrimitive(&meta, sub[key])
			all = append(all, newMember(lines, name+"."+key, key, value, cmp.Or(at, line)))
		}
	}
	return all, nil
}

// emptyTable is the value of an empty or unknown table.
type emptyTable struct{}

func newMember(lines []string, path, key string, value any, line int) member {
	m := member{path: path, value: fieldValue(value), line: line, col: 1}
	if tables, ok := value.([]map[string]any); ok && path == providesField {
		m.value = newObjects(tables)
	}
	if table, ok := value.(map[string]any); ok && (path == outputField || hasNamedTables(strings.TrimSuffix(path, "."+key))) {
		m.value = newNamedObject(key, table)
	}
	if line == 0 { // a table without a header line
		m.line = 1 + max(0, slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, key) }))
	}
	if m.line <= len(lines) {
		if at := strings.Index(lines[m.line-1], key); at >= 0 {
			m.col = utf8.RuneCountInString(lines[m.line-1][:at]) + 1
		}
	}
	return m
}

// rawValue receives a TOML value unchanged. Its UnmarshalTOML always returns an
// error, because the TOML decoder reports positions only in errors.
type rawValue struct{ value any }

var errDecoded = errors.New("seen")

// UnmarshalTOML implements toml.Unmarshaler.
func (p *rawValue) UnmarshalTOML(value any) error {
	p.value = value
	return errDecoded
}

func decodePrimitive(meta *toml.MetaData, p toml.Primitive) (value any, line int) {
	var raw rawValue
	var at toml.ParseError
	if errors.As(meta.PrimitiveDecode(p, &raw), &at) {
		line = at.Position.Line
	}
	return raw.value, line
}

// fieldValue converts a TOML value to the types that a field accepts.
func fieldValue(v any) any {
	switch v := v.(type) {
	case string, bool, int64, float64, emptyTable:
		return v
	case []any:
		list := make([]any, len(v))
		for i := range v {
			if list[i] = fieldValue(v[i]); describeValue(list[i]) == "a list" {
				list[i] = unsupported("a list")
			}
		}
		return list
	case map[string]any:
		return unsupported("a table")
	case []map[string]any:
		return unsupported("a list of tables")
	default:
		return unsupported("a date or time")
	}
}

func problemOfTOML(err error) Problem {
	var at toml.ParseError
	if !errors.As(err, &at) {
		return Problem{Line: 1, Column: 1, Text: "not TOML: " + oneLine(err.Error())}
	}
	p := Problem{Line: max(at.Position.Line, 1), Column: max(at.Position.Col, 1), Text: "not TOML: " + oneLine(at.Message)}
	if strings.Contains(at.Message, "has already been defined") {
		p.Text = strings.TrimSuffix(oneLine(at.Message), ".") + "; remove the duplicate"
	}
	return p
}

func oneLine(text string) string {
	return fmt.Sprintf("%.200s", strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " "))
}

// jsonMembers returns the members of a JSON object.
func jsonMembers(prefix string, b []byte) ([]member, error) {
	d := jsontext.NewDecoder(bytes.NewReader(b))
	if kind := d.PeekKind(); kind != '{' && kind != 0 {
		return nil, errors.New("want a JSON object")
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	var all []member
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		path := prefix + name.String()
		raw, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		if raw.Kind() == '{' && prefix == "" && isTable(path) {
			sub, err := jsonMembers(path+".", raw)
			if err != nil {
				return nil, err
			}
			if len(sub) == 0 {
				sub = []member{{path: path, value: emptyTable{}}}
			}
			all = append(all, sub...)
			continue
		}
		if raw.Kind() == 'n' { // null is equivalent to an absent member
			continue
		}
		one := member{path: path, value: jsonValue(raw)}
		if hasNamedTables(strings.TrimSuffix(prefix, ".")) && raw.Kind() == '{' {
			one.value = namedObject{strings.TrimPrefix(path, prefix), raw.Clone()}
		}
		if path == outputField && raw.Kind() == '{' {
			one.value = namedObject{path, raw.Clone()}
		}
		if path == capabilitiesField || path == detailsField {
			one.value = newDescribed(raw, one.value)
		}
		if path == providesField && raw.Kind() == '[' {
			var list objects
			if err := json.Unmarshal(raw, &list); err != nil {
				return nil, err
			}
			one.value = list
		}
		all = append(all, one)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the JSON object")
	}
	return all, nil
}

func jsonValue(raw jsontext.Value) any {
	switch raw.Kind() {
	case '"':
		var text string
		if json.Unmarshal(raw, &text) == nil {
			return text
		}
	case 't', 'f':
		return raw.Kind() == 't'
	case '0':
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			return n
		}
		if f, err := strconv.ParseFloat(string(raw), 64); err == nil {
			return f
		}
	case '[':
		var list []jsontext.Value
		if json.Unmarshal(raw, &list) == nil {
			values := make([]any, len(list))
			for i := range list {
				if list[i].Kind() == '[' {
					values[i] = unsupported("a list")
				} else {
					values[i] = jsonValue(list[i])
				}
			}
			return values
		}
	case '{':
		return unsupported("an object")
	case 'n':
		return unsupported("null")
	}
	return unsupported("a value that cannot be read")
}

func problemOfJSON(err error) Problem {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return Problem{Field: pathOf(syntax.JSONPointer), Text: "is a duplicate"}
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return Problem{Text: "not JSON: unexpected end"}
	case errors.As(err, &syntax):
		return Problem{Field: pathOf(syntax.JSONPointer), Text: fmt.Sprintf("not JSON after byte %d", syntax.ByteOffset)}
	default:
		return Problem{Text: err.Error()}
	}
}

func pathOf(p jsontext.Pointer) string {
	var path []string
	for token := range p.Tokens() {
		path = append(path, fmt.Sprintf("%.80s", strings.ToValidUTF8(token, "\uFFFD")))
	}
	return strings.TrimSuffix(strings.Join(path, "."), ".") // the decoder gives a malformed value in a table an empty name
}
