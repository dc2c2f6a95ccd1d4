// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// Prompt is a prompt to a model. Model is required. The model "scripted" follows instructions in the
// last message, one per line: ask the AGENT agent TEXT, use TOOL JSON, list my messages; then between
// calls that wait for each other. It repeats a message without them.
type Prompt struct {
	Model        string // name in Config.Models, or "scripted", the built-in model
	Instructions string // system message; default: one with the name of the agent
	// the conversation, whose last message is that of the user; nil means the Transcript of the turn and
	// its message
	Messages []Message
	// names of the tools that are offered; nil means Agent.Tools
	Tools []string

	MaxTokens   int      // of an answer; 0: see Model.MaxTokens
	Temperature *float64 // 0 to 2; nil: see Model.Temperature
	Seed        *int64

	Steps       int           // maximum number of prompts until the model answers without tool calls, at most 25, the default
	Timeout     time.Duration // of one prompt; 0: the limit of the server
	ToolTimeout time.Duration // of one call of a tool; 0: that of the tool
	FailRun     bool          // a failed call of a tool is the error of Model; otherwise the model gets it
}

// Model prompts a model and returns its answer. If the model calls tools, they run, and the next prompt
// has their results, until the model answers with text. Each answer of the model and each result of a
// tool is persisted: after a crash, Model continues after the last one. Pieces of answers are events
// of the run with the type EventDelta; see Server.Stream. An answer that the model did not complete
// adds a warning; see Reply.Warnings.
//
// The error is usually a *Refusal with one of the codes of models, such as CodeModelNotFound, or
// CodeBudgetExceeded after Prompt.Steps prompts.
func (t *Turn) Model(p Prompt) (string, error) {
	m := agents.ModelRequest{Model: p.Model, Prompt: p.Instructions, Tools: p.Tools, Registry: t.tools.registry(), Message: t.Message(), Transcript: t.turn.Transcript(),
		Parameters: agents.Parameters{Temperature: p.Temperature, MaxTokens: p.MaxTokens, Seed: p.Seed},
		Limits:     agents.SpecLimits{Steps: p.Steps, ModelTimeoutMS: p.Timeout.Milliseconds(), ToolTimeoutMS: p.ToolTimeout.Milliseconds()}}
	if p.Tools == nil {
		m.Tools = t.agent.Tools
	}
	if p.FailRun {
		m.OnFailure = agents.FailRun
	}
	if p.Messages != nil {
		var err error
		if m.Transcript, m.Message, err = conversation(p.Messages); err != nil {
			return "", err
		}
	}
	if err := p.check(); err != nil {
		return "", err
	}
	text, err := t.turn.Model(m)
	return text, turnError(err)
}

// check returns the refusal of an invalid prompt.
func (p *Prompt) check() error {
	switch {
	case p.Model == "":
		return invalid("model", "Prompt.Model is empty: want a name in Config.Models, or scripted")
	case actor.CheckName(p.Model) != nil:
		return invalid("model", "Prompt.Model %v", actor.CheckName(p.Model))
	case p.Steps < 0 || p.Steps > agents.ModelStepsDefault:
		return invalid("steps", "Prompt.Steps: got %d, want 1 to %d", p.Steps, agents.ModelStepsDefault)
	case len(p.Tools) > agents.SpecToolsMax:
		return invalid("tools", "Prompt.Tools: %d names, at most %d allowed", len(p.Tools), agents.SpecToolsMax)
	case p.MaxTokens < 0:
		return invalid("max_tokens", "Prompt.MaxTokens: got %d, want at least 1, or 0 for the default", p.MaxTokens)
	case p.Temperature != nil && (*p.Temperature < 0 || *p.Temperature > 2):
		return invalid("temperature", "Prompt.Temperature: got %v, want 0 to 2", *p.Temperature)
	case p.Timeout < 0 || p.ToolTimeout < 0:
		return invalid("timeout_ms", "a timeout of the prompt is negative")
	}
	return nil
}

// conversation returns the messages of a prompt before the last one, and the text of that one.
func conversation(all []Message) (earlier []actor.ChatMessage, last string, err error) {
	if len(all) == 0 || all[len(all)-1].Role != RoleUser {
		return nil, "", invalid("messages", "Prompt.Messages: the last message must have the role %s", RoleUser)
	}
	for i := range all[:len(all)-1] {
		role, err := actor.ParseRole(all[i].Role)
		if err != nil {
			return nil, "", invalid("messages", "Prompt.Messages: message %d: Role: got %.40q, want %s, %s, %s or %s", i+1, all[i].Role, RoleUser, RoleAssistant, RoleSystem, RoleTool)
		}
		earlier = append(earlier, actor.ChatMessage{Role: role, Parts: actor.Text(all[i].Text)})
	}
	return earlier, all[len(all)-1].Text, nil
}
