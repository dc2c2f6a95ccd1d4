// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// arguments are the members of a JSON object, in their order.
type arguments struct {
	members  []argument
	index    map[string]int // position in members, by name
	identity *Identity      // nil: placeholders of an identity have no value
}

type argument struct {
	name  string
	value jsontext.Value
	inURL bool // it has filled a placeholder of the URL
}

// parseArguments decodes the arguments of a tool call. It rejects duplicate names.
func parseArguments(b []byte) (*arguments, error) {
	if err := checkObject(b); err != nil {
		return nil, err
	}
	a := &arguments{index: map[string]int{}}
	d := jsontext.NewDecoder(bytes.NewReader(b))
	for d.PeekKind() != '}' {
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		if token.Kind() != '"' {
			continue // the opening brace
		}
		name := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		a.index[name] = len(a.members)
		a.members = append(a.members, argument{name: name, value: value.Clone()})
	}
	return a, nil
}

// find returns an argument, or nil if it is absent or null.
func (a *arguments) find(name string) *argument {
	if i, ok := a.index[name]; ok && a.members[i].value.Kind() != 'n' {
		return &a.members[i]
	}
	return nil
}

// plainText returns a string, number or boolean as text.
func plainText(v jsontext.Value) (text string, ok bool) {
	switch v.Kind() {
	case '"':
		b, err := jsontext.AppendUnquote(nil, v)
		return string(b), err == nil
	case '0', 't', 'f':
		return string(v), true
	}
	return "", false
}

// piece is a literal text of a template, or the name of the argument that replaces it.
type piece struct {
	text       string
	isArgument bool
	isIdentity bool // the value is that of an Identity
}

// parsePieces splits a part of a URL at its placeholders.
func parsePieces(text string) (all []piece, err error) {
	for {
		literal, rest, found := strings.Cut(text, "{")
		if strings.Contains(literal, "}") {
			return nil, errors.New("contains a } without a {")
		}
		if literal != "" {
			all = append(all, piece{text: literal})
		}
		if !found {
			return all, nil
		}
		if inner, opened := strings.CutPrefix(rest, "{"); opened {
			name, after, closed := strings.Cut(inner, "}}")
			if !closed || !slices.Contains(identityNames, name) {
				return nil, errors.New("contains {{ without user, session, agent or run and }}")
			}
			all, text = append(all, piece{name, true, true}), after
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed || name == "" || strings.Contains(name, "{") {
			return nil, errors.New("contains a { without a name and a }: want {name}, within one segment of the path or one parameter of the query")
		}
		all, text = append(all, piece{text: name, isArgument: true}), after
	}
}

func hasArgument(pieces []piece) bool {
	for _, p := range pieces {
		if p.isArgument {
			return true
		}
	}
	return false
}

// urlTemplate is a URL with placeholders. An argument replaces text only within one segment of
// the path or one parameter of the query. So arguments cannot change the scheme, the host, the
// number of segments or the names of parameters.
type urlTemplate struct {
	origin string    // scheme, host and port, as they are
	path   [][]piece // segments, each with a slash before it
	query  [][]piece // parameters
}

// parseURLTemplate parses the URL of a tool.
func parseURLTemplate(text string) (t urlTemplate, err error) {
	_, rest, _ := strings.Cut(text, "://")
	origin, target := text, ""
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		end := len(text) - len(rest) + at
		origin, target = text[:end], text[end:]
	}
	if strings.ContainsAny(origin, "{}") {
		return t, errors.New("contains a placeholder in the scheme, host or port: no argument may choose them")
	}
	t.origin = origin
	path, query, hasQuery := strings.Cut(target, "?")
	plain := origin
	parse := func(before, part string) ([]piece, error) {
		pieces, err := parsePieces(part)
		plain += before
		for _, p := range pieces {
			if p.isArgument {
				p.text = "x"
			}
			plain += p.text
		}
		return pieces, err
	}
	if path != "" {
		for segment := range strings.SplitSeq(path[1:], "/") {
			pieces, err := parse("/", segment)
			if err != nil {
				return t, err
			}
			if literal, err := url.PathUnescape(segment); err == nil && changesPath(literal) {
				return t, errors.New("contains the path segment . or .., which servers resolve")
			}
			t.path = append(t.path, pieces)
		}
	}
	if hasQuery {
		for i, parameter := range strings.Split(query, "&") {
			pieces, err := parse("?&"[min(i, 1):min(i, 1)+1], parameter)
			if err != nil {
				return t, err
			}
			t.query = append(t.query, pieces)
		}
	}
	return t, CheckModelURL(plain)
}

// prefix returns the URL up to the first segment of the path that depends on arguments.
// All filled URLs begin with it.
func (t *urlTemplate) prefix() string {
	text := t.origin
	for _, segment := range t.path {
		if hasArgument(segment) {
			break
		}
		text += "/"
		for _, p := range segment {
			text += p.text
		}
	}
	return text
}

// changesPath reports whether some server reads an unescaped segment as more than a name:
// . or .., also between escaped slashes or before parameters.
func changesPath(segment string) bool {
	for part := range strings.FieldsFuncSeq(segment, func(r rune) bool { return r == '/' || r == '\\' }) {
		part, _, _ = strings.Cut(part, ";")
		if part = strings.TrimFunc(part, func(r rune) bool { return r <= ' ' }); part == "." || part == ".." {
			return true
		}
	}
	return false
}

// fill returns the URL for the arguments. With allInQuery the arguments that the template
// does not name become parameters of the query.
func (t *urlTemplate) fill(args *arguments, allInQuery bool) (string, *actor.Refusal) {
	var b strings.Builder
	b.WriteString(t.origin)
	for _, segment := range t.path {
		text, refusal := fillSegment(segment, args)
		if refusal != nil {
			return "", refusal
		}
		b.WriteString("/" + text)
	}
	query, refusal := t.fillQuery(args, allInQuery)
	if refusal != nil {
		return "", refusal
	}
	if query != "" {
		b.WriteString("?" + query)
	}
	if b.Len() > ToolURLBytesMax {
		return "", actor.Refuse(actor.Invalid, "the URL with the arguments has %d bytes, which exceeds the maximum of %d", b.Len(), ToolURLBytesMax)
	}
	return b.String(), nil
}

func refuseArgument(name, format string, args ...any) *actor.Refusal {
	refusal := actor.Refuse(actor.Invalid, "argument %.80q: "+format, append([]any{name}, args...)...)
	refusal.Field = actor.FitText(name, NameBytesMax)
	return refusal
}

func fillSegment(pieces []piece, args *arguments) (string, *actor.Refusal) {
	var escaped, plain strings.Builder
	last := ""
	for _, p := range pieces {
		if !p.isArgument {
			literal, err := url.PathUnescape(p.text)
			if err != nil {
				return "", actor.Refuse(actor.Invalid, "url: invalid escape")
			}
			escaped.WriteString(p.text)
			plain.WriteString(literal)
			continue
		}
		a := args.of(p)
		if a == nil {
			return "", refuseArgument(p.text, "the path of the URL needs it")
		}
		text, ok := plainText(a.value)
		if !ok {
			return "", refuseArgument(p.text, "want a string, number or boolean in the path of the URL")
		}
		a.inURL, last = true, p.text
		escaped.WriteString(url.PathEscape(text))
		plain.WriteString(text)
	}
	switch {
	case last == "":
	case plain.Len() == 0:
		return "", refuseArgument(last, "must not be empty in the path of the URL")
	case changesPath(plain.String()):
		return "", refuseArgument(last, "must not contain the path segments . or ..")
	}
	return escaped.String(), nil
}

// fillQuery returns the query. A parameter with an argument that is absent or null is
// left out.
func (t *urlTemplate) fillQuery(args *arguments, all bool) (string, *actor.Refusal) {
	var parameters []string
	names := map[string]bool{} // of the template
	for _, pieces := range t.query {
		var b strings.Builder
		absent := false
		for _, p := range pieces {
			switch a := args.of(p); {
			case !p.isArgument:
				b.WriteString(p.text)
			case a == nil:
				absent = true
			default:
				a.inURL = true
				b.WriteString(url.QueryEscape(queryText(a.value)))
			}
		}
		name, _, _ := strings.Cut(b.String(), "=")
		if text, err := url.QueryUnescape(name); err == nil {
			names[text] = true
		}
		if !absent {
			parameters = append(parameters, b.String())
		}
	}
	if !all {
		return strings.Join(parameters, "&"), nil
	}
	for i := range args.members {
		a := &args.members[i]
		switch {
		case a.inURL || a.value.Kind() == 'n':
			continue
		case names[a.name]: // servers disagree about which of two parameters counts
			return "", refuseArgument(a.name, "the URL of the tool sets this parameter of the query")
		}
		for _, text := range queryTexts(a.value) {
			parameters = append(parameters, url.QueryEscape(a.name)+"="+url.QueryEscape(text))
		}
	}
	return strings.Join(parameters, "&"), nil
}

// queryText returns a value as the text of a parameter: a list or an object as JSON.
func queryText(v jsontext.Value) string {
	if text, ok := plainText(v); ok {
		return text
	}
	return string(compacted(v))
}

// queryTexts returns the texts of the parameters for a value. A list of plain values has
// one for each.
func queryTexts(v jsontext.Value) (all []string) {
	var list []jsontext.Value
	if v.Kind() != '[' || json.Unmarshal(v, &list) != nil {
		return []string{queryText(v)}
	}
	for _, item := range list {
		text, ok := plainText(item)
		if !ok {
			return []string{queryText(v)}
		}
		all = append(all, text)
	}
	return all
}

// compacted returns valid JSON without blanks.
func compacted(v jsontext.Value) jsontext.Value {
	v = v.Clone()
	if v.Compact() != nil {
		return nil
	}
	return v
}

// object returns the arguments that are not in the URL as a JSON object.
func (a *arguments) object() []byte {
	b := []byte{'{'}
	for i := range a.members {
		m := &a.members[i]
		if m.inURL {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b, _ = jsontext.AppendQuote(b, m.name) // decoding has checked the UTF-8
		b = append(append(b, ':'), compacted(m.value)...)
	}
	return append(b, '}')
}

// fillBody returns the template with each string {name} replaced by the argument of that
// name, or by null. Names of members are not replaced.
func fillBody(template []byte, args *arguments) ([]byte, error) {
	d := jsontext.NewDecoder(bytes.NewReader(template))
	var out bytes.Buffer
	e := jsontext.NewEncoder(&out)
	for {
		token, err := d.ReadToken()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, errors.New("body: invalid JSON")
		}
		p, replaced := placeholder(d, token)
		switch a := args.of(p); {
		case !replaced:
			err = e.WriteToken(token)
		case a == nil:
			err = e.WriteToken(jsontext.Null)
		default:
			err = e.WriteValue(a.value)
		}
		if err != nil {
			return nil, errors.New("body: invalid JSON")
		}
		if n := e.OutputOffset(); n > PromptBytesMax {
			return nil, fmt.Errorf("body of more than %d bytes, which is the maximum", PromptBytesMax)
		}
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// placeholder returns what replaces the string just read.
func placeholder(d *jsontext.Decoder, token jsontext.Token) (p piece, ok bool) {
	if token.Kind() != '"' {
		return p, false
	}
	if in, n := d.StackIndex(d.StackDepth()); in == '{' && n%2 == 1 {
		return p, false // the name of a member
	}
	text := token.String()
	for _, name := range identityNames {
		if text == "{{"+name+"}}" {
			return piece{name, true, true}, true
		}
	}
	name, opened := strings.CutPrefix(text, "{")
	name, closed := strings.CutSuffix(name, "}")
	return piece{text: name, isArgument: true}, opened && closed && name != "" && !strings.ContainsAny(name, "{}")
}
