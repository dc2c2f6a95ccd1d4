// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// strictDepthMax is the nesting to which StrictJSON mends a value.
const strictDepthMax = 1000

// StrictJSON returns the strict form of a JSON value that another program wrote, so that every later
// reader sees the same value. Each half of a surrogate pair and each byte that is not UTF-8 becomes
// U+FFFD; the last of members with one name is kept; NaN and infinities become null; a byte order
// mark and unescaped control characters in texts are accepted. Numbers keep their digits. A value
// that is strict is returned as it is, without white space around it.
func StrictJSON(b []byte) ([]byte, error) {
	b = bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(b), []byte("\uFEFF")))
	if jsontext.Value(b).IsValid() {
		return b, nil
	}
	d := jsontext.NewDecoder(bytes.NewReader(respell(b)), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	out, err := appendStrict(make([]byte, 0, len(b)), d)
	if err == nil {
		if _, err = d.ReadToken(); errors.Is(err, io.EOF) {
			return out, nil
		} else if err == nil {
			err = errors.New("want one JSON value, got more")
		}
	}
	return nil, err
}

// appendStrict appends the next value of the decoder.
func appendStrict(out []byte, d *jsontext.Decoder) ([]byte, error) {
	if d.StackDepth() > strictDepthMax {
		return nil, fmt.Errorf("nests deeper than %d levels", strictDepthMax)
	}
	switch d.PeekKind() {
	case '{':
		return appendStrictObject(out, d)
	case '[':
		if _, err := d.ReadToken(); err != nil {
			return nil, err
		}
		out = append(out, '[')
		for first := true; d.PeekKind() != ']'; first = false {
			if !first {
				out = append(out, ',')
			}
			var err error
			if out, err = appendStrict(out, d); err != nil {
				return nil, err
			}
		}
		_, err := d.ReadToken()
		return append(out, ']'), err
	case '"':
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		return jsontext.AppendQuote(out, strings.ToValidUTF8(token.String(), "\uFFFD"))
	default:
		value, err := d.ReadValue()
		return append(out, value...), err
	}
}

func appendStrictObject(out []byte, d *jsontext.Decoder) ([]byte, error) {
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	var names []string
	values := map[string][]byte{}
	for d.PeekKind() != '}' {
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		name := strings.ToValidUTF8(token.String(), "\uFFFD")
		value, err := appendStrict(nil, d)
		if err != nil {
			return nil, err
		}
		if _, doubled := values[name]; !doubled {
			names = append(names, name)
		}
		values[name] = value
	}
	out = append(out, '{')
	for i, name := range names {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = jsontext.AppendQuote(out, name); err != nil {
			return nil, err
		}
		out = append(append(out, ':'), values[name]...)
	}
	_, err := d.ReadToken()
	return append(out, '}'), err
}

// notNumbers are the spellings of numbers that JSON does not have. A spelling that ends with
// another one, as -Infinity with Infinity, MUST come before it.
var notNumbers = []string{"-Infinity", "Infinity", "NaN"}

// respell replaces notNumbers by null, and escapes control characters in texts.
func respell(b []byte) []byte {
	out := make([]byte, 0, len(b))
	quoted := false
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch {
		case quoted && c == '\\' && i+1 < len(b):
			out = append(out, c, b[i+1])
			i++
			continue
		case c == '"':
			quoted = !quoted
		case quoted && c < ' ':
			out = fmt.Appendf(out, `\u%04x`, c)
			continue
		case !quoted && (c == '-' || c == 'I' || c == 'N'):
			if word := notNumberAt(b[i:]); word != "" {
				out = append(out, "null"...)
				i += len(word) - 1
				continue
			}
		}
		out = append(out, c)
	}
	return out
}

func notNumberAt(b []byte) string {
	for _, word := range notNumbers {
		if bytes.HasPrefix(b, []byte(word)) {
			return word
		}
	}
	return ""
}

// readableText returns what another program wrote as text: of the given charset if it is one of
// those with a byte per character, else UTF-8, without a byte order mark. Other bytes become U+FFFD.
func readableText(b []byte, charset string) string {
	b = bytes.TrimPrefix(b, []byte("\uFEFF"))
	switch strings.ToLower(charset) {
	case "iso-8859-1", "latin1", "windows-1252":
		if utf8.Valid(b) {
			break // mislabelled, or ASCII
		}
		var text strings.Builder
		for _, c := range b {
			if c >= 0x80 && c < 0xa0 { // control characters of one, and letters of the other
				text.WriteRune(utf8.RuneError)
				continue
			}
			text.WriteRune(rune(c))
		}
		return text.String()
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
