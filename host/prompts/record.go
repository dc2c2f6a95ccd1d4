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

// Record is a request to a model and its outcome.
type Record struct {
	At       string         `json:"at"` // beginning of the request
	Took     int64          `json:"took_ms"`
	Agent    string         `json:"agent_id"`
	External bool           `json:"external,omitzero"` // an external agent has sent the request
	Model    string         `json:"model"`             // in the configuration
	Provider string         `json:"provider_model,omitzero"`
	Status   int            `json:"status,omitzero"` // of the last response; 0: there was none
	Attempts int            `json:"attempts"`
	Request  jsontext.Value `json:"request,omitzero"` // body of the request, or its text if it is no JSON
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

// timeFormat is the format of Record.At.
const timeFormat = "2006-01-02T15:04:05.000Z"

// compose returns the record of a request, without it, and the request as it is recorded. That is JSON, or text that
// is none; see contents.record. It fails for an answer that is no JSON.
func compose(x *outbound.Recorded, redact redactor) (r Record, request []byte, err error) {
	completion := x.Completion
	if x.Raw != nil {
		completion = readRaw(x)
	}
	r = Record{At: x.Began.UTC().Format(timeFormat), Took: x.Took.Milliseconds(), Agent: x.Owner.Agent, External: x.External, Model: x.Model, Provider: completion.Model, Status: x.Status, Attempts: x.Attempts}
	if r.Provider == "" {
		r.Provider = x.Provider
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
			return r, nil, err
		}
		r.Answer = redact.value(mask(x, b))
	}
	if x.Refusal != nil {
		r.Error = &Error{x.Refusal.Reason.Info().Type, redact.text(string(mask(x, []byte(x.Refusal.Detail))))}
	}
	if u := completion.Usage; u.Known {
		r.Usage = &Usage{u.Input, u.Output, u.Total}
	}
	r.Provider = redact.text(r.Provider)
	const envelope = 4 << 10
	room := RecordBytesMax - envelope
	if r.Error != nil {
		r.Error.Detail = strings.ToValidUTF8(r.Error.Detail[:min(len(r.Error.Detail), envelope/8)], "\uFFFD")
	}
	r.Answer, r.Cut = cut(r.Answer, room/2) // an answer is short, as a rule
	room -= len(r.Answer)
	if request = mask(x, x.Request); len(request) <= room && redact.ignores(request) { // most are not even parsed
		return r, request, nil
	}
	value, lost := jsontext.Value(bytes.Clone(request)), 0
	if value.Compact(lenient...) == nil {
		value = redact.value(value)
	} else {
		value, lost = quoted(redact.text(string(request)))
	}
	r.Cut += lost
	value, lost = cut(value, room)
	r.Cut += lost
	return r, value, nil
}

// quoted returns a text that is no JSON as JSON, and the number of bytes that it has lost.
func quoted(text string) (jsontext.Value, int) {
	begin := shorten(text, RecordBytesMax/8) // each byte may need six in JSON
	return quote(begin), max(len(text)-len(begin), 0)
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

// recordTime returns the time of a record as JSON; zero if it has none.
func recordTime(b []byte) time.Time {
	const prefix = `{"at":"`
	if len(b) < len(prefix)+len(timeFormat) || string(b[:len(prefix)]) != prefix {
		return time.Time{}
	}
	return parseTime(string(b[len(prefix) : len(prefix)+len(timeFormat)]))
}

// parseTime returns Record.At; zero if it is none.
func parseTime(text string) time.Time {
	at, _ := time.Parse(timeFormat, text)
	return at
}
