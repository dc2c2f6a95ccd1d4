// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"
)

// Bounds of a request.
const (
	BodyBytesMax = 1 << 20
	depthMax     = 64
)

// decode reads a body, which the guard has seen to be JSON by name, strictly into v, a pointer to a struct: one JSON object,
// no member twice, none that is unknown, nothing behind it.
func decode(ctx *fasthttp.RequestCtx, v any) *problem {
	body := ctx.PostBody()
	if len(body) == 0 {
		return invalid(http.StatusBadRequest, "", "want a JSON object, got nothing")
	}
	if p := shape(body); p != nil {
		return p
	}
	err := json.Unmarshal(body, v, json.RejectUnknownMembers(true))
	var semantic *json.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return invalid(http.StatusBadRequest, field(semantic.JSONPointer), field(semantic.JSONPointer)+": is unknown")
	case errors.As(err, &semantic):
		return invalid(http.StatusBadRequest, field(semantic.JSONPointer), at(semantic.JSONPointer)+"a value of another kind is wanted")
	default:
		return invalid(http.StatusBadRequest, "", "is not what it should be")
	}
}

// shape finds what is wrong with JSON whatever it is meant to say.
func shape(body []byte) *problem {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if d.PeekKind() != '{' {
		if _, err := d.ReadToken(); err == nil {
			return invalid(http.StatusBadRequest, "", "want a JSON object")
		}
		d = jsontext.NewDecoder(bytes.NewReader(body))
	}
	for {
		_, err := d.ReadToken()
		var syntax *jsontext.SyntacticError
		switch {
		case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
			return invalid(http.StatusBadRequest, field(syntax.JSONPointer), at(syntax.JSONPointer)+"is there twice")
		case errors.As(err, &syntax):
			return invalid(http.StatusBadRequest, field(syntax.JSONPointer), fmt.Sprintf("%snot JSON after byte %d", at(syntax.JSONPointer), syntax.ByteOffset))
		case err != nil:
			return invalid(http.StatusBadRequest, "", "not JSON: it ends too early")
		case d.StackDepth() > depthMax:
			return invalid(http.StatusBadRequest, field(d.StackPointer()), fmt.Sprintf("nests deeper than %d levels", depthMax))
		case d.StackDepth() == 0:
			if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
				return invalid(http.StatusBadRequest, "", "something follows the JSON object")
			}
			return nil
		}
	}
}

// field is the member at the top that a pointer leads through.
func field(p jsontext.Pointer) string {
	for token := range p.Tokens() {
		return fmt.Sprintf("%.80s", strings.ToValidUTF8(token, "\uFFFD"))
	}
	return ""
}

func at(p jsontext.Pointer) string {
	if f := field(p); f != "" {
		return f + ": "
	}
	return ""
}
