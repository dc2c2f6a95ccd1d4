// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// Tool is a tool that a function of the program performs. NewTool makes it, and Config.Tools lists it.
type Tool struct {
	declared tools.Declared
	handler  tools.Handler
	err      error // of NewTool; Open returns it
}

// NewTool returns a tool. In is a struct, or a map with string keys, for the arguments, and the JSON
// schema of In is that of the tool: names, optional fields (omitempty, omitzero) and types are those of
// package encoding/json, and the tag jsonschema of a field describes it for models. Arguments that
// violate the schema do not reach the function. Its result is sent as JSON, a string as text; at most
// 1 MiB. Open returns the errors of NewTool.
//
//	type place struct {
//		City string `json:"city" jsonschema:"name of the city"`
//	}
//
//	weather := troupe.NewTool("weather.get", "Current weather of a city.",
//		func(ctx context.Context, p place) (string, error) { return lookUp(ctx, p.City) },
//		troupe.Idempotent(), troupe.Timeout(10*time.Second))
//
// The function runs outside of the turn, concurrently for several calls, and its ctx ends with the call.
// [ToolCallOf] returns the call. An error is the result of the call, and the agent continues with it;
// a *Refusal keeps its code, any other has CodeUnavailable. A call that a crash interrupted is repeated
// only with the option Idempotent; otherwise it ends with CodeOutcomeUnknown.
//
// The options are Timeout (at most 1 h, default 60 s), Idempotent, Policy, ApprovalTimeout, Summary,
// MaxResult and FailRun.
func NewTool[In, Out any](name, description string, perform func(ctx context.Context, in In) (Out, error), opts ...Option) Tool {
	t := newTool(name, description, opts)
	schema, err := inputSchema[In]()
	t.declared.InputSchema = schema
	switch {
	case t.err != nil:
	case err != nil:
		t.err = err
	case perform == nil:
		t.err = errors.New("the function is nil")
	}
	t.handler = func(ctx context.Context, input []byte) tools.Result {
		var in In
		if err := json.Unmarshal(input, &in); err != nil {
			return tools.Refused(actor.Refuse(actor.Invalid, "%s: arguments: %v", name, err))
		}
		out, err := perform(ctx, in)
		if err != nil {
			return tools.Refused(toolRefusal(ctx, name, err))
		}
		return toolResult(name, out)
	}
	return t
}

// newTool returns a tool without its schema and its handler.
func newTool(name, description string, opts []Option) (t Tool) {
	o, err := collect("NewTool", opts, optionTimeout, optionIdempotent, optionPolicy, optionApprovalTime, optionSummary, optionMaxResult, optionFailRun)
	t.declared, t.err = o.tool, err
	t.declared.Name, t.declared.Description, t.declared.Idempotent = name, description, o.idempotent
	if o.timeout > 0 {
		t.declared.TimeoutMS = max(o.timeout.Milliseconds(), 1)
	}
	return t
}

// inputSchema returns the JSON schema of the arguments that a function takes.
func inputSchema[In any]() ([]byte, error) {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		return nil, fmt.Errorf("the arguments have no JSON schema: %w", err)
	}
	if schema.Type != "object" {
		return nil, fmt.Errorf("the arguments are a %T: want a struct, or a map with string keys", *new(In))
	}
	return json.Marshal(schema)
}

// toolRefusal returns the refusal of a call whose function has failed.
func toolRefusal(ctx context.Context, name string, err error) *actor.Refusal {
	var r *actor.Refusal
	switch {
	case errors.As(workError(err), &r):
		return r
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return &actor.Refusal{Reason: actor.Deadline, Operation: name, Detail: "the tool " + name + " took longer than its timeout"}
	}
	return actor.Refuse(actor.Unavailable, "%s: %v", name, err)
}

func toolResult(name string, out any) tools.Result {
	if text, ok := out.(string); ok {
		return tools.Text(text)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return tools.Refused(actor.Refuse(actor.Unavailable, "%s: result: %v", name, err))
	}
	return tools.JSON(b)
}

// ToolCall identifies a call of a tool.
type ToolCall struct {
	ID      string // unique, and the same if the call is repeated: an idempotency key for other services
	Agent   string // agent that calls
	Session string
	Run     string
	User    string
}

// ToolCallOf returns the call that the function of a tool performs, from the context that the function
// gets. It is zero for another context.
func ToolCallOf(ctx context.Context) ToolCall {
	of, ok := node.ToolCallOf(ctx)
	if !ok {
		return ToolCall{}
	}
	return ToolCall{ID: of.ID.String(), Agent: of.Call.To.Agent, Session: of.Call.To.Key, Run: of.ID.Run.String(), User: of.Call.Principal}
}

// Decision is the decision of a policy about a call of a tool.
type Decision string

// The decisions.
const (
	Allow           Decision = "allow"            // the default
	RequireApproval Decision = "require_approval" // the call waits for a person: see Server.Decide
	Block           Decision = "block"            // the call ends with CodeBlocked
)

// Policy decides about all calls of a tool that no rule of Config.Policy matches: Allow, RequireApproval
// or Block.
func Policy(d Decision) Option {
	return Option{optionPolicy, func(o *options) error {
		o.tool.Policy = string(d)
		if _, err := runs.ParseDecision(string(d)); err != nil {
			return invalid("policy", "Policy: %v", err)
		}
		return nil
	}}
}

// ApprovalTimeout sets the time after which an approval expires, 1 ms to 90 days. The default is the
// limit approval_timeout_ms, 10 minutes.
func ApprovalTimeout(d time.Duration) Option {
	return Option{optionApprovalTime, func(o *options) error {
		if o.tool.ApprovalTimeoutMS = d.Milliseconds(); d < time.Millisecond || d > tools.ApprovalTimeoutMax {
			return invalid("approval_timeout_ms", "ApprovalTimeout: got %v, want 1ms to %v", d, tools.ApprovalTimeoutMax)
		}
		return nil
	}}
}

// Summary sets the line that a person sees who decides about a call, such as "pays {{amount}} to {{to}}":
// names in double braces are arguments. The default is all arguments.
func Summary(template string) Option {
	return Option{optionSummary, func(o *options) error { o.tool.ArgsSummary = template; return nil }}
}

// MaxResult sets the number of bytes of a result that an agent gets as a whole, 1 to 1 MiB. Of a longer
// one it gets the beginning and a warning. The default is 64 KiB.
func MaxResult(bytes int) Option {
	return Option{optionMaxResult, func(o *options) error {
		if o.tool.MaxResultBytes = bytes; bytes < 1 || bytes > tools.ResultBytesMax {
			return invalid("max_result_bytes", "MaxResult: got %d, want 1 to %d", bytes, tools.ResultBytesMax)
		}
		return nil
	}}
}

// FailRun makes a failed call end the run of the agent. Otherwise the agent gets the error.
func FailRun() Option {
	return Option{optionFailRun, func(o *options) error { o.tool.OnFailure = tools.FailRun; return nil }}
}

// PolicyRule is a rule about calls of tools. Tool and Decision are required.
type PolicyRule struct {
	Tool  string // names of tools: '*' is any number of characters, '?' is one
	Agent string // names of agents, likewise; empty for all
	// user whose agents are meant, or "operator" for those of the program and of its operator. If it is
	// empty, a rule that allows calls of an Agent means the latter, and any other rule all agents.
	Owner string
	// comparison of an argument with a constant, such as "args.amount > 100"; empty for every call. See
	// docs/guide-agents.md#policy.
	When     string
	Decision Decision
}

// tools returns the tools of the program and the policy.
func (c *Config) tools(box *toolbox) (all []tools.Tool, policy *tools.Policy, err error) {
	var rules []tools.Rule
	for _, r := range c.Policy {
		rules = append(rules, tools.Rule{Tool: r.Tool, Agent: r.Agent, Owner: r.Owner, When: r.When, Decision: string(r.Decision)})
	}
	if policy, err = tools.NewPolicy(rules, "", ""); err != nil {
		return nil, nil, fmt.Errorf("Config.Policy: %w", err)
	}
	for i := range c.Tools {
		t, err := c.Tools[i].local(box)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, t)
	}
	return all, policy, nil
}

// local returns the tool for the runtime.
func (t *Tool) local(box *toolbox) (tools.Tool, error) {
	if t.handler == nil {
		return tools.Tool{}, errors.New("a tool of Config.Tools is zero: make it with NewTool")
	}
	if t.err != nil {
		return tools.Tool{}, fmt.Errorf("tool %.80q: %w", t.declared.Name, t.err)
	}
	out, err := tools.Local(t.declared, func(ctx context.Context, input []byte) tools.Result {
		defer box.logPanic("tool " + t.declared.Name)
		return t.handler(ctx, input)
	})
	if err != nil {
		return tools.Tool{}, fmt.Errorf("tool %.80q: %w", t.declared.Name, err)
	}
	return out, nil
}
