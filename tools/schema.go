// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/troupe-run/troupe/actor"
)

const (
	// DepthMax is the maximum nesting depth of input.
	DepthMax = 64
	// problemsReportedMax is the maximum number of problems reported for one input.
	problemsReportedMax = 8
)

type schema = jsonschema.Schema

// compile compiles a schema. It rejects external references.
func compile(text string) (*schema, error) {
	if len(text) > SchemaBytesMax {
		return nil, fmt.Errorf("%d bytes exceed the maximum of %d", len(text), SchemaBytesMax)
	}
	doc, p := parse([]byte(text))
	if p != nil {
		return nil, errors.New(p.String())
	}
	if object, ok := doc.(map[string]any); !ok || object["type"] != "object" {
		return nil, fmt.Errorf(`want "type": "object" at the top`)
	}
	const url = "troupe:///schema.json"
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(refLoader{})
	if err := c.AddResource(url, doc); err != nil {
		return nil, err
	}
	return c.Compile(url)
}

// refLoader rejects references that leave the schema.
type refLoader struct{}

func (refLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is outside the schema", url)
}

// validate refuses input that violates the schema of the tool. Problems are sorted
// by location, then by message, because the validator reports them in map order.
func (t *Tool) validate(input []byte) *actor.Refusal {
	if len(input) > InputBytesMax {
		return invalid(t.Name, "", fmt.Sprintf("%d bytes exceed the maximum of %d", len(input), InputBytesMax))
	}
	value, p := parse(input)
	if p != nil {
		return invalid(t.Name, p.field, p.message)
	}
	err := t.schema.Validate(value)
	if err == nil {
		return nil
	}
	var failed *jsonschema.ValidationError
	if !errors.As(err, &failed) {
		return invalid(t.Name, "", "violates its schema")
	}
	all := slices.Compact(slices.SortedFunc(slices.Values(leafProblems(failed)), problem.compare))
	messages := make([]string, 0, len(all))
	for _, p := range all[:min(len(all), problemsReportedMax)] {
		messages = append(messages, p.String())
	}
	if more := len(all) - len(messages); more > 0 {
		messages = append(messages, fmt.Sprintf("and %d more", more))
	}
	refusal := invalid(t.Name, all[0].field, "")
	refusal.Detail = actor.Refuse(actor.Invalid, "%s: %s", t.Name, strings.Join(messages, "; ")).Detail
	return refusal
}

// invalid returns a refusal with the tool, the field if any, and the problem.
func invalid(tool, field, what string) *actor.Refusal {
	refusal := actor.Refuse(actor.Invalid, "%s: %s", tool, problem{field, what}.String())
	refusal.Field = strings.ToValidUTF8(field[:min(len(field), NameBytesMax)], "")
	return refusal
}

// problem is one violation and its location: member names joined by '/'.
type problem struct{ field, message string }

func (p problem) String() string {
	if p.field == "" {
		return p.message
	}
	return p.field + ": " + p.message
}

func (p problem) compare(other problem) int {
	return cmp.Or(strings.Compare(p.field, other.field), strings.Compare(p.message, other.message))
}

// leafProblems returns the leaves of the validator's tree of errors.
func leafProblems(e *jsonschema.ValidationError) []problem {
	if len(e.Causes) > 0 {
		var all []problem
		for _, cause := range e.Causes {
			all = append(all, leafProblems(cause)...)
		}
		return all
	}
	at := func(names []string, what string) (all []problem) {
		for _, name := range names {
			all = append(all, problem{strings.Join(append(slices.Clone(e.InstanceLocation), name), "/"), what})
		}
		return all
	}
	here := func(format string, args ...any) []problem {
		return []problem{{strings.Join(e.InstanceLocation, "/"), fmt.Sprintf(format, args...)}}
	}
	number := func(r *big.Rat) string {
		f, _ := r.Float64()
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return at(k.Missing, "is missing")
	case *kind.AdditionalProperties:
		return at(k.Properties, "is unknown")
	case *kind.Type:
		return here("want %s, got %s", strings.Join(slices.Sorted(slices.Values(k.Want)), " or "), k.Got)
	case *kind.Minimum:
		return here("want at least %s, got %s", number(k.Want), number(k.Got))
	case *kind.Maximum:
		return here("want at most %s, got %s", number(k.Want), number(k.Got))
	case *kind.MinLength:
		return here("want at least %d characters, got %d", k.Want, k.Got)
	case *kind.MaxLength:
		return here("want at most %d characters, got %d", k.Want, k.Got)
	case *kind.Pattern:
		return here("want a match of %s", k.Want)
	case *kind.Enum:
		return here("want one of %v", k.Want)
	case *kind.Const:
		return here("want %v", k.Want)
	default:
		if path := e.ErrorKind.KeywordPath(); len(path) > 0 {
			return here("violates %s", path[0])
		}
		return here("is not allowed")
	}
}

// parse decodes one strict JSON value of bounded depth. It rejects duplicate
// names, invalid UTF-8, numbers out of the range of a float, and anything after
// the value.
func parse(b []byte) (any, *problem) {
	p := &parser{jsontext.NewDecoder(bytes.NewReader(b))}
	value, err := p.value()
	if err == nil {
		if _, err = p.dec.ReadToken(); errors.Is(err, io.EOF) {
			return value, nil
		} else if err == nil {
			err = errors.New("want one value, got more")
		}
	}
	return nil, p.problem(err)
}

type parser struct{ dec *jsontext.Decoder }

func (p *parser) value() (any, error) {
	token, err := p.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	if p.dec.StackDepth() > DepthMax {
		return nil, fmt.Errorf("nests deeper than %d levels", DepthMax)
	}
	switch token.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return token.Bool(), nil
	case '"':
		return token.String(), nil
	case '0':
		text := token.String()
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(number, 0) {
			return nil, fmt.Errorf("%.40s is out of the range of a float", text)
		}
		return number, nil
	case '{':
		object := map[string]any{}
		for p.dec.PeekKind() != '}' {
			name, err := p.dec.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String()
			if object[key], err = p.value(); err != nil {
				return nil, err
			}
		}
		_, err := p.dec.ReadToken()
		return object, err
	default: // '[': the decoder rejects every other start of a value
		array := []any{}
		for p.dec.PeekKind() != ']' {
			item, err := p.value()
			if err != nil {
				return nil, err
			}
			array = append(array, item)
		}
		_, err := p.dec.ReadToken()
		return array, err
	}
}

// problem returns the cause and the location of a parse error.
func (p *parser) problem(err error) *problem {
	pointer, what := p.dec.StackPointer(), err.Error()
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		pointer = syntax.JSONPointer
		what = fmt.Sprintf("not JSON after byte %d: %v", syntax.ByteOffset, syntax.Err)
		if errors.Is(err, jsontext.ErrDuplicateName) {
			what = "occurs twice"
		}
	} else if errors.Is(err, io.EOF) {
		what = "want JSON, got nothing"
	} else if errors.Is(err, io.ErrUnexpectedEOF) {
		what = "not JSON: unexpected end"
	}
	return &problem{strings.Join(slices.Collect(pointer.Tokens()), "/"), what}
}
