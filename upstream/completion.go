// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Finish is why an answer ended.
type Finish uint8

// The ways to end.
const (
	NoFinish      Finish = iota // it did not: the answer is cut off
	FinishStop                  // all was said
	FinishCalls                 // the answers to its tool calls are wanted
	FinishLength                // no more tokens were allowed
	FinishFilter                // the upstream held the rest back
	FinishAnother               // a reason of the upstream's own
)

var finishNames = [...]string{FinishStop: "stop", FinishCalls: "tool_calls", FinishLength: "length", FinishFilter: "content_filter", FinishAnother: "other"}

// String is the reason's name; NoFinish is empty.
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

// Usage is what an answer took, in tokens. Known is false if nobody said.
type Usage struct {
	Known  bool
	Input  int64
	Output int64
	Total  int64
}

// Completion is an answer, whoever gave it: a model, an external agent, a script.
//
//  1. Finish is set exactly if the answer came to its end.
//  2. Each of Calls has a name, and an id that no other has.
//  3. Encode writes at most actor.MessageBytesMax.
type Completion struct {
	Text   string
	Calls  []ToolCall
	Finish Finish
	Usage  Usage
	Model  string // as the upstream calls what answered
}

// Bounds of an answer.
const (
	OutputBytesMax = 512 << 10      // text and arguments, as JSON writes them
	BodyBytesMax   = 4 << 20        // one JSON answer, read whole
	tokensMax      = int64(1) << 40 // more is no count
	errorBytesMax  = 64 << 10       // the body of an error
	quoteBytesMax  = 512            // of an upstream's own words in a refusal
	stateBytesMax  = NameBytesMax   // the name of an agent's state
	detailBytesMax = 4 << 10        // what an agent says of its state
)

// Encode writes the answer as DecodeCompletion reads it; the same answer has
// the same bytes.
func (c Completion) Encode() []byte {
	line := completionJSON{Text: strings.ToValidUTF8(c.Text, "\uFFFD"), Finish: c.Finish.String(), Model: strings.ToValidUTF8(c.Model, "\uFFFD")}
	for _, call := range c.Calls {
		line.Calls = append(line.Calls, toolCallJSON{call.ID, call.Name, strings.ToValidUTF8(call.Arguments, "\uFFFD")})
	}
	if c.Usage.Known {
		line.Usage = &usageJSON{c.Usage.Input, c.Usage.Output, c.Usage.Total}
	}
	return marshal(line)
}

// jsonBytesMax is how much room a text takes in JSON, at most.
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

// DecodeCompletion reads what Encode writes.
func DecodeCompletion(b []byte) (Completion, error) {
	var line completionJSON
	if len(b) > actor.MessageBytesMax {
		return Completion{}, fmt.Errorf("completion: %d bytes are over %d", len(b), actor.MessageBytesMax)
	}
	if err := unmarshal(b, &line, json.RejectUnknownMembers(true)); err != nil {
		return Completion{}, fmt.Errorf("completion: %w", err)
	}
	c := Completion{Text: line.Text, Finish: parseFinish(line.Finish), Model: line.Model}
	for _, l := range line.Calls {
		c.Calls = append(c.Calls, ToolCall(l))
	}
	if u := line.Usage; u != nil {
		c.Usage = Usage{true, u.Input, u.Output, u.Total}
	}
	return c, nil
}

type (
	completionJSON struct {
		Text   string         `json:"text"`
		Calls  []toolCallJSON `json:"tool_calls,omitempty"`
		Finish string         `json:"finish,omitzero"`
		Usage  *usageJSON     `json:"usage,omitzero"`
		Model  string         `json:"model,omitzero"`
	}
	toolCallJSON struct {
		ID        string `json:"id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	usageJSON struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
		Total  int64 `json:"total_tokens"`
	}
)

// Fragment is a piece of a tool call, as a stream brings it.
type Fragment struct {
	Index     int // which call, whatever the first one's is; NoIndex: the next one if it has an id, else the last
	ID        string
	Name      string
	Arguments string
}

// NoIndex stands in a Fragment that does not say which call it belongs to.
const NoIndex = -1

// Assembler puts tool calls together from fragments.
type Assembler struct {
	calls     []partialCall
	jsonBytes int
}

type partialCall struct {
	index     int // that its fragments bear
	id, name  string
	arguments []byte
}

// JSONBytes is how much room the arguments take in JSON.
func (a *Assembler) JSONBytes() int { return a.jsonBytes }

// Add takes the next fragment. Id and name come whole and once; only arguments
// come in pieces. Indexes tell calls apart, and nothing else: some models count all
// that they say, some give every call the same.
func (a *Assembler) Add(f Fragment) error {
	if f.Index < NoIndex {
		return fmt.Errorf("tool call %d: there is none before 0", f.Index)
	}
	n := a.callIndex(f)
	if n == len(a.calls) {
		if n == ToolCallsMax {
			return fmt.Errorf("tool call %d: at most %d are taken", n, ToolCallsMax)
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
			return fmt.Errorf("tool call %d: its %s of %d bytes is over %d", n, part.what, len(part.new), NameBytesMax)
		case *part.old == "":
			*part.old = part.new
		case part.new != "" && part.new != *part.old:
			return fmt.Errorf("tool call %d: a second %s, %.40q after %.40q", n, part.what, part.new, *part.old)
		}
	}
	a.jsonBytes += jsonBytesMax(f.Arguments)
	if a.jsonBytes > OutputBytesMax {
		return fmt.Errorf("tool call %d: more than %d bytes of arguments", n, OutputBytesMax)
	}
	c.arguments = append(c.arguments, f.Arguments...)
	return nil
}

// callIndex is the call that a fragment belongs to; as many as there are if it begins
// the next.
func (a *Assembler) callIndex(f Fragment) int {
	n := len(a.calls) - 1
	if f.Index == NoIndex {
		if f.ID != "" || n < 0 {
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

// endsBefore tells whether a fragment of the same index begins another call: one
// with an id of its own, or, where nobody has ids, one that is named once more when
// the arguments of this one are whole.
func (c *partialCall) endsBefore(f Fragment) bool {
	if c.id != "" || f.ID != "" {
		return c.id != "" && f.ID != "" && c.id != f.ID
	}
	return f.Name != "" && f.Arguments != "" && jsontext.Value(c.arguments).IsValid()
}

// Calls are the tool calls as they now stand, each with a name and an id of its own.
func (a *Assembler) Calls() ([]ToolCall, error) {
	var calls []ToolCall
	for i, c := range a.calls {
		if c.name == "" {
			return nil, fmt.Errorf("tool call %d has no name", i)
		}
		id := c.id
		if id == "" {
			id = fmt.Sprintf("call_%d", i)
		}
		if j := slices.IndexFunc(calls, func(o ToolCall) bool { return o.ID == id }); j >= 0 {
			return nil, fmt.Errorf("tool calls %d and %d have the same id %.40q", j, i, id)
		}
		calls = append(calls, ToolCall{id, c.name, string(c.arguments)})
	}
	return calls, nil
}
