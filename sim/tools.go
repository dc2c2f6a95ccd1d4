// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
)

const anyObject = `{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}`

// postSchema is the input schema of the post tool. Each of its keywords is violated
// by an entry of postInputs.
const postSchema = `{"type": "object", "additionalProperties": false, "properties": {
	"to": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 8}, "copies": {"type": "integer", "minimum": 1, "maximum": 9},
	"by": {"enum": ["air", "sea"]}, "kind": {"const": "letter"}, "lines": {"type": "array", "items": {"type": ["string", "null"]}, "maxItems": 2}}, "dependentRequired": {"by": ["to"]}}`

// postInputs are the inputs sent to the post tool. The first validPostInputs are
// valid.
var postInputs = [...]string{
	"{}", `{"to":"ana"}`, `{"to":"ana","copies":2,"by":"sea","kind":"letter","lines":["a",null]}`, `{"copies":1e0}`,
	"[]", "", "7", `{"to":7}`, `{"to":"a"}`, `{"to":"everybody"}`, `{"to":"ANA"}`, `{"copies":0}`, `{"copies":10}`, `{"copies":1.5}`,
	`{"copies":1e400}`, `{"by":"air"}`, `{"to":"bo","by":"land"}`,
	`{"kind":"parcel"}`, `{"lines":[1]}`, `{"lines":["a","b","c"]}`, `{"from":"me","to":7,"copies":0}`, `{"to":"a","to":"b"}`, `{"to":`,
	"{}{}",
	`{"lines":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}`,
	`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1}`,
}

const validPostInputs = 4

// checkPostInput checks that every input that reaches the post tool is valid.
func (w *Simulation) checkPostInput(input []byte) {
	if !slices.Contains(postInputs[:validPostInputs], string(input)) {
		w.fail(NobodyAstray, fmt.Sprintf("the post tool received the input %.80q, which its schema does not allow", input))
	}
}

// builtinTools is built once and shared: a finished registry is read-only.
var builtinTools = sync.OnceValue(newBuiltinTools)

// The tools of a simulation.
const (
	clockTool = "clock"
	postTool  = "post"
)

// newBuiltinTools returns the tools of a simulation. The clock tool is idempotent,
// the post tool is not.
func newBuiltinTools() *tools.Registry {
	r := tools.NewRegistry()
	invariant.Must(0, r.Register(tools.Tool{Name: clockTool, Description: "Returns a fixed text.", Schema: anyObject, Idempotent: true,
		Handler: func(ctx context.Context, _ []byte) tools.Result { return toolResult(ctx, "it is late") }}))
	invariant.Must(0, r.Register(tools.Tool{Name: postTool, Description: "Posts a letter.", Schema: postSchema,
		Handler: func(ctx context.Context, _ []byte) tools.Result { return toolResult(ctx, "posted") }}))
	invariant.Must(0, r.RegisterBuiltin(tools.Tool{Name: agents.ToolAnnounce, Description: "Announces the registered agents and API keys to all nodes.",
		Schema: agents.AnnounceSchema, Idempotent: true, Handler: handleAnnounce}))
	invariant.Must(0, r.RegisterBuiltin(tools.Tool{Name: agents.ToolOpen, Description: "Returns the definitions that open runs need.",
		Schema: agents.OpenSchema, Idempotent: true, Handler: func(context.Context, []byte) tools.Result {
			return tools.Refused(actor.Refuse(actor.Unavailable, "no node knows all open runs"))
		}}))
	return r
}

// toolFaults are the faults of a single tool call. The faults before ToolReplyLost affect
// the answer of the tool.
var toolFaults = [...]Fault{ToolCrash, ToolRefused, ToolBusy, ToolAbsent, ToolGarbage, ToolGiant, ToolReplyLost, ToolHang, ToolDuplicate, ToolLate}

// toolCallKey is the context key of the toolCall that a tool serves.
type toolCallKey struct{}

// toolCall is a tool call with an injected fault.
type toolCall struct {
	w     *Simulation
	fault Fault
	text  string // result of the tool without the fault
}

// toolResult returns the text as the result of a tool, or the effect of the injected
// fault.
func toolResult(ctx context.Context, text string) tools.Result {
	call, _ := ctx.Value(toolCallKey{}).(*toolCall)
	if call == nil {
		return tools.Text(text)
	}
	if call.text = text; !call.w.acts(call.fault) {
		return tools.Text(text)
	}
	switch call.fault {
	case ToolCrash:
		panic("injected tool panic")
	case ToolRefused:
		return tools.Refused(actor.Refuse(actor.Rejected, "the tool rejects the call"))
	case ToolBusy:
		return tools.Refused(actor.RefuseBusy(actor.ScopeCallee, time.Second, "the tool is busy"))
	case ToolGarbage:
		return tools.Result{Parts: []actor.Part{{Media: "\xff/\x00", Bytes: call.w.faultyBytes(ToolGarbage, []byte(text), []byte("\xfe\x00{]"))}}}
	case ToolGiant:
		size := tools.ResultBytesMax + 1
		if call.w.entropy.Int(2) > 0 {
			size = min(size, call.w.plan.Limits.MessageBytesMax+1) // the tool may return it, but no message may carry it
		}
		return tools.Text(string(call.w.faultyBytes(ToolGiant, []byte(text), bytes.Repeat([]byte{'x'}, size))))
	}
	return tools.Text(text)
}

// answerText returns the text of an answer, or the text of its refusal.
func answerText(a actor.Answer) string {
	if a.Refusal != nil {
		return a.Refusal.Error()
	}
	return actor.TextOf(a.Parts)
}

// performTool executes a tool call of a turn, with at most one fault.
func (n *node) performTool(h *gatedEffect, op runtime.Tool) {
	w := n.w
	n.checkToolTime(&op)
	if op.Name == postTool && w.team == nil {
		w.checkPostInput(op.Input)
	}
	if op.Declared != nil && op.Declared.Kind == tools.KindClient {
		w.approvals.devices.perform(h, op)
		return
	}
	fault := noFault
	for _, f := range toolFaults {
		if w.faultFires(f) {
			fault = f
			break
		}
	}
	ctx := context.WithValue(context.Background(), randKey{}, w.entropy)
	id, attempt, cell := h.effect.ID, h.effect.Attempt, h.cell.index
	if fault == noFault && op.Declared != nil {
		w.approvals.perform(ctx, h, op)
		return
	}
	if fault == noFault {
		n.startEffect(h, op.Left, func() actor.Answer { return w.approvals.execute(ctx, id, op) })
		return
	}
	call := &toolCall{w: w, fault: fault}
	what := fmt.Sprintf("%s for run %s", op.Name, id.Run.Short())
	ctx = context.WithValue(ctx, toolCallKey{}, call)
	if fault == ToolAbsent && w.acts(fault) {
		op.Name, op.Declared = op.Name+"-of-old", nil
	}
	run := func() actor.Answer { return w.approvals.execute(ctx, id, op) }
	due := w.between(50*time.Microsecond, 40*time.Millisecond)
	r := n.trackEffect(h)
	switch fault {
	case ToolHang, ToolReplyLost:
		if w.acts(fault) {
			n.after(op.Left+time.Second, func() { n.untrackEffect(r) })
		} else {
			n.after(due, func() { n.completeEffect(r, op.Left, run) })
		}
		n.after(due, func() {
			if fault == ToolReplyLost && w.acts(fault) {
				run()
			}
			recordChange(w, fault, false, n.awaitsOutcome(r), "%s never reports an outcome", what)
		})
	case ToolLate:
		end := w.now.Add(due)
		extra := w.extraDelay(ToolLate, op.Left+w.between(0, time.Second))
		n.after(due+extra, func() {
			if !recordChange(w, fault, end, w.now, "%s ends after its deadline", what) {
				n.completeEffect(r, op.Left, run)
				return
			}
			n.untrackEffect(r)
			n.cells[cell].enqueue(input{orderGroup: unordered, in: runtime.Outcome{ID: id, Attempt: attempt, Answer: run()}})
		})
	case ToolDuplicate:
		if attempt > 1 {
			early := runtime.Outcome{ID: id, Attempt: attempt - 1, Answer: actor.Answer{Parts: actor.Text("too early")}}
			w.addInputs(fault, func() { n.cells[cell].enqueue(input{orderGroup: unordered, in: early}) }, "%s reports an outcome of its former attempt", what)
		}
		n.after(due, func() {
			n.completeEffect(r, op.Left, func() actor.Answer {
				answer := run()
				again := input{orderGroup: unordered, in: runtime.Outcome{ID: id, Attempt: attempt, Answer: answer}}
				n.after(w.between(0, 100*time.Millisecond), func() {
					w.addInputs(fault, func() { n.cells[cell].enqueue(again) }, "%s reports its outcome twice", what)
				})
				return answer
			})
		})
	default:
		n.after(due, func() {
			n.completeEffect(r, op.Left, func() actor.Answer {
				answer := run()
				recordChange(w, fault, call.text, answerText(answer), "%s fails", what)
				return answer
			})
		})
	}
}
