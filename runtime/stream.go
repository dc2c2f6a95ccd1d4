// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// What models and external agents answer comes in pieces, each of which is
// written down before anyone sees it. If the answer is asked for again after
// some were shown, the stream says which of them do not count any more.

// streamed takes in a piece of an answer. One of an attempt that is over is late.
func (c *Cell) streamed(in Streamed) {
	t, i := c.findStreaming(in.ID, in.Attempt)
	if t == nil {
		c.emit(history.Event{Kind: history.Drop, Call: in.ID.Run, What: "piece", Why: "late", Step: in.ID.Step, Index: in.ID.Index, Attempt: in.Attempt})
		return
	}
	a, p := &t.run.Last()[i], in.Piece
	record := store.Streamed{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now}
	e := runs.Event{Step: t.step(), Index: uint16(i)}
	switch {
	case p.Retry != nil:
		e.Type, e.Attempt, e.Discards, e.Refusal = runs.Attempt, 2+a.Again, a.Shown, p.Retry.Fit()
		record.Again = true
	case p.State != "":
		e.Type, e.Name, e.Text = runs.AgentStateChanged, p.State, p.Detail
		record.Shown = t.run.Seq
	case p.Text != "":
		e.Type, e.Text = runs.AgentStreamDelta, p.Text
		record.Shown = t.run.Seq
	default:
		return
	}
	c.publish(t.act, t.run, e)
	c.record(t.act, record)
}

// findStreaming finds the open ask that an effect is at work on.
func (c *Cell) findStreaming(id actor.EffectID, attempt uint32) (*turn, int) {
	act := c.actors.find(c.inFlight[id])
	if act == nil {
		return nil, 0
	}
	t, i := act.turn(id.Run), int(id.Index)
	if t == nil || t.step() != id.Step || !t.run.Last()[i].Open() || t.sends[i].attempt != attempt {
		return nil, 0
	}
	return t, i
}

func startedType(kind actor.AskKind) runs.Type {
	if kind == actor.AskModel {
		return runs.LLMCallStarted
	}
	return runs.AgentInvokeStarted
}

func doneType(kind actor.AskKind) runs.Type {
	if kind == actor.AskModel {
		return runs.LLMCallDone
	}
	return runs.AgentInvokeDone
}

// shownRequest is what of the request a run's stream shows: of an external agent the
// message is the run's own.
func shownRequest(ask *actor.Ask) []actor.Part {
	if ask.Kind == actor.AskModel {
		return ask.Parts
	}
	return nil
}

// completionOf is the answer of a model or external agent; empty if there is none.
func completionOf(answer actor.Answer) upstream.Completion {
	said, err := upstream.DecodeCompletion(inlineBytes(answer.Parts))
	if err != nil {
		return upstream.Completion{}
	}
	return said
}

func usageOf(said upstream.Completion) runs.Usage {
	u := said.Usage
	return runs.Usage{Input: max(u.Input, 0), Output: max(u.Output, 0), Total: max(u.Total, 0)}
}

// totalUsage is what the models asked in a run said that they took.
func totalUsage(run *store.Run) runs.Usage {
	var sum runs.Usage
	for _, step := range run.Steps {
		for i := range step.Asks {
			if a := &step.Asks[i]; !a.Open() && a.Out().Streams() {
				sum = sum.Add(usageOf(completionOf(*a.Answer)))
			}
		}
	}
	return sum
}

// inlineBytes is the content of one inline part.
func inlineBytes(parts []actor.Part) []byte {
	if len(parts) != 1 {
		return nil
	}
	return parts[0].Bytes
}
