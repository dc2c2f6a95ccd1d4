// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Delta is a piece of a response to forward: text, or a state of an agent.
type Delta struct {
	Text   string
	State  string
	Detail string // detail of State: a JSON value, or ""
}

// Decoder decodes the body of one response. After a failure every call returns the
// same failure.
type Decoder interface {
	// Decode consumes the next bytes. Deltas returned with a failure precede it in the
	// stream.
	Decode(b []byte) ([]Delta, *Failure)
	// End reports the end of the body.
	End() ([]Delta, *Failure)
	// HasFinish reports whether the response may end here, although more may follow.
	HasFinish() bool
	// Done reports whether the response is complete; the rest of the body is ignored.
	Done() bool
	// Completion returns the response. If the response is incomplete, Completion
	// returns the part received so far, without Finish.
	Completion() Completion
	// Warnings returns warnings about the content of a complete response.
	Warnings() []string
}

// ModelDecoder decodes the response of a model, streamed or as one JSON value.
type ModelDecoder struct {
	name      string
	secrets   Secrets // of the request
	tools     []ToolSpec
	wireNames []string // names of tools as the model sees them
	sniffed   bool     // the body has begun
	head      []byte   // white space before it
	parser    *Parser  // nil: the body is one JSON value
	body      []byte
	events    int

	text      strings.Builder
	jsonBytes int // upper bound of the size of text in JSON
	half      halfText
	mask      masker
	reasoning reasoning
	calls     Assembler
	finish    Finish
	toolCalls []ToolCall // of a complete response
	usage     Usage
	model     string
	done      bool
	failure   *Failure
}

// NewModelDecoder returns a decoder for the response to p with the given content
// type.
func NewModelDecoder(name string, p *Prompt, secrets Secrets, contentType string) (*ModelDecoder, *Failure) {
	d := &ModelDecoder{name: name, secrets: secrets, mask: masker{secrets: secrets.long()}, tools: p.Tools, wireNames: p.wireNames()}
	if media := mediaType(contentType); !readableMedia(media) {
		return nil, fail(Broken, actor.Unavailable, "%s answers with %q: want an event stream or JSON", name, secrets.quote(media, mediaBytesMax))
	}
	return d, nil
}

func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// HasFinish reports whether the model has given a finish reason.
func (d *ModelDecoder) HasFinish() bool {
	return d.parser != nil && d.finish != NoFinish && d.failure == nil
}

// Warnings returns nil, because the finish reason of a model names the missing part.
func (d *ModelDecoder) Warnings() []string { return nil }

// Done reports whether the model has completed the response.
func (d *ModelDecoder) Done() bool { return d.done }

// Completion returns the response as received so far.
func (d *ModelDecoder) Completion() Completion {
	c := Completion{Text: d.text.String(), Usage: d.usage, Model: d.model}
	if d.done {
		c.Calls, c.Finish, c.Kept = d.toolCalls, d.finish, d.reasoning.kept()
	}
	return c
}

// Decode consumes the next bytes of the body.
func (d *ModelDecoder) Decode(b []byte) (deltas []Delta, failure *Failure) {
	if d.failure != nil || d.done {
		return nil, d.failure
	}
	if !d.sniffed {
		var events bool
		if b, events, d.sniffed = sniff(&d.head, b); !d.sniffed {
			if len(d.head) > BodyBytesMax {
				d.fail(Refused, actor.ModelRejected, "%s: response exceeds %d bytes", d.name, BodyBytesMax)
			}
			return nil, d.failure
		}
		if events {
			d.parser = NewParser(StreamLimits{})
		}
	}
	if d.parser == nil {
		if len(d.body)+len(b) > BodyBytesMax {
			d.fail(Refused, actor.ModelRejected, "%s: response exceeds %d bytes", d.name, BodyBytesMax)
		} else {
			d.body = append(d.body, b...)
		}
		return nil, d.failure
	}
	events, refusal := d.parser.Parse(b)
	for _, e := range events {
		if text := d.handleEvent(e); text != "" {
			deltas = append(deltas, Delta{Text: text})
		}
		if d.done || d.failure != nil {
			return deltas, d.failure
		}
	}
	if refusal != nil {
		d.fail(Refused, actor.ModelRejected, "%s: %s", d.name, refusal.Detail)
	}
	return deltas, d.failure
}

// End reports the end of the body. A response without a finish reason is
// incomplete.
func (d *ModelDecoder) End() (deltas []Delta, failure *Failure) {
	if d.failure != nil || d.done {
		return nil, d.failure
	}
	if d.parser == nil && len(d.body) > 0 {
		if text := d.decodeChunk(d.body); text != "" {
			deltas = []Delta{{Text: text}}
		}
	}
	if d.failure == nil {
		if text := d.finishAnswer(); text != "" {
			deltas = append(deltas, Delta{Text: text})
		}
	}
	return deltas, d.failure
}

func (d *ModelDecoder) fail(class Class, reason actor.Reason, format string, args ...any) {
	d.failure = fail(class, reason, format, args...)
}

// failMalformed records that the response is unusable and returns "".
func (d *ModelDecoder) failMalformed(format string, args ...any) string {
	if d.parser != nil {
		format, args = "%s, event %d: "+format, append([]any{d.name, d.events}, args...)
	} else {
		format, args = "%s: "+format, append([]any{d.name}, args...)
	}
	d.fail(Broken, actor.Unavailable, format, args...)
	return ""
}

// handleEvent processes one event of the stream and returns its text.
func (d *ModelDecoder) handleEvent(e runs.Frame) string {
	d.events++
	switch data := strings.TrimSpace(e.Data); {
	case e.Name == "error":
		d.failure = parseError([]byte(data)).failure(d.name, d.secrets)
		return ""
	case e.Name != "" && e.Name != "message":
		return ""
	case data == "[DONE]":
		return d.finishAnswer()
	case data == "" || data[0] == ':': // a comment that became data on its way
		return ""
	default:
		return d.decodeChunk([]byte(data))
	}
}

// The wire format of a response, streamed or complete.
type (
	wireAnswer struct {
		Model   string         `json:"model"`
		Choices []wireChoice   `json:"choices"`
		Usage   jsontext.Value `json:"usage"`
		Error   jsontext.Value `json:"error"`
	}
	wireChoice struct {
		Index   int         `json:"index"`
		Delta   wireContent `json:"delta"`
		Message wireContent `json:"message"`
		Finish  string      `json:"finish_reason"`
	}
	wireContent struct {
		Content wireText       `json:"content"`
		Refusal string         `json:"refusal"`
		Calls   []wireFragment `json:"tool_calls"`
		wireReasoning
	}
	wireFragment struct {
		Index    *int   `json:"index"`
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string        `json:"name"`
			Arguments wireArguments `json:"arguments"`
		} `json:"function"`
		Kept jsontext.Value `json:",embed"`
	}
	wireUsage struct {
		Input  wireCount `json:"prompt_tokens"`
		Output wireCount `json:"completion_tokens"`
		Total  wireCount `json:"total_tokens"`
	}
)

// wireText is a string, or the concatenated text parts of a list. Parts of other
// types, such as a model's reasoning, are skipped.
type wireText string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *wireText) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	if from.PeekKind() != '[' {
		value, err := from.ReadValue()
		if err != nil {
			return err
		}
		return setText((*string)(t), value)
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.UnmarshalDecode(from, &parts); err != nil {
		return err
	}
	for _, p := range parts {
		if p.Type == "text" {
			*t += wireText(p.Text)
		}
	}
	return nil
}

// decodeChunk decodes one JSON value of the response and returns its text.
func (d *ModelDecoder) decodeChunk(b []byte) string {
	var w wireAnswer
	if err := unmarshal(b, &w, lenient); err != nil {
		if d.parser != nil && d.finish != NoFinish { // the answer is complete
			return ""
		}
		return d.failMalformed("%s", d.secrets.quoteError(err))
	}
	if len(w.Error) > 0 && w.Error.Kind() != 'n' {
		d.failure = parseErrorMember(w.Error).failure(d.name, d.secrets)
		return ""
	}
	if d.model == "" {
		d.model = d.mask.secrets.quote(w.Model, NameBytesMax)
	}
	if usage, ok := readUsage(w.Usage); ok {
		d.usage = usage
	}
	if d.parser == nil && len(w.Choices) == 0 {
		return d.failMalformed("response without choices")
	}
	var text strings.Builder
	for i, c := range w.Choices {
		if c.Index != 0 || d.parser == nil && i > 0 {
			return d.failMalformed("choice %d: want a single choice", max(c.Index, i))
		}
		content := c.Delta
		if d.parser == nil {
			content = c.Message
		}
		text.WriteString(d.addContent(content))
		if d.failure != nil {
			break
		}
		if f := parseFinish(c.Finish); rank(f) > rank(d.finish) {
			d.finish = f
		}
	}
	return text.String()
}

// addContent appends the content of one choice and returns its text. A refusal by
// the model counts as its answer.
func (d *ModelDecoder) addContent(content wireContent) string {
	text := d.mask.add(d.half.join(string(content.Content) + content.Refusal))
	if err := d.reasoning.add(content.wireReasoning); err != nil {
		return d.failMalformed("%v", err)
	}
	for i, w := range content.Calls {
		f := Fragment{Index: NoIndex, ID: w.ID, Name: w.Function.Name, Arguments: string(w.Function.Arguments), Kept: keptOf(w.Kept)}
		switch {
		case d.parser == nil: // each call is complete
			f.Index = i
		case w.Index != nil && *w.Index < 0:
			return d.failMalformed("tool call %d: negative index", *w.Index)
		case w.Index != nil:
			f.Index = *w.Index
		}
		if err := d.calls.Add(f); err != nil {
			return d.failMalformed("%v", err)
		}
	}
	d.jsonBytes += jsonBytesMax(text)
	if d.jsonBytes+d.calls.JSONBytes()+d.reasoning.size > OutputBytesMax {
		d.fail(Refused, actor.ModelRejected, "%s: output exceeds %d bytes", d.name, OutputBytesMax)
		return ""
	}
	d.text.WriteString(text)
	return text
}

// finishAnswer completes the response and returns the rest of its text. It fails if the
// response has no finish reason, or if its tool calls are invalid.
func (d *ModelDecoder) finishAnswer() string {
	if d.finish == NoFinish {
		d.fail(Broken, actor.Unavailable, "%s: response ended after %d bytes of text without a finish reason", d.name, d.text.Len())
		return ""
	}
	calls, err := d.calls.Calls()
	if err != nil {
		return d.failMalformed("%v", err)
	}
	for i, c := range calls {
		calls[i].Name, calls[i].Arguments = d.mask.secrets.redact(c.Name), d.mask.secrets.redact(c.Arguments)
		if j := slices.Index(d.wireNames, c.Name); j >= 0 {
			calls[i].Name = d.tools[j].Name
		}
	}
	d.toolCalls, d.done = calls, true
	rest := d.mask.add(d.half.rest()) + d.mask.rest()
	d.text.WriteString(rest)
	return rest
}

// AppendStream appends a completion in the streaming format of a model, in deltas
// of at most cut bytes. Simulated models and tests use it. A completion without
// Finish ends like an aborted stream.
func AppendStream(b []byte, c Completion, cut int) []byte {
	send := func(choice any, usage any) {
		b = runs.Frame{Data: string(marshal(struct {
			ID      string `json:"id"`
			Object  string `json:"object"`
			Created int    `json:"created"`
			Model   string `json:"model"`
			Choices []any  `json:"choices"`
			Usage   any    `json:"usage"`
		}{"chatcmpl-0", "chat.completion.chunk", 0, c.Model, slices.DeleteFunc([]any{choice}, func(v any) bool { return v == nil }), usage}))}.Append(b)
	}
	type function struct {
		Name      string `json:"name,omitzero"`
		Arguments string `json:"arguments"`
	}
	type fragment struct {
		Index    int      `json:"index"`
		ID       string   `json:"id,omitzero"`
		Type     string   `json:"type,omitzero"`
		Function function `json:"function"`
	}
	type delta struct {
		Role    string     `json:"role,omitzero"`
		Content string     `json:"content,omitzero"`
		Calls   []fragment `json:"tool_calls,omitempty"`
	}
	type choice struct {
		Index  int     `json:"index"`
		Delta  delta   `json:"delta"`
		Finish *string `json:"finish_reason"`
	}
	send(choice{Delta: delta{Role: "assistant"}}, nil)
	for _, piece := range splitText(c.Text, cut) {
		send(choice{Delta: delta{Content: piece}}, nil)
	}
	for i, call := range c.Calls {
		send(choice{Delta: delta{Calls: []fragment{{i, call.ID, "function", function{Name: call.Name}}}}}, nil)
		for _, piece := range splitText(call.Arguments, cut) {
			send(choice{Delta: delta{Calls: []fragment{{Index: i, Function: function{Arguments: piece}}}}}, nil)
		}
	}
	if c.Finish == NoFinish {
		return b
	}
	finish := c.Finish.String()
	send(choice{Finish: &finish}, nil)
	if u := c.Usage; u.Known {
		send(nil, wireUsage{wireCount(u.Input), wireCount(u.Output), wireCount(u.Total)})
	}
	return runs.Frame{Data: "[DONE]"}.Append(b)
}

// splitText splits text into pieces of at most limit bytes, between characters.
// Invalid UTF-8 is replaced.
func splitText(text string, limit int) (all []string) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	for len(text) > 0 {
		n := runePrefix(text, limit)
		all = append(all, text[:n])
		text = text[n:]
	}
	return all
}
