// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/internal/invariant"
)

// DepthMax is the maximum nesting depth of untrusted JSON.
const DepthMax = 64

// unmarshal decodes one untrusted JSON value. It rejects input that parsers may
// interpret differently: duplicate names and invalid UTF-8. Names are case-sensitive.
// Unknown members are skipped by default, because every upstream adds its own. Error
// texts are deterministic and name the byte and the member.
func unmarshal(b []byte, v any, options ...json.Options) error {
	if at := depthExceededAt(b); at >= 0 {
		return fmt.Errorf("byte %d: nests deeper than %d levels", at, DepthMax)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return errors.New("want JSON, got nothing")
	}
	err := json.Unmarshal(b, v, options...)
	if err == nil {
		return nil
	}
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("not JSON: unexpected end")
	case errors.As(err, &syntax):
		return &jsonError{syntax.ByteOffset, string(syntax.JSONPointer), syntax.Err.Error()}
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return &jsonError{semantic.ByteOffset, string(semantic.JSONPointer), "unknown member"}
	case errors.As(err, &semantic):
		return &jsonError{semantic.ByteOffset, string(semantic.JSONPointer), "value of the wrong type"}
	default:
		return errors.New("invalid value")
	}
}

// checkObject returns an error unless b is a JSON object. Only invalid input is
// decoded, to obtain the error.
func checkObject(b []byte) error {
	if text := bytes.TrimSpace(b); len(text) > 0 && text[0] == '{' && depthExceededAt(b) < 0 && jsontext.Value(text).IsValid() {
		return nil
	}
	var object map[string]jsontext.Value
	err := unmarshal(b, &object)
	if err == nil && object == nil {
		err = errors.New("want an object, got null")
	}
	return err
}

// checkNestedObject is checkObject for a value inside JSON that unmarshal has
// accepted.
func checkNestedObject(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		return nil
	}
	return checkObject(b)
}

// depthExceededAt returns the offset of the first byte nested deeper than
// DepthMax, or -1.
func depthExceededAt(b []byte) int {
	if bytes.Count(b, []byte{'{'})+bytes.Count(b, []byte{'['}) <= DepthMax {
		return -1 // the common case: too few brackets to exceed DepthMax
	}
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > DepthMax {
				return i
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return -1
}

// jsonError is an error at a member of untrusted JSON.
type jsonError struct {
	at      int64
	path    string // JSON pointer of the member, which the sender chose; "" at the top
	problem string
}

// Error returns the error with at most 80 characters of the path.
func (e *jsonError) Error() string {
	if e.path == "" {
		return fmt.Sprintf("byte %d: %s", e.at, e.problem)
	}
	return fmt.Sprintf("byte %d %.80q: %s", e.at, e.path, e.problem)
}

// marshal encodes a value of this package, with members in the order of its struct.
func marshal(v any) []byte {
	return invariant.Must(json.Marshal(v, marshalOptions))
}

var marshalOptions = json.JoinOptions(json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
