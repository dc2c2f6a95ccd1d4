// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Bounds of a prompt.
const (
	MessagesMax    = 4096
	ToolsMax       = 128
	ToolCallsMax   = 64
	NameBytesMax   = 256 // length of the name of a model or tool, or of an id
	PromptBytesMax = 8 << 20
	MaxTokensMax   = 1 << 24
)

// Role is the author of a message in a prompt.
type Role uint8

// The roles.
const (
	System    Role = iota + 1 // instructions of the agent's author
	User                      // the caller of the agent
	Assistant                 // the model, in an earlier response
	Tool                      // the result of one tool call
)

var roleNames = [...]string{System: "system", User: "user", Assistant: "assistant", Tool: "tool"}

// String returns the name of the role.
func (r Role) String() string {
	if r == 0 || int(r) >= len(roleNames) {
		return fmt.Sprintf("unknown(%d)", r)
	}
	return roleNames[r]
}

// Message is one message of a prompt.
type Message struct {
	Role   Role
	Text   string
	Calls  []ToolCall // Assistant only: the requested tool calls
	CallID string     // Tool only: the id of the call that it answers
	Kept   Kept       // Assistant only: the reasoning of the model
}

// ToolCall is a tool call requested by a model.
type ToolCall struct {
	ID        string
	Name      string
	Arguments string // as written by the model; Input parses them
	Kept      Kept   // other members of the call, which the model expects in the next prompt
}

// Input returns the arguments as one JSON object; empty arguments are an empty
// object. The refusal is written for the model, which may correct its call.
func (c ToolCall) Input() ([]byte, *actor.Refusal) {
	text := strings.Trim(c.Arguments, " \t\r\n") // JSON white space only
	if text == "" || text == "null" {
		return []byte("{}"), nil
	}
	if err := checkObject([]byte(text)); err != nil {
		refusal := actor.Refuse(actor.Invalid, "%s: arguments: %v", c.Name, err)
		refusal.Field = "arguments"
		return nil, refusal
	}
	return []byte(text), nil
}

// ToolSpec describes a tool offered to a model.
type ToolSpec struct {
	Name        string
	Description string
	Schema      string // JSON Schema of its input
}

// OfferTools replaces the tools that have the names of the given ones and appends the
// others, up to ToolsMax.
func (p *Prompt) OfferTools(specs []ToolSpec) {
	for _, spec := range specs {
		if i := slices.IndexFunc(p.Tools, func(t ToolSpec) bool { return t.Name == spec.Name }); i >= 0 {
			p.Tools[i] = spec
		} else if len(p.Tools) < ToolsMax {
			p.Tools = append(p.Tools, spec)
		}
	}
}

// Prompt is the input of one model call.
type Prompt struct {
	Model       string // name of the model at its upstream
	Messages    []Message
	Tools       []ToolSpec
	MaxTokens   int      // maximum length of the answer; 0 means the model's default
	Temperature *float64 // nil means the model's default
	Seed        *int64   // nil allows answers to differ between calls
}

// Check returns an error that describes the first violation of a prompt's rules,
// or nil.
func (p *Prompt) Check() error { return p.check(checkObject) }

// check is Check with the given validation of tool schemas.
func (p *Prompt) check(schema func([]byte) error) error {
	switch {
	case len(p.Messages) == 0:
		return fmt.Errorf("prompt without messages")
	case len(p.Messages) > MessagesMax:
		return fmt.Errorf("%d messages exceed the maximum of %d", len(p.Messages), MessagesMax)
	case len(p.Tools) > ToolsMax:
		return fmt.Errorf("%d tools exceed the maximum of %d", len(p.Tools), ToolsMax)
	case len(p.Model) > NameBytesMax:
		return fmt.Errorf("model name of %d bytes exceeds the maximum of %d", len(p.Model), NameBytesMax)
	case p.MaxTokens < 0 || p.MaxTokens > MaxTokensMax:
		return fmt.Errorf("max_tokens %d: want 0 to %d", p.MaxTokens, MaxTokensMax)
	case p.Temperature != nil && !(*p.Temperature >= 0 && *p.Temperature <= 2):
		return fmt.Errorf("temperature %v: want 0 to 2", *p.Temperature)
	}
	asked := map[string]bool{}
	for i, m := range p.Messages {
		if err := m.check(asked); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	for i, t := range p.Tools {
		if t.Name == "" || len(t.Name) > NameBytesMax {
			return fmt.Errorf("tool %d: want a name of 1 to %d bytes", i, NameBytesMax)
		}
		if slices.ContainsFunc(p.Tools[:i], func(o ToolSpec) bool { return o.Name == t.Name }) {
			return fmt.Errorf("tool %.80q is offered twice", t.Name)
		}
		if err := schema([]byte(t.Schema)); err != nil {
			return fmt.Errorf("tool %.80q: schema: %w", t.Name, err)
		}
	}
	return nil
}

// check validates one message. It collects the ids of requested calls in asked, so
// that every tool result belongs to a preceding call.
func (m *Message) check(asked map[string]bool) error {
	switch {
	case m.Role == 0 || int(m.Role) >= len(roleNames):
		return fmt.Errorf("unknown role %d", m.Role)
	case len(m.Calls) > 0 && m.Role != Assistant:
		return fmt.Errorf("tool calls in a message of role %s", m.Role)
	case len(m.Calls) > ToolCallsMax:
		return fmt.Errorf("%d tool calls exceed the maximum of %d", len(m.Calls), ToolCallsMax)
	case (m.CallID != "") != (m.Role == Tool):
		return fmt.Errorf("role %s with call id %.40q: want a call id in tool messages only", m.Role, m.CallID)
	case m.Role == Tool && !asked[m.CallID]:
		return fmt.Errorf("result of unknown call %.40q", m.CallID)
	}
	for _, c := range m.Calls {
		if c.ID == "" || len(c.ID) > NameBytesMax || c.Name == "" || len(c.Name) > NameBytesMax {
			return fmt.Errorf("tool call: want an id and a name of 1 to %d bytes", NameBytesMax)
		}
		asked[c.ID] = true
	}
	return nil
}

// Encode returns the JSON form that DecodePrompt reads. Journals and simulated
// models use it. Equal prompts have equal bytes. The prompt MUST be valid.
func (p *Prompt) Encode() []byte { return invariant.Must(p.EncodeChecked()) }

// EncodeChecked returns the same as Encode, or the error of Check.
func (p *Prompt) EncodeChecked() ([]byte, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	return marshal(p.wire(func(name string) string { return name })), nil
}

// DecodePrompt decodes the output of Encode, and the body of a model request.
func DecodePrompt(b []byte) (Prompt, error) {
	var w wirePrompt
	if len(b) > PromptBytesMax {
		return Prompt{}, fmt.Errorf("prompt: %d bytes exceed the maximum of %d", len(b), PromptBytesMax)
	}
	if err := unmarshal(b, &w, json.RejectUnknownMembers(true)); err != nil {
		return Prompt{}, fmt.Errorf("prompt: %w", err)
	}
	p := Prompt{Model: w.Model, MaxTokens: max(w.MaxTokens, w.MaxCompletionTokens), Temperature: w.Temperature, Seed: w.Seed}
	for _, m := range w.Messages {
		message := Message{Role: Role(max(slices.Index(roleNames[:], m.Role), 0)), CallID: m.CallID}
		if m.Content != nil {
			message.Text = *m.Content
		}
		if err := m.wireReasoning.checkKinds(); err != nil {
			return Prompt{}, fmt.Errorf("prompt: %w", err)
		}
		message.Kept = m.wireReasoning.kept()
		for _, c := range m.Calls {
			message.Calls = append(message.Calls, ToolCall{c.ID, c.Function.Name, c.Function.Arguments, keptOf(c.Kept)})
		}
		p.Messages = append(p.Messages, message)
	}
	for _, t := range w.Tools {
		p.Tools = append(p.Tools, ToolSpec{t.Function.Name, t.Function.Description, string(t.Function.Parameters)})
	}
	if err := p.check(checkNestedObject); err != nil {
		return Prompt{}, fmt.Errorf("prompt: %w", err)
	}
	return p, nil
}

// The wire format of a prompt.
type (
	wirePrompt struct {
		Model               string             `json:"model,omitzero"`
		Messages            []wireMessage      `json:"messages"`
		Tools               []wireTool         `json:"tools,omitempty"`
		MaxTokens           int                `json:"max_tokens,omitzero"`
		MaxCompletionTokens int                `json:"max_completion_tokens,omitzero"`
		Temperature         *float64           `json:"temperature,omitzero"`
		Seed                *int64             `json:"seed,omitzero"`
		Stream              bool               `json:"stream,omitzero"`
		StreamOptions       *wireStreamOptions `json:"stream_options,omitzero"`
	}
	wireStreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	wireMessage struct {
		Role    string     `json:"role"`
		Content *string    `json:"content"`
		Calls   []wireCall `json:"tool_calls,omitempty"`
		CallID  string     `json:"tool_call_id,omitzero"`
		wireReasoning
	}
	wireCall struct {
		ID       string         `json:"id"`
		Type     string         `json:"type"`
		Function wireFunction   `json:"function"`
		Kept     jsontext.Value `json:",embed"`
	}
	wireFunction struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	wireTool struct {
		Type     string `json:"type"`
		Function struct {
			Name        string         `json:"name"`
			Description string         `json:"description,omitzero"`
			Parameters  jsontext.Value `json:"parameters"`
		} `json:"function"`
	}
)

// wire converts a validated prompt to the wire format.
func (p *Prompt) wire(name func(string) string) wirePrompt {
	w := wirePrompt{Model: p.Model, MaxTokens: p.MaxTokens, Temperature: p.Temperature, Seed: p.Seed}
	for _, m := range p.Messages {
		text := strings.ToValidUTF8(m.Text, "\uFFFD")
		message := wireMessage{Role: m.Role.String(), Content: &text, CallID: m.CallID}
		message.wireReasoning = m.Kept.reasoning()
		if text == "" && len(m.Calls) > 0 {
			message.Content = nil
		}
		for _, c := range m.Calls {
			arguments := strings.ToValidUTF8(c.Arguments, "\uFFFD")
			message.Calls = append(message.Calls, wireCall{c.ID, "function", wireFunction{name(c.Name), arguments}, c.Kept.value()})
		}
		w.Messages = append(w.Messages, message)
	}
	for _, t := range p.Tools {
		var tool wireTool
		tool.Type = "function"
		tool.Function.Name = name(t.Name)
		tool.Function.Description = strings.ToValidUTF8(t.Description, "\uFFFD")
		tool.Function.Parameters = jsontext.Value(t.Schema) // marshal removes white space
		w.Tools = append(w.Tools, tool)
	}
	return w
}

// emptyResult is the text of a result without content.
const emptyResult = "(empty)"

// fillEmpty fills in what some models require: a text of each result, and the member properties of
// the schema of a tool without arguments.
func (w *wirePrompt) fillEmpty() {
	for i := range w.Messages {
		if m := &w.Messages[i]; m.CallID != "" && m.Content != nil && *m.Content == "" {
			*m.Content = emptyResult
		}
	}
	for i := range w.Tools {
		f := &w.Tools[i].Function
		f.Parameters = withProperties(f.Parameters)
	}
}

// beginning is the user's message before an answer that has none.
const beginning = "(start of the conversation)"

// alternate joins neighbours of one role, and lets the messages behind those of System begin with a
// user's. Strict templates refuse any other order, and after a failed run or a cut of the history
// they would refuse each later prompt of the session. Results, and answers with calls, stay apart.
func (w *wirePrompt) alternate() {
	all := make([]wireMessage, 0, len(w.Messages)+1)
	user, assistant, system := User.String(), Assistant.String(), System.String()
	for _, m := range w.Messages {
		if m.Role == assistant && (len(all) == 0 || all[len(all)-1].Role == system && len(all) == 1) {
			text := beginning
			all = append(all, wireMessage{Role: user, Content: &text})
		}
		if n := len(all) - 1; n >= 0 && all[n].joins(m) {
			if *all[n].Content != "" && m.Content != nil && *m.Content != "" {
				text := *all[n].Content + "\n\n" + *m.Content
				m.Content = &text
			} else if *all[n].Content != "" {
				m.Content = all[n].Content
			}
			all[n] = m
			continue
		}
		all = append(all, m)
	}
	w.Messages = all
}

// joins reports whether the next message can be joined with m. The reasoning of m stays.
func (m wireMessage) joins(next wireMessage) bool {
	return m.Role == next.Role && m.CallID == "" && len(m.Calls) == 0 && m.Content != nil && m.wireReasoning.kept() == ""
}

func withProperties(schema jsontext.Value) jsontext.Value {
	var top map[string]jsontext.Value
	if json.Unmarshal(schema, &top) != nil || top["properties"] != nil {
		return schema
	}
	rest, _ := strings.CutSuffix(strings.TrimSpace(string(schema)), "}")
	if len(top) > 0 {
		rest += ","
	}
	return jsontext.Value(rest + `"properties":{}}`)
}

// normalizeArguments replaces arguments that are not a JSON object with an empty
// object. Many upstreams reject a whole prompt whose history contains such
// arguments. The tool result of the call still describes the error.
func (w *wirePrompt) normalizeArguments(p Prompt) {
	for i, m := range p.Messages {
		for j, c := range m.Calls {
			input, refusal := c.Input()
			if refusal != nil {
				input = []byte("{}")
			}
			w.Messages[i].Calls[j].Function.Arguments = string(input)
		}
	}
}

// wireNameMax is the maximum length of a tool name that models accept.
const wireNameMax = 64

// wireNames returns the names under which the tools are offered to a model, in the
// order of Tools. Models accept only letters, digits, '_' and '-', whereas tool
// names contain dots. Names MUST be unique after conversion, so duplicates get a
// suffix.
func (p *Prompt) wireNames() []string {
	names := make([]string, 0, len(p.Tools))
	for _, t := range p.Tools {
		plain := wireName(t.Name)
		name := plain
		for n := 2; slices.Contains(names, name); n++ {
			suffix := "_" + strconv.Itoa(n)
			name = plain[:min(len(plain), wireNameMax-len(suffix))] + suffix
		}
		names = append(names, name)
	}
	return names
}

func wireName(name string) string {
	b := []byte(name)
	for i, c := range b {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			b[i] = '_'
		}
	}
	return string(b[:min(len(b), wireNameMax)])
}

// Model is the endpoint of one model.
type Model struct {
	// URL is the base URL of the API, for example https://api.example.com/v1.
	URL string
	Key Secret // "" sends none
	// Headers are sent with each request; CheckHeaderName accepts their names.
	Headers []Header
	// MaxTokensName is the JSON member that bounds the answer: "" means max_tokens,
	// and some upstreams require max_completion_tokens.
	MaxTokensName string
	// Omit are the optional members that requests lack; CheckOmit accepts them.
	Omit  []string
	Trace string // see actor.Call.Trace; an invalid one is omitted
}

// Plaintext reports whether requests leave this machine unencrypted.
func (m Model) Plaintext() bool {
	u, err := url.Parse(m.URL)
	if err != nil || u.Scheme != "http" {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() != "localhost" && (err != nil || !addr.IsLoopback())
}

// Request encodes the prompt as a request for a streamed response that includes
// usage. What strict models require is made on the wire only, because a prompt is compared with the
// recorded one when a run is continued.
func (m Model) Request(p Prompt) (Request, *actor.Refusal) {
	if err := p.Check(); err != nil {
		return Request{}, actor.Refuse(actor.Invalid, "%v", err)
	}
	names := p.wireNames()
	w := p.wire(func(name string) string {
		if i := slices.IndexFunc(p.Tools, func(t ToolSpec) bool { return t.Name == name }); i >= 0 {
			return names[i]
		}
		return wireName(name)
	})
	w.normalizeArguments(p)
	w.fillEmpty()
	w.alternate()
	switch m.MaxTokensName {
	case "", "max_tokens":
	case "max_completion_tokens":
		w.MaxTokens, w.MaxCompletionTokens = 0, w.MaxTokens
	default:
		return Request{}, actor.Refuse(actor.Invalid, "name of max_tokens: want max_tokens or max_completion_tokens, got %.40q", m.MaxTokensName)
	}
	w.Stream, w.StreamOptions = true, &wireStreamOptions{IncludeUsage: true}
	w.omit(m.Omit)
	body := marshal(w)
	if len(body) > PromptBytesMax {
		return Request{}, actor.Refuse(actor.Invalid, "prompt of %d bytes exceeds the maximum of %d", len(body), PromptBytesMax)
	}
	return m.post(body)
}

// post returns the request with a body in the format of chat completions.
func (m Model) post(body []byte) (Request, *actor.Refusal) {
	headers := append([]Header{{Name: "accept", Value: "text/event-stream, application/json"}}, traceHeaders(m.Trace)...)
	if m.Key != "" {
		headers = append(headers, Header{Name: "authorization", Value: "Bearer " + m.Key.Reveal(), Secret: true})
	}
	r, refusal := post(m.URL, "/chat/completions", body, append(headers, m.Headers...))
	r.hidden = querySecrets(m.URL)
	return r, refusal
}

// querySecrets returns the values in the query of a model's URL that are long enough for a key.
func querySecrets(text string) (all Secrets) {
	u, err := url.Parse(text)
	if err != nil {
		return nil
	}
	query := u.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		for _, value := range query[name] {
			if escaped := url.QueryEscape(value); len(value) >= maskedBytesMin && escaped != value {
				all = append(all, escaped)
			}
			if len(value) >= maskedBytesMin {
				all = append(all, value)
			}
		}
	}
	return all
}
