// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// lenient are the options for answers of models: what can be understood is understood.
var lenient = json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))

// readableMedia reports whether a body of this media type may be the answer of a model. Many
// servers declare none, or the wrong one; the body itself shows what it is.
func readableMedia(media string) bool {
	return slices.Contains([]string{"", "text/event-stream", "application/json", "text/plain", "application/octet-stream", "application/x-ndjson"}, media)
}

// sniff reports whether a body is a stream of events, from its first byte that is not white
// space. Until then it collects the body in head.
func sniff(head *[]byte, b []byte) (body []byte, events, sniffed bool) {
	*head = append(*head, b...)
	begin := bytes.TrimLeft(bytes.TrimPrefix(*head, []byte("\uFEFF")), " \t\r\n")
	if len(begin) == 0 || len(*head) < len("\uFEFF") && (*head)[0] == 0xEF {
		return nil, false, false
	}
	if body = *head; begin[0] == '{' || begin[0] == '[' {
		body = begin
	}
	*head = nil
	return body, begin[0] != '{' && begin[0] != '[', true
}

// rank orders finish reasons. Of an answer that has several, the one with the highest rank counts.
func rank(f Finish) int {
	return slices.Index([]Finish{NoFinish, FinishAnother, FinishStop, FinishCalls, FinishLength, FinishFilter}, f)
}

// wireCount is a number of tokens: a whole number, also written as 5.0, or -1 for anything else.
type wireCount int64

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (n *wireCount) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	value, err := from.ReadValue()
	if err != nil {
		return err
	}
	*n = -1
	if f, err := strconv.ParseFloat(string(value), 64); err == nil && f >= 0 && f <= float64(tokensMax) && f == math.Trunc(f) {
		*n = wireCount(f)
	} else if value.Kind() == 'n' {
		*n = 0
	}
	return nil
}

// readUsage returns the usage in an answer, or false if it has none that can be understood.
// The usage never decides whether an answer is accepted.
func readUsage(value jsontext.Value) (Usage, bool) {
	var u wireUsage
	if len(value) == 0 || value.Kind() != '{' || unmarshal(value, &u, lenient) != nil || min(u.Input, u.Output, u.Total) < 0 || u == (wireUsage{}) {
		return Usage{}, false
	}
	if u.Total == 0 {
		u.Total = u.Input + u.Output
	}
	return Usage{Known: true, Input: int64(u.Input), Output: int64(u.Output), Total: int64(u.Total), Cached: min(readCached(value), int64(u.Input))}, true
}

// readCached returns the tokens of a prompt that the upstream had cached, 0 if the usage does not say so.
func readCached(value jsontext.Value) int64 {
	var u struct {
		Details jsontext.Value `json:"prompt_tokens_details"`
		Hit     wireCount      `json:"prompt_cache_hit_tokens"`
	}
	var details struct {
		Cached wireCount `json:"cached_tokens"`
	}
	if unmarshal(value, &u, lenient) != nil {
		return 0
	}
	if u.Details.Kind() == '{' && unmarshal(u.Details, &details, lenient) == nil && details.Cached > 0 {
		return int64(details.Cached)
	}
	return max(int64(u.Hit), 0)
}

// wireArguments are the arguments of a tool call: a text, or the object that is meant.
type wireArguments string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (a *wireArguments) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	value, err := from.ReadValue()
	if err != nil {
		return err
	}
	if value.Kind() == '{' {
		*a = wireArguments(value)
		return nil
	}
	return setText((*string)(a), value)
}

// setText sets the text of a JSON string, or "" of null. A half of a character stays as its three
// bytes, so that the next piece may complete it; see validText.
func setText(to *string, value jsontext.Value) error {
	if value.Kind() != '"' {
		return json.Unmarshal(value, to)
	}
	if !bytes.Contains(bytes.ToLower(value), []byte(`\ud`)) {
		b := value[1 : len(value)-1]
		if bytes.IndexByte(b, '\\') < 0 {
			*to = string(b)
			return nil
		}
	}
	var out []byte
	for b := value[1 : len(value)-1]; len(b) > 0; {
		at := bytes.IndexByte(b, '\\')
		if at < 0 {
			out = append(out, b...)
			break
		}
		out, b = append(out, b[:at]...), b[at:]
		if b[1] != 'u' {
			out = append(out, unescaped[b[1]])
			b = b[2:]
			continue
		}
		r, err := strconv.ParseUint(string(b[2:6]), 16, 16)
		if err != nil {
			return err
		}
		if b = b[6:]; r >= 0xD800 && r < 0xE000 {
			out = append(out, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0xBF, 0x80|byte(r)&0xBF)
		} else {
			out = utf8.AppendRune(out, rune(r))
		}
	}
	*to = string(out)
	return nil
}

var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// validText joins the halves of characters that setText left, and replaces what is no character.
func validText(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); {
		if high, low := surrogate(text[i:]), surrogate(text[min(i+3, len(text)):]); high >= 0xD800 && high < 0xDC00 && low >= 0xDC00 {
			out.WriteRune((high-0xD800)<<10 + (low - 0xDC00) + 0x10000)
			i += 6
			continue
		} else if high != 0 {
			out.WriteRune(utf8.RuneError)
			i += 3
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		out.WriteRune(r)
		i += size
	}
	return out.String()
}

// surrogate returns the half of a character at the start of a text, or 0.
func surrogate(text string) rune {
	if len(text) < 3 || text[0] != 0xED || text[1] < 0xA0 || text[1] > 0xBF || text[2]&0xC0 != 0x80 {
		return 0
	}
	return 0xD000 | rune(text[1]&0x3F)<<6 | rune(text[2]&0x3F)
}

// halfText holds the first bytes of a character at the end of a piece of text.
type halfText string

// join returns the valid text of the next piece, and keeps the first bytes of a character at its
// end.
func (h *halfText) join(piece string) string {
	if piece == "" {
		return ""
	}
	text := string(*h) + piece
	*h = ""
	if utf8.ValidString(text) {
		return text
	}
	cut := len(text)
	if at := max(len(text)-3, 0); surrogate(text[at:]) >= 0xD800 && surrogate(text[at:]) < 0xDC00 {
		cut = at
	} else {
		for n := 1; n <= min(3, len(text)); n++ {
			if b := text[len(text)-n]; utf8.RuneStart(b) {
				if b >= 0xC0 && !utf8.FullRuneInString(text[len(text)-n:]) {
					cut = len(text) - n
				}
				break
			}
		}
	}
	*h = halfText(text[cut:])
	return validText(text[:cut])
}

// rest returns the text for a begin that nothing completed.
func (h *halfText) rest() string {
	text := validText(string(*h))
	*h = ""
	return text
}
