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

// thinker is the think-act loop of a declared agent:
//
//	message ─▶ model ─▶ tool calls, all at once ─▶ their results ─▶ model ─▶ … ─▶ answer
//
// It keeps nothing: each step goes through the answers there are, and so comes
// to the same prompt whenever and wherever it is made. Whatever a model asks
// for that cannot be had comes back to it as a result, in words that say why: a
// tool that failed or does not exist, an agent that nobody knows, arguments that
// are no JSON, what its author did not allow it.
type thinker struct {
	spec    Spec
	offered []upstream.ToolSpec
}

// newsMax bounds what an ask of a model says of itself in the journal.
const newsMax = 1000

func (t thinker) next(_ Config, state State) (Action, error) {
	d := dialogue{ids: map[string]bool{}, news: contentOf(state.Request.Call.Parts)}
	d.messages = []upstream.Message{{Role: upstream.System, Text: t.spec.Prompt}, {Role: upstream.User, Text: d.news}}
	rest := state.Answers
	for steps := 0; len(rest) > 0; steps++ {
		answer := rest[0][0]
		said, refusal := read(t.model(), answer)
		switch {
		case refusal != nil:
			return GiveUp(refusal), nil
		case len(said.Calls) == 0:
			return t.ending(said, answer.Warnings), nil
		case steps+1 >= t.spec.Limits.Steps: // nobody would read what the tools say
			return GiveUp(actor.Refuse(actor.Budget, "%s was asked %d times in one turn, and still wants tools", t.model(), steps+1)), nil
		}
		acts := t.plan(said.Calls)
		asks := asksOf(acts)
		rest = rest[1:]
		if len(asks) > 0 && len(rest) == 0 {
			return Continue("acting", nil, asks...), nil
		}
		if len(asks) > 0 {
			take(acts, rest[0])
			rest = rest[1:]
		}
		if failed := failureOf(acts); failed != nil && t.spec.OnFailure == FailRun {
			return GiveUp(failed), nil
		}
		d.add(said, acts, steps)
	}
	return t.think(d), nil
}

func (t thinker) model() string { return "model " + t.spec.Model + " of " + t.spec.ID }

// ending is how the turn ends with what the model said last, which must be something.
func (t thinker) ending(said upstream.Completion, warnings []string) Action {
	action := ending(t.model(), said, warnings)
	if said.Text == "" && action.Done.Refusal == nil {
		return GiveUp(actor.Refuse(actor.Unavailable, "%s ends without a word", t.model()))
	}
	return action
}

// think asks the model.
func (t thinker) think(d dialogue) Action {
	prompt := upstream.Prompt{Messages: d.messages, Tools: t.offered, MaxTokens: t.spec.Parameters.MaxTokens,
		Temperature: t.spec.Parameters.Temperature, Seed: t.spec.Parameters.Seed}
	if err := prompt.Check(); err != nil {
		return GiveUp(actor.Refuse(actor.Unavailable, "%s cannot be asked: %v", t.model(), err))
	}
	body := prompt.Encode()
	if len(body) > upstream.PromptBytesMax {
		return GiveUp(actor.Refuse(actor.Budget, "the prompt of %s has grown to %d bytes, at most %d allowed; send less at once", t.spec.ID, len(body), upstream.PromptBytesMax))
	}
	return Continue("thinking", nil, actor.Ask{
		Kind: actor.AskModel, Name: t.spec.Model, Parts: actor.Text(actor.FitText(d.news, newsMax)), Body: body,
		Timeout: millisOf(t.spec.Limits.ModelTimeoutMS), Idempotent: true,
	})
}

// dialogue is what is said between agent and model in one turn.
type dialogue struct {
	messages []upstream.Message
	ids      map[string]bool // of tool calls
	news     string          // what was said last
}

// add puts down what the model wanted and what came of it. An id that a model
// has given before gets another, so that each result has its question.
func (d *dialogue) add(said upstream.Completion, acts []act, step int) {
	wanted := upstream.Message{Role: upstream.Assistant, Text: said.Text}
	var results []upstream.Message
	var news []string
	for i, a := range acts {
		call := a.call
		for n := 0; d.ids[call.ID]; n++ {
			call.ID = fmt.Sprintf("call_%d_%d_%d", step, i, n)
		}
		d.ids[call.ID] = true
		wanted.Calls = append(wanted.Calls, call)
		results = append(results, upstream.Message{Role: upstream.Tool, Text: resultText(a.answer), CallID: call.ID})
		news = append(news, call.Name+": "+actor.FitText(resultText(a.answer), newsMax))
	}
	d.messages = append(append(d.messages, wanted), results...)
	d.news = strings.Join(news, "\n")
}

// act is one tool call of a model and what comes of it: an ask, or an answer
// without one.
type act struct {
	call   upstream.ToolCall
	ask    actor.Ask
	open   bool // the world has to answer it
	answer actor.Answer
}

func (t thinker) plan(calls []upstream.ToolCall) []act {
	acts := make([]act, len(calls))
	for i, call := range calls {
		acts[i] = act{call: call}
		input := inputOf(call)
		if refusal := t.forbids(call, input); refusal != nil {
			acts[i].answer.Refusal = refusal
			continue
		}
		acts[i].ask, acts[i].open = t.askFor(call, input), true
	}
	return acts
}

// forbids says why the agent may not do this. What does not exist passes, and what
// cannot be read: the runtime, which reads the same input, says so and writes it down.
func (t thinker) forbids(call upstream.ToolCall, input []byte) *actor.Refusal {
	if !t.has(call.Name) {
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
		return actor.Refuse(actor.Rejected, "%s may not call %.80q: it may call %s", t.spec.ID, in.Agent, orNobody(t.spec.Agents))
	}
	return nil
}

func (t thinker) has(tool string) bool {
	for _, name := range t.spec.Tools {
		if name == tool {
			return true
		}
	}
	return false
}

func orNobody(agents []string) string {
	if len(agents) == 0 {
		return "nobody"
	}
	return strings.Join(agents, ", ")
}

// inputOf is what a tool is given. Arguments that are no object are as they are:
// the tool's schema says what is wrong with them.
func inputOf(call upstream.ToolCall) []byte {
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

// askFor is the ask that a call comes to.
func (t thinker) askFor(call upstream.ToolCall, input []byte) actor.Ask {
	within := millisOf(t.spec.Limits.ToolTimeoutMS)
	if call.Name == tools.CallAgent {
		within = millisOf(t.spec.Limits.CallTimeoutMS)
	}
	return Tool(call.Name, input, Within(within))
}

func asksOf(acts []act) []actor.Ask {
	var asks []actor.Ask
	for _, a := range acts {
		if a.open {
			asks = append(asks, a.ask)
		}
	}
	return asks
}

// take gives the asks their answers.
func take(acts []act, answers []actor.Answer) {
	for i := range acts {
		if acts[i].open && len(answers) > 0 {
			acts[i].answer, answers = answers[0], answers[1:]
		}
	}
}

func failureOf(acts []act) *actor.Refusal {
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
		text := "error " + r.Reason.Outside().Type + ": " + r.Error()
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
