// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
)

const anyObject = `{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}`

// letter is what the tool that posts takes: each of its words is one that somebody
// gets wrong.
const letter = `{"type": "object", "additionalProperties": false, "properties": {
	"to": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 8}, "copies": {"type": "integer", "minimum": 1, "maximum": 9},
	"by": {"enum": ["air", "sea"]}, "kind": {"const": "letter"}, "lines": {"type": "array", "items": {"type": ["string", "null"]}, "maxItems": 2}}, "dependentRequired": {"by": ["to"]}}`

// letters are what it is given: the first so many it takes.
var letters = [...]string{
	"{}", `{"to":"ana"}`, `{"to":"ana","copies":2,"by":"sea","kind":"letter","lines":["a",null]}`, `{"copies":1e0}`,
	"[]", "", "7", `{"to":7}`, `{"to":"a"}`, `{"to":"everybody"}`, `{"to":"ANA"}`, `{"copies":0}`, `{"copies":10}`, `{"copies":1.5}`,
	`{"copies":1e400}`, `{"by":"air"}`, `{"to":"bo","by":"land"}`,
	`{"kind":"parcel"}`, `{"lines":[1]}`, `{"lines":["a","b","c"]}`, `{"from":"me","to":7,"copies":0}`, `{"to":"a","to":"b"}`, `{"to":`,
	"{}{}",
	`{"lines":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}`,
	`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1}`,
}

const lettersTaken = 4

// posts holds the tool to that: whatever comes to it was taken.
func (w *World) posts(input []byte) {
	if !slices.Contains(letters[:lettersTaken], string(input)) {
		w.violate(NobodyAstray, fmt.Sprintf("a letter is posted with the input %.80q, which its schema does not allow", input))
	}
}

// worldTools are made once: a registry that is built is only read.
var worldTools = sync.OnceValue(newTools)

// The tools of a world.
const (
	clockTool = "clock"
	postTool  = "post"
)

// newTools are the tools of a world: one that may be used again, one that may not.
func newTools() *tools.Registry {
	r := tools.NewRegistry()
	invariant.Must(0, r.RegisterBuiltin(tools.Tool{Name: clockTool, Description: "Says what it always says.", Schema: anyObject, Idempotent: true,
		Handler: func(ctx context.Context, _ []byte) tools.Result { return misbehave(ctx, "it is late") }}))
	invariant.Must(0, r.RegisterBuiltin(tools.Tool{Name: postTool, Description: "Posts a letter.", Schema: letter,
		Handler: func(ctx context.Context, _ []byte) tools.Result { return misbehave(ctx, "posted") }}))
	invariant.Must(0, r.RegisterBuiltin(tools.Tool{Name: agents.ToolAnnounce, Description: "Tells all nodes which agents and keys there are.",
		Schema: agents.AnnounceSchema, Idempotent: true, Handler: announced}))
	return r
}

// toolFaults are what may befall one use of a tool; those before ToolReplyLost
// are in its answer.
var toolFaults = [...]Fault{ToolCrash, ToolRefused, ToolBusy, ToolAbsent, ToolGarbage, ToolGiant, ToolReplyLost, ToolHang, ToolDuplicate, ToolLate}

// faultKey is under which a tool finds what it is to do wrong.
type faultKey struct{}

// misbehave is what a tool says, or does instead.
func misbehave(ctx context.Context, says string) tools.Result {
	switch ctx.Value(faultKey{}) {
	case ToolCrash:
		panic("the tool has a bug")
	case ToolRefused:
		return tools.Refused(actor.Refuse(actor.Rejected, "the tool does not want to"))
	case ToolBusy:
		return tools.Refused(actor.RefuseBusy(actor.ScopeCallee, time.Second, "the tool has too much to do"))
	case ToolGarbage:
		return tools.Result{Parts: []actor.Part{{Media: "\xff/\x00", Bytes: []byte("\xfe\x00{]")}}}
	case ToolGiant:
		return tools.Text(strings.Repeat("and so on ", tools.ResultBytesMax/8))
	}
	return tools.Text(says)
}

// useTool has a tool do what a turn wants of it.
func (n *node) useTool(h *held, op runtime.Tool) {
	w, ctx := n.w, context.Background()
	if op.Name == postTool && w.team == nil {
		w.posts(op.Input)
	}
	fault := noFault
	for _, f := range toolFaults {
		if w.fault(f) {
			fault = f
			break
		}
	}
	name := op.Name
	if fault == ToolAbsent {
		name += "-of-old"
	}
	ctx = context.WithValue(context.WithValue(ctx, faultKey{}, fault), chooserKey{}, w.choose)
	run := func() actor.Answer { return w.tools.Execute(ctx, name, op.Input, op.Context) }
	tell := func(how string) { w.hit(fault, "%s for run %s %s", op.Name, h.effect.ID.Run.Short(), how) }
	switch fault {
	case noFault:
		n.do(h, op.Left, run)
	case ToolHang, ToolReplyLost:
		if fault == ToolReplyLost {
			run()
		}
		tell("is heard of no more")
		d := n.begin(h)
		n.later(op.Left+time.Second, func() { n.forget(d) })
	case ToolLate:
		id, attempt, cell := h.effect.ID, h.effect.Attempt, h.c.index
		d := n.begin(h)
		n.later(op.Left+w.between(0, time.Second), func() {
			n.forget(d)
			tell("ends when nobody waits for it")
			n.cells[cell].put(input{stream: anyOrder, in: runtime.Outcome{ID: id, Attempt: attempt, Answer: run()}})
		})
	case ToolDuplicate:
		n.do(h, op.Left, func() actor.Answer {
			answer := run()
			again := input{stream: anyOrder, in: runtime.Outcome{ID: h.effect.ID, Attempt: h.effect.Attempt, Answer: answer}}
			cell := h.c.index
			n.later(w.between(0, 100*time.Millisecond), func() {
				tell("ends twice")
				n.cells[cell].put(again)
			})
			return answer
		})
	default:
		n.do(h, op.Left, func() actor.Answer {
			answer := run()
			tell("goes wrong")
			return answer
		})
	}
}
