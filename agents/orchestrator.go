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
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// orchestrator is the turn of an agent that finds out what a user wants and has it done:
//
//	message ─▶ model ─▶ intent ─▶ question, options or reply
//	                          └─▶ plan: stage ─▶ stage ─▶ … ─▶ one answer
//
// A stage is one action, whose asks are the requests of its steps. The journal keeps the answer to each
// of them, so a restart repeats none that has arrived. The turn has no other state; each step processes
// all answers so far.
type orchestrator struct{ loop modelLoop }

// orchestratorSteps is the maximum number of actions of a turn: two prompts, for each step a stage and what its owner
// noted, and the record of the answer.
const orchestratorSteps = 2*contract.ComponentsMax + 4

func (o orchestrator) next(_ Config, state State) (Action, error) {
	t := orchestration{o: o, request: state.Request, answers: state.Answers}
	t.kept = readPlan(state.Request.ActorState)
	intent, action := t.classify()
	if action != nil {
		return *action, nil
	}
	return t.follow(intent), nil
}

// orchestration is the state of one turn between two of its actions.
type orchestration struct {
	o       orchestrator
	request actor.Begin
	answers [][]actor.Answer // those that were not processed yet
	kept    *plan            // what an earlier turn has asked the user about; nil: nothing
	resumed bool             // the user has answered that
	noted   SessionState     // what the agents of the session have noted so far
	records []actor.Ask      // decisions that the next action records
	// internals are the internal names in errors of agents; see contract.Response.ForUser.
	internals []string
}

func (t *orchestration) spec() *Spec { return &t.o.loop.spec }

// take returns the answers to the next action, or asks if there are none yet.
func (t *orchestration) take(phase string, asks ...actor.Ask) ([]actor.Answer, *Action) {
	if len(t.answers) == 0 {
		action := Continue(phase, nil, asks...)
		return nil, &action
	}
	got := t.answers[0]
	t.answers = t.answers[1:]
	return got, nil
}

// classify returns the intent of the message, or the action that finds it out. An answer that cannot be
// read is asked for once more; then the intent is unknown.
func (t *orchestration) classify() (contract.Intent, *Action) {
	message := contentOf(t.request.Call.Parts)
	d := conversation{callIDs: map[string]bool{}, latest: message}
	d.messages = append(d.messages, upstream.Message{Role: upstream.System, Text: t.instructions()})
	d.messages = append(d.messages, upstream.TranscriptMessages(t.request.Transcript, contentOf)...)
	d.messages = append(d.messages, upstream.Message{Role: upstream.User, Text: message})
	for n := range 2 {
		if len(t.answers) == 0 {
			action := t.o.loop.askModel(d)
			if n == 0 && action.Done == nil {
				action.Asks = append(action.Asks, readNoted(0))
			}
			return contract.Intent{}, &action
		}
		answer := t.answers[0][0]
		if n == 0 {
			t.setNoted(t.answers[0][1])
		}
		t.answers = t.answers[1:]
		c, refusal := completionOf(t.o.loop.modelName(), answer)
		if refusal != nil {
			action := EndRefused(refusal)
			return contract.Intent{}, &action
		}
		intent, broken := contract.DecodeIntent(c.Text)
		if broken == nil {
			broken = t.checkWorkflow(&intent)
		}
		if broken == nil {
			return intent, nil
		}
		d.latest = "The answer could not be read: " + broken.Error() + ". Answer with the JSON object alone."
		if c.Text != "" {
			d.messages = append(d.messages, upstream.Message{Role: upstream.Assistant, Text: c.Text})
		}
		d.messages = append(d.messages, upstream.Message{Role: upstream.User, Text: d.latest})
	}
	return contract.Intent{Name: "unknown"}, nil
}

// readNoted asks for what the agents of the session have noted, after a number of stages.
func readNoted(stages int) actor.Ask {
	return Tool(tools.ReadSession, struct {
		Stages int `json:"after_stages"`
	}{stages})
}

// setNoted keeps what the agents of the session have noted. Without an answer it stays as it was.
func (t *orchestration) setNoted(answer actor.Answer) {
	var s SessionState
	if answer.Refusal == nil && json.Unmarshal([]byte(contentOf(answer.Parts)), &s) == nil {
		t.noted = s
	}
}

// checkWorkflow returns the rule that an intent with an unknown workflow breaks.
func (t *orchestration) checkWorkflow(intent *contract.Intent) *contract.Violation {
	if _, known := t.spec().Workflows[intent.Workflow]; known || intent.Workflow == "" {
		return nil
	}
	names := slices.Sorted(maps.Keys(t.spec().Workflows))
	rule := fmt.Sprintf("%.80q is no workflow", intent.Workflow)
	if near := nearest.Of(intent.Workflow, names); near != "" {
		rule += "; did you mean " + near + "?"
	}
	return &contract.Violation{Code: contract.OutputViolation, Field: "workflow", Rule: rule}
}

// instructions returns the prompt of the classification. The tool request_capability, whose description the
// runtime writes for each prompt, lists the capabilities.
func (t *orchestration) instructions() string {
	var b strings.Builder
	b.WriteString(fillPrompt(t.spec().Prompt, &t.request))
	b.WriteString("\n\nFind out what the user wants. Answer with one JSON object and nothing else, and call no tool.\n" +
		"- Set target_capability to a capability that the tool " + tools.RequestCapability + " lists, with its inputs, when another agent owns what is needed, when the domain is clearly another one, when a specialist gives a better result, or when data is missing here. Name further ones in secondary_targets if the user wants several things.\n" +
		"- Set reply when it is your own task, when it is simple or as good here, or when asking others would only take time.\n" +
		"- intent_confidence says how sure you are, from 0 to 1. If you are not sure, set question. If the message can mean several things, set options. Set missing to what only the user can tell and has not told yet, and constraints to the limits that the user has set, such as a budget.\n" +
		"- Never name agents, capabilities or workflows in question, options and reply.\n")
	if len(t.spec().Workflows) > 0 {
		b.WriteString("- Set workflow in place of target_capability if one of these is wanted, and inputs to what the user has told:\n")
		for _, name := range slices.Sorted(maps.Keys(t.spec().Workflows)) {
			fmt.Fprintf(&b, "  - %s: %s\n", name, t.spec().Workflows[name].Description)
		}
	}
	if t.kept != nil {
		fmt.Fprintf(&b, "- You have asked the user: %q. If the message answers that, set resume to retry, continue or stop, or, for the results of one part, to prefer, with its title in prefer.\n", t.kept.Question)
	}
	b.WriteString("The JSON Schema of your answer: " + contract.IntentSchema)
	return b.String()
}

// follow returns the next action for an intent.
func (t *orchestration) follow(intent contract.Intent) Action {
	course, text := intent.Decide(*t.spec().Threshold)
	resumes := t.kept != nil && intent.Resume != "" && intent.Confidence >= *t.spec().Threshold
	if resumes {
		course, t.resumed = contract.CoursePlan, true
	}
	if course != contract.CoursePlan {
		decision := Tool(tools.RecordRoute, intent.Encode(course, *t.spec().Threshold))
		if _, action := t.take("deciding", decision); action != nil {
			return *action
		}
		return t.end(text, nil, t.kept)
	}
	p := t.planOf(&intent)
	switch {
	case resumes && intent.Resume == "retry":
		p.forget()
	case resumes:
		p.Workflow.OnStepFailure = StepPartial
	}
	stop := resumes && intent.Resume == "stop"
	all := stages(p.Workflow.Steps)
	t.records = []actor.Ask{Tool(tools.RecordRoute, intent.Encode(course, *t.spec().Threshold, p.planned()...))}
	for n := range len(all) - 1 {
		if n > 0 && !stop && slices.Contains(p.Responses[all[n]:all[n+1]], nil) {
			got, action := t.take("reading", readNoted(n))
			if action != nil {
				return *action
			}
			t.setNoted(got[0])
		}
		for range stageTries {
			asks := slices.Clone(t.records)
			var asked []int
			for i := all[n]; i < all[n+1] && !stop; i++ {
				switch lack := p.lack(i); {
				case p.Responses[i] != nil:
				case lack != "":
					p.Responses[i] = notCompleted(p.Workflow.Steps[i].Name, lack+" is needed for it, and was not completed")
				default:
					asks, asked = append(asks, p.ask(t, i)), append(asked, i)
				}
			}
			if len(asks) == 0 {
				break
			}
			got, action := t.take("acting", asks...)
			if action != nil {
				return *action
			}
			got, t.records = got[len(t.records):], nil
			again := false
			for k, i := range asked {
				if p.Responses[i] = p.read(t, i, got[k]); t.tooMany(got, k) {
					p.Responses[i], again = nil, true
				} else if wrong := p.Responses[i].Metadata.Misrouted; wrong != nil {
					t.records = append(t.records, Tool(tools.RecordRoute, intent.EncodeMisrouted(p.Workflow.Steps[i].Capability, wrong)))
				}
			}
			if !again {
				break
			}
		}
		if p.failed(all[n], all[n+1]) >= 0 && p.Workflow.OnStepFailure != StepPartial {
			break
		}
	}
	return t.answer(p, intent.Prefer, resumes && (stop || intent.Resume == "continue"))
}

// stageTries is the maximum number of actions of a stage. The runtime bounds the calls that an actor has open, so a stage
// with more steps is asked in parts.
const stageTries = contract.ComponentsMax

// tooMany reports whether a request was refused because of the other calls of its stage: it is made once these are
// answered. If no other one was made, the refusal stays.
func (t *orchestration) tooMany(got []actor.Answer, k int) bool {
	made := func(a actor.Answer) bool {
		return a.Refusal == nil || a.Refusal.Reason != actor.Busy || a.Refusal.Scope != actor.ScopeCaller
	}
	return !made(got[k]) && slices.ContainsFunc(got, made)
}

// planOf returns the plan that an intent asks for.
func (t *orchestration) planOf(intent *contract.Intent) *plan {
	if t.kept != nil && intent.Resume != "" {
		return t.kept
	}
	p := &plan{Request: contentOf(t.request.Call.Parts), Inputs: intent.Target.Inputs, Limits: intent.Limits}
	if w, ok := t.spec().Workflows[intent.Workflow]; ok {
		p.Workflow = w
	} else {
		p.Workflow, p.Literal = Workflow{OnStepFailure: StepPartial}, true
		for i, target := range append([]contract.Target{intent.Target}, intent.Secondary...) {
			p.Workflow.Steps = append(p.Workflow.Steps, Step{Name: fmt.Sprintf("result_%d", i+1), Title: titleOf(target.Intent, target.Capability, i), Capability: target.Capability,
				Agent: target.Agent, Inputs: target.Inputs})
		}
	}
	p.Responses = make([]*contract.Response, len(p.Workflow.Steps))
	return p
}

// answer ends the turn with the joined results of a plan, once they are recorded.
func (t *orchestration) answer(p *plan, prefer string, final bool) Action {
	config := p.config()
	config.Prefer = prefer
	joined, refusal := contract.Join(p.components(), config)
	if refusal != nil {
		return EndRefused(refusal)
	}
	failed := p.failed(0, len(p.Responses))
	text, asks := joined.Text, failed >= 0 && p.Workflow.OnStepFailure == StepAsk
	if p.Question = joined.Question; asks {
		p.Question = fmt.Sprintf("%s could not be completed. Should I try it again, go on without it, or stop?", p.Workflow.Steps[failed].Title)
		text += "\n\n" + p.Question
		joined.Question = p.Question
	}
	asks = asks || joined.Question != "" && !final
	if _, action := t.take("joining", append(t.records, Tool(tools.RecordJoin, joined.EncodeRecord()))...); action != nil {
		return *action
	}
	if failed >= 0 && p.Workflow.OnStepFailure == StepFail {
		return EndRefused(actor.Refuse(actor.Unavailable, "%s could not be completed: %s", p.Workflow.Steps[failed].Title, p.Responses[failed].ErrorMessage))
	}
	var warnings []string
	for i, part := range joined.Parts {
		switch title := p.Workflow.Steps[i].Title; {
		case p.Responses[i] == nil || p.lack(i) != "":
			warnings = append(warnings, title+": not begun")
		case part.Status != contract.Success:
			warnings = append(warnings, title+": "+strings.ToLower(part.Status.String()))
		}
	}
	if len(t.internals) > 0 && t.spec().UserText == contract.FlagCodes.String() {
		slices.Sort(t.internals)
		warnings = append(warnings, contract.FlagText(t.internals))
	}
	if asks {
		return t.end(text, warnings, p)
	}
	return t.end(text, warnings, nil)
}

// end ends the turn with a text for the user. The plan keep replaces the plan that was kept for the next turn.
func (t *orchestration) end(text string, warnings []string, keep *plan) Action {
	outcome := actor.Outcome{Status: actor.Succeeded, Parts: actor.Text(text), Warnings: warnings}
	if len(warnings) > 0 {
		outcome.Status = actor.Partial
	}
	action := Action{Action: actor.Action{Done: &outcome}}
	if keep == t.kept && !t.resumed {
		return action
	}
	updates, fits := keep.encode(t.request.ActorState)
	if !fits {
		outcome.Warnings = append(outcome.Warnings, "the results so far are too large to be kept: trying again begins anew")
	}
	action.StateUpdates = updates
	return action
}

// capabilityResponse returns what an owner has answered, in the form of the contract. The runtime has refused an
// answer that breaks it.
func capabilityResponse(requestID string, answer actor.Answer) contract.Response {
	if r := answer.Refusal; r != nil {
		return contract.Refused(requestID, r)
	}
	response, broken := contract.DecodeResponse(contentOf(answer.Parts), requestID, contract.DefaultLevels())
	if broken != nil {
		response = contract.Invalid(requestID, broken)
	}
	response.Warnings = append(response.Warnings, answer.Warnings...)
	return response
}

// plan is a workflow with the responses so far.
type plan struct {
	Request   string // the words of the user
	Inputs    jsontext.Value
	Limits    jsontext.Value // constraints that the user has set
	Workflow  Workflow
	Literal   bool // the inputs of the steps are no templates
	Responses []*contract.Response
	Question  string // what the user was asked
}

// planned returns the steps as they are recorded.
func (p *plan) planned() (all []contract.PlannedStep) {
	for _, s := range p.Workflow.Steps {
		all = append(all, contract.PlannedStep{Title: s.Title, Capability: s.Capability})
	}
	return all
}

// hasResult reports whether a step has something to go on with.
func (p *plan) hasResult(i int) bool {
	r := p.Responses[i]
	return r != nil && r.Status != contract.Failed && r.Result != nil
}

// failed returns the first step in a range that was not completed, or -1.
func (p *plan) failed(from, to int) int {
	for i := from; i < to; i++ {
		if r := p.Responses[i]; r != nil && r.Status >= contract.Failed {
			return i
		}
	}
	return -1
}

// forget forgets what was not completed, so that it is asked again. What has succeeded stays.
func (p *plan) forget() {
	for i, r := range p.Responses {
		if r != nil && r.Status >= contract.Failed {
			p.Responses[i] = nil
		}
	}
}

func notCompleted(step, why string) *contract.Response {
	return &contract.Response{ID: step, Status: contract.Failed, ErrorMessage: why}
}

// lack returns the title of a step whose result the inputs of another one need, and that has none; or "".
func (p *plan) lack(i int) string {
	if p.Literal {
		return ""
	}
	for _, ref := range references(p.Workflow.Steps[i].Inputs) {
		name, _, _ := strings.Cut(ref, ".")
		if at := p.step(name); at >= 0 && !p.hasResult(at) {
			return p.Workflow.Steps[at].Title
		}
	}
	return ""
}

func (p *plan) step(name string) int {
	return slices.IndexFunc(p.Workflow.Steps, func(s Step) bool { return s.Name == name })
}

// inputs returns the inputs of a step. A member whose reference has no value is left out.
func (p *plan) inputs(i int) jsontext.Value {
	s := &p.Workflow.Steps[i]
	switch {
	case s.Inputs == nil && p.Literal, s.Inputs == nil && p.Inputs == nil:
		return jsontext.Value("{}")
	case s.Inputs == nil:
		return p.Inputs
	case p.Literal:
		return s.Inputs
	}
	return walkTexts(s.Inputs, func(text string) jsontext.Value {
		ref, ok := referenceOf(text)
		if !ok {
			return nil
		}
		name, path, _ := strings.Cut(ref, ".")
		value := p.Inputs
		switch {
		case name == requestReference:
			value = invariant.Must(json.Marshal(strings.ToValidUTF8(p.Request, "\uFFFD")))
		case name != inputsReference:
			value = p.Responses[p.step(name)].Result
		}
		if value = memberOf(value, path); value == nil {
			return jsontext.Value{}
		}
		return value
	})
}

// ask returns the request of a step.
func (p *plan) ask(t *orchestration, i int) actor.Ask {
	s := &p.Workflow.Steps[i]
	in := struct {
		Capability string         `json:"capability_code"`
		Inputs     jsontext.Value `json:"inputs_json"`
		Agent      string         `json:"target_agent,omitzero"`
		Timeout    int64          `json:"timeout_ms,omitzero"`
		Context    jsontext.Value `json:"context"`
	}{s.Capability, p.inputs(i), s.Agent, s.TimeoutMS, p.handOff(t, i)}
	return Tool(tools.RequestCapability, in, Within(millis(t.spec().Limits.CallTimeoutMS)))
}

// read returns the response to the request of a step. What the platform says about its agents is not for users.
func (p *plan) read(t *orchestration, i int, answer actor.Answer) *contract.Response {
	id := tools.CapabilityRequestID(t.request.Call.ID, inputOf(p.ask(t, i)))
	r := capabilityResponse(id, answer)
	switch {
	case r.ErrorCode == contract.OutputViolation:
		r.ErrorMessage = "the answer to it could not be used"
	case r.ToolError:
		r.ErrorMessage = "it is not available now"
	case answer.Refusal != nil:
		r.ErrorMessage = "it is not available now"
		if field, of := strings.CutPrefix(answer.Refusal.Field, "inputs_json/"); of {
			r.ErrorMessage = cmp.Or(tools.InputSentence(p.Workflow.Steps[i].Capability, answer.Refusal), "the "+strings.NewReplacer("_", " ", "/", " ").Replace(field)+" is missing or not usable")
		}
	}
	policy, _ := contract.ParseUserText(t.spec().UserText)
	for _, word := range r.ForUser(policy) {
		if !slices.Contains(t.internals, word) {
			t.internals = append(t.internals, word)
		}
	}
	return &r
}

// handOff returns what the owner of a step is told of the work so far.
func (p *plan) handOff(t *orchestration, i int) jsontext.Value {
	call := &t.request.Call
	began := i
	for p.Workflow.Steps[began].Parallel {
		began--
	}
	w := contract.Work{Session: call.To.Key, User: call.Principal, Request: p.Request, History: "/v1/sessions/" + call.To.Key + "/messages?agent=" + call.To.Agent,
		Position: contract.Position{Step: i + 1, Of: len(p.Workflow.Steps), Name: p.Workflow.Steps[i].Title}}
	if t.spec().Code != "" {
		w.Agents = append(w.Agents, t.spec().Code)
	}
	if p.Limits != nil {
		_ = eachMember(p.Limits, func(quoted, value jsontext.Value) {
			var name string
			if json.Unmarshal(quoted, &name) == nil {
				w.Constraints = append(w.Constraints, contract.Output{Name: name, Value: value})
			}
		})
	}
	for k := range p.Workflow.Steps[:began] {
		s := &p.Workflow.Steps[k]
		if !p.hasResult(k) {
			continue
		}
		w.Outputs = append(w.Outputs, contract.Output{Name: s.Name, Value: p.Responses[k].Result, Ref: p.Responses[k].ID})
		if s.Agent != "" && !slices.Contains(w.Agents, s.Agent) {
			w.Agents = append(w.Agents, s.Agent)
		}
	}
	t.noted.addNotes(&w)
	authors := map[actor.Role]contract.Author{actor.RoleUser: contract.ByUser, actor.RoleAssistant: contract.ByAgent}
	for k := range t.request.Transcript {
		m := &t.request.Transcript[k]
		if author, ok := authors[m.Role]; ok {
			w.Transcript = append(w.Transcript, contract.Entry{Author: author, Text: contentOf(m.Parts)})
		}
	}
	w.Transcript = append(w.Transcript, contract.Entry{Author: contract.ByUser, Text: contentOf(call.Parts)})
	handed := contract.HandOver(w, contract.Callee{Messages: handedMessages})
	return handed.Encode()
}

// handedMessages is the number of messages of the conversation that an owner is told.
const handedMessages = 10

// components returns the outcomes of all steps in the order of the plan.
func (p *plan) components() []contract.Component {
	all := make([]contract.Component, len(p.Workflow.Steps))
	for i, s := range p.Workflow.Steps {
		r := p.Responses[i]
		if r == nil {
			r = notCompleted(s.Name, "it was not begun")
		}
		all[i] = contract.Component{Title: s.Title, Source: cmp.Or(s.Agent, s.Capability), Response: *r}
	}
	return all
}

func (p *plan) config() contract.JoinConfig {
	c := contract.JoinConfig{Ask: p.Workflow.OnConflict == ConflictAsk}
	for _, name := range slices.Sorted(maps.Keys(p.Workflow.Compare)) {
		c.Keys = append(c.Keys, contract.Key{Field: strings.ReplaceAll(name, ".", "/"), Title: p.Workflow.Compare[name]})
	}
	for _, from := range slices.Sorted(maps.Keys(p.Workflow.Terms)) {
		c.Terms = append(c.Terms, contract.Term{From: from, To: p.Workflow.Terms[from]})
	}
	return c
}

// A plan that waits for the user is kept in the actor's state, in pieces.
const (
	planItem       = "plan/"
	planPieceBytes = actor.StateItemValueBytesMax
	planPiecesMax  = 48
)

// storedPlan is the JSON form of a plan.
type storedPlan struct {
	Request   string         `json:"request"`
	Inputs    jsontext.Value `json:"inputs,omitzero"`
	Limits    jsontext.Value `json:"constraints,omitzero"`
	Workflow  Workflow       `json:"workflow"`
	Literal   bool           `json:"literal,omitzero"`
	Responses []string       `json:"responses"` // encoded; "": none
	Question  string         `json:"question"`
}

// encode returns the updates of the actor's state that keep a plan, or none if the plan is nil. It reports
// false if the plan is too large.
func (p *plan) encode(state []actor.StateItem) (updates []actor.StateItem, fits bool) {
	var b []byte
	if p != nil {
		s := storedPlan{Request: p.Request, Inputs: p.Inputs, Limits: p.Limits, Workflow: p.Workflow, Literal: p.Literal, Question: p.Question, Responses: make([]string, len(p.Responses))}
		for i, r := range p.Responses {
			if r != nil {
				s.Responses[i] = string(r.Encode())
			}
		}
		b = invariant.Must(json.Marshal(s, json.Deterministic(true), jsontext.AllowInvalidUTF8(true)))
	}
	fits = len(b) <= planPieceBytes*planPiecesMax
	if !fits {
		b = nil
	}
	for piece := range slices.Chunk(b, planPieceBytes) {
		updates = append(updates, actor.StateItem{Name: pieceName(len(updates)), Value: piece})
	}
	for n := len(updates); n < planPiecesMax; n++ {
		if !slices.ContainsFunc(state, func(item actor.StateItem) bool { return item.Name == pieceName(n) }) {
			break
		}
		updates = append(updates, actor.StateItem{Name: pieceName(n)})
	}
	return updates, fits
}

func pieceName(n int) string { return fmt.Sprintf("%s%02d", planItem, n) }

// readPlan returns the plan in an actor's state, or nil.
func readPlan(state []actor.StateItem) *plan {
	var b []byte
	for i := range state {
		if strings.HasPrefix(state[i].Name, planItem) {
			b = append(b, state[i].Value...)
		}
	}
	var s storedPlan
	if len(b) == 0 || json.Unmarshal(b, &s) != nil || len(s.Responses) != len(s.Workflow.Steps) {
		return nil
	}
	p := &plan{Request: s.Request, Inputs: s.Inputs, Limits: s.Limits, Workflow: s.Workflow, Literal: s.Literal, Question: s.Question, Responses: make([]*contract.Response, len(s.Responses))}
	for i, text := range s.Responses {
		if text == "" {
			continue
		}
		var id struct {
			ID string `json:"request_id"`
		}
		if json.Unmarshal([]byte(text), &id) != nil {
			continue
		}
		if r, broken := contract.DecodeResponse(text, id.ID, contract.DefaultLevels()); broken == nil {
			p.Responses[i] = &r
		}
	}
	return p
}
