// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Calls of declared tools. In this order: the input is validated, the policy decides, the
// guard against loops counts, and the call is performed or waits for a person. The entry of
// the call holds all of it, so a later change of the tool or of the policy changes nothing
// that was decided, and a replay needs neither.

// sameCallsMax is the number of calls of a tool with the same input in one turn. Further
// calls are refused: a model that repeats itself makes no progress.
const sameCallsMax = 3

// ApprovalsPerUserMax is the number of tool calls of a user that may wait for a person in a cell.
// Further ones are refused: they would take memory, and hide those of others in the list of an operator.
const ApprovalsPerUserMax = 512

// approvalsRetryAfter is the time after which a person may have decided about some of them.
const approvalsRetryAfter = time.Minute

// resultHeadMin is the size in bytes of the shortest head of a result.
const resultHeadMin = 64

// toolCalls checks and ends the calls of declared tools.
type toolCalls struct {
	cell *Cell
	turn *turn
}

// plan fills in the fields of an ask for a declared tool with valid input. It returns a
// refusal of the call, or nil.
func (s toolCalls) plan(a *store.Asked, out *actor.Ask) *actor.Refusal {
	c, t := s.cell, s.turn
	tool, ok := c.tools.Tool(out.Name)
	if !ok || tool.Declared == nil || out.Kind != actor.AskTool {
		return nil
	}
	d, input := tool.Declared, out.Parts[0].Bytes
	a.ResultMax, a.OnDevice = uint32(d.ResultBytesMax()), d.Kind == tools.KindClient
	a.FailsRun = d.OnFailure == tools.FailRun || a.Added && d.OnFailure != tools.ReturnError
	verdict := c.tools.Policy().Decide(callerOf(c, t), &tool, input)
	a.Verdict = store.Verdict{Decision: verdict.Decision, Rule: actor.FitText(verdict.Rule, actor.TextBytesMax)}
	if r := s.checkRepeated(out.Name, input); r != nil {
		return r
	}
	switch {
	case verdict.Decision == runs.Block:
		return actor.Refuse(actor.PolicyBlocked, "the policy blocks this call of %s (%s)", out.Name, verdict.Rule)
	case verdict.Decision == runs.RequireApproval && c.active.waiting(t.act.id.Tenant) >= ApprovalsPerUserMax:
		return actor.RefuseBusy(actor.ScopeCaller, approvalsRetryAfter, "%d tool calls of this user wait for a person, which is the limit: decide about some of them first", ApprovalsPerUserMax)
	case verdict.Decision == runs.RequireApproval:
		timeout := orDefault(actor.Duration(d.ApprovalTimeoutMS)*time.Millisecond, c.limits.ApprovalTimeout)
		a.Await = &store.Await{Summary: d.Summary(input), Status: runs.ApprovalStatusPending}
		a.Clock = actor.NewClock(c.now, min(timeout, c.limits.WaitTimeoutMax))
	}
	return nil
}

// blocked returns the refusal of a call of a tool of this program that a rule of the policy names, or nil. The
// input is valid.
func blocked(c *Cell, t *turn, ask *actor.Ask) *actor.Refusal {
	tool, ok := c.tools.Tool(ask.Name)
	if !ok || tool.Declared != nil || c.tools.Policy() == nil {
		return nil
	}
	if v := c.tools.Policy().Decide(callerOf(c, t), &tool, inlineBytes(ask.Parts)); v.Decision == runs.Block {
		return actor.Refuse(actor.PolicyBlocked, "the policy blocks this call of %s (%s)", ask.Name, v.Rule)
	}
	return nil
}

// callerOf returns the agent of a turn, with the owner of the definition that the turn executes.
func callerOf(c *Cell, t *turn) tools.Caller {
	by := tools.Caller{Agent: t.act.id.Agent}
	def := t.def
	if def == nil { // the turn was restored before the cell knew the agent
		def = c.definitions.of(t.run)
	}
	switch {
	case def == nil:
	case def.OfOperator():
		by.Owner = actor.OperatorUser
	default:
		by.Owner = def.Owner
	}
	return by
}

// checkRepeated refuses a call that the turn has made too often.
func (s toolCalls) checkRepeated(tool string, input []byte) *actor.Refusal {
	t := s.turn
	same := 0
	for i := range t.run.Steps {
		for j := range t.run.Steps[i].Asks {
			if out := t.run.Steps[i].Asks[j].Out(); out.Kind == actor.AskTool && out.Name == tool && string(inlineBytes(out.Parts)) == string(input) {
				same++
			}
		}
	}
	if same < sameCallsMax {
		return nil
	}
	return actor.Refuse(actor.Rejected, "%s was called %d times in this turn with the same arguments: use its results, or other arguments", tool, same)
}

// digest returns the hash of all that a person decides about: the definition of the tool, the
// run, the place in it, and the arguments.
func (s toolCalls) digest(d *tools.Declared, at runs.ToolCallID, input []byte) actor.Hash {
	hash := d.Hash()
	b := append(hash[:], at.Run[:]...)
	b = binary.BigEndian.AppendUint32(b, at.Step)
	b = binary.BigEndian.AppendUint16(b, at.Index)
	return actor.HashOf(append(b, input...))
}

// seal sets the digest of an ask that waits for a decision.
func (s toolCalls) seal(a *store.Asked, step uint32, i int) {
	c, t := s.cell, s.turn
	if !a.Waits() {
		return
	}
	if tool, ok := c.tools.Tool(a.Out().Name); ok && tool.Declared != nil {
		a.Await.Digest = s.digest(tool.Declared, runs.ToolCallID{Run: t.run.Call.ID, Step: step, Index: uint16(i)}, inlineBytes(a.Out().Parts))
	}
}

// recheck returns the reason why a call must not be performed now: its tool has changed since
// a person was asked, or was deleted, or the policy has changed.
func (s toolCalls) recheck(i int) *actor.Refusal {
	c, t := s.cell, s.turn
	a := &t.run.Last()[i]
	name, input := a.Out().Name, inlineBytes(a.Out().Parts)
	tool, ok := c.tools.Tool(name)
	switch {
	case !ok || tool.Declared == nil:
		return actor.Refuse(actor.PolicyBlocked, "the tool %s was deleted", name)
	case a.Await != nil && s.digest(tool.Declared, t.toolCallID(i), input) != a.Await.Digest:
		return actor.Refuse(actor.PolicyBlocked, "the definition of %s has changed since the approval was requested: a person approves it as it was shown, so the agent has to ask again", name)
	}
	switch v := c.tools.Policy().Decide(callerOf(c, t), &tool, input); {
	case v.Decision == runs.Block:
		return actor.Refuse(actor.PolicyBlocked, "the policy blocks this call of %s now (%s)", name, v.Rule)
	case v.Decision == runs.RequireApproval && a.Await == nil:
		return actor.Refuse(actor.PolicyBlocked, "the policy requires an approval of this call of %s now (%s)", name, v.Rule)
	}
	return nil
}

// together returns the number of calls of a tool with batch that leave at once with the i-th ask, 0 for other tools.
// A call that has waited for a person, or that is repeated after a restart, leaves alone.
func (s toolCalls) together(d *tools.Declared, i int) (n int) {
	t := s.turn
	if d == nil || !d.Batch {
		return 0
	}
	asks := t.run.Last()
	leaves := func(j int) bool {
		a := &asks[j]
		return a.Open() && a.Out().Kind == actor.AskTool && a.Out().Name == d.Name && a.Await == nil && !a.Added && t.sends[j].attempt == 1
	}
	if !leaves(i) {
		return 1
	}
	for j := range asks {
		if leaves(j) {
			n++
		}
	}
	return n
}

func (t *turn) toolCallID(i int) runs.ToolCallID {
	return runs.ToolCallID{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i)}
}

// begin performs an ask that has just been recorded, unless it waits for a decision.
func (s toolCalls) begin(i int) {
	c, t := s.cell, s.turn
	if a := &t.run.Last()[i]; a.Out().RunsOutsideCell() && !a.Waits() {
		t.perform(c, i)
	}
}

// expire ends an ask that waits for a decision. Its caller answers the ask.
func (s toolCalls) expire(i int, why string) {
	s.resolve(i, runs.ApprovalStatusExpired, 0, why, nil, store.ShownAsk{})
}

// resolve records a decision about an ask that waits for one, and ends its hold.
func (s toolCalls) resolve(i int, status runs.ApprovalStatus, left actor.Duration, detail string, raise *actor.Purse, by store.ShownAsk) {
	c, t := s.cell, s.turn
	a, holds := &t.run.Last()[i], t.run.Holds
	by.Kind, by.Name = a.Out().Kind, a.ShownName()
	t.act.record(c, store.Resolved{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, Status: status, Left: left,
		Detail: actor.FitText(detail, actor.TextBytesMax), Raise: raise}, store.Shown{Ask: &by})
	c.emit(history.Event{Kind: history.Resume, Actor: t.act.id, Epoch: t.act.epoch, Call: t.run.Call.ID, Parent: t.run.Call.ID, What: "approval", Step: t.step(), Index: uint16(i), N: 1})
	if !t.ended {
		t.propagateHold(c, holds)
	}
}

// shortened returns an answer as the turn gets it: the head of a result above the bound of
// its tool, with a note of its size. The journal holds the whole result.
func shortened(a *store.Asked, answer actor.Answer) actor.Answer {
	if !isCut(a, &answer) {
		return answer
	}
	whole := inlineBytes(answer.Parts)
	head := actor.FitText(string(answer.Parts[0].Bytes), max(int(a.ResultMax), resultHeadMin))
	answer.Parts = actor.Text(head)
	answer.Warnings = append(answer.Warnings[:len(answer.Warnings):len(answer.Warnings)],
		fmt.Sprintf("the result of %s has %d bytes, and these are the first %d; the ref %s has the rest from offset %d on", a.Out().Name, len(whole), len(head), tools.BlobRef(whole), shared(whole, head)))
	return answer
}
