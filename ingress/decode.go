// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// DepthMax is how deep JSON from outside may nest.
const DepthMax = 64

// Decode reads JSON from outside strictly into v, a pointer to a struct: one
// object, no member twice, none that is unknown, nothing behind it.
func Decode(body []byte, v any) *actor.Refusal {
	var err error
	if withinDepth(body) {
		if err = json.Unmarshal(body, v, json.RejectUnknownMembers(true)); err == nil {
			return nil
		}
	}
	// What is wrong is said by who reads the shape alone: it knows the better words.
	if r := checkShape(body); r != nil {
		return r
	}
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return invalid(topLevelField(semantic.JSONPointer), "is unknown: leave it out")
	case errors.As(err, &semantic):
		return invalid(topLevelField(semantic.JSONPointer), "a value of another kind is wanted")
	default:
		return invalid("", "the JSON is not what it should be")
	}
}

// withinDepth tells whether a text begins as an object does, and nests no deeper than
// it may. Of what is no JSON it may say either; what is, it reads as JSON is read.
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

// invalid is bad input, in a field if one is named.
func invalid(field, format string, args ...any) *actor.Refusal {
	text := fmt.Sprintf(format, args...)
	if field != "" {
		text = field + ": " + text
	}
	r := actor.Refuse(actor.Invalid, "%s", text)
	r.Field = field
	return r
}

// checkShape finds what is wrong with JSON whatever it is meant to say.
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
			return invalid(topLevelField(syntax.JSONPointer), "is there twice")
		case errors.As(err, &syntax):
			return invalid(topLevelField(syntax.JSONPointer), "not JSON after byte %d", syntax.ByteOffset)
		case err != nil:
			return invalid("", "not JSON: it ends too early")
		case d.StackDepth() > DepthMax:
			return invalid(topLevelField(d.StackPointer()), "nests deeper than %d levels", DepthMax)
		case d.StackDepth() == 0:
			if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
				return invalid("", "something follows the JSON object")
			}
			return nil
		}
	}
}

// topLevelField is the member at the top that a pointer leads through.
func topLevelField(p jsontext.Pointer) string {
	for token := range p.Tokens() {
		return fmt.Sprintf("%.80s", strings.ToValidUTF8(token, "\uFFFD"))
	}
	return ""
}
