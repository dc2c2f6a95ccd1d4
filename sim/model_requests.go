// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// modelRequests is the part of a simulation in which external agents ask models through the
// gateway. A gateway records the outcome of a request, sometimes twice, under the ID of another
// one, or never.
type modelRequests struct {
	a     *approvals
	open  map[runs.ToolCallID]bool         // requests in a journal
	ended map[runs.ToolCallID]int64        // tokens of the answer in the journal; 0 for a refusal
	taken map[runs.ToolCallID]actor.CallID // outcome that was acknowledged
	sent  map[actor.CallID]int64           // tokens of the outcome in each signal
}

func newModelRequests(a *approvals) modelRequests {
	return modelRequests{a, map[runs.ToolCallID]bool{}, map[runs.ToolCallID]int64{}, map[runs.ToolCallID]actor.CallID{}, map[actor.CallID]int64{}}
}

// add records a request of an external agent, which continues once the request has ended.
func (m *modelRequests) add(n *node, e *externalCall, run actor.CallID, of actor.ID) {
	a := m.a
	request := ingress.ModelRequest{Run: run, Actor: of, Model: "m", ID: fmt.Sprintf("request-%d", len(m.sent))}
	call := a.signal(of, run, signals.AddModel{Model: request.Model, Request: signals.ModelRequest{ID: request.ID}})
	call.Principal, call.Origin = "agent:"+e.agent, actor.Agent
	a.submitCall(n, call, func(reply *actor.Reply) {
		a.after(a.between(time.Millisecond, 3*time.Second), func() {
			if id, ok := m.place(run, reply); ok {
				m.end(request, id)
			}
			e.scheduleAdvance()
		})
	})
}

// place returns the ID in the answer to a request that was recorded.
func (m *modelRequests) place(run actor.CallID, reply *actor.Reply) (id runs.ToolCallID, ok bool) {
	if reply == nil || reply.Refusal != nil {
		return id, false
	}
	added, ok := signals.ReadAddedModel(reply.Parts)
	id, err := runs.ParseToolCallID(added.ID)
	if !ok || err != nil || id.Run != run {
		m.a.fail(ModelRequestEndsOnce, fmt.Sprintf("run %s gets the model request %.80q: %v", run, added.ID, err))
		return id, false
	}
	return id, true
}

// end records the outcome of a request.
func (m *modelRequests) end(request ingress.ModelRequest, id runs.ToolCallID) {
	a := m.a
	for range a.entropy.Int(3) {
		of := id
		if a.entropy.Int(6) == 5 {
			of.Index += 3
		}
		tokens := 1 + int64(len(m.sent))
		completion := upstream.Completion{Finish: upstream.FinishStop, Model: "m", Usage: upstream.Usage{Known: true, Input: tokens, Total: tokens}}
		call := a.signal(request.Actor, request.Run, signals.EndModel{ID: of.String(), Completion: string(completion.Encode())})
		call.Origin = actor.Agent
		m.sent[call.ID] = tokens
		a.send(call, 1, func(reply *actor.Reply) { m.judgeReply(of, &call, reply) })
	}
}

// judgeReply judges the acknowledgement of an outcome: a request takes one, and its run keeps it.
func (m *modelRequests) judgeReply(id runs.ToolCallID, call *actor.Call, reply *actor.Reply) {
	if reply.Refusal != nil || !m.open[id] {
		return
	}
	m.a.Stats.Audit.ModelRequestEndsOnce++
	if by, ok := m.taken[id]; ok && by != call.ID {
		m.a.fail(ModelRequestEndsOnce, fmt.Sprintf("model request %s takes the outcome %s; before, it took %s", id, call.ID, by))
		return
	}
	m.taken[id] = call.ID
	if tokens := m.ended[id]; tokens != m.sent[call.ID] {
		m.a.fail(ModelRequestEndsOnce, fmt.Sprintf("model request %s has %d tokens, but the outcome with %d was acknowledged", id, tokens, m.sent[call.ID]))
	}
}

// observe follows the requests in journals.
func (m *modelRequests) observe(id runs.ToolCallID, ask *store.Asked) {
	m.open[id] = ask.Out().Kind == actor.AskModel
	delete(m.ended, id) // a crash may have lost the entry of a former one
}

// answered follows the answers in journals.
func (m *modelRequests) answered(id runs.ToolCallID, answer *actor.Answer) {
	if !m.open[id] {
		return
	}
	if m.ended[id] = answer.Usage.Total; answer.Refusal != nil {
		m.ended[id] = 0
	}
	invariant.Check(answer.Refusal != nil || answer.Usage.Total > 0, "sim: an outcome without tokens")
}
