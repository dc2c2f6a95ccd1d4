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
		return fmt.Errorf("byte %d%s: %w", syntax.ByteOffset, memberPath(syntax.JSONPointer), syntax.Err)
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return fmt.Errorf("byte %d%s: unknown member", semantic.ByteOffset, memberPath(semantic.JSONPointer))
	case errors.As(err, &semantic):
		return fmt.Errorf("byte %d%s: value of the wrong type", semantic.ByteOffset, memberPath(semantic.JSONPointer))
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

func memberPath(p jsontext.Pointer) string {
	if p == "" {
		return ""
	}
	return fmt.Sprintf(" %.80q", string(p))
}

// marshal encodes a value of this package, with members in the order of its struct.
func marshal(v any) []byte {
	return invariant.Must(json.Marshal(v, marshalOptions))
}

var marshalOptions = json.JoinOptions(json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
