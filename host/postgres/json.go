// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The bounds of what is stored as JSON. What exceeds them is stored as text: PostgreSQL refuses deeper
// nesting at max_stack_depth, and numbers at 131,072 digits.
const (
	jsonDepthMax  = 500
	jsonDigitsMax = 1000
)

// AsJSON returns any bytes as JSON that a column of type jsonb takes. One value that it refuses would
// fail the batch of everybody. JSON stays JSON; in it a NUL and half a surrogate pair become U+FFFD.
// All else becomes a JSON string.
func AsJSON(b []byte) string {
	text := strings.ToValidUTF8(string(b), string(utf8.RuneError))
	if json.Valid([]byte(text)) {
		if fitted, ok := fitJSON(text); ok {
			return fitted
		}
	}
	return quoted(text)
}

// asText returns text that a column of type text takes.
func asText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, string(utf8.RuneError)), "\x00", string(utf8.RuneError))
}

func quoted(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(asText(text)) != nil {
		return `""` // a string can always be encoded
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// fitJSON replaces in valid JSON the escapes that jsonb refuses. It returns false if the value is too deep
// or has too long a number.
func fitJSON(text string) (string, bool) {
	var b strings.Builder
	depth := 0
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			end := i + 1
			for ; text[end] != '"'; end++ {
				if text[end] == '\\' {
					end++
				}
			}
			fitString(&b, text[i:end+1])
			i = end + 1
			continue
		case c == '{' || c == '[':
			if depth++; depth > jsonDepthMax {
				return "", false
			}
		case c == '}' || c == ']':
			depth--
		case c == '-' || c >= '0' && c <= '9':
			end := i
			for end < len(text) && strings.IndexByte("+-.eE0123456789", text[end]) >= 0 {
				end++
			}
			if !fitsNumber(text[i:end]) {
				return "", false
			}
			b.WriteString(text[i:end])
			i = end
			continue
		}
		b.WriteByte(text[i])
		i++
	}
	return b.String(), true
}

func fitsNumber(number string) bool {
	mantissa, exponent, found := strings.Cut(strings.ToLower(number), "e")
	if len(mantissa) > jsonDigitsMax {
		return false
	}
	if !found {
		return true
	}
	n, err := strconv.Atoi(exponent)
	return err == nil && n >= -jsonDigitsMax && n <= jsonDigitsMax
}

// fitString appends a string literal without the escapes that jsonb refuses.
func fitString(b *strings.Builder, literal string) {
	for {
		i := strings.Index(literal, `\`)
		if i < 0 {
			b.WriteString(literal)
			return
		}
		b.WriteString(literal[:i])
		literal = literal[i:]
		unit, ok := escaped(literal)
		switch {
		case !ok:
			b.WriteString(literal[:2])
			literal = literal[2:]
		case unit >= 0xd800 && unit < 0xdc00:
			if low, ok := escaped(literal[6:]); ok && low >= 0xdc00 && low < 0xe000 {
				b.WriteString(literal[:12])
				literal = literal[12:]
				continue
			}
			b.WriteString(`\ufffd`)
			literal = literal[6:]
		case unit == 0 || unit >= 0xdc00 && unit < 0xe000:
			b.WriteString(`\ufffd`)
			literal = literal[6:]
		default:
			b.WriteString(literal[:6])
			literal = literal[6:]
		}
	}
}

// escaped returns the code unit of an escape \uXXXX at the start of text.
func escaped(text string) (unit uint64, ok bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(text[2:6], 16, 32)
	return unit, err == nil
}
