// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// Notes are what the agents of a session tell each other: one entry each, in the state of the actor that
// has the contexts of the session.
//
//		n/<number> Note
//
//	 1. Kind and name identify an entry. The state of an agent is identified by the agent, and an entry without
//	    a name by its value. A note for the same entry replaces it in its place, with the next version.
//	 2. A note that an entry has already changes nothing, not even its author.
const noteItem = "n/"

// OpNote is the operation of actor.ContextAgent that notes an entry. The message is a Note without a
// version.
const OpNote = "session.note"

// Bounds of the notes of a session.
const (
	NotesMax     = 100
	NoteBytesMax = 4 << 10 // of a value
)

// The kinds of notes.
const (
	noteDecision   = "decision"
	noteFinding    = "finding"
	noteData       = "data"
	noteConstraint = "constraint"
	noteAssumption = "assumption"
	noteState      = "state" // of the agent that notes it
)

var noteKinds = []string{noteDecision, noteFinding, noteData, noteConstraint, noteAssumption, noteState}

// Note is an entry, with who noted its current version.
type Note struct {
	Kind    string         `json:"kind"`
	Name    string         `json:"name,omitzero"`
	Value   jsontext.Value `json:"value"`
	Version uint64         `json:"version"`
	Agent   string         `json:"agent_id"`
	Run     string         `json:"run_id"`
	At      string         `json:"at"`
}

// check returns the rule that a new entry breaks.
func (n *Note) check() *actor.Refusal {
	broken := func(field, format string, args ...any) *actor.Refusal {
		r := actor.Refuse(actor.Invalid, "%s: %s: %s", tools.NoteSession, field, fmt.Sprintf(format, args...))
		r.Field = field
		return r
	}
	switch {
	case !slices.Contains(noteKinds, n.Kind):
		return broken("kind", "%.40q: want %s", n.Kind, orList(noteKinds))
	case n.Kind == noteConstraint && n.Name == "":
		return broken("name", "is missing: a constraint has one, such as budget")
	case n.Kind == noteState && n.Name != "":
		return broken("name", "want none: the state is that of the agent that notes it")
	case len(n.Name) > titleMax || n.Name != "" && !actor.IsLine(n.Name):
		return broken("name", "want a line of at most %d bytes", titleMax)
	case n.Value.Compact() != nil:
		return broken("value", "want JSON")
	case len(n.Value) > NoteBytesMax:
		return broken("value", "%d bytes, at most %d allowed: store it with /v1/context, and note its key", len(n.Value), NoteBytesMax)
	case n.Value.Kind() == 'n' && n.Name == "" && n.Kind != noteState:
		return broken("name", "is missing: name the entry that is removed")
	}
	return nil
}

// replaces reports whether a new entry takes the place of an old one.
func (n *Note) replaces(old *Note) bool {
	switch {
	case n.Kind != old.Kind || n.Name != old.Name:
		return false
	case n.Kind == noteState:
		return n.Agent == old.Agent
	case n.Name == "":
		return string(n.Value) == string(old.Value)
	}
	return true
}

// noteStep notes an entry.
func noteStep(state *State) Action {
	items, now := state.Request.ActorState, state.Request.At
	var n Note
	if err := json.Unmarshal([]byte(contentOf(state.Request.Call.Parts)), &n, json.RejectUnknownMembers(true)); err != nil {
		return EndRefused(actor.Refuse(actor.Invalid, "%s: %v", tools.NoteSession, err))
	}
	if refusal := n.check(); refusal != nil {
		return EndRefused(refusal)
	}
	n.Version, n.At = 1, runs.FormatTime(now)
	all, numbers := readNotes(items)
	status, removes, number := "noted", n.Value.Kind() == 'n', 1
	if len(numbers) > 0 {
		number = numbers[len(numbers)-1] + 1
	}
	switch at := slices.IndexFunc(all, func(old Note) bool { return n.replaces(&old) }); {
	case at >= 0 && string(all[at].Value) == string(n.Value):
		return Complete(fmt.Sprintf(`{"status":"unchanged","version":%d}`, all[at].Version))
	case at >= 0:
		n.Version, number, status = all[at].Version+1, numbers[at], "replaced"
	case removes:
		return Complete(`{"status":"unchanged"}`)
	case len(all) >= NotesMax:
		return EndRefused(actor.Refuse(actor.Budget, "%s: the session has %d entries, at most %d allowed: replace one by its kind and name, or remove one with the value null", tools.NoteSession, len(all), NotesMax))
	}
	item := actor.StateItem{Name: fmt.Sprintf("%s%08d", noteItem, number)}
	answer := `{"status":"removed"}`
	if !removes {
		item.Value = invariant.Must(json.Marshal(n))
		answer = fmt.Sprintf(`{"status":%q,"version":%d}`, status, n.Version)
	}
	action := Complete(answer)
	action.StateUpdates = appendCreated([]actor.StateItem{item}, state)
	return action
}

// readNotes returns the entries in the state of an actor, and their numbers.
func readNotes(items []actor.StateItem) (all []Note, numbers []int) {
	for i := range items {
		text, ok := strings.CutPrefix(items[i].Name, noteItem)
		var number int
		var n Note
		if !ok || json.Unmarshal(items[i].Value, &n) != nil {
			continue
		}
		if _, err := fmt.Sscanf(text, "%d", &number); err == nil {
			all, numbers = append(all, n), append(numbers, number)
		}
	}
	return all, numbers
}

// SessionState is what the agents of a session share.
type SessionState struct {
	Workflow *WorkflowState        `json:"workflow"` // nil: none is under way, and none waits for the user
	Agents   map[string]AgentState `json:"agents"`   // each that took part
	Notes    []Note                `json:"notes"`
}

// AgentState is the state that an agent has noted of itself, or reported in an answer: the later one. Its version
// counts both.
type AgentState struct {
	State   jsontext.Value `json:"state,omitzero"`
	Detail  jsontext.Value `json:"detail,omitzero"` // of a reported one
	Version uint64         `json:"version,omitzero"`
	Run     string         `json:"run_id,omitzero"`
	At      string         `json:"at,omitzero"`
}

// Reported returns a state that an external agent has reported. The detail is JSON, or "".
func Reported(state, detail string, version uint64, run actor.CallID, at actor.Time) AgentState {
	s := AgentState{State: invariant.Must(json.Marshal(state, jsontext.AllowInvalidUTF8(true))), Version: version, Run: run.String(), At: runs.FormatTime(at)}
	if v := jsontext.Value(detail); v.IsValid() {
		s.Detail = v
	}
	return s
}

// with returns the later of two states of an agent.
func (s AgentState) with(o AgentState) AgentState {
	version := s.Version + o.Version
	if s.At < o.At {
		s = o
	}
	s.Version = version
	return s
}

// WorkflowState is a workflow that is under way, or whose orchestrator has asked the user.
type WorkflowState struct {
	Agent    string      `json:"agent_id"`
	Run      string      `json:"run_id,omitzero"` // under way
	Question string      `json:"question,omitzero"`
	Steps    []StepState `json:"steps"`
}

// StepState is a step of a workflow.
type StepState struct {
	Title      string `json:"title,omitzero"`
	Capability string `json:"capability_code"`
	Status     string `json:"status"` // of its response, WORKING, or WAITING until it is asked
}

// NewSessionState returns the state of a session. The items are the state of the actor that has its contexts. The map
// took has the agents that took part, each with the state that it has reported, or a zero state.
func NewSessionState(items []actor.StateItem, took map[string]AgentState) SessionState {
	s := SessionState{Agents: map[string]AgentState{}, Notes: []Note{}}
	maps.Copy(s.Agents, took)
	all, _ := readNotes(items)
	for _, n := range all {
		if n.Kind == noteState {
			s.Agents[n.Agent] = AgentState{State: n.Value, Version: n.Version, Run: n.Run, At: n.At}.with(s.Agents[n.Agent])
		} else {
			s.Notes = append(s.Notes, n)
		}
	}
	return s
}

// Encode returns the JSON form.
func (s *SessionState) Encode() []byte {
	return invariant.Must(json.Marshal(s, json.Deterministic(true), jsontext.AllowInvalidUTF8(true)))
}

// KeptWorkflow returns the workflow that waits for the user in the state of an orchestrator; nil if none does.
func KeptWorkflow(agent string, items []actor.StateItem) *WorkflowState {
	p := readPlan(items)
	if p == nil {
		return nil
	}
	w := &WorkflowState{Agent: agent, Question: p.Question}
	for i, s := range p.Workflow.Steps {
		step := StepState{s.Title, s.Capability, stepWaits}
		if p.Responses[i] != nil {
			step.Status = p.Responses[i].Status.String()
		}
		w.Steps = append(w.Steps, step)
	}
	return w
}

// AskOf is an ask of a run with its answer; nil while there is none.
type AskOf struct {
	Ask    *actor.Ask
	Answer *actor.Answer
}

// RunningWorkflow returns the workflow that a run has begun, by its asks in order: the steps of its plan, or of a run
// without a plan the requests. It is nil if there are none. kept is the workflow that the actor has kept; nil if none.
func RunningWorkflow(agent string, run actor.CallID, asks []AskOf, kept *WorkflowState) *WorkflowState {
	w := WorkflowState{Agent: agent, Run: run.String()}
	taken, repeats := map[int]bool{}, map[string]int{}
	for _, a := range asks {
		if a.Ask.Kind == actor.AskTool && a.Ask.Name == tools.RecordRoute && len(w.Steps) == 0 {
			planned, resumed := contract.ReadPlanned([]byte(contentOf(a.Ask.Parts)))
			for i, p := range planned {
				s := StepState{p.Title, p.Capability, stepWaits}
				if resumed && kept != nil && i < len(kept.Steps) && kept.Steps[i].Title == s.Title && kept.Steps[i].Capability == s.Capability {
					s.Status = kept.Steps[i].Status
					taken[i] = s.Status == contract.Success.String() || s.Status == contract.Partial.String()
				}
				w.Steps = append(w.Steps, s)
			}
			continue
		}
		s, ok := StepOf(a.Ask, a.Answer)
		if !ok {
			continue
		}
		input := contentOf(a.Ask.Parts)
		i, again := repeats[input]
		for i < len(w.Steps) && !again && (taken[i] || w.Steps[i].Capability != s.Capability) {
			i++
		}
		taken[i], repeats[input] = true, i
		if i == len(w.Steps) {
			w.Steps = append(w.Steps, s)
		}
		w.Steps[i].Status = s.Status
	}
	if len(w.Steps) == 0 {
		return nil
	}
	return &w
}

// stepWaits is the status of a step that was not asked yet.
const stepWaits = "WAITING"

// StepOf returns the state of a request for a capability; false if the ask is another one. The answer is nil while
// there is none.
func StepOf(ask *actor.Ask, answer *actor.Answer) (s StepState, ok bool) {
	var in struct {
		Capability string `json:"capability_code"`
	}
	if ask.Kind != actor.AskTool || ask.Name != tools.RequestCapability || len(ask.Parts) == 0 || json.Unmarshal(ask.Parts[0].Bytes, &in) != nil {
		return s, false
	}
	s = StepState{Capability: in.Capability, Status: "WORKING"}
	if answer != nil {
		var sent struct {
			Status string `json:"status"`
		}
		switch {
		case answer.Refusal != nil:
			s.Status = contract.Refused("", answer.Refusal).Status.String()
		case json.Unmarshal([]byte(contentOf(answer.Parts)), &sent) == nil:
			s.Status = cmp.Or(sent.Status, contract.Success.String())
		default:
			s.Status = contract.Success.String()
		}
	}
	return s, true
}

// OutputOf returns the result that a request for a capability with a request_id has got; nil if the ask is another
// one, or has no result yet.
func OutputOf(requestID string, run actor.CallID, ask *actor.Ask, answer *actor.Answer) jsontext.Value {
	if _, ok := StepOf(ask, nil); !ok || answer == nil || tools.CapabilityRequestID(run, inputOf(*ask)) != requestID {
		return nil
	}
	r := capabilityResponse(requestID, *answer)
	return r.Result
}

// ResultOf returns the result in the answer to a request for a capability; nil if it has none.
func ResultOf(requestID string, answer []actor.Part) jsontext.Value {
	r := capabilityResponse(requestID, actor.Answer{Parts: answer})
	return r.Result
}

// KeptOutput is OutputOf for the workflow that waits for the user in the state of an orchestrator.
func KeptOutput(requestID string, items []actor.StateItem) jsontext.Value {
	p := readPlan(items)
	if p == nil {
		return nil
	}
	for _, r := range p.Responses {
		if r != nil && r.ID == requestID {
			return r.Result
		}
	}
	return nil
}

// addNotes adds what the agents of the session have noted to the work that is handed over.
func (s *SessionState) addNotes(w *contract.Work) {
	for _, n := range s.Notes {
		text := string(n.Value)
		if n.Value.Kind() == '"' {
			_ = json.Unmarshal(n.Value, &text)
		}
		if n.Name != "" {
			text = n.Name + ": " + text
		}
		switch n.Kind {
		case noteDecision:
			w.Decisions = append(w.Decisions, text)
		case noteFinding:
			w.Findings = append(w.Findings, text)
		case noteData:
			w.Data = append(w.Data, text)
		case noteAssumption:
			w.Assumptions = append(w.Assumptions, text)
		case noteConstraint:
			w.Constraints = append(w.Constraints, contract.Output{Name: n.Name, Value: n.Value})
		}
	}
}
