// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Bounds of a registry, its inputs and its results.
const (
	ToolsMax       = 1024
	SchemaBytesMax = 64 << 10
	InputBytesMax  = actor.MessageBytesMax
	ResultBytesMax = actor.MessageBytesMax
	NameBytesMax   = 128
	TimeoutDefault = 60 * time.Second // for tools without a timeout
)

// Result is the outcome of a tool: content or a refusal.
type Result = actor.Answer

// Text returns a result of plain text.
func Text(text string) Result { return Result{Parts: actor.Text(text)} }

// JSON returns a result of one JSON value.
func JSON(value []byte) Result {
	return Result{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: value}}}
}

// Refused returns a result that consists of a refusal.
func Refused(r *actor.Refusal) Result { return Result{Refusal: r} }

// Handler executes a tool. The host runs it and may cancel ctx.
type Handler func(ctx context.Context, input []byte) Result

// ContextHandler returns the ask that implements a tool call for the given caller,
// or an immediate result. It MUST be a pure function of its arguments.
type ContextHandler func(input []byte, ec ExecutionContext) (actor.Ask, *Result)

// Tool is an operation that agents may request by name.
type Tool struct {
	Name        string // for example browser.open; characters [A-Za-z0-9._-]
	Description string // for the model or agent that selects a tool
	// Schema is the JSON Schema (2020-12) of the input. It has type object and no
	// external references.
	Schema string
	// Timeout applies if the ask has none; 0 means TimeoutDefault, and for a declared tool the limit of the
	// server.
	Timeout actor.Duration
	// Idempotent means that the tool may be executed twice. After a crash, an
	// interrupted idempotent tool is executed again. The ask for any other
	// interrupted tool is answered with the refusal Unknown.
	Idempotent bool
	// Exactly one of Handler, ContextHandler and Declared is set, or Handler and Declared of a
	// tool that Local has made.
	Handler        Handler
	ContextHandler ContextHandler
	Declared       *Declared // of a tool that a user declares; the host performs it
	// Check refuses input that satisfies the schema and is invalid nevertheless, before a person is asked about the
	// call. It is a pure function; nil accepts all.
	Check func(input []byte) *actor.Refusal
	// Listed means that only agents whose definition lists the tool may use it. External agents list none.
	Listed bool

	accepts string // the schema that an input satisfies, if it has more members than Schema tells models of
	schema  *schema
}

// Registry is a set of tools. It is read-only once it is built, so cells may share
// it.
type Registry struct {
	tools  []Tool // sorted by name
	policy *Policy
}

// NewRegistry returns a registry that contains the tools with which agents call each other and share what they
// know.
func NewRegistry() *Registry {
	r := &Registry{}
	builtin := []Tool{callAgent(), agentCall(), agentPoll(), debateCall(), remind(), listAgents(), readBlob(), requestCapability(), record(RecordRoute, "Records a decision of an orchestrator."), record(RecordJoin, "Records how results were joined.")}
	for _, t := range append(builtin, sessionTools()...) {
		if err := r.RegisterBuiltin(t); err != nil {
			panic(err)
		}
	}
	return r
}

// Register adds a tool of a user. The error names the invalid property.
func (r *Registry) Register(t Tool) error {
	if err := actor.CheckUnreserved(t.Name); err != nil {
		return fmt.Errorf("tool %w", err)
	}
	return r.RegisterBuiltin(t)
}

// RegisterBuiltin adds a tool of this program, whose name may be reserved. The error names
// the invalid property.
func (r *Registry) RegisterBuiltin(t Tool) error {
	if err := t.check(); err != nil {
		return fmt.Errorf("tool %.80q: %w", t.Name, err)
	}
	at, taken := r.search(t.Name)
	if taken {
		return fmt.Errorf("tool %s is already registered", t.Name)
	}
	if len(r.tools) == ToolsMax {
		return fmt.Errorf("tool %s: want at most %d tools", t.Name, ToolsMax)
	}
	if t.Declared != nil && t.Schema == "" {
		t.Schema = defaultInputSchema
	}
	if t.schema == nil {
		s, err := compile(cmp.Or(t.accepts, t.Schema), false)
		if err != nil {
			return fmt.Errorf("tool %s: schema: %w", t.Name, err)
		}
		if t.Declared != nil {
			if err := s.bound(); err != nil {
				return fmt.Errorf("tool %s: schema: %w", t.Name, err)
			}
		}
		t.schema = s
	}
	if t.Timeout == 0 && t.Declared == nil {
		t.Timeout = TimeoutDefault
	}
	r.tools = slices.Insert(r.tools, at, t)
	return nil
}

// Perform sets the handler of a tool of this package that a node performs. It is called while the registry is
// built.
func (r *Registry) Perform(name string, handler Handler) {
	at, found := r.search(name)
	invariant.Check(found && r.tools[at].Handler != nil, "the tool %s has no handler to replace", name)
	r.tools[at].Handler = handler
}

// With returns a copy of the registry that has the declared tools as well, and the policy.
func (r *Registry) With(declared []Declared, policy *Policy) (*Registry, error) {
	next := &Registry{tools: slices.Clone(r.tools), policy: policy}
	for i := range declared {
		d := &declared[i]
		t := Tool{Name: d.Name, Description: d.Description, Schema: string(d.InputSchema), Timeout: d.Timeout(), Idempotent: d.Idempotent || d.Kind == KindClient, Declared: d, schema: d.schema}
		if err := next.Register(t); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// Policy returns the policy of the registry; nil if it has none.
func (r *Registry) Policy() *Policy { return r.policy }

func (t *Tool) check() error {
	for _, b := range []byte(t.Name) {
		if !isNameByte(b) {
			return fmt.Errorf("name: want only letters, digits, '.', '_' and '-'")
		}
	}
	switch {
	case t.Name == "" || len(t.Name) > NameBytesMax:
		return fmt.Errorf("want a name of 1 to %d characters", NameBytesMax)
	case (t.Handler == nil) == (t.ContextHandler == nil) && t.Declared == nil:
		return fmt.Errorf("want either a Handler or a ContextHandler")
	case t.Timeout < 0:
		return fmt.Errorf("negative timeout %v", t.Timeout)
	}
	return nil
}

// Unchecked returns the places of patterns in the schema of a tool of an MCP server that cannot be
// checked here, and are left to the server.
func (t *Tool) Unchecked() []string { return t.schema.unchecked }

// Tools returns all tools, sorted by name.
func (r *Registry) Tools() []Tool { return slices.Clone(r.tools) }

// Tool returns the tool with the given name.
func (r *Registry) Tool(name string) (Tool, bool) {
	if at, ok := r.search(name); ok {
		return r.tools[at], true
	}
	return Tool{}, false
}

func (r *Registry) search(name string) (int, bool) {
	return slices.BinarySearchFunc(r.tools, name, func(t Tool, name string) int { return strings.Compare(t.Name, name) })
}

// Execute runs the Handler of a tool. The host calls it outside of all cells. It
// validates the input again, bounds the result, and converts a panic of the
// handler to a refusal.
func (r *Registry) Execute(ctx context.Context, name string, input []byte, ec ExecutionContext) (result Result) {
	t, ok := r.Tool(name)
	if !ok {
		return Refused(unknownTool(name))
	}
	if t.Handler == nil { // the host performs declared tools
		return Refused(actor.Refuse(actor.Invalid, "%s: only a turn can run this tool", name))
	}
	if refusal := t.checkRun(input, ec); refusal != nil {
		return Refused(refusal)
	}
	defer func() {
		if p := recover(); p != nil {
			result = Refused(actor.Refuse(actor.Unavailable, "%s: panic: %v", name, p))
		}
	}()
	return bounded(name, t.Handler(ctx, input))
}

// bounded returns the head of a result that is too long, as text with a warning: the tool was
// performed.
func bounded(name string, result Result) Result {
	n := actor.SizeOf(result.Parts)
	switch {
	case n <= ResultBytesMax:
		return result
	case len(result.Parts) > 1:
		return Refused(actor.Refuse(actor.Unknown, "%s: the result of %d bytes, at most %d allowed, is lost; the call was performed", name, n, ResultBytesMax))
	}
	head := actor.FitText(string(result.Parts[0].Bytes), ResultBytesMax-len(actor.MediaText))
	result.Parts = actor.Text(head)
	result.Warnings = append(slices.Clip(result.Warnings), fmt.Sprintf("the result of %s has %d bytes, and these are the first %d", name, n, len(head)))
	return result
}

// checkRun returns a refusal if the tool cannot run with this input in this
// context. The time left of a call is not checked here, because the dispatcher
// does so in its own order of checks.
func (t *Tool) checkRun(input []byte, ec ExecutionContext) *actor.Refusal {
	if refusal := t.validate(input); refusal != nil {
		return refusal
	}
	if t.Check != nil {
		if refusal := t.Check(input); refusal != nil {
			return refusal
		}
	}
	if refusal := ec.Check(); refusal != nil {
		return refusal
	}
	if t.ContextHandler == nil && ec.Left <= 0 {
		return &actor.Refusal{Reason: actor.Deadline, Operation: "invoke " + t.Name, Detail: "timeout: no time is left for " + t.Name}
	}
	return nil
}

func unknownTool(name string) *actor.Refusal {
	return actor.RefuseNotFound(actor.WhatTool, "no tool is named %.80q", name)
}
