// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Finish is the reason why a response ended.
type Finish uint8

// The finish reasons.
const (
	NoFinish      Finish = iota // the response is incomplete
	FinishStop                  // the model completed its answer
	FinishCalls                 // the model waits for the results of its tool calls
	FinishLength                // the token limit was reached
	FinishFilter                // the upstream withheld the rest
	FinishAnother               // a reason specific to the upstream
)

var finishNames = [...]string{FinishStop: "stop", FinishCalls: "tool_calls", FinishLength: "length", FinishFilter: "content_filter", FinishAnother: "other"}

// String returns the name of the reason; that of NoFinish is "".
func (f Finish) String() string {
	if int(f) >= len(finishNames) {
		return fmt.Sprintf("unknown(%d)", f)
	}
	return finishNames[f]
}

func parseFinish(text string) Finish {
	if text == "" {
		return NoFinish
	}
	if i := slices.Index(finishNames[:], text); i > 0 {
		return Finish(i)
	}
	return FinishAnother
}

// Usage is the number of tokens of a response. Known is false if the upstream
// reported none. Cost is in micros of the currency and means nothing unless Priced: the
// model had a price when it answered.
type Usage struct {
	Known  bool
	Input  int64
	Output int64
	Total  int64
	Cached int64 // tokens of Input that the upstream had cached
	Priced bool
	Cost   int64
}

// Completion is a response of a model, an external agent or a script.
//
//  1. Finish is set if and only if the response is complete.
//  2. Each of Calls has a name and a unique id.
//  3. Encode writes at most actor.MessageBytesMax.
type Completion struct {
	Text   string
	Calls  []ToolCall
	Finish Finish
	Usage  Usage
	Model  string // name of the responding model at its upstream
	Kept   Kept   // the reasoning, for the next prompt
	// Fallback is the name in the configuration of the model that answered in place of the one that was
	// asked; "": that one did.
	Fallback string
}

// Bounds of a response, in bytes unless noted.
const (
	OutputBytesMax = 512 << 10      // text and arguments, as encoded in JSON
	BodyBytesMax   = 4 << 20        // a response that is one JSON value
	tokensMax      = int64(1) << 40 // tokens; larger counts are rejected as invalid
	errorBytesMax  = 64 << 10       // body of an error response
	quoteBytesMax  = 512            // upstream's error text quoted in a refusal
	mediaBytesMax  = 80             // upstream's media type quoted in a refusal
	stateBytesMax  = NameBytesMax   // name of an agent's state
	detailBytesMax = 4 << 10        // detail of an agent's state
)

// Encode returns the JSON form that DecodeCompletion reads. Equal completions have
// equal bytes.
func (c Completion) Encode() []byte {
	wire := completionJSON{Fallback: c.Fallback, Text: strings.ToValidUTF8(c.Text, "\uFFFD"), Finish: c.Finish.String(), Model: strings.ToValidUTF8(c.Model, "\uFFFD")}
	for _, call := range c.Calls {
		wire.Calls = append(wire.Calls, toolCallJSON{call.ID, call.Name, strings.ToValidUTF8(call.Arguments, "\uFFFD"), call.Kept.value()})
	}
	wire.Kept = c.Kept.value()
	if c.Usage.Known {
		u := c.Usage
		wire.Usage = &usageJSON{Input: u.Input, Output: u.Output, Total: u.Total, Cached: u.Cached}
		if u.Priced {
			wire.Usage.Cost = &u.Cost
		}
	}
	return marshal(wire)
}

// jsonBytesMax returns an upper bound of the size of text in JSON.
func jsonBytesMax(text string) int {
	n := len(text)
	for _, c := range []byte(text) {
		switch {
		case c < ' ':
			n += len(`\u0000`) - 1
		case c == '"' || c == '\\':
			n++
		}
	}
	return n
}

// DecodeCompletion decodes the output of Encode.
func DecodeCompletion(b []byte) (Completion, error) {
	var wire completionJSON
	if len(b) > actor.MessageBytesMax {
		return Completion{}, fmt.Errorf("completion: %d bytes exceed the maximum of %d", len(b), actor.MessageBytesMax)
	}
	if err := unmarshal(b, &wire, json.RejectUnknownMembers(true)); err != nil {
		return Completion{}, fmt.Errorf("completion: %w", err)
	}
	c := Completion{Text: wire.Text, Finish: parseFinish(wire.Finish), Model: wire.Model, Fallback: wire.Fallback}
	kept := []*Kept{&c.Kept}
	values := []jsontext.Value{wire.Kept}
	for _, l := range wire.Calls {
		c.Calls = append(c.Calls, ToolCall{ID: l.ID, Name: l.Name, Arguments: l.Arguments})
		values = append(values, l.Kept)
	}
	for i := range c.Calls {
		kept = append(kept, &c.Calls[i].Kept)
	}
	for i, value := range values {
		if len(value) == 0 {
			continue
		}
		if err := checkNestedObject(value); err != nil {
			return Completion{}, fmt.Errorf("completion: kept: %w", err)
		}
		*kept[i] = Kept(value)
	}
	if u := wire.Usage; u != nil {
		c.Usage = Usage{Known: true, Input: u.Input, Output: u.Output, Total: u.Total, Cached: u.Cached, Priced: u.Cost != nil}
		if u.Cost != nil {
			c.Usage.Cost = *u.Cost
		}
	}
	return c, nil
}

type (
	completionJSON struct {
		Fallback string         `json:"fallback,omitzero"` // first: see FallbackOf
		Text     string         `json:"text"`
		Calls    []toolCallJSON `json:"tool_calls,omitempty"`
		Finish   string         `json:"finish,omitzero"`
		Usage    *usageJSON     `json:"usage,omitzero"`
		Model    string         `json:"model,omitzero"`
		Kept     jsontext.Value `json:"kept,omitzero"`
	}
	toolCallJSON struct {
		ID        string         `json:"id"`
		Name      string         `json:"name"`
		Arguments string         `json:"arguments"`
		Kept      jsontext.Value `json:"kept,omitzero"`
	}
	usageJSON struct {
		Input  int64  `json:"input_tokens"`
		Output int64  `json:"output_tokens"`
		Total  int64  `json:"total_tokens"`
		Cached int64  `json:"cached_tokens,omitzero"`
		Cost   *int64 `json:"cost_micros,omitzero"`
	}
)

// Fragment is a piece of a tool call in a stream.
type Fragment struct {
	// Index identifies the call; the first index may be any number. A fragment with
	// NoIndex starts a new call if it has an id. Otherwise it continues the last call.
	Index     int
	ID        string
	Name      string
	Arguments string
	Kept      Kept
}

// NoIndex is the Index of a fragment without one.
const NoIndex = -1

// Assembler builds tool calls from fragments.
type Assembler struct {
	calls     []partialCall
	jsonBytes int
}

type partialCall struct {
	index     int // index of its fragments
	id, name  string
	arguments []byte
	kept      Kept
}

// JSONBytes returns an upper bound of the size of the arguments in JSON.
func (a *Assembler) JSONBytes() int { return a.jsonBytes }

// Add appends the next fragment. The id and the name arrive in one piece and may
// be repeated; only arguments are split. The first id of a call stays. An index only distinguishes calls: some
// models number all their output, others give every call the same index.
func (a *Assembler) Add(f Fragment) error {
	if f.Index < NoIndex {
		return fmt.Errorf("tool call %d: negative index", f.Index)
	}
	n := a.callIndex(f)
	if n == len(a.calls) {
		if n == ToolCallsMax {
			return fmt.Errorf("tool call %d: want at most %d calls", n, ToolCallsMax)
		}
		a.calls = append(a.calls, partialCall{index: f.Index})
	}
	c := &a.calls[n]
	for _, part := range [...]struct {
		what string
		old  *string
		new  string
	}{{"id", &c.id, f.ID}, {"name", &c.name, f.Name}} {
		switch {
		case len(part.new) > NameBytesMax:
			return fmt.Errorf("tool call %d: %s of %d bytes exceeds the maximum of %d", n, part.what, len(part.new), NameBytesMax)
		case *part.old == "":
			*part.old = part.new
		case part.what == "name" && part.new != "" && part.new != *part.old:
			return fmt.Errorf("tool call %d: second %s %q after %q", n, part.what, part.new, *part.old)
		}
	}
	kept, err := c.kept.merge(f.Kept)
	if err != nil {
		return fmt.Errorf("tool call %d: %w", n, err)
	}
	a.jsonBytes += jsonBytesMax(f.Arguments) + len(f.Kept)
	c.kept = kept
	if a.jsonBytes > OutputBytesMax {
		return fmt.Errorf("tool call %d: more than %d bytes of arguments", n, OutputBytesMax)
	}
	c.arguments = append(c.arguments, f.Arguments...)
	return nil
}

// callIndex returns the position of the call that f belongs to, or len(a.calls) if
// f starts a new call.
func (a *Assembler) callIndex(f Fragment) int {
	n := len(a.calls) - 1
	if f.Index == NoIndex {
		if n < 0 || f.ID != "" && (f.Name != "" || a.calls[n].name == "") {
			return n + 1
		}
		return n
	}
	for n >= 0 && a.calls[n].index != f.Index {
		n--
	}
	if n < 0 || a.calls[n].endsBefore(f) {
		return len(a.calls)
	}
	return n
}

// endsBefore reports whether f, which has the index of c, starts another call. A fragment
// without a name continues c, also if its id differs: some models give each piece an id.
// With two ids f starts another call if they differ, unless the arguments of c have begun and
// f has the same name, so that f continues them. Without them it does if it has arguments, and those
// of c are complete JSON.
func (c *partialCall) endsBefore(f Fragment) bool {
	switch {
	case f.Name == "":
		return false
	case c.id != "" && f.ID != "" && c.id != f.ID:
		return c.name != f.Name || len(c.arguments) == 0 || jsontext.Value(c.arguments).IsValid()
	case c.id != "" || f.ID != "":
		return false
	}
	return f.Arguments != "" && jsontext.Value(c.arguments).IsValid()
}

// Calls returns the tool calls received so far, each with a name and a unique id.
func (a *Assembler) Calls() ([]ToolCall, error) {
	var calls []ToolCall
	for i, c := range a.calls {
		if c.name == "" {
			return nil, fmt.Errorf("tool call %d has no name", i)
		}
		id := cmp.Or(c.id, fmt.Sprintf("call_%d", i))
		taken := func(o ToolCall) bool { return o.ID == id }
		for n := i; slices.ContainsFunc(calls, taken); n++ { // such as two calls with the id "" or "0"
			id = fmt.Sprintf("call_%d_%d", i, n)
		}
		calls = append(calls, ToolCall{id, c.name, validText(string(c.arguments)), c.kept})
	}
	return calls, nil
}
