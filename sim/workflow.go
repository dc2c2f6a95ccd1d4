// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// orchestratorName is the agent whose turns are workflows of three steps, of which the last two run together, and
// stepOwner the one that owns their capabilities.
const (
	orchestratorName = "orla"
	orchestratorSays = `{"primary_intent":"steps","intent_confidence":1,"workflow":"steps","constraints":` + handedLimits + `}`
	handedLimits     = `{"limit":7}`
	stepOwner        = "olaf"
)

var stepCodes = [...]string{"STEP_ONE", "STEP_TWO", "STEP_THREE"}

// addWorkflow adds the orchestrator and the owner, if the plan has a policy. The model of the orchestrator
// understands almost each message as the workflow.
func (p *Plan) addWorkflow() {
	if p.Policy == "" {
		return
	}
	var provides, steps []any
	for i, code := range stepCodes {
		provides = append(provides, map[string]any{"code": code, "description": "a step"})
		step := map[string]any{"capability": code, "inputs": map[string]any{"message": "{request}"}}
		if i == 2 {
			step["parallel"] = true
		}
		steps = append(steps, step)
	}
	owner := declaredSpec(stepOwner, modelNames[0], 3)
	owner["provides"] = provides
	workflow := map[string]any{"description": "three steps", "steps": steps, "on_step_failure": p.Policy}
	desk := map[string]any{"agent_id": orchestratorName, "kind": agents.KindOrchestrator, "model": modelNames[0],
		"prompt": "on e say " + orchestratorSays, "workflow": map[string]any{"steps": workflow}}
	p.Specs[stepOwner], p.Specs[orchestratorName] = owner, desk
	for _, spec := range []map[string]any{owner, desk} {
		p.Agents = append(p.Agents, invariant.Must(agents.Compile(invariant.Must(parseSpec(spec)), builtinTools())))
	}
}

// WorkflowStepOnce is the spec of workflows. A run asks for each step at most once, however often its node crashes. It
// asks for a step of the next stage only after every step of the stage before has ended. Each of these has succeeded,
// unless the workflow goes on without it.
const WorkflowStepOnce = "WorkflowStepOnce"

// workflowProblem returns what is wrong with the events of an orchestrator's run, or "".
func workflowProblem(events []*shownEvent, policy string) string {
	asked, ended, failed := map[string]bool{}, 0, false
	for _, e := range events {
		switch e.Type {
		case runs.AgentCalledChild.String():
			_, code, _ := strings.Cut(e.Payload.Text, `"capability_code":"`)
			code, _, _ = strings.Cut(code, `"`)
			switch {
			case asked[code]:
				return "asks twice for " + code
			case code != stepCodes[0] && ended == 0:
				return "asks for " + code + " before the first step has ended"
			case code != stepCodes[0] && failed && policy != agents.StepPartial:
				return "asks for " + code + " although the first step has failed"
			}
			asked[code] = true
		case runs.ToolResult.String(), runs.AgentCallRefused.String(), runs.AgentChildDone.String():
			if e.Type == runs.ToolResult.String() && e.Payload.Name != tools.RequestCapability {
				continue // a result of request_capability means that no agent owns the code now
			}
			if ended++; ended == 1 {
				failed = e.Type != runs.AgentChildDone.String() || e.Payload.Status == actor.Failed.String()
			}
		}
	}
	return ""
}

// HandoffKeepsContext is the spec of hand-offs: the owner of each step is told the words of the user and every constraint
// stated before, however often the node of the orchestrator crashes.
const HandoffKeepsContext = "HandoffKeepsContext"

// handoffProblem returns what is wrong with the request of a step, or "". The event may have the head of a long one.
func handoffProblem(request, message string) string {
	envelope, _, whole := strings.Cut(request, "\n\n")
	var in struct {
		Context struct {
			Request string         `json:"original_request"`
			Limits  jsontext.Value `json:"constraints"`
		} `json:"context"`
	}
	switch err := json.Unmarshal([]byte(envelope), &in); {
	case err != nil && !whole:
		return ""
	case err != nil:
		return "has no envelope: " + err.Error()
	case string(in.Context.Limits) != handedLimits:
		return fmt.Sprintf("has the constraints %.80s", in.Context.Limits)
	case message != "" && len(message) < runs.TextBytesMax && in.Context.Request != strings.ToValidUTF8(message, "\uFFFD"):
		return fmt.Sprintf("has the words %.80q, and not %.80q", in.Context.Request, message)
	}
	return ""
}

// messageOf returns the message of a run in its events.
func messageOf(events []*shownEvent) string {
	for _, e := range events {
		if e.Type == runs.UserInput.String() {
			return e.Payload.Text
		}
	}
	return ""
}

// checkWorkflow checks the run of an event that a step publishes, if its agent is the orchestrator.
func (s *judgedStep) checkWorkflow(e *shownEvent) {
	if s.w.plan.Policy == "" || s.admitted[e.run].Actor.Agent != orchestratorName {
		return
	}
	if problem := workflowProblem(s.streams[e.run], s.w.plan.Policy); problem != "" {
		s.w.fail(WorkflowStepOnce, fmt.Sprintf("run %s of a workflow that goes on by %s %s", e.run, s.w.plan.Policy, problem))
	}
	if e.Type == runs.AgentCalledChild.String() {
		if problem := handoffProblem(e.Payload.Text, messageOf(s.streams[e.run])); problem != "" {
			s.w.fail(HandoffKeepsContext, fmt.Sprintf("a request of run %s %s", e.run, problem))
		}
		if !strings.Contains(e.Payload.Text, stepCodes[0]) {
			s.w.Stats.Audit.HandoffKeepsContext++
		}
	}
	if e.Type == runs.AgentCalledChild.String() && !strings.Contains(e.Payload.Text, stepCodes[0]) {
		s.w.Stats.Audit.WorkflowStepOnce++
	}
}
