// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Error codes of the contract itself. Those of a refusal are in docs/errors.md.
const (
	InputInvalid    = "INPUT_VALIDATION_FAILED"
	InputMissing    = "DATA_MISSING_REQUIRED_INPUT"
	OutputViolation = "OUTPUT_SCHEMA_VIOLATION"
)

// Bounds of an envelope.
const (
	EnvelopeBytesMax = actor.MessageBytesMax
	ContextBytesMax  = 64 << 10
	IDBytesMax       = 256 // of request_id and correlation_id
	WarningsMax      = 64  // also of names in metadata.incomplete
	codeBytesMax     = 64
)

// Violation is a rule that an envelope breaks.
type Violation struct {
	Code  string // one of the error codes above
	Field string // names of members joined by '/'; "" is the whole envelope
	Rule  string // what is wanted, in words

	alone bool // the rule is a whole sentence, which a schema gives
}

// Error returns the field and the rule, or the sentence that a schema gives for it.
func (v *Violation) Error() string {
	if v.Field == "" || v.alone {
		return v.Rule
	}
	return v.Field + ": " + v.Rule
}

func violation(code, field, format string, args ...any) *Violation {
	return &Violation{Code: code, Field: field, Rule: actor.FitText(fmt.Sprintf(format, args...), actor.TextBytesMax)}
}

// codePattern is the form of a code of the contract, of a capability or an error.
var codePattern = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$`)

func isCode(text string) bool { return len(text) <= codeBytesMax && codePattern.MatchString(text) }

// member is a member of a JSON object, in the order in which it was written.
type member struct {
	name  string
	value jsontext.Value
}

// membersOf returns the members of a JSON object. Its error is a rule.
func membersOf(b []byte, options ...jsontext.Options) ([]member, error) {
	l := memberList{own: bytes.Clone(b), broken: errors.New("want a JSON object")}
	if err := json.Unmarshal(b, &l, options...); err != nil && l.broken == nil {
		return nil, errors.New("want one JSON object, and nothing after it")
	}
	return l.all, l.broken
}

// memberList reads the members of an object with a decoder of package json, which keeps its buffers for the next one.
type memberList struct {
	own    []byte // a copy of the input, of which the values are parts
	all    []member
	broken error
}

// UnmarshalJSONFrom reads an object.
func (l *memberList) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() != '{' {
		return l.broken
	}
	l.all, l.broken = l.read(d)
	return l.broken
}

func (l *memberList) read(d *jsontext.Decoder) (all []member, err error) {
	if _, err := d.ReadToken(); err != nil {
		return nil, errors.New("want a JSON object")
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, describe(err)
		}
		m := member{name: name.String()}
		value, err := d.ReadValue()
		if err != nil {
			return nil, describe(err)
		}
		end := d.InputOffset()
		m.value = l.own[end-int64(len(value)) : end : end]
		all = append(all, m)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, describe(err)
	}
	return all, nil
}

// describe returns the error of a decoder in words that do not depend on its version.
func describe(err error) error {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return errors.New("want each member once")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("want JSON, which ends too early")
	case errors.As(err, &syntax):
		return fmt.Errorf("want JSON, which is invalid at byte %d", syntax.ByteOffset)
	}
	return errors.New("want JSON")
}

// textOf returns the text of a JSON string, or false for any other value.
func textOf(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return strings.ToValidUTF8(string(b), "\uFFFD"), err == nil || strings.Contains(string(v), `\u`)
}
