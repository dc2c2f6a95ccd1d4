// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Added tool calls. An external agent that works on a run may use declared tools on behalf
// of the run. It sends a signal with the operation AddTool, which is answered with the ID of
// the tool call once the call is recorded. The result is read from the events of the run.

// AddTool is the operation of a signal that adds a tool call to its run. Its content is the
// JSON of an AddedTool, and the answer is that of an AddedToolCall.
const AddTool = "troupe.tool"

// AddedTool is the content of an AddTool signal.
type AddedTool struct {
	Tool string         `json:"tool_name"`
	Args jsontext.Value `json:"args"`
}

// AddedToolCall is the content of the answer to an AddTool signal.
type AddedToolCall struct {
	ID string `json:"tool_call_id"`
}

// addedTools adds tool calls.
type addedTools struct{ *Cell }

// add handles an AddTool signal. A duplicate of the signal is answered before, with its
// recorded outcome.
func (c addedTools) add(t *turn, call *actor.Call, durable bool) {
	ask, refusal := addedToolAsk(call)
	if refusal == nil {
		refusal = c.check(&ask)
	}
	if refusal != nil {
		c.refuse(t.act, call, refusal)
		return
	}
	if (repeats{c.Cell, t}).take(call, &ask, durable) {
		return
	}
	holds := t.run.Holds
	id := addedAsks(c).add(t, call, &ask, durable)
	if id.Run.IsZero() {
		return
	}
	reply := addedToolReply(call, id)
	c.recordOutcome(t.act, call, &reply, true)
	if i := int(id.Index); t.run.Last()[i].Open() {
		toolCalls(c).begin(t, i)
	}
	c.propagateHold(t, holds)
}

// addedToolReply returns the answer to an AddTool signal.
func addedToolReply(call *actor.Call, id runs.ToolCallID) actor.Reply {
	return actor.Reply{Call: call.ID, Run: call.Parent, Status: actor.Succeeded, Budget: call.Budget,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(AddedToolCall{id.String()}))}}}
}

// addedAsks adds asks to the step in which the external agent of a run was invoked.
type addedAsks struct{ *Cell }

// add adds an ask that a signal requests, and returns its place. It is not performed yet. The
// place is zero if the signal was refused.
func (c addedAsks) add(t *turn, call *actor.Call, ask *actor.Ask, durable bool) runs.ToolCallID {
	run := t.run
	if refusal := c.checkEvents(run, eventsPerAsk); refusal != nil {
		c.refuse(t.act, call, refusal)
		c.finishTurn(t, failedOutcome(refusal))
		return runs.ToolCallID{}
	}
	if refusal := c.checkCallback(t); refusal != nil {
		c.refuse(t.act, call, refusal)
		return runs.ToolCallID{}
	}
	i := len(run.Last())
	a := store.Asked{Added: true}
	c.planAsk(&a, t, ask, false)
	a.Callback, a.CallbackKey = call.ID, call.Idempotency
	toolCalls(c).seal(t, &a, t.step(), i)
	t.taint = t.taint || durable
	c.record(t.act, store.Added{Run: run.Call.ID, At: c.now, Ask: a}, store.Shown{Call: &run.Call, Step: t.step(), Index: uint16(i)})
	t.rawAsks = append(t.rawAsks, *ask)
	t.sends = append(t.sends, sendState{attempt: 1, retryAt: actor.Forever, backoff: c.limits.ResendAfter})
	c.emitAsk(t, i, t.act.pending())
	return t.toolCallID(i)
}

// addedToolAsk returns the ask that an AddTool signal requests.
func addedToolAsk(call *actor.Call) (actor.Ask, *actor.Refusal) {
	var in AddedTool
	if len(call.Parts) != 1 || json.Unmarshal(call.Parts[0].Bytes, &in, json.RejectUnknownMembers(true)) != nil {
		return actor.Ask{}, actor.Refuse(actor.Invalid, "want a tool call")
	}
	return actor.Ask{Kind: actor.AskTool, Name: in.Tool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: in.Args}}}, nil
}

// check returns a refusal unless an ask is for a declared tool.
func (c addedTools) check(ask *actor.Ask) *actor.Refusal {
	if tool, ok := c.tools.Tool(ask.Name); ok && tool.Declared != nil {
		return nil
	}
	refusal := actor.Refuse(actor.NotFound, "no declared tool is named %.80q; see GET /v1/tools", ask.Name)
	refusal.Field = "tool_name" // unlike a refusal about the run
	return refusal
}

// isCallback reports whether an ask was added by CallAgent. Its outcome answers that signal.
func isCallback(a *store.Asked) bool {
	return a.Added && a.Ask.Kind == actor.AskTool && a.Ask.Name == tools.CallAgent
}
