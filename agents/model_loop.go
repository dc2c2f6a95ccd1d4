// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// modelLoop is the think-act loop of a declared agent:
//
//	message ─▶ model ─▶ tool calls, all at once ─▶ their results ─▶ model ─▶ … ─▶ answer
//
// It keeps nothing: each step goes through the answers there are, and so comes
// to the same prompt whenever and wherever it is made. Whatever a model asks
// for that cannot be had comes back to it as a result, in words that say why: a
// tool that failed or does not exist, an agent that nobody knows, arguments that
// are no JSON, what its author did not allow it.
type modelLoop struct {
	spec      Spec
	toolSpecs []upstream.ToolSpec
}

// summaryBytesMax bounds what an ask of a model says of itself in the journal.
const summaryBytesMax = 1000

func (t modelLoop) next(_ Config, state State) (Action, error) {
	d := conversation{callIDs: map[string]bool{}, latest: contentOf(state.Request.Call.Parts)}
	d.messages = []upstream.Message{{Role: upstream.System, Text: t.spec.Prompt}, {Role: upstream.User, Text: d.latest}}
	rest := state.Answers
	for steps := 0; len(rest) > 0; steps++ {
		answer := rest[0][0]
		said, refusal := completionOf(t.modelName(), answer)
		switch {
		case refusal != nil:
			return EndRefused(refusal), nil
		case len(said.Calls) == 0:
			return t.finish(said, answer.Warnings), nil
		case steps+1 >= t.spec.Limits.Steps: // nobody would read what the tools say
			return EndRefused(actor.Refuse(actor.Budget, "%s was asked %d times in one turn, and still wants tools", t.modelName(), steps+1)), nil
		}
		acts := t.planToolUses(said.Calls)
		asks := pendingAsks(acts)
		rest = rest[1:]
		if len(asks) > 0 && len(rest) == 0 {
			return Continue("acting", nil, asks...), nil
		}
		if len(asks) > 0 {
			assignAnswers(acts, rest[0])
			rest = rest[1:]
		}
		if failed := firstRefusal(acts); failed != nil && t.spec.OnFailure == FailRun {
			return EndRefused(failed), nil
		}
		d.add(said, acts, steps)
	}
	return t.askModel(d), nil
}

func (t modelLoop) modelName() string { return "model " + t.spec.Model + " of " + t.spec.ID }

// finish is how the turn ends with what the model said last, which must be something.
func (t modelLoop) finish(said upstream.Completion, warnings []string) Action {
	action := endTurn(t.modelName(), said, warnings)
	if said.Text == "" && action.Done.Refusal == nil {
		return EndRefused(actor.Refuse(actor.Unavailable, "%s ends without a word", t.modelName()))
	}
	return action
}

// askModel asks the model.
func (t modelLoop) askModel(d conversation) Action {
	prompt := upstream.Prompt{Messages: d.messages, Tools: t.toolSpecs, MaxTokens: t.spec.Parameters.MaxTokens,
		Temperature: t.spec.Parameters.Temperature, Seed: t.spec.Parameters.Seed}
	if err := prompt.Check(); err != nil {
		return EndRefused(actor.Refuse(actor.Unavailable, "%s cannot be asked: %v", t.modelName(), err))
	}
	body := prompt.Encode()
	if len(body) > upstream.PromptBytesMax {
		return EndRefused(actor.Refuse(actor.Budget, "the prompt of %s has grown to %d bytes, at most %d allowed; send less at once", t.spec.ID, len(body), upstream.PromptBytesMax))
	}
	return Continue("thinking", nil, actor.Ask{
		Kind: actor.AskModel, Name: t.spec.Model, Parts: actor.Text(actor.FitText(d.latest, summaryBytesMax)), Body: body,
		Timeout: millis(t.spec.Limits.ModelTimeoutMS), Idempotent: true,
	})
}

// conversation is what is said between agent and model in one turn.
type conversation struct {
	messages []upstream.Message
	callIDs  map[string]bool // of tool calls
	latest   string          // what was said last
}

// add puts down what the model wanted and what came of it. An id that a model
// has given before gets another, so that each result has its question.
func (d *conversation) add(said upstream.Completion, acts []toolUse, step int) {
	wanted := upstream.Message{Role: upstream.Assistant, Text: said.Text}
	var results []upstream.Message
	var news []string
	for i, a := range acts {
		call := a.call
		for n := 0; d.callIDs[call.ID]; n++ {
			call.ID = fmt.Sprintf("call_%d_%d_%d", step, i, n)
		}
		d.callIDs[call.ID] = true
		wanted.Calls = append(wanted.Calls, call)
		results = append(results, upstream.Message{Role: upstream.Tool, Text: resultText(a.answer), CallID: call.ID})
		news = append(news, call.Name+": "+actor.FitText(resultText(a.answer), summaryBytesMax))
	}
	d.messages = append(append(d.messages, wanted), results...)
	d.latest = strings.Join(news, "\n")
}

// toolUse is one tool call of a model and what comes of it: an ask, or an answer
// without one.
type toolUse struct {
	call    upstream.ToolCall
	ask     actor.Ask
	pending bool // the world has to answer it
	answer  actor.Answer
}

func (t modelLoop) planToolUses(calls []upstream.ToolCall) []toolUse {
	acts := make([]toolUse, len(calls))
	for i, call := range calls {
		acts[i] = toolUse{call: call}
		input := toolInput(call)
		if refusal := t.checkPermitted(call, input); refusal != nil {
			acts[i].answer.Refusal = refusal
			continue
		}
		acts[i].ask, acts[i].pending = t.toolAsk(call, input), true
	}
	return acts
}

// checkPermitted says why the agent may not do this. What does not exist passes, and what
// cannot be read: the runtime, which reads the same input, says so and writes it down.
func (t modelLoop) checkPermitted(call upstream.ToolCall, input []byte) *actor.Refusal {
	if !t.hasTool(call.Name) {
		has := "it has none"
		if len(t.spec.Tools) > 0 {
			has = "it has " + strings.Join(t.spec.Tools, ", ")
		}
		return actor.Refuse(actor.Rejected, "%s may not use a tool %.80q: %s", t.spec.ID, call.Name, has)
	}
	if call.Name != tools.CallAgent {
		return nil
	}
	var in struct {
		Agent string `json:"agent_id"`
	}
	if json.Unmarshal(input, &in) == nil && in.Agent != "" && !t.spec.MayCall(in.Agent) {
		return actor.Refuse(actor.Rejected, "%s may not call %.80q: it may call %s", t.spec.ID, in.Agent, listOrNone(t.spec.Agents))
	}
	return nil
}

func (t modelLoop) hasTool(tool string) bool {
	for _, name := range t.spec.Tools {
		if name == tool {
			return true
		}
	}
	return false
}

func listOrNone(agents []string) string {
	if len(agents) == 0 {
		return "nobody"
	}
	return strings.Join(agents, ", ")
}

// toolInput is what a tool is given. Arguments that are no object are as they are:
// the tool's schema says what is wrong with them.
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

// toolAsk is the ask that a call comes to.
func (t modelLoop) toolAsk(call upstream.ToolCall, input []byte) actor.Ask {
	within := millis(t.spec.Limits.ToolTimeoutMS)
	if call.Name == tools.CallAgent {
		within = millis(t.spec.Limits.CallTimeoutMS)
	}
	return Tool(call.Name, input, Within(within))
}

func pendingAsks(acts []toolUse) []actor.Ask {
	var asks []actor.Ask
	for _, a := range acts {
		if a.pending {
			asks = append(asks, a.ask)
		}
	}
	return asks
}

// assignAnswers gives the asks their answers.
func assignAnswers(acts []toolUse, answers []actor.Answer) {
	for i := range acts {
		if acts[i].pending && len(answers) > 0 {
			acts[i].answer, answers = answers[0], answers[1:]
		}
	}
}

func firstRefusal(acts []toolUse) *actor.Refusal {
	for _, a := range acts {
		if a.answer.Refusal != nil {
			return a.answer.Refusal
		}
	}
	return nil
}

// resultText is an answer as a model reads it.
func resultText(a actor.Answer) string {
	if r := a.Refusal; r != nil {
		text := "error " + r.Reason.Info().Type + ": " + r.Error()
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

// contentOf is content as far as it can be read as text, with a word on the rest.
func contentOf(parts []actor.Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Blob.IsZero() && (p.Media == actor.MediaText || p.Media == actor.MediaJSON) {
			b.Write(p.Bytes)
		} else {
			fmt.Fprintf(&b, "[%s, %d bytes]", p.Media, len(p.Bytes)+int(p.Size))
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}
