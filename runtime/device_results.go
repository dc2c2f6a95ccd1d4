// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
)

// ToolCallField is the field of the refusal of a result for a tool call that takes none.
const ToolCallField = "tool_call_id"

// giveResult ends the call of a client tool with the result of a device. Later results are refused.
func (s received) giveResult() *actor.Refusal {
	given, i, refusal := s.findResult()
	if refusal != nil {
		return refusal
	}
	c, t := s.cell, s.turn
	s.accept()
	answer := actor.Answer{}
	if given.OK {
		answer.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: given.Result}}
		var text string
		if json.Unmarshal(given.Result, &text) == nil {
			answer.Parts = actor.Text(text)
		}
	} else {
		answer.Refusal = actor.Refuse(actor.Rejected, "tool %s: %s", t.run.Last()[i].Out().Name, given.Error)
		answer.Refusal.Code = given.Code
	}
	t.abort(c, i)
	t.answerResult(c, i, answer.Fit(c.limits.MessageBytesMax))
	t.cancelAdded(c)
	s.done(nil)
	return nil
}

// findResult returns the result in a signal and the index of the ask that waits for it.
func (s received) findResult() (given signals.GiveResult, i int, refusal *actor.Refusal) {
	if given, refusal = signals.Decode[signals.GiveResult](s.call); refusal != nil {
		return given, 0, refusal
	}
	t := s.turn
	id, err := runs.ParseToolCallID(given.ToolCall)
	var asks []store.Asked
	if err == nil && id.Run == t.run.Call.ID && id.Step > 0 && id.Step <= t.step() {
		asks = t.run.Steps[id.Step-1].Asks
	}
	if i = int(id.Index); i >= len(asks) {
		return given, 0, actor.RefuseNotFound(actor.WhatToolCall, "run %s has no tool call %.80q", t.run.Call.ID, given.ToolCall)
	}
	a := &asks[i]
	if !a.OnDevice || !a.Open() || a.Waits() || id.Step != t.step() {
		r := actor.Refuse(actor.Rejected, "the call of %s takes no result: it has ended, or it is not performed by a device now", a.ShownName())
		r.Field = ToolCallField
		return given, 0, r
	}
	return given, i, nil
}
