// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
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
	// problemBytesMax is the maximum length of a reported problem.
	problemBytesMax = 256
)

// schema is a compiled schema.
type schema struct {
	*jsonschema.Schema
	valuesMax int      // maximum number of JSON values of the input; 0 means no bound
	bytesMax  int      // maximum size of the input; 0 means InputBytesMax
	unchecked []string // places of patterns that are left to the server of the tool
}

// compile compiles a schema. It rejects external references, and unless lenient patterns that cannot
// be checked here.
func compile(text string, lenient bool) (*schema, error) {
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
	var unchecked []string
	if lenient {
		unchecked = relaxed(doc)
	}
	const url = "troupe:///schema.json"
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(refLoader{})
	expressions := &patterns{known: map[string]*pattern{}}
	c.UseRegexpEngine(expressions.compile)
	if err := c.AddResource(url, doc); err != nil {
		return nil, err
	}
	compiled, err := c.Compile(url)
	expressions.known = nil
	switch {
	case expressions.failed != nil:
		return nil, expressions.failed
	case err != nil:
		return nil, err
	}
	return &schema{Schema: compiled, unchecked: unchecked}, nil
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
	if most := t.schema.bytesMax; most > 0 && len(input) > most {
		return invalid(t.Name, "", fmt.Sprintf("%d bytes exceed the maximum of %d, which the patterns of the schema leave", len(input), most))
	}
	if most := t.schema.valuesMax; most > 0 && moreValues(input, most) {
		return invalid(t.Name, "", fmt.Sprintf("more than %d JSON values; send fewer at once", most))
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
	var found problems
	found.addLeaves(failed)
	if len(found.first) == 0 {
		return invalid(t.Name, "", "violates its schema")
	}
	messages := make([]string, 0, len(found.first)+1)
	more := found.total
	for _, p := range found.first {
		messages = append(messages, actor.FitText(p.String(), problemBytesMax))
		more -= p.times
	}
	if more > 0 {
		messages = append(messages, fmt.Sprintf("and %d more", more))
	}
	refusal := invalid(t.Name, found.first[0].field, "")
	refusal.Detail = actor.Refuse(actor.Invalid, "%s: %s", t.Name, strings.Join(messages, "; ")).Detail
	return refusal
}

// invalid returns a refusal with the tool, the field if any, and the problem.
func invalid(tool, field, what string) *actor.Refusal {
	refusal := actor.Refuse(actor.Invalid, "%s: %s", tool, problem{field: field, message: what}.String())
	refusal.Field = strings.ToValidUTF8(field[:min(len(field), NameBytesMax)], "")
	return refusal
}

// problem is one violation and its location: member names joined by '/'.
type problem struct {
	field, message string
	times          int // occurrences in the validator's tree of errors
}

func (p problem) String() string {
	if p.field == "" {
		return p.message
	}
	return p.field + ": " + p.message
}

func (p problem) compare(other problem) int {
	return cmp.Or(strings.Compare(p.field, other.field), strings.Compare(p.message, other.message))
}

// problems collects the first problems of an input. Their choice does not depend on the order
// in which they are added. Input has many more problems than are reported, so only a
// candidate is formatted, and not beyond problemBytesMax.
type problems struct {
	first []problem // sorted and distinct; at most problemsReportedMax
	total int       // of all problems
}

// addLeaves adds the leaves of the validator's tree of errors.
func (all *problems) addLeaves(e *jsonschema.ValidationError) {
	if len(e.Causes) > 0 {
		for _, cause := range e.Causes {
			all.addLeaves(cause)
		}
		return
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		for _, name := range k.Missing {
			all.add(location(e.InstanceLocation, name), func() string { return "is missing" })
		}
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			all.add(location(e.InstanceLocation, name), func() string { return "is unknown" })
		}
	default:
		all.add(location(e.InstanceLocation), func() string { return describeError(e.ErrorKind) })
	}
}

// add adds a problem, whose message is computed only if it can be among the first.
func (all *problems) add(field string, message func() string) {
	all.total++
	full := len(all.first) == problemsReportedMax
	if full && field > all.first[len(all.first)-1].field {
		return
	}
	p := problem{field, actor.FitText(message(), problemBytesMax), 1}
	at, known := slices.BinarySearchFunc(all.first, p, problem.compare)
	switch {
	case known:
		all.first[at].times++
	case !full:
		all.first = slices.Insert(all.first, at, p)
	case at < len(all.first):
		all.first = slices.Insert(all.first[:len(all.first)-1], at, p)
	}
}

// location joins names by '/' and cuts the result to problemBytesMax.
func location(path []string, further ...string) string {
	var b strings.Builder
	for _, names := range [...][]string{path, further} {
		for _, name := range names {
			if b.Len() > 0 {
				b.WriteByte('/')
			}
			b.WriteString(name[:min(len(name), problemBytesMax)])
			if b.Len() > problemBytesMax {
				return actor.FitText(b.String(), problemBytesMax)
			}
		}
	}
	return b.String()
}

// describeError returns the message for an error of the validator.
func describeError(of jsonschema.ErrorKind) string {
	number := func(r *big.Rat) string {
		if text := r.RatString(); r.IsInt() && len(text) <= 40 {
			return text
		}
		f, _ := r.Float64()
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	switch k := of.(type) {
	case *kind.Type:
		return fmt.Sprintf("want %s, got %s", strings.Join(slices.Sorted(slices.Values(k.Want)), " or "), k.Got)
	case *kind.Minimum:
		return fmt.Sprintf("want at least %s, got %s", number(k.Want), number(k.Got))
	case *kind.Maximum:
		return fmt.Sprintf("want at most %s, got %s", number(k.Want), number(k.Got))
	case *kind.MinLength:
		return fmt.Sprintf("want at least %d characters, got %d", k.Want, k.Got)
	case *kind.MaxLength:
		return fmt.Sprintf("want at most %d characters, got %d", k.Want, k.Got)
	case *kind.Pattern:
		return "want a match of " + k.Want[:min(len(k.Want), problemBytesMax)]
	case *kind.Enum:
		return "want one of " + string(appendConstant(nil, k.Want))
	case *kind.Const:
		return "want " + string(appendConstant(nil, k.Want))
	default:
		if path := of.KeywordPath(); len(path) > 0 {
			return "violates " + path[0]
		}
		return "is not allowed"
	}
}

// appendConstant appends a constant of a schema. It stops after problemBytesMax bytes.
func appendConstant(b []byte, value any) []byte {
	switch v := value.(type) {
	case string:
		return append(b, v[:min(len(v), problemBytesMax)]...)
	case []any:
		b = append(b, '[')
		for i, item := range v {
			if len(b) > problemBytesMax {
				return b
			}
			if i > 0 {
				b = append(b, ' ')
			}
			b = appendConstant(b, item)
		}
		return append(b, ']')
	case map[string]any:
		return append(b, "an object"...)
	default:
		return fmt.Append(b, v)
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

// Carries reports whether the input of a tool may have a JSON value below that many levels.
func Carries(value []byte, levels int) bool {
	nested := bytes.Repeat([]byte{'['}, levels)
	nested = append(append(nested, value...), bytes.Repeat([]byte{']'}, levels)...)
	_, p := parse(nested)
	return p == nil
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
		return readNumber(token.String())
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
	return &problem{field: strings.Join(slices.Collect(pointer.Tokens()), "/"), message: what}
}
