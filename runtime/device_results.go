// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// A device of the user performs a client tool and gives its result: a signal to the run with
// the operation GiveResult. The result is durable before the device learns that it was taken.
// The first one ends the call; later ones are refused.

// GiveResult is the operation of a signal with the result of a client tool. Its content is the
// JSON of a GivenResult.
const GiveResult = "troupe.result"

// GivenResult is the content of a GiveResult signal.
type GivenResult struct {
	ToolCall string         `json:"tool_call_id"`
	OK       bool           `json:"ok"`
	Result   jsontext.Value `json:"result,omitzero"` // if OK
	Error    string         `json:"error,omitzero"`  // otherwise
}

// ToolCallField is the field of the refusal of a result for a tool call that takes none.
const ToolCallField = "tool_call_id"

// deviceResults ends the calls of client tools.
type deviceResults struct{ *Cell }

// give handles a GiveResult signal to the run of a turn.
func (c deviceResults) give(t *turn, call *actor.Call, durable bool) {
	given, i, refusal := c.find(t, call)
	if refusal != nil {
		c.refuse(t.act, call, refusal)
		return
	}
	t.taint = t.taint || durable
	answer := actor.Answer{}
	if given.OK {
		answer.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: given.Result}}
		var text string
		if json.Unmarshal(given.Result, &text) == nil {
			answer.Parts = actor.Text(text)
		}
	} else {
		answer.Refusal = actor.Refuse(actor.Rejected, "tool %s: %s", t.run.Last()[i].Out().Name, given.Error)
	}
	c.abort(t, i)
	c.answerResult(t, i, answer.Fit(c.limits.MessageBytesMax))
	c.cancelAdded(t)
	c.recordOutcome(t.act, call, &actor.Reply{Call: call.ID, Run: call.Parent, Status: actor.Succeeded, Budget: call.Budget}, true)
}

// find returns the result in a signal and the index of the ask that waits for it.
func (c deviceResults) find(t *turn, call *actor.Call) (given GivenResult, i int, refusal *actor.Refusal) {
	if len(call.Parts) != 1 || json.Unmarshal(call.Parts[0].Bytes, &given, json.RejectUnknownMembers(true)) != nil {
		return given, 0, actor.Refuse(actor.Invalid, "want the result of a client tool")
	}
	id, err := runs.ParseToolCallID(given.ToolCall)
	var asks []store.Asked
	if err == nil && id.Run == t.run.Call.ID && id.Step > 0 && id.Step <= t.step() {
		asks = t.run.Steps[id.Step-1].Asks
	}
	if i = int(id.Index); i >= len(asks) {
		return given, 0, actor.Refuse(actor.NotFound, "run %s has no tool call %.80q", t.run.Call.ID, given.ToolCall)
	}
	a := &asks[i]
	if !a.OnDevice || !a.Open() || a.Waits() || id.Step != t.step() {
		r := actor.Refuse(actor.Rejected, "the call of %s takes no result: it has ended, or it is not performed by a device now", a.ShownName())
		r.Field = ToolCallField
		return given, 0, r
	}
	return given, i, nil
}
