// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// noteTimeout is the time that the actor of a session's notes, or of a workspace, has for a change.
const noteTimeout = 30 * time.Second

// SessionState returns what the agents of a session share.
func (v View) SessionState(session string) (agents.SessionState, error) {
	var items []actor.StateItem
	took := map[string]agents.AgentState{}
	var workflow *agents.WorkflowState
	ids, err := v.Log.SessionActors(v.Tenant, session)
	for _, id := range ids {
		var j store.Journal
		if err == nil {
			j, err = v.journal(id)
		}
		switch {
		case err != nil:
		case id.Agent == actor.ContextAgent:
			items = j.ActorState
		case !actor.IsSystemAgent(id.Agent):
			took[id.Agent] = agents.AgentState{}
			if r := j.Reported; r.Version > 0 {
				took[id.Agent] = agents.Reported(r.State, r.Detail, r.Version, r.Run, r.At)
			}
			if w := workflowOf(id, &j); w != nil && (workflow == nil || w.Run != "") {
				workflow = w
			}
		}
	}
	s := agents.NewSessionState(items, took)
	s.Workflow = workflow
	return s, orNotFound(err, session)
}

// Bounds of the search for a result of a workflow that has ended.
const (
	outputRunsMax   = 200    // runs of the session, the newest
	outputPagesMax  = 20     // pages with them
	outputEventsMax = 20_000 // events of these runs; decoding them takes about a second
)

// SessionOutput returns a result that an agent of a session has got for a request, by its request_id: also after the
// end of its workflow, if one of the newest outputRunsMax runs of the session has made the request, within outputEventsMax events.
func (v View) SessionOutput(session, ref string) (jsontext.Value, error) {
	ids, err := v.Log.SessionActors(v.Tenant, session)
	for _, id := range ids {
		if actor.IsSystemAgent(id.Agent) {
			continue
		}
		j, err := v.journal(id)
		if err != nil {
			return nil, err
		}
		if value := agents.KeptOutput(ref, j.ActorState); value != nil {
			return value, nil
		}
		for _, run := range j.Runs {
			for i := range run.Steps {
				for k := range run.Steps[i].Asks {
					asked := &run.Steps[i].Asks[k]
					if value := agents.OutputOf(ref, run.Call.ID, &asked.Ask, asked.Answer); value != nil {
						return value, nil
					}
				}
			}
		}
	}
	if err != nil {
		return nil, orNotFound(err, session)
	}
	value, err := v.endedOutput(session, ref)
	if value != nil || err != nil {
		return value, err
	}
	refusal := actor.Refuse(actor.Invalid, "output: no result of the newest %d runs and %d events of this session is named %.80q: want the ref of one in prior_outputs", outputRunsMax, outputEventsMax, ref)
	refusal.Field = "output"
	return nil, refusal
}

// endedOutput returns a result from the log, nil if there is none. The journal does not have results of ended runs.
func (v View) endedOutput(session, ref string) (jsontext.Value, error) {
	left, events, before := outputRunsMax, outputEventsMax, actor.CallID{}
	for range outputPagesMax {
		page, err := v.Log.Runs(v.Tenant, runs.Filter{Session: session, Calls: true}, before, left)
		if err != nil {
			return nil, err
		}
		for i := range page.All {
			value, err := v.outputOfRun(page.All[i].Run, ref, &events)
			if value != nil || err != nil || events <= 0 {
				return value, err
			}
		}
		left, before = left-len(page.All), page.Next
		if left <= 0 || before.IsZero() {
			break
		}
	}
	return nil, nil
}

// outputOfRun returns a result that a run has got for a request, nil if there is none. It reads at most left events,
// and lowers left by those that it has read. The event of a request shows the
// begin of its envelope, where the request_id is.
func (v View) outputOfRun(run actor.CallID, ref string, left *int) (jsontext.Value, error) {
	var asked *runs.Event
	for after := uint64(0); ; {
		page, err := v.Log.Events(v.Tenant, run, after, min(command.EventsMax, *left))
		if err != nil {
			return nil, err
		}
		*left -= len(page)
		for _, raw := range page {
			after = raw.Seq
			e, err := runs.Decode(raw.Body)
			switch {
			case err != nil:
				return nil, err
			case e.Type == runs.AgentCalledChild && tools.NamesRequest(e.Text, ref):
				asked = &e
			case e.Type == runs.AgentChildDone && asked != nil && e.Step == asked.Step && e.Index == asked.Index:
				parts, err := v.Log.Result(v.Tenant, run, e.Seq)
				return agents.ResultOf(ref, parts), err
			}
		}
		if len(page) < command.EventsMax || *left <= 0 {
			return nil, nil
		}
	}
}

// workflowOf returns the workflow that an agent is working on, or else the workflow that waits for the user.
func workflowOf(id actor.ID, j *store.Journal) *agents.WorkflowState {
	kept := agents.KeptWorkflow(id.Agent, j.ActorState)
	for _, run := range j.Runs {
		var asks []agents.AskOf
		for i := range run.Steps {
			for k := range run.Steps[i].Asks {
				asks = append(asks, agents.AskOf{Ask: &run.Steps[i].Asks[k].Ask, Answer: run.Steps[i].Asks[k].Answer})
			}
		}
		if w := agents.RunningWorkflow(id.Agent, run.Call.ID, asks, kept); w != nil {
			return w
		}
	}
	return kept
}

// registerSessionTools sets the handlers of the tools with which the agents of a session share what they know.
func (c *catalogSync) registerSessionTools() {
	c.tools.Perform(tools.NoteSession, c.forRun(noteSession))
	c.tools.Perform(tools.ReadSession, c.forRun(readSession))
}

// forRun returns the handler of a tool that is performed for the session of its run.
func (c *catalogSync) forRun(perform func(context.Context, *Commands, *engine.ToolCall, []byte) ([]byte, error)) tools.Handler {
	return func(ctx context.Context, input []byte) tools.Result {
		select {
		case <-c.attached:
		case <-ctx.Done():
			return tools.Refused(actor.Refuse(actor.Unavailable, "%v", ctx.Err()))
		}
		call, ok := engine.ToolCallOf(ctx)
		if !ok {
			return tools.Refused(actor.Refuse(actor.Unavailable, "the tool was not used by a run"))
		}
		result, err := perform(ctx, c.commands, &call, input)
		var r *actor.Refusal
		switch {
		case errors.As(err, &r):
			return tools.Refused(r)
		case err != nil:
			return tools.Refused(actor.Refuse(actor.Unavailable, "%v", err))
		}
		return tools.JSON(result)
	}
}

// noteSession notes an entry. A repeat after a crash changes nothing that was noted since.
func noteSession(ctx context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	var in struct {
		Kind  string         `json:"kind"`
		Name  string         `json:"name"`
		Value jsontext.Value `json:"value"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, actor.Refuse(actor.Invalid, "%s: %v", tools.NoteSession, err)
	}
	of := &by.Call
	body := invariant.Must(json.Marshal(agents.Note{Kind: in.Kind, Name: in.Name, Value: in.Value, Agent: of.To.Agent, Run: of.ID.String()}))
	return c.askActor(ctx, by, tools.NoteSession, actor.ID{Tenant: of.To.Tenant, Agent: actor.ContextAgent, Key: of.To.Key}, agents.OpNote, actor.Text(string(body))[0])
}

// readSession reads all entries, and the state of each agent; or one result of a workflow.
func readSession(ctx context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	var in struct {
		Output string `json:"output"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, actor.Refuse(actor.Invalid, "%s: %v", tools.ReadSession, err)
	}
	found, err := c.Lookup(ctx, command.Lookup{By: actor.Principal{Tenant: by.Call.To.Tenant}, Query: command.SessionStateQuery{Session: by.Call.To.Key, Output: in.Output}})
	if err != nil {
		return nil, err
	}
	return found.(command.SessionState).JSON, nil
}
