// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// addTool adds a call of a tool to the run of an external agent. A duplicate of the
// signal is answered before, with its recorded outcome.
func (s received) addTool() *actor.Refusal {
	c, t := s.cell, s.turn
	ask, refusal := addedToolAsk(s.call)
	if refusal == nil {
		refusal = s.checkAdded(&ask)
	}
	if refusal != nil || (repeats{c, t}).take(s.call, &ask, s.durable) {
		return refusal
	}
	holds := t.run.Holds
	id, refusal := s.addAsk(&ask)
	if id.Run.IsZero() {
		return refusal
	}
	s.done(signals.AddedTool{ID: id.String()}.Parts())
	if i := int(id.Index); t.run.Last()[i].Open() {
		toolCalls{c, t}.begin(i)
	}
	t.propagateHold(c, holds)
	return nil
}

// addAsk adds an ask to the step in which the external agent of the run was invoked, and returns
// its place. It is not performed yet. The place is zero if the signal is, or was, refused.
func (s received) addAsk(ask *actor.Ask) (runs.ToolCallID, *actor.Refusal) {
	c, t, run := s.cell, s.turn, s.turn.run
	if refusal := c.checkEvents(run, eventsPerAsk); refusal != nil {
		c.refuse(s.call, refusal)
		t.finishTurn(c, failedOutcome(refusal))
		return runs.ToolCallID{}, nil
	}
	if refusal := t.checkCallback(c); refusal != nil {
		return runs.ToolCallID{}, refusal
	}
	i := len(run.Last())
	a := store.Asked{Added: true}
	t.purse = run.Purse
	t.planAsk(c, &a, ask, false)
	a.Callback, a.CallbackKey = s.call.ID, s.call.Idempotency
	toolCalls{c, t}.seal(&a, t.step(), i)
	s.accept()
	t.act.record(c, store.Added{Run: run.Call.ID, At: c.now, Ask: a}, store.Shown{Call: &run.Call, Step: t.step(), Index: uint16(i)})
	mail{c, t.act}.send(t)
	t.rawAsks = append(t.rawAsks, *ask)
	t.sends = append(t.sends, sendState{attempt: 1, retryAt: actor.Forever, backoff: c.limits.ResendAfter})
	t.emitAsk(c, i, t.act.pending())
	return t.toolCallID(i), nil
}

// addedToolAsk returns the ask that an AddTool signal requests.
func addedToolAsk(call *actor.Call) (actor.Ask, *actor.Refusal) {
	in, refusal := signals.Decode[signals.AddTool](call)
	if refusal != nil {
		return actor.Ask{}, refusal
	}
	return actor.Ask{Kind: actor.AskTool, Name: in.Tool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: in.Args}}}, nil
}

// checkAdded returns a refusal unless external agents may use a tool: a declared one, one about detached calls or memory, or
// one of the notes of the session. They list no tools, so they may use none that has to be listed.
func (s received) checkAdded(ask *actor.Ask) *actor.Refusal {
	if tool, ok := s.cell.tools.Tool(ask.Name); ok && tool.Declared != nil && tool.Declared.Via == tools.ViaPipeline {
		return actor.Refuse(actor.Rejected, "%s is a pipeline, which agents in files and in Go can call: call its tools", ask.Name)
	}
	if tool, ok := s.cell.tools.Tool(ask.Name); ok && (tool.Declared != nil && !tool.Listed || tools.IsDetached(tool.Name) || tools.IsSession(tool.Name) || tools.IsMemory(tool.Name)) {
		return nil
	}
	return actor.ToolNotFound(ask.Name)
}

// isCallback reports whether an ask is the call of an agent by an external one. Its outcome answers that signal.
func isCallback(a *store.Asked) bool {
	return a.Added && a.Ask.Kind == actor.AskTool && a.Ask.Name == tools.CallAgent
}
