// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of a registry and of what passes through it.
const (
	ToolsMax       = 1024
	SchemaBytesMax = 64 << 10
	InputBytesMax  = actor.MessageBytesMax
	ResultBytesMax = actor.MessageBytesMax
	NameBytesMax   = 128
	TimeoutDefault = 60 * time.Second // of a tool that names none
)

// Result is what came of a tool: content, or a refusal.
type Result = actor.Answer

// Text is a result of plain text.
func Text(text string) Result { return Result{Parts: actor.Text(text)} }

// JSON is a result of one JSON value.
func JSON(value []byte) Result {
	return Result{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: value}}}
}

// Refused is a result that is a refusal.
func Refused(r *actor.Refusal) Result { return Result{Refusal: r} }

// Handler does what a tool does. The world runs it, and may give it up through ctx.
type Handler func(ctx context.Context, input []byte) Result

// ContextHandler says what a tool comes to for whom it asks: an ask, or a result
// at once. It is a pure function of its arguments.
type ContextHandler func(input []byte, ec ExecutionContext) (actor.Ask, *Result)

// Tool is one thing that agents may ask for by name.
type Tool struct {
	Name        string // browser.open: [A-Za-z0-9._-]
	Description string // for the agent that chooses among tools
	// Schema of the input: JSON Schema 2020-12, of type object, complete in itself.
	Schema string
	// Timeout is the time it gets if the ask names none; 0 is TimeoutDefault.
	Timeout actor.Duration
	// Idempotent says that doing it twice does no harm. After a crash it is then
	// done again; of another tool the outcome is unknown.
	Idempotent bool
	// Exactly one of the two is set.
	Handler        Handler
	ContextHandler ContextHandler

	schema *schema
}

// Registry is the tools that exist. Once it is built it is only read, so cells may share it.
type Registry struct {
	tools []Tool // by name
}

// NewRegistry returns a registry that knows call_agent.
func NewRegistry() *Registry {
	r := &Registry{}
	if err := r.RegisterBuiltin(callAgent()); err != nil {
		panic(err)
	}
	return r
}

// RegisterBuiltin adds a tool. What is wrong with it is named.
func (r *Registry) RegisterBuiltin(t Tool) error {
	if err := t.check(); err != nil {
		return fmt.Errorf("tool %.80q: %w", t.Name, err)
	}
	at, taken := r.search(t.Name)
	if taken {
		return fmt.Errorf("tool %s is registered already", t.Name)
	}
	if len(r.tools) == ToolsMax {
		return fmt.Errorf("tool %s is one more than %d", t.Name, ToolsMax)
	}
	s, err := compile(t.Schema)
	if err != nil {
		return fmt.Errorf("tool %s: schema: %w", t.Name, err)
	}
	t.schema = s
	if t.Timeout == 0 {
		t.Timeout = TimeoutDefault
	}
	r.tools = slices.Insert(r.tools, at, t)
	return nil
}

func (t *Tool) check() error {
	for _, b := range []byte(t.Name) {
		if !('a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '.' || b == '_' || b == '-') {
			return fmt.Errorf("a name has only letters, digits, '.', '_' and '-'")
		}
	}
	switch {
	case t.Name == "" || len(t.Name) > NameBytesMax:
		return fmt.Errorf("want a name of 1 to %d characters", NameBytesMax)
	case (t.Handler == nil) == (t.ContextHandler == nil):
		return fmt.Errorf("want a Handler or a ContextHandler, one of the two")
	case t.Timeout < 0:
		return fmt.Errorf("time-out %v is below 0", t.Timeout)
	}
	return nil
}

// Tools lists what there is, by name.
func (r *Registry) Tools() []Tool { return slices.Clone(r.tools) }

// Tool finds one by name.
func (r *Registry) Tool(name string) (Tool, bool) {
	if at, ok := r.search(name); ok {
		return r.tools[at], true
	}
	return Tool{}, false
}

func (r *Registry) search(name string) (int, bool) {
	return slices.BinarySearchFunc(r.tools, name, func(t Tool, name string) int { return strings.Compare(t.Name, name) })
}

// Execute runs a tool's Handler: it is the world that calls this, outside every
// cell. Input is checked again, what the tool answers is bounded, and a panic of
// the handler ends as a refusal.
func (r *Registry) Execute(ctx context.Context, name string, input []byte, ec ExecutionContext) (result Result) {
	t, ok := r.Tool(name)
	if !ok {
		return Refused(unknownTool(name))
	}
	if t.Handler == nil {
		return Refused(actor.Refuse(actor.Invalid, "%s: an agent asks for it in its turn; the world cannot run it", name))
	}
	if refusal := t.checkRun(input, ec); refusal != nil {
		return Refused(refusal)
	}
	defer func() {
		if p := recover(); p != nil {
			result = Refused(actor.Refuse(actor.Unavailable, "%s: panic: %v", name, p))
		}
	}()
	result = t.Handler(ctx, input)
	if n := actor.SizeOf(result.Parts); n > ResultBytesMax {
		return Refused(actor.Refuse(actor.Rejected, "%s: its result of %d bytes is over %d", name, n, ResultBytesMax))
	}
	return result
}

// checkRun says why the tool is not for this input, or not for whoever asks. Of a
// call the dispatcher judges the time left, in its order.
func (t *Tool) checkRun(input []byte, ec ExecutionContext) *actor.Refusal {
	if refusal := t.validate(input); refusal != nil {
		return refusal
	}
	if refusal := ec.Check(); refusal != nil {
		return refusal
	}
	if t.Handler != nil && ec.Left <= 0 {
		return &actor.Refusal{Reason: actor.Deadline, Operation: "invoke " + t.Name, Detail: "timeout: no time is left for " + t.Name}
	}
	return nil
}

func unknownTool(name string) *actor.Refusal {
	return actor.Refuse(actor.NotFound, "no tool is named %.80q", name)
}
