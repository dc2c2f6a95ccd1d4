// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
)

// received is a signal to an open run, with the turn of the run. Each command decodes its content,
// finds what the content names, and applies it.
type received struct {
	cell    *Cell
	turn    *turn
	call    *actor.Call
	durable bool // of the caller
}

// signal delivers a signal to its run, and answers it.
func (act *activation) signal(c *Cell, call *actor.Call, durable bool) {
	switch call.Operation {
	case signals.OpAppend:
		transcripts{c, act}.appendMessage(call)
		return
	case signals.OpCancelReminder:
		if refusal := (mail{c, act}).cancelReminder(call); refusal != nil {
			c.refuse(call, refusal)
		}
		return
	}
	t := act.turn(call.Parent)
	if run := act.journal.Run(call.Parent); t == nil && run != nil && run.Parked != "" && call.Operation == signals.OpRetry {
		c.refuse(call, actor.Refuse(actor.Rejected, "run %s stays parked: %s", call.Parent, run.Parked))
		return
	}
	if t == nil {
		c.refuse(call, actor.RefuseNotFound(actor.WhatOpenRun, "%s has no open run %s", act.id, call.Parent))
		return
	}
	own := *call // a command may keep its call; that of every other request stays on the stack
	if refusal := (received{c, t, &own, durable}).apply(); refusal != nil {
		c.refuse(call, refusal)
	}
}

// apply performs the command of the signal. Its refusal is nil if the signal was answered, or
// will be.
func (s received) apply() *actor.Refusal {
	switch s.call.Operation {
	case signals.OpCallAgent, signals.OpAddTool, signals.OpAddModel:
		if (repeats{s.cell, s.turn}).isFormer(s.call) {
			return actor.Refuse(actor.Stopped, "the agent was invoked again for run %s: its former invocation makes no more requests", s.call.Parent)
		}
	}
	switch s.call.Operation {
	case signals.OpCallAgent:
		s.turn.callback(s.cell, s.call, s.durable)
		return nil
	case signals.OpAddTool:
		return s.addTool()
	case signals.OpAddModel:
		return s.addModel()
	case signals.OpEndModel:
		return s.endModel()
	case signals.OpDecide:
		return s.decide()
	case signals.OpGiveResult:
		return s.giveResult()
	case signals.OpRetry:
		return s.retry()
	}
	return s.answerWait()
}

// answerWait answers the open wait of the run that has the name given by the signal.
func (s received) answerWait() *actor.Refusal {
	t, call := s.turn, s.call
	for i := range t.run.Last() {
		a := &t.run.Last()[i]
		if a.Open() && a.Ask.Kind == actor.AskWait && a.Ask.Name == call.Operation {
			s.accept()
			shown := store.ShownAsk{Kind: actor.AskWait, Name: a.Ask.Name, Principal: call.Principal, Origin: call.Origin}
			t.answerShown(s.cell, i, actor.Answer{Parts: call.Parts}, 0, nil, shown)
			s.done(nil)
			return nil
		}
	}
	return actor.Refuse(actor.Rejected, "run %s does not wait for %q", call.Parent, call.Operation)
}

// accept notes that the turn depends on the caller of the signal.
func (s received) accept() { s.turn.taint = s.turn.taint || s.durable }

// done records that the signal has succeeded, and answers it.
func (s received) done(parts []actor.Part) {
	reply := succeeded(s.call, parts)
	s.turn.act.recordOutcome(s.cell, s.call, &reply, true)
}

// succeeded returns the reply to a signal that has succeeded.
func succeeded(call *actor.Call, parts []actor.Part) actor.Reply {
	return actor.Reply{Call: call.ID, Run: call.Parent, Status: actor.Succeeded, Budget: call.Budget, Parts: parts}
}

// ask returns an ask of the last step by the ID in a content, and whether the run has it.
func (s received) ask(id runs.ToolCallID) (i int, ok bool) {
	return int(id.Index), id.Run == s.turn.run.Call.ID && id.Step == s.turn.step() && int(id.Index) < len(s.turn.run.Last())
}
