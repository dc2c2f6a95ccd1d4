// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/upstream"
)

// RecordBytesMax is the maximum size of a record in bytes. Long texts of a longer one are cut.
const RecordBytesMax = 1 << 20

// Record is a request to a model and its outcome, a line of a file.
type Record struct {
	At       string         `json:"at"` // beginning of the request
	Took     int64          `json:"took_ms"`
	Agent    string         `json:"agent_id"`
	External bool           `json:"external,omitzero"` // an external agent has sent the request
	Model    string         `json:"model"`             // in the configuration
	Provider string         `json:"provider_model,omitzero"`
	Status   int            `json:"status,omitzero"` // of the last response; 0: there was none
	Attempts int            `json:"attempts"`
	Request  jsontext.Value `json:"request"` // body of the request, or its text if it is no JSON
	Answer   jsontext.Value `json:"answer,omitzero"`
	Error    *Error         `json:"error,omitzero"`
	Usage    *Usage         `json:"usage,omitzero"`
	Cut      int            `json:"cut_bytes,omitzero"` // bytes of texts that were cut
}

// Error is the refusal of a request.
type Error struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// Usage is the number of tokens that the model has reported.
type Usage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
	Total  int64 `json:"total_tokens"`
}

// answer is the part of an answer that was received.
type answer struct {
	Text      string         `json:"text"`
	Calls     []toolCall     `json:"tool_calls,omitempty"`
	Reasoning jsontext.Value `json:"reasoning,omitzero"`
	Finish    string         `json:"finish_reason,omitzero"` // "": the answer is incomplete
}

type toolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// timeFormat has a fixed length, so that the age of a line is known without reading all of it.
const timeFormat = "2006-01-02T15:04:05.000Z"

// line returns the line of a request, with its end. It fails for an answer that is no JSON.
func line(x *outbound.Recorded, redact redactor) ([]byte, error) {
	completion := x.Completion
	if x.Raw != nil {
		completion = readRaw(x)
	}
	r := Record{At: x.Began.UTC().Format(timeFormat), Took: x.Took.Milliseconds(), Agent: x.Owner.Agent, External: x.External, Model: x.Model, Provider: completion.Model, Status: x.Status, Attempts: x.Attempts}
	if r.Provider == "" {
		r.Provider = x.Provider
	}
	if r.Request = jsontext.Value(mask(x, bytes.Clone(x.Request))); r.Request.Compact(lenient...) == nil {
		r.Request = redact.value(r.Request)
	} else {
		text := redact.text(string(r.Request))
		begin := shorten(text, RecordBytesMax/8) // each byte may need six in JSON
		r.Request, r.Cut = quote(begin), max(len(text)-len(begin), 0)
	}
	if completion.Text != "" || len(completion.Calls) > 0 || completion.Finish != upstream.NoFinish {
		a := answer{Text: completion.Text, Finish: completion.Finish.String()}
		if completion.Kept != "" {
			a.Reasoning = jsontext.Value(completion.Kept)
		}
		for _, c := range completion.Calls {
			a.Calls = append(a.Calls, toolCall{c.ID, c.Name, c.Arguments})
		}
		b, err := marshal(a)
		if err != nil {
			return nil, err
		}
		r.Answer = mask(x, b)
	}
	if x.Refusal != nil {
		r.Error = &Error{x.Refusal.Reason.Info().Type, redact.text(string(mask(x, []byte(x.Refusal.Detail))))}
	}
	if u := completion.Usage; u.Known {
		r.Usage = &Usage{u.Input, u.Output, u.Total}
	}
	if r.Answer != nil {
		r.Answer = redact.value(r.Answer)
	}
	r.Provider = redact.text(r.Provider)
	const envelope = 4 << 10
	room := RecordBytesMax - envelope
	if r.Error != nil {
		r.Error.Detail = strings.ToValidUTF8(r.Error.Detail[:min(len(r.Error.Detail), envelope/8)], "\uFFFD")
	}
	for _, part := range []struct {
		of   *jsontext.Value
		room int
	}{{&r.Answer, room / 2}, {&r.Request, room}} { // an answer is short, as a rule
		var n int
		*part.of, n = cut(*part.of, min(part.room, room))
		r.Cut += n
		room -= len(*part.of)
	}
	b, err := marshal(r)
	return append(b, '\n'), err
}

func marshal(v any) ([]byte, error) {
	return json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}

// mask removes the secrets of the request.
func mask(x *outbound.Recorded, b []byte) []byte {
	if x.Mask == nil {
		return b
	}
	return x.Mask(b)
}

// readRaw returns the answer that was passed on to an external agent.
func readRaw(x *outbound.Recorded) upstream.Completion {
	d, failure := upstream.NewModelDecoder("model", &upstream.Prompt{}, nil, "application/json")
	if failure != nil {
		return x.Completion
	}
	_, _ = d.Decode(x.Raw)
	_, _ = d.End()
	c := d.Completion()
	if !c.Usage.Known { // it was removed from what the agent gets
		c.Usage = x.Completion.Usage
	}
	if c.Model == "" {
		c.Model = x.Completion.Model
	}
	return c
}

// cut returns a value of at most room bytes, and the number of bytes that its texts have lost. The longest texts are
// cut in their middle. A value of many short texts is replaced by the beginning of its JSON.
func cut(v jsontext.Value, room int) (jsontext.Value, int) {
	if len(v) <= room {
		return v, 0
	}
	all := scalars(v)
	for most := room / 2; most >= 64; most /= 2 {
		size := len(v)
		for i := range all {
			size -= max(all[i].to-all[i].from-most, 0)
		}
		if size > room {
			continue
		}
		var edits []edit
		lost := 0
		for i := range all {
			s := &all[i]
			if s.to-s.from <= most || !s.quoted || s.name {
				continue
			}
			text := s.text(v)
			shorter := shorten(text, most)
			edits, lost = append(edits, edit{s.from, s.to, quote(shorter)}), lost+len(text)-len(shorter)
		}
		if out := applyEdits(v, edits); len(out) <= room {
			return out, max(lost, 0)
		}
	}
	begin := shorten(string(v), room/8) // each byte may need six in JSON
	return quote(begin), len(v) - len(begin)
}

// shorten returns the beginning and the end of a text, at most about n bytes.
func shorten(text string, n int) string {
	half := n / 2
	if len(text) <= n {
		return text
	}
	from, to := half, len(text)-half
	for from > 0 && !utf8.RuneStart(text[from]) {
		from--
	}
	for to < len(text) && !utf8.RuneStart(text[to]) {
		to++
	}
	return fmt.Sprintf("%s … [%d bytes cut] … %s", text[:from], to-from, text[to:])
}

// lineTime returns the time of a line; zero if it has none.
func lineTime(b []byte) time.Time {
	const prefix = `{"at":"`
	if len(b) < len(prefix)+len(timeFormat) || string(b[:len(prefix)]) != prefix {
		return time.Time{}
	}
	at, _ := time.Parse(timeFormat, string(b[len(prefix):len(prefix)+len(timeFormat)]))
	return at
}
