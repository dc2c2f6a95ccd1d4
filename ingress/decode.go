// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/nearest"
)

// DepthMax is the maximum nesting depth of JSON from clients.
const DepthMax = 64

// Decode decodes client JSON strictly into v, a pointer to a struct. The body
// must be exactly one object, without duplicate or unknown members.
func Decode(body []byte, v any) *actor.Refusal {
	return decode(body, v, json.RejectUnknownMembers(true))
}

func decode(body []byte, v any, options ...json.Options) *actor.Refusal {
	var err error
	if withinDepth(body) {
		if err = json.Unmarshal(body, v, options...); err == nil {
			return nil
		}
	}
	// checkShape names the error more precisely than the decoder does.
	if r := checkShape(body); r != nil {
		return r
	}
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		names := memberNames(semantic.JSONPointer)
		last := max(len(names)-1, 0)
		return invalid(strings.Join(names, "."), "%s", Unknown(strings.Join(names[last:], ""), fieldsOf(memberType(v, names[:last]))))
	case errors.As(err, &semantic):
		return invalid(strings.Join(memberNames(semantic.JSONPointer), "."), "wrong JSON type")
	default:
		return invalid("", "the JSON does not match the request")
	}
}

// Unknown describes an unknown name of a field or parameter: the one it probably
// means, and all that are known.
func Unknown(name string, known []string) string {
	if len(known) == 0 {
		return "is unknown: want none"
	}
	text := "is unknown; "
	if best := nearest.Of(name, known); best != "" {
		text += "did you mean " + best + "? "
	}
	return text + "want " + strings.Join(known, ", ")
}

// memberNames returns the names of the members that a pointer leads through, such as raise and tokens.
func memberNames(p jsontext.Pointer) (names []string) {
	for token := range p.Tokens() {
		names = append(names, fmt.Sprintf("%.80s", strings.ToValidUTF8(token, "\uFFFD")))
	}
	return names
}

// memberType returns the type of a member of a struct, or nil.
func memberType(v any, names []string) reflect.Type {
	t := reflect.TypeOf(v).Elem()
	for _, name := range names {
		switch t.Kind() {
		case reflect.Slice, reflect.Map:
			t = t.Elem()
			continue
		case reflect.Struct:
		default:
			return nil
		}
		var member reflect.Type
		for _, f := range reflect.VisibleFields(t) {
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
				member = f.Type
			}
		}
		if member == nil {
			return nil
		}
		if t = member; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return t
}

// fieldsOf returns the names of the JSON members of a struct, without aliases.
func fieldsOf(t reflect.Type) (names []string) {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Tag.Get("alias") == "" && name != "" {
			names = append(names, name)
		}
	}
	return names
}

// withinDepth reports whether body begins with an object and nests at most
// DepthMax levels deep. The result is meaningful for valid JSON only.
func withinDepth(body []byte) bool {
	if at := bytes.IndexFunc(body, func(r rune) bool { return !strings.ContainsRune(" \t\r\n", r) }); at < 0 || body[at] != '{' {
		return false
	}
	depth, text := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			if depth++; depth > DepthMax {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// invalid returns an Invalid refusal, prefixed with the field if one is given.
func invalid(field, format string, args ...any) *actor.Refusal {
	text := fmt.Sprintf(format, args...)
	if field != "" {
		text = field + ": " + text
	}
	r := actor.Refuse(actor.Invalid, "%s", text)
	r.Field = field
	return r
}

// checkShape checks syntax, duplicate names and nesting depth, regardless of the
// expected members.
func checkShape(body []byte) *actor.Refusal {
	if len(body) == 0 {
		return invalid("", "want a JSON object, got nothing")
	}
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if d.PeekKind() != '{' {
		if _, err := d.ReadToken(); err == nil {
			return invalid("", "want a JSON object")
		}
		d = jsontext.NewDecoder(bytes.NewReader(body))
	}
	for {
		_, err := d.ReadToken()
		var syntax *jsontext.SyntacticError
		switch {
		case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
			return invalid(topLevelField(syntax.JSONPointer), "is a duplicate")
		case errors.As(err, &syntax):
			return invalid(topLevelField(syntax.JSONPointer), "not JSON after byte %d", syntax.ByteOffset)
		case err != nil:
			return invalid("", "not JSON: unexpected end")
		case d.StackDepth() > DepthMax:
			return invalid(topLevelField(d.StackPointer()), "nests deeper than %d levels", DepthMax)
		case d.StackDepth() == 0:
			if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
				return invalid("", "unexpected data after the JSON object")
			}
			return nil
		}
	}
}

// topLevelField returns the name of the top-level member that a pointer leads
// into.
func topLevelField(p jsontext.Pointer) string {
	for token := range p.Tokens() {
		return fmt.Sprintf("%.80s", strings.ToValidUTF8(token, "\uFFFD"))
	}
	return ""
}
