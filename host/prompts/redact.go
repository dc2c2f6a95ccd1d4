// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// redacted replaces what a pattern matches.
const redacted = "[redacted]"

// redactor removes what its patterns match from JSON values.
type redactor []*regexp.Regexp

// lenient are the options for values of others, which are recorded as they are.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// text replaces what the patterns match in a text.
func (r redactor) text(s string) string {
	if len(r) == 1 && !strings.Contains(s, "troupe") { // builtin alone
		return s
	}
	for _, p := range r {
		s = p.ReplaceAllString(s, redacted)
	}
	return s
}

// passes is the maximum number of times that a value is searched for matches that span several members.
const passes = 4

// value returns a JSON value in which no pattern matches a text, a number, a name, or several of them in a row: the
// patterns see each decoded text, and then the whole value as compact JSON. If they match more than the inside of
// one text there, the whole texts and numbers that they touch are replaced, or if there are none, the names.
func (r redactor) value(v jsontext.Value) jsontext.Value { return r.nested(v, nestedMax) }

// nestedMax is the depth to which texts that are JSON, such as the arguments of a tool call, are decoded.
const nestedMax = 3

// ignores reports, for a fraction of the work, that no pattern matches: there is none but builtin, and neither a text
// that it begins with nor one of its letters with an escape is there.
func (r redactor) ignores(b []byte) bool {
	if len(r) != 1 || bytes.Contains(b, []byte(`\u00`)) {
		return false
	}
	return !bytes.Contains(b, []byte("troupe")) || !bytes.Contains(b, []byte("troupe_")) && !bytes.Contains(b, []byte("troupe-run."))
}

func (r redactor) nested(v jsontext.Value, depth int) jsontext.Value {
	if r.ignores(v) {
		return v
	}
	all := scalars(v)
	var edits []edit
	for i := range all {
		s := &all[i]
		before := s.text(v)
		after := r.text(before)
		if inner := jsontext.Value(after); depth > 0 && s.quoted && strings.Contains(after, `\`) && strings.ContainsAny(after[:1], "{[") && inner.IsValid(lenient...) {
			after = string(r.nested(inner, depth-1)) // its texts are escaped twice
		}
		if after != before {
			edits = append(edits, edit{s.from, s.to, quote(after)})
		}
	}
	v = applyEdits(v, edits)
	for range passes {
		edits = r.spanning(v)
		if len(edits) == 0 {
			return v
		}
		v = applyEdits(v, edits)
	}
	return quote(redacted) // patterns that match what replaces their matches
}

// spanning returns the edits for matches in the whole value.
func (r redactor) spanning(v jsontext.Value) []edit {
	var found [][]int
	for _, p := range r {
		found = append(found, p.FindAllIndex(v, -1)...)
	}
	if len(found) == 0 {
		return nil
	}
	all := scalars(v)
	touched := map[int]bool{} // index in all
	replaced := make([]bool, len(all))
	for i := range all { // once each: a long text may be touched by very many matches
		replaced[i] = all[i].text(v) == redacted
	}
	for _, at := range found {
		var names, values []int
		done := false // it touches a value that was replaced
		for i := firstAfter(all, at[0]); i < len(all) && all[i].from < at[1]; i++ {
			s := &all[i]
			switch from, to := s.inner(); {
			case at[0] >= to || at[1] <= from:
			case replaced[i]:
				done = done || !s.name
			case s.name:
				names = append(names, i)
			default:
				values = append(values, i)
			}
		}
		if len(values) == 0 && !done {
			values = names
		}
		for _, i := range values {
			touched[i] = true
		}
	}
	var edits []edit
	for i := range all {
		if touched[i] {
			edits = append(edits, edit{all[i].from, all[i].to, quote(redacted)})
		}
	}
	return edits
}

// firstAfter returns the index of the first scalar that ends behind a place.
func firstAfter(all []scalar, at int) int {
	i, _ := slices.BinarySearchFunc(all, at, func(s scalar, at int) int {
		if s.to <= at {
			return -1
		}
		return 1
	})
	return i
}

// scalar is a text or a number in a JSON value.
type scalar struct {
	from, to int
	name     bool // of a member
	quoted   bool
}

// inner returns the range without quotes.
func (s *scalar) inner() (from, to int) {
	if s.quoted {
		return s.from + 1, s.to - 1
	}
	return s.from, s.to
}

// text returns the decoded text, or the digits.
func (s *scalar) text(v jsontext.Value) string {
	raw := v[s.from:s.to]
	if !s.quoted {
		return string(raw)
	}
	text, _ := jsontext.AppendUnquote(nil, raw)
	return string(text)
}

// scalars returns the texts and numbers of a value, in their order. Of an invalid value it returns those before the
// mistake.
func scalars(v jsontext.Value) (all []scalar) {
	d := jsontext.NewDecoder(bytes.NewReader(v), lenient...)
	for {
		kind := d.PeekKind()
		if kind != '"' && kind != '0' {
			if _, err := d.ReadToken(); err != nil {
				return all
			}
			continue
		}
		in, n := d.StackIndex(d.StackDepth())
		raw, err := d.ReadValue()
		if err != nil {
			return all
		}
		to := int(d.InputOffset())
		all = append(all, scalar{to - len(raw), to, in == '{' && n%2 == 0, kind == '"'})
	}
}

// edit replaces a range of bytes.
type edit struct {
	from, to int
	by       []byte
}

// applyEdits returns a value with edits, which are in order.
func applyEdits(v jsontext.Value, edits []edit) jsontext.Value {
	if len(edits) == 0 {
		return v
	}
	out := make([]byte, 0, len(v))
	from := 0
	for _, e := range edits {
		out = append(append(out, v[from:e.from]...), e.by...)
		from = e.to
	}
	return append(out, v[from:]...)
}

// quote returns a text as JSON.
func quote(text string) []byte {
	b, _ := jsontext.AppendQuote(nil, text) // the only error is invalid UTF-8, which it replaces
	return b
}
