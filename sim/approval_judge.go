// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// approvalJudge passes the tool calls of journaled runs to specs.Work: the decisions in
// their entries, the rest of them after a restart, the requests to tools and the answers to people. It
// decides itself which calls need an approval, by the tools that the cell knows.
type approvalJudge struct {
	w        *Simulation
	work     *specs.Work
	versions map[*tools.Registry]*toolVersion
	known    map[actor.Address]*toolVersion
	calls    map[runs.ToolCallID]*judgedTool
	of       map[actor.ID][]runs.ToolCallID // in order
	events   map[actor.CallID][]runs.Event  // of tool calls, as published
}

// judgedTool is a call of a declared tool that its policy has decided about.
type judgedTool struct {
	needs    bool   // an approval
	client   bool   // a device performs it
	number   uint32 // of its approval, 0 if it has none
	approval runs.ApprovalStatus
	by       actor.CallID // decision that was acknowledged
	ended    bool         // the run has ended
}

func newApprovalJudge(w *Simulation) approvalJudge {
	return approvalJudge{w, specs.NewWork(), map[*tools.Registry]*toolVersion{}, map[actor.Address]*toolVersion{}, map[runs.ToolCallID]*judgedTool{}, map[actor.ID][]runs.ToolCallID{}, map[actor.CallID][]runs.Event{}}
}

// observeWork passes an event of a tool call to the specs.
func (j *approvalJudge) observeWork(id runs.ToolCallID, e specs.WorkEvent) {
	e.Run, e.Step, e.Index = id.Run, id.Step, id.Index
	if v := j.work.Observe(e); v != nil {
		j.w.fail(v.Spec, v.Detail)
	}
}

// enter observes the states that a tool call enters.
func (j *approvalJudge) enter(id runs.ToolCallID, all ...runs.ToolStatus) {
	for _, s := range all {
		j.observeWork(id, specs.WorkEvent{Kind: specs.WorkTool, Tool: s})
	}
}

// shownHash returns the identity of a call as a person sees it.
func shownHash(d *tools.Declared, input []byte) actor.Hash {
	hash := d.Hash()
	return actor.HashOf(append(hash[:], input...))
}

// step judges the entries, requests and events of a step.
func (a *approvals) step(c *cell, in runtime.Input, ready *runtime.Ready) {
	if !a.on {
		return
	}
	if in, ok := in.(runtime.Agents); ok {
		a.known[c.self] = a.versions[in.Tools]
	}
	if l, ok := in.(runtime.Loaded); ok && slices.ContainsFunc(ready.Events, func(e history.Event) bool { return e.Kind == history.Activate && e.Actor == l.Actor }) {
		a.restore(l)
	}
	for i := range ready.Entries {
		e := &ready.Entries[i]
		switch r := e.Record.(type) {
		case store.Asking:
			for i := range r.Asks {
				a.asked(c, e.Actor, runs.ToolCallID{Run: r.Run, Step: e.Shown.Step, Index: uint16(i)}, &r.Asks[i])
			}
		case store.Added:
			id := runs.ToolCallID{Run: r.Run, Step: e.Shown.Step, Index: e.Shown.Index}
			a.asked(c, e.Actor, id, &r.Ask)
			a.models.observe(id, &r.Ask)
		case store.Resolved:
			a.resolved(runs.ToolCallID{Run: r.Run, Step: r.Step, Index: r.Index}, r.Status)
		case store.Answered:
			id := runs.ToolCallID{Run: r.Run, Step: r.Step, Index: r.Index}
			a.answered(id, &r.Answer)
			a.models.answered(id, &r.Answer)
		case store.Ended:
			for _, id := range a.of[e.Actor] {
				if id.Run == r.Call {
					a.calls[id].ended = true
				}
			}
		}
	}
	for i := range ready.Effects {
		switch op := ready.Effects[i].Op.(type) {
		case runtime.Tool:
			if t := a.calls[runs.ToolCallID(ready.Effects[i].ID)]; t != nil && t.needs && t.approval != runs.ApprovalStatusApproved {
				a.fail(specs.ApprovalOnce, fmt.Sprintf("%s begins tool call %v, whose approval is %s", c.self, ready.Effects[i].ID, t.approval))
			}
		case runtime.Publish:
			a.fold(op.Event)
		}
	}
}

// asked judges the decision of the policy about a call.
func (a *approvals) asked(c *cell, of actor.ID, id runs.ToolCallID, ask *store.Asked) {
	v, verdict := a.known[c.self], ask.Verdict.Decision
	d := v.tool(ask.Out().Name)
	if d == nil || ask.Out().Kind != actor.AskTool || verdict == 0 && !ask.Open() { // no declared tool, or invalid arguments
		return
	}
	if want := v.decision(d); verdict != want {
		a.fail(specs.ApprovalOnce, fmt.Sprintf("the policy decides about tool call %s of %s by %s: %s, want %s", id, d.Name, of, verdict, want))
	}
	if a.calls[id] != nil {
		a.rollBack(id, 0, 0)
	} else {
		a.of[of] = append(a.of[of], id)
	}
	t := &judgedTool{needs: v.decision(d) == runs.RequireApproval, client: d.Kind == tools.KindClient}
	a.calls[id] = t
	a.enter(id, runs.ToolStatusCreated, runs.ToolStatusPolicyChecked)
	switch {
	case verdict == runs.Block:
		if a.enter(id, runs.ToolStatusBlocked); !ask.Open() {
			a.observeWork(id, specs.WorkEvent{Kind: specs.WorkAdvanced, Result: ask.Answer.Refusal == nil})
		}
	case !ask.Open(): // called too often
		a.enter(id, runs.ToolStatusFailed)
	case ask.Await != nil:
		t.number = 1
		a.enter(id, runs.ToolStatusWaitingApproval)
		t.approval = runs.ApprovalStatusPending
		a.observeWork(id, specs.WorkEvent{Kind: specs.WorkApproval, Number: 1, Approval: t.approval, Args: shownHash(d, ask.Out().Parts[0].Bytes)})
	default:
		a.enter(id, runs.ToolStatusDispatched)
	}
}

func (a *approvals) resolved(id runs.ToolCallID, status runs.ApprovalStatus) {
	a.observeWork(id, specs.WorkEvent{Kind: specs.WorkApproval, Number: 1, Approval: status})
	t := a.calls[id]
	if t == nil {
		a.fail(specs.ApprovalOnce, fmt.Sprintf("tool call %s needs no approval, but has one that is %s", id, status))
		return
	}
	if t.approval = status; status == runs.ApprovalStatusApproved {
		a.enter(id, runs.ToolStatusDispatched)
	}
}

// answered judges the answer that a turn gets. A result is one that left the server.
func (a *approvals) answered(id runs.ToolCallID, answer *actor.Answer) {
	if a.calls[id] == nil {
		return
	}
	a.enter(id, endOf(answer)...)
	a.observeWork(id, specs.WorkEvent{Kind: specs.WorkAdvanced, Result: answer.Refusal == nil})
	if a.calls[id].client {
		a.devices.observe(id, answer)
	} else if answer.Refusal != nil {
		a.checker.Premises.OnlySucceededAdvances++
	} else if key := id.Run.String() + id.String()[len("tc_")+len(id.Run.String()):]; !slices.Contains(a.results[key], string(answer.Parts[0].Bytes)) {
		a.fail(specs.OnlySucceededAdvances, fmt.Sprintf("tool call %s succeeds with %.80q, which its server did not answer", id, answer.Parts[0].Bytes))
	}
}

// endOf returns the states in which an answer ends a call that was dispatched.
func endOf(answer *actor.Answer) []runs.ToolStatus {
	switch {
	case answer.Refusal == nil:
		return []runs.ToolStatus{runs.ToolStatusRunning, runs.ToolStatusSucceeded}
	case answer.Refusal.Reason == actor.Deadline:
		return []runs.ToolStatus{runs.ToolStatusTimeout}
	}
	return []runs.ToolStatus{runs.ToolStatusFailed}
}

// performed judges a request that leaves a node.
func (a *approvals) performed(effect actor.EffectID, op *runtime.Tool) {
	id := runs.ToolCallID(effect)
	t, args := a.calls[id], actor.Hash{} // of a deleted tool
	if op.Declared != nil {
		args = shownHash(op.Declared, op.Input)
	}
	if t != nil {
		a.observeWork(id, specs.WorkEvent{Kind: specs.WorkPerformed, Number: t.number, NeedsApproval: t.needs, Args: args})
	}
}

// judgeServed judges the requests that a server has performed for one call: they are equal, and
// there is only one if the tool is not idempotent. A run without a journal begins again.
func (a *approvals) judgeServed(id actor.EffectID, d *tools.Declared, key string) {
	if all := a.served[key]; a.calls[runs.ToolCallID(id)] != nil && len(all) > 1 && (!d.Idempotent || all[0] != all[len(all)-1]) {
		a.fail(specs.ApprovalOnce, fmt.Sprintf("the server of %s performs %q for one call", d.Name, all))
	}
}

// restore judges the calls of an actor after a start.
func (a *approvals) restore(in runtime.Loaded) {
	if len(a.of[in.Actor]) == 0 {
		return
	}
	journal, err := store.Fold(in.Saved)
	if err != nil {
		return // others judge it
	}
	a.of[in.Actor] = slices.DeleteFunc(a.of[in.Actor], func(id runs.ToolCallID) bool {
		run, t := journal.Run(id.Run), a.calls[id]
		if run == nil && t.ended {
			return true
		}
		if run == nil || int(id.Step) > len(run.Steps) || int(id.Index) >= len(run.Steps[id.Step-1].Asks) {
			a.rollBack(id, 0, 0)
			delete(a.calls, id)
			return true
		}
		ask, status := &run.Steps[id.Step-1].Asks[id.Index], runs.ToolStatusDispatched
		t.ended = false
		if ask.Await != nil {
			t.approval = ask.Await.Status
		}
		switch {
		case t.needs && ask.Await == nil, ask.Verdict.Decision == runs.Block:
			return false // ended when it was made
		case !ask.Open():
			status = endOf(ask.Answer)[len(endOf(ask.Answer))-1]
		case ask.Waits():
			status = runs.ToolStatusWaitingApproval
		}
		a.rollBack(id, status, t.approval)
		return false
	})
}

func (a *approvals) rollBack(id runs.ToolCallID, tool runs.ToolStatus, approval runs.ApprovalStatus) {
	a.observeWork(id, specs.WorkEvent{Kind: specs.WorkRolledBack, Tool: tool})
	if a.calls[id].number > 0 {
		a.observeWork(id, specs.WorkEvent{Kind: specs.WorkRolledBack, Number: 1, Approval: approval})
	}
}

// judgeReply judges the reply to a decision.
func (a *approvals) judgeReply(p runtime.Approval, id string, approve bool, call *actor.Call, reply *actor.Reply) {
	t := a.calls[p.ID]
	switch r := reply.Refusal; {
	case r != nil:
		if r.Reason == actor.ApprovalDecided {
			a.checker.Premises.ApprovalOnce++
		}
	case id != p.ID.Approval():
		a.fail(specs.ApprovalOnce, fmt.Sprintf("decision %s counts for approval %s", id, p.ID.Approval()))
	case p.Actor.Tenant != namespaces{a.Simulation}.namespaceOf(p.ID.Run):
		a.fail(NamespacesApart, fmt.Sprintf("a person in namespace %s decides about %s", p.Actor.Tenant, id))
	case t == nil: // the run has no journal
	case t.by != call.ID && !t.by.IsZero():
		a.fail(specs.ApprovalOnce, fmt.Sprintf("decisions %s and %s count for approval %s", t.by, call.ID, id))
	default:
		t.by = call.ID
		status := runs.ApprovalStatusRejected
		if approve {
			status = runs.ApprovalStatusApproved
		}
		a.observeWork(p.ID, specs.WorkEvent{Kind: specs.WorkReported, Number: 1, Approval: status})
	}
}

// judgeAdded judges the reply to an external agent that adds a tool call.
func (a *approvals) judgeAdded(run actor.CallID, reply *actor.Reply) {
	if reply == nil || reply.Refusal != nil {
		return
	}
	added, ok := signals.ReadAddedTool(reply.Parts)
	if id, err := runs.ParseToolCallID(added.ID); !ok || err != nil || id.Run != run {
		a.fail(specs.OnlySucceededAdvances, fmt.Sprintf("run %s gets the tool call %.80q: %v", run, added.ID, err))
	}
}

// fold collects the events of tool calls, and folds those of a run that has ended.
func (a *approvals) fold(published store.RunEvent) {
	all := a.events[published.Run]
	if i := slices.IndexFunc(all, func(e runs.Event) bool { return e.Seq >= published.Seq }); i >= 0 { // a crash has lost them
		all = all[:i]
		a.events[published.Run] = all
	}
	switch t := runs.TypeOf(published.Body); t {
	case runs.ToolCallCreated, runs.PolicyDecision, runs.ApprovalCreated, runs.ApprovalDecision, runs.ApprovalExpired, runs.ToolDispatched, runs.ToolResult,
		runs.RunDone, runs.RunFailed, runs.RunCancelled:
		e, err := runs.Decode(published.Body)
		if err != nil {
			return // others judge it
		}
		if a.events[published.Run] = append(all, e); t != runs.RunDone && t != runs.RunFailed && t != runs.RunCancelled {
			return
		}
		for i := range all {
			if e := &all[i]; e.Type == runs.ToolCallCreated {
				call, _, err := runs.FoldToolCall(a.events[e.Run], runs.ToolCallID{Run: e.Run, Step: e.Step, Index: e.Index})
				if err != nil || !call.Status.Ended() {
					a.fail(specs.OnlySucceededAdvances, fmt.Sprintf("the events of tool call %s fold to %s: %v", call.ID, call.Status, err))
				}
			}
		}
		delete(a.events, published.Run)
	}
}
