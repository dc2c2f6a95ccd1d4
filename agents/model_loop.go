// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// modelLoop is the think-act loop of a declared agent:
//
//	message ─▶ model ─▶ concurrent tool calls ─▶ results ─▶ model ─▶ … ─▶ answer
//
// It has no state. Each step processes all answers so far and therefore produces
// the same prompt at any time and in any process. A tool call that cannot be
// executed is answered with an error text for the model, or ends the turn if
// OnFailure is FailRun. Examples are a failed or unknown tool, an unknown agent,
// arguments that are not JSON, and calls that the spec does not allow.
type modelLoop struct {
	spec      Spec
	toolSpecs []upstream.ToolSpec
	output    *tools.ObjectSchema // of the answers; nil: any text
}

// summaryBytesMax is the maximum length in bytes of the summary that the journal
// keeps of a prompt.
const summaryBytesMax = 1000

func (t modelLoop) next(_ Config, state State) (Action, error) {
	d := conversation{callIDs: map[string]bool{}, latest: contentOf(state.Request.Call.Parts)}
	d.messages = append(d.messages, upstream.Message{Role: upstream.System, Text: fillPrompt(t.spec.Prompt, &state.Request) + t.spec.outputHint()})
	d.messages = append(d.messages, upstream.TranscriptMessages(state.Request.Transcript, contentOf)...)
	d.messages = append(d.messages, upstream.Message{Role: upstream.User, Text: d.latest})
	answers := state.Answers
	var refused []actor.RefusedAsk // tool calls of the last completion that the spec does not allow
	rejected := false              // an answer broke the schema of answers
	performed, said := false, ""   // whether a tool call was issued; the last text of the model
	for steps := 0; len(answers) > 0; steps++ {
		answer := answers[0][0]
		c, refusal := completionOf(t.modelName(), answer)
		switch {
		case refusal != nil:
			return EndRefused(refusal), nil
		case len(c.Calls) == 0 && t.output == nil:
			return t.finish(c, answer.Warnings, performed, said), nil
		case len(c.Calls) == 0:
			action, broken := t.finishObject(c, answer.Warnings)
			if broken == "" || rejected || steps+1 >= t.spec.Limits.Steps {
				return action, nil
			}
			rejected, refused, answers = true, nil, answers[1:]
			d.reject(c, broken)
			continue
		case steps+1 >= t.spec.Limits.Steps: // the spec allows no further prompt, so tool results would be of no use
			return EndRefused(actor.Refuse(actor.Budget, "%s: %d prompts in one turn without a final answer", t.modelName(), steps+1)), nil
		}
		uses := t.planToolUses(state.Request.Call.ID, c.Calls)
		asks := pendingAsks(uses)
		answers = answers[1:]
		refused = refusedUses(uses)
		if len(asks) > 0 && len(answers) == 0 {
			return withRefused(Continue("acting", nil, asks...), refused), nil
		}
		if len(asks) > 0 {
			got := answers[0]
			answers, refused = answers[1:], nil // the action with the asks has listed them
			further := newToolRuns(asks, got)
			for again := further.asks(); len(again) > 0; again = further.asks() {
				if len(answers) == 0 {
					return Continue("acting", nil, again...), nil
				}
				further.take(answers[0])
				answers = answers[1:]
			}
			assignAnswers(uses, further.answers)
			performed = true
		}
		said = cmp.Or(c.Text, said)
		if failed := firstRefusal(uses); failed != nil && t.spec.OnFailure == FailRun {
			return withRefused(EndRefused(failed), refused), nil
		}
		d.add(c, uses, steps)
	}
	return withRefused(t.askModel(d), refused), nil
}

func withRefused(action Action, refused []actor.RefusedAsk) Action {
	action.Refused = refused
	return action
}

func (t modelLoop) modelName() string { return "model " + t.spec.Model + " of " + t.spec.ID }

// finish ends the turn with the last completion. A completion without text is a
// refusal, unless a tool call was issued: a refusal would invite a client to repeat what
// the tool has performed. The answer is then the last text of the model, or empty.
func (t modelLoop) finish(c upstream.Completion, warnings []string, performed bool, said string) Action {
	if performed {
		c.Text = cmp.Or(c.Text, said)
	}
	action := endTurn(t.modelName(), c, warnings)
	switch refusal := action.Done.Refusal; {
	case performed && refusal != nil:
		return Action{Action: actor.Action{Done: &actor.Outcome{Status: actor.Partial, Parts: actor.Text(""), Warnings: append(slices.Clone(warnings), refusal.Detail)}}}
	case !performed && refusal == nil && c.Text == "":
		return EndRefused(actor.Refuse(actor.Unavailable, "%s returned an empty answer", t.modelName()))
	}
	return action
}

// askModel returns the action that prompts the model.
func (t modelLoop) askModel(d conversation) Action {
	prompt := upstream.Prompt{Messages: d.messages, Tools: t.toolSpecs, MaxTokens: t.spec.Parameters.MaxTokens,
		Temperature: t.spec.Parameters.Temperature, Seed: t.spec.Parameters.Seed}
	if len(prompt.Messages) > upstream.MessagesMax {
		return EndRefused(actor.Refuse(actor.Budget, "the prompt of %s has %d messages, at most %d allowed; its setting transcript is %q: choose a smaller one",
			t.spec.ID, len(prompt.Messages), upstream.MessagesMax, t.spec.Transcript))
	}
	body, err := prompt.EncodeChecked()
	if err != nil {
		return EndRefused(actor.Refuse(actor.Unavailable, "%s: invalid prompt: %v", t.modelName(), err))
	}
	if len(body) > upstream.PromptBytesMax {
		return EndRefused(actor.Refuse(actor.Budget, "the prompt of %s has %d bytes, at most %d allowed; its setting transcript is %q: choose a smaller one, or send smaller messages",
			t.spec.ID, len(body), upstream.PromptBytesMax, t.spec.Transcript))
	}
	return Continue("thinking", nil, actor.Ask{
		Kind: actor.AskModel, Name: t.spec.Model, Parts: actor.Text(actor.FitText(d.latest, summaryBytesMax)), Body: body, AnswerTokens: int64(t.spec.Parameters.MaxTokens),
		Timeout: millis(t.spec.Limits.ModelTimeoutMS), Idempotent: true,
	})
}

// conversation is the dialogue between agent and model in one turn.
type conversation struct {
	messages []upstream.Message
	callIDs  map[string]bool // IDs of tool calls
	latest   string          // text of the latest messages
}

// add appends a completion with tool calls and their results. A call ID that the
// model has used before is replaced, so that each result matches one call.
func (d *conversation) add(c upstream.Completion, uses []toolUse, step int) {
	message := upstream.Message{Role: upstream.Assistant, Text: c.Text, Kept: c.Kept}
	var results []upstream.Message
	var summary []string
	for i, a := range uses {
		call := a.call
		for n := 0; d.callIDs[call.ID]; n++ {
			call.ID = fmt.Sprintf("call_%d_%d_%d", step, i, n)
		}
		d.callIDs[call.ID] = true
		message.Calls = append(message.Calls, call)
		text := a.resultText()
		results = append(results, upstream.Message{Role: upstream.Tool, Text: text, CallID: call.ID})
		summary = append(summary, call.Name+": "+actor.FitText(text, summaryBytesMax))
	}
	d.messages = append(append(d.messages, message), results...)
	d.latest = strings.Join(summary, "\n")
}

// toolUse is one tool call of a model. Its ask is issued, or it has an immediate
// answer.
type toolUse struct {
	call    upstream.ToolCall
	ask     actor.Ask
	pending bool // the ask has to be issued
	answer  actor.Answer

	requestID string // of a request for a capability; "" for other tools
}

func (t modelLoop) planToolUses(run actor.CallID, calls []upstream.ToolCall) []toolUse {
	uses := make([]toolUse, len(calls))
	for i, call := range calls {
		uses[i] = toolUse{call: call} // the next prompt has the name as the model spelled it
		input := toolInput(call)
		call.Name = t.toolName(call.Name)
		uses[i].ask = t.toolAsk(call, input)
		uses[i].answer.Refusal = t.checkPermitted(call, input)
		uses[i].pending = uses[i].answer.Refusal == nil
		if call.Name == tools.RequestCapability {
			uses[i].requestID = tools.CapabilityRequestID(run, input)
		}
	}
	return uses
}

// refusedUses returns the tool calls that the spec does not allow. A refused
// call_agent is returned as the call.
func refusedUses(uses []toolUse) (refused []actor.RefusedAsk) {
	for _, a := range uses {
		if a.pending {
			continue
		}
		ask := a.ask
		if target := calledAgent(a.call, inputOf(ask)); target != "" {
			ask = Call(target, "")
		}
		refused = append(refused, actor.RefusedAsk{Ask: ask, Refusal: a.answer.Refusal})
	}
	return refused
}

func inputOf(ask actor.Ask) []byte { return ask.Parts[0].Bytes }

// calledAgent returns the target of a tool call if it is a call_agent that names one.
func calledAgent(call upstream.ToolCall, input []byte) string {
	var in struct {
		Agent string `json:"agent_id"`
	}
	if call.Name != tools.CallAgent || json.Unmarshal(input, &in) != nil {
		return ""
	}
	return in.Agent
}

// checkPermitted returns a refusal if the spec does not allow the tool call. It does
// not check that the agent exists or that the input can be read: the runtime does, and
// it records the rejection. The texts of the refusals are part of later prompts, so they
// MUST NOT change: a stored turn with another text would not replay.
func (t modelLoop) checkPermitted(call upstream.ToolCall, input []byte) *actor.Refusal {
	if !t.hasTool(call.Name) {
		has := "it has none"
		if all := t.spec.offered(); len(all) > 0 {
			has = "it has " + strings.Join(all, ", ")
		}
		return actor.Refuse(actor.Rejected, "%s may not use a tool %.80q: %s", t.spec.ID, call.Name, has)
	}
	if target := calledAgent(call, input); target != "" && !t.spec.MayCall(target) {
		return actor.Refuse(actor.Rejected, "%s may not call %.80q: it may call %s", t.spec.ID, target, listOrNobody(t.spec.Agents))
	}
	return nil
}

// toolName returns the name of the tool that a model calls, which may spell the name of a
// declared tool for models. A name that means no tool of the spec is returned unchanged.
func (t modelLoop) toolName(called string) string {
	if name := tools.ToolName(called); !t.hasTool(called) && t.hasTool(name) {
		return name
	}
	return called
}

// hasTool reports whether the spec has the tool. An agent that can call others has
// list_agents as well.
func (t modelLoop) hasTool(tool string) bool {
	for _, name := range t.spec.offered() {
		if name == tool {
			return true
		}
	}
	return tool == tools.ListAgents && t.spec.canCall()
}

func listOrNobody(agents []string) string {
	if len(agents) == 0 {
		return "nobody"
	}
	return strings.Join(agents, ", ")
}

// toolInput returns the input of a tool call. Arguments that are not an object are
// passed on unchanged, so that the schema check of the tool reports the error.
func toolInput(call upstream.ToolCall) []byte {
	input, refusal := call.Input()
	if refusal != nil {
		input = []byte(call.Arguments)
	}
	compact := jsontext.Value(input).Clone()
	if compact.Compact() == nil {
		return compact
	}
	return input
}

// toolAsk returns the ask for a tool call.
func (t modelLoop) toolAsk(call upstream.ToolCall, input []byte) actor.Ask {
	timeout := millis(t.spec.Limits.ToolTimeoutMS)
	if call.Name == tools.CallAgent {
		timeout = millis(t.spec.Limits.CallTimeoutMS)
	}
	return Tool(call.Name, input, Within(timeout))
}

func pendingAsks(uses []toolUse) []actor.Ask {
	var asks []actor.Ask
	for _, a := range uses {
		if a.pending {
			asks = append(asks, a.ask)
		}
	}
	return asks
}

// assignAnswers assigns the answers to the pending tool calls, in order.
func assignAnswers(uses []toolUse, answers []actor.Answer) {
	for i := range uses {
		if uses[i].pending && len(answers) > 0 {
			uses[i].answer, answers = answers[0], answers[1:]
		}
	}
}

func firstRefusal(uses []toolUse) *actor.Refusal {
	for _, a := range uses {
		if a.answer.Refusal != nil {
			return a.answer.Refusal
		}
	}
	return nil
}

// resultText returns the answer in the form that the model receives: that of a request for a capability as
// a response of the contract, whatever its owner has answered.
func (a toolUse) resultText() string {
	if a.requestID == "" || !a.pending {
		return resultText(a.answer)
	}
	response := capabilityResponse(a.requestID, a.answer)
	return string(response.Encode())
}

// resultText returns an answer in the form that the model receives. The form MUST NOT
// change: a stored turn whose prompts differ would not replay.
func resultText(a actor.Answer) string {
	if r := a.Refusal; r != nil {
		text := contract.ToolErrorText(r)
		if r.RetryAfter > 0 {
			text += fmt.Sprintf(" (it may be tried again after %v)", r.RetryAfter.Round(time.Millisecond))
		}
		return text
	}
	text := contentOf(a.Parts)
	for _, w := range a.Warnings {
		text += "\nwarning: " + w
	}
	return text
}

// contentOf returns the text of the parts. Other content is replaced by its media
// type and size.
func contentOf(parts []actor.Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Readable() {
			b.Write(p.Bytes)
		} else {
			fmt.Fprintf(&b, "[%s, %d bytes]", p.Media, len(p.Bytes)+int(p.Size))
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}
