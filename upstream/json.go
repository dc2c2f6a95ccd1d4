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

// DepthMax is how deep JSON from outside may nest.
const DepthMax = 64

// unmarshal reads one JSON value from outside. It refuses what two readers could
// read in two ways (names twice or in another case, text that is not UTF-8) and
// skips members of no interest: every upstream adds some of its own. What is
// wrong is told in the same words each time, with the byte and the member.
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
		return errors.New("not JSON: it ends too early")
	case errors.As(err, &syntax):
		return fmt.Errorf("byte %d%s: %w", syntax.ByteOffset, memberPath(syntax.JSONPointer), syntax.Err)
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return fmt.Errorf("byte %d%s: unknown member", semantic.ByteOffset, memberPath(semantic.JSONPointer))
	case errors.As(err, &semantic):
		return fmt.Errorf("byte %d%s: a value of another kind is wanted", semantic.ByteOffset, memberPath(semantic.JSONPointer))
	default:
		return errors.New("it cannot be read")
	}
}

// checkObject says what is wrong with JSON that has to be an object. What is right
// is not taken apart for that.
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

// checkNestedObject is checkObject for a part of what unmarshal has read.
func checkNestedObject(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		return nil
	}
	return checkObject(b)
}

// depthExceededAt is the byte at which JSON goes below DepthMax, or -1.
func depthExceededAt(b []byte) int {
	if bytes.Count(b, []byte{'{'})+bytes.Count(b, []byte{'['}) <= DepthMax {
		return -1 // as nearly all that comes
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

func memberPath(p jsontext.Pointer) string {
	if p == "" {
		return ""
	}
	return fmt.Sprintf(" %.80q", string(p))
}

// marshal writes a value of ours: members in the order of its struct.
func marshal(v any) []byte {
	return invariant.Must(json.Marshal(v, marshalOptions))
}

var marshalOptions = json.JoinOptions(json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
