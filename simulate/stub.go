// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/sim"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// model is the stub for the model of an agent.
func (t *Team) model(c sim.Rand, agent string, p upstream.Prompt) upstream.Completion {
	last := p.Messages[len(p.Messages)-1]
	asked := ""
	for _, m := range p.Messages {
		if m.Role == upstream.User {
			asked = m.Text
		}
	}
	if r := matchRule(t.Models, agent, last.Text, last.Role == upstream.Tool); r != nil {
		if r.Script {
			return upstream.Script(p)
		}
		return r.answer(c, asked, len(p.Messages))
	}
	if last.Role == upstream.Tool {
		return textCompletion(strings.Join(toolResults(p.Messages), "\n"))
	}
	return t.defaultCompletion(c, agent, &p)
}

// service is the stub for an external agent.
func (t *Team) service(c sim.Rand, agent, message string) upstream.Completion {
	if r := matchRule(t.Services, agent, message, false); r != nil {
		if r.Script {
			return upstream.Script(upstream.Prompt{Messages: []upstream.Message{{Role: upstream.User, Text: message}},
				Tools: []upstream.ToolSpec{{Name: tools.CallAgent}}})
		}
		return r.answer(c, message, 0)
	}
	if c.Int(3) == 2 {
		if others := t.others(agent); len(others) > 0 {
			return toolCompletion(0, tools.CallAgent, callInput(others[c.Int(len(others))], "a question of "+agent))
		}
	}
	return textCompletion("the answer of " + agent)
}

func (t *Team) signal(c sim.Rand, name string) string {
	for _, s := range t.Signals {
		if s.Name == name {
			return pick(c, s.Says, "go on")
		}
	}
	return "go on"
}

// matchRule returns the first rule that matches, or nil.
func matchRule(rules []Rule, agent, message string, isResult bool) *Rule {
	for i := range rules {
		r := &rules[i]
		switch {
		case r.Agent != "" && r.Agent != agent:
		case r.Script:
			return r
		case r.When == "" && isResult, r.When != "" && !strings.Contains(message, r.When):
		default:
			return r
		}
	}
	return nil
}

// answer picks one of the rule's answers at random.
func (r *Rule) answer(c sim.Rand, asked string, turn int) upstream.Completion {
	i := c.Int(len(r.Says) + len(r.Calls) + len(r.Uses))
	fill := func(text string) string { return strings.ReplaceAll(text, "{message}", asked) }
	if i < len(r.Says) {
		return textCompletion(fill(r.Says[i]))
	}
	if i -= len(r.Says); i < len(r.Calls) {
		return toolCompletion(turn, tools.CallAgent, callInput(r.Calls[i].Agent, fill(r.Calls[i].Message)))
	}
	u := r.Uses[i-len(r.Calls)]
	return toolCompletion(turn, u.Tool, textOr(u.Input, "{}"))
}

// defaultCompletion picks a completion if no rule applies. The completion is an answer,
// a call of a permitted tool, or a call of a permitted agent.
func (t *Team) defaultCompletion(c sim.Rand, agent string, p *upstream.Prompt) upstream.Completion {
	i := c.Int(1 + len(p.Tools))
	if i == 0 {
		return textCompletion("the answer of " + agent)
	}
	tool := p.Tools[i-1].Name
	if tool != tools.CallAgent {
		return toolCompletion(len(p.Messages), tool, "{}")
	}
	may := t.others(agent)
	for _, s := range t.Specs {
		if s.ID == agent && s.Agents != nil {
			may = s.Agents
		}
	}
	if len(may) == 0 {
		return textCompletion("the answer of " + agent)
	}
	return toolCompletion(len(p.Messages), tool, callInput(may[c.Int(len(may))], fmt.Sprintf("question %d of %s", 1+c.Int(3), agent)))
}

func (t *Team) others(agent string) []string {
	return slices.DeleteFunc(t.names(), func(name string) bool { return name == agent })
}

// toolResults returns the results of the last tool calls.
func toolResults(messages []upstream.Message) (texts []string) {
	for _, m := range messages {
		if m.Role != upstream.Tool {
			texts = nil
			continue
		}
		texts = append(texts, m.Text)
	}
	return texts
}

func textCompletion(text string) upstream.Completion {
	return upstream.Completion{Text: textOr(text, "…"), Finish: upstream.FinishStop, Model: "stub"}
}

func toolCompletion(turn int, tool, input string) upstream.Completion {
	return upstream.Completion{Calls: []upstream.ToolCall{{ID: fmt.Sprintf("use-%d", turn), Name: tool, Arguments: input}},
		Finish: upstream.FinishCalls, Model: "stub"}
}

func callInput(agent, message string) string {
	b, err := json.Marshal(map[string]string{"agent_id": agent, "message": textOr(message, "…")})
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return string(b)
}
