// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Chat is a request in the format of OpenAI chat completions that a client sent to this
// server. It is passed on to a model as it is, with two changes: the model has its name at
// the upstream, and a streamed answer includes the usage.
type Chat struct {
	Model   string // name of the model in the configuration
	Stream  bool
	answer  int64 // most tokens of the answer; 0: not named
	body    []byte
	model   span // of the value of model
	usage   bool // the client itself asks for the usage of a streamed answer
	options span // of the value of stream_options; empty if there is none
}

// span is a range of bytes.
type span struct{ from, to int }

// ChatBytesMax is the maximum size in bytes of a Chat.
const ChatBytesMax = PromptBytesMax

// ReadChat reads the request in a body, which it keeps. A refusal names the member.
func ReadChat(body []byte) (Chat, *actor.Refusal) {
	c := Chat{body: body}
	invalid := func(field, text string) (Chat, *actor.Refusal) {
		r := actor.Refuse(actor.Invalid, "%s", text)
		r.Field = field
		return Chat{}, r
	}
	if len(body) > ChatBytesMax {
		return invalid("", "the request is longer than 8 MiB")
	}
	if err := checkObject(body); err != nil {
		return invalid("", "want a JSON object with model and messages: "+err.Error())
	}
	var at members
	if err := at.read(body); err != nil {
		return invalid("", err.Error())
	}
	if other, name := at.variant("model", "messages", "stream", "stream_options"); other != "" { // the model's own server may read it as the member
		return invalid(other, "unknown member; want "+name)
	}
	model, messages, stream := at.value(body, "model"), at.value(body, "messages"), at.value(body, "stream")
	if model.Kind() == '"' {
		c.Model = scalarText(model)
	}
	switch {
	case c.Model == "":
		return invalid("model", "model: want the name of a model; GET /v1/models lists them")
	case messages.Kind() != '[' || len(bytes.TrimSpace(messages[1:len(messages)-1])) == 0:
		return invalid("messages", "messages: want a list of at least one message")
	case len(stream) > 0 && stream.Kind() != 't' && stream.Kind() != 'f' && stream.Kind() != 'n':
		return invalid("stream", "stream: want true or false")
	}
	c.model, c.Stream = at["model"].value, stream.Kind() == 't'
	c.answer = answerTokens(body, at)
	if options := at.value(body, "stream_options"); len(options) > 0 {
		var o struct {
			Usage bool `json:"include_usage"`
		}
		var members members
		read := unmarshal(options, &o) == nil
		if read && options.Kind() == '{' {
			read = members.read(options) == nil && !members.hasVariant("include_usage")
		}
		if !read {
			return invalid("stream_options", "stream_options: want an object; include_usage is true or false")
		}
		c.options, c.usage = at["stream_options"].value, o.Usage
	}
	return c, nil
}

// promptTokenBytes is the number of bytes of a prompt that count as a token. Tokens are longer on average,
// also those of scripts with three bytes for each character.
const promptTokenBytes = 2

// PromptTokens returns the most tokens that a prompt of so many bytes is expected to have.
func PromptTokens(bytes int) int64 { return int64((bytes + promptTokenBytes - 1) / promptTokenBytes) }

// Tokens returns the most tokens that the prompt is expected to have, and those that the answer may have; 0: any number.
func (c *Chat) Tokens() (prompt, answer int64) { return PromptTokens(len(c.body)), max(c.answer, 0) }

// answerTokens returns the most tokens that the answers to a request may have: the larger one of the two members for that, for each
// of the choices that it asks for. It is 0 if neither is there, and tokensMax if they are no numbers of tokens, of which
// it is not known how the model reads them.
func answerTokens(body []byte, at members) (most int64) {
	count := func(name string, highest int64) (n int64) {
		value := at.value(body, name)
		switch {
		case len(value) == 0 && at.hasVariant(name):
			return highest
		case len(value) == 0, value.Kind() == 'n':
			return 0
		case unmarshal(value, &n) != nil, n < 1, n > highest:
			return highest
		}
		return n
	}
	most = max(count("max_completion_tokens", tokensMax), count("max_tokens", tokensMax))
	if n := max(count("n", choicesMax), 1); most > 0 && most <= tokensMax/n {
		return most * n
	} else if most == 0 && n > 1 {
		return tokensMax
	}
	return min(most, tokensMax)
}

// choicesMax is the largest number of choices of a request that is counted.
const choicesMax = 1 << 10

// bodyFor returns the request for a model with the given name at its upstream.
func (c *Chat) bodyFor(model string, omit []string) []byte {
	edits := []edit{{c.model, marshal(model)}}
	if c.Stream && !c.usage && !slices.Contains(omit, optionStreamOptions) {
		edits = append(edits, c.askForUsage())
	}
	return applyEdits(c.body, edits)
}

// askForUsage returns the change that adds include_usage to the request.
func (c *Chat) askForUsage() edit {
	if c.options == (span{}) {
		end := bytes.LastIndexByte(c.body, '}')
		return edit{span{end, end}, []byte(`,"stream_options":{"include_usage":true}`)}
	}
	options := c.body[c.options.from:c.options.to]
	var at members
	if jsontext.Value(options).Kind() != '{' || at.read(options) != nil { // null
		return edit{c.options, []byte(`{"include_usage":true}`)}
	}
	if former, ok := at["include_usage"]; ok {
		return edit{span{c.options.from + former.value.from, c.options.from + former.value.to}, []byte("true")}
	}
	first := `"include_usage":true`
	if len(at) > 0 {
		first += ","
	}
	return edit{span{c.options.from + 1, c.options.from + 1}, []byte(first)}
}

// edit replaces a range of bytes.
type edit struct {
	at span
	by []byte
}

// applyEdits returns a copy of b with the edits, whose ranges do not overlap.
func applyEdits(b []byte, edits []edit) []byte {
	if len(edits) == 2 && edits[1].at.from < edits[0].at.from {
		edits[0], edits[1] = edits[1], edits[0]
	}
	var out []byte
	from := 0
	for _, e := range edits {
		out = append(append(out, b[from:e.at.from]...), e.by...)
		from = e.at.to
	}
	return append(out, b[from:]...)
}

// members are the members of a JSON object.
type members map[string]member

// member is the place of a member: where its name begins, and its value.
type member struct {
	name  int
	value span
}

// read reads the members of an object.
func (m *members) read(object []byte, options ...jsontext.Options) error {
	*m = members{}
	d := jsontext.NewDecoder(bytes.NewReader(object), options...)
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return errors.Join(errors.New("want a JSON object"), err)
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadValue()
		if err != nil {
			return err
		}
		at := member{name: int(d.InputOffset()) - len(name)}
		text := scalarText(name)
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		at.value = span{int(d.InputOffset()) - len(value), int(d.InputOffset())}
		(*m)[text] = at
	}
	if _, err := d.ReadToken(); err != nil && err != io.EOF {
		return err
	}
	return nil
}

// variant returns another member whose name has the letters of one of the names in another case, and
// that name. It returns "" if there is none.
func (m members) variant(names ...string) (other, name string) {
	all := slices.Sorted(maps.Keys(m))
	for _, name := range names {
		for _, other := range all {
			if other != name && strings.EqualFold(other, name) {
				return other, name
			}
		}
	}
	return "", ""
}

func (m members) hasVariant(name string) bool {
	other, _ := m.variant(name)
	return other != ""
}

// value returns the value of a member, empty if there is none.
func (m members) value(object []byte, name string) jsontext.Value {
	at := m[name].value
	return object[at.from:at.to]
}

// Chat returns the exchange for a request of a client and the reader of its answer. The
// deltas are the bytes of a streamed answer; see ChatReader. No attempt follows one whose
// bytes were forwarded.
func (m Model) Chat(c *Chat, model string, deadline actor.Time, patience AttemptLimits) (ExchangeConfig, *ChatReader, *actor.Refusal) {
	name := "model " + model
	request, refusal := m.post(c.bodyFor(model, m.Omit))
	r := &ChatReader{name: name, secrets: request.secrets(), added: c.Stream && !c.usage}
	return ExchangeConfig{Upstream: name, Request: request, Safe: true, Model: true, Verbatim: true, Deadline: deadline, AttemptLimits: patience, Without: c.without(request),
		NewDecoder: func(contentType string) (Decoder, *Failure) { return r.restart(contentType) },
	}, r, refusal
}

// Prompt returns the request as a prompt, for the scripted model. It keeps the text of
// messages and the names of tools.
func (c *Chat) Prompt() (Prompt, *actor.Refusal) {
	var w struct {
		Messages []struct {
			Role    string         `json:"role"`
			Content jsontext.Value `json:"content"`
			Calls   []wireCall     `json:"tool_calls"`
			CallID  string         `json:"tool_call_id"`
		} `json:"messages"`
		Tools []wireTool `json:"tools"`
	}
	if err := unmarshal(c.body, &w); err != nil {
		return Prompt{}, actor.Refuse(actor.Invalid, "%v", err)
	}
	p := Prompt{Model: c.Model}
	for _, m := range w.Messages {
		message := Message{Role: User, Text: contentText(m.Content)}
		switch m.Role {
		case "system", "developer":
			message.Role = System
		case "assistant":
			message.Role = Assistant
		case "tool":
			message.Role, message.CallID = Tool, m.CallID
		}
		for _, call := range m.Calls {
			message.Calls = append(message.Calls, ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
		}
		p.Messages = append(p.Messages, message)
	}
	for _, t := range w.Tools {
		p.Tools = append(p.Tools, ToolSpec{Name: t.Function.Name, Schema: "{}"})
	}
	if err := p.Check(); err != nil {
		return Prompt{}, actor.Refuse(actor.Invalid, "%v", err)
	}
	return p, nil
}

// contentText returns the text of a content: a string, or a list of parts.
func contentText(content jsontext.Value) string {
	if content.Kind() == '"' {
		return scalarText(content)
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if len(content) == 0 || unmarshal(content, &parts) != nil {
		return ""
	}
	var all []string
	for _, p := range parts {
		all = append(all, p.Text)
	}
	return strings.Join(all, "\n")
}

// AppendAnswer appends a completion as the answer to a request without stream.
func AppendAnswer(b []byte, c Completion) []byte {
	type message struct {
		Role    string     `json:"role"`
		Content *string    `json:"content"`
		Calls   []wireCall `json:"tool_calls,omitempty"`
	}
	type choice struct {
		Index   int     `json:"index"`
		Message message `json:"message"`
		Finish  string  `json:"finish_reason"`
	}
	m := message{Role: "assistant", Content: &c.Text}
	if len(c.Calls) > 0 && c.Text == "" {
		m.Content = nil
	}
	for _, call := range c.Calls {
		m.Calls = append(m.Calls, wireCall{call.ID, "function", wireFunction{call.Name, call.Arguments}, nil})
	}
	return append(b, marshal(struct {
		ID      string    `json:"id"`
		Object  string    `json:"object"`
		Created int       `json:"created"`
		Model   string    `json:"model"`
		Choices []choice  `json:"choices"`
		Usage   wireUsage `json:"usage"`
	}{"chatcmpl-0", "chat.completion", 0, c.Model, []choice{{0, m, c.Finish.String()}}, wireUsage{wireCount(c.Usage.Input), wireCount(c.Usage.Output), wireCount(c.Usage.Total)}})...)
}
