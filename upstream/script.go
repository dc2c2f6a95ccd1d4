// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// ScriptName is the model that needs no key and no network.
const ScriptName = "scripted"

// Script answers a prompt as a model would that does exactly what it is told.
// It reads the last message of a User line by line; keywords are written in any
// case, and "please" may stand before each:
//
//	ask [the] NAME agent [to | :] MESSAGE   calls the agent NAME, or NAME/KEY,
//	ask NAME: MESSAGE                       with call_agent
//	use TOOL [JSON]                         uses any tool that is offered
//	say TEXT                                puts a line into the answer
//	then                                    ends a stage
//
// Other lines are passed over. The calls of one stage are made together, those of
// the next when their results are in. When nothing is left to do it answers: for
// each line, in its order, the text or the result. A tool that was not offered
// it does not use, and says so. A message without any such line is said back.
//
// The answer is a function of the prompt alone.
func Script(p Prompt) Completion {
	last := -1
	for i, m := range p.Messages {
		if m.Role == User {
			last = i
		}
	}
	var told string
	if last >= 0 {
		told = p.Messages[last].Text
	}
	stages := parseScript(told, p.Tools)
	c := Completion{Model: ScriptName, Finish: FinishStop}
	if at := nextStage(stages, p.Messages[last+1:]); at < len(stages) {
		for i, l := range stages[at].calls() {
			c.Calls = append(c.Calls, ToolCall{fmt.Sprintf("call_%d_%d", len(p.Messages), i), l.tool, l.arguments})
		}
		c.Finish = FinishCalls
	} else {
		c.Text = scriptAnswer(told, stages, p.Messages[last+1:])
	}
	c.Usage = scriptUsage(p, c)
	return c
}

// instruction is one thing that the script was told to do: use a tool, or say a text.
type instruction struct {
	tool, arguments string
	text            string
}

// stage is the lines between two "then".
type stage []instruction

func (s stage) calls() []instruction {
	return slices.DeleteFunc(slices.Clone(s), func(l instruction) bool { return l.tool == "" })
}

func parseScript(told string, tools []ToolSpec) []stage {
	stages := []stage{nil}
	for text := range strings.Lines(told) {
		text = strings.TrimSpace(text)
		if rest, ok := cutKeyword(text, "please"); ok {
			text = rest
		}
		if strings.EqualFold(text, "then") {
			stages = append(stages, nil)
			continue
		}
		if l, ok := parseInstruction(text); ok {
			at := &stages[len(stages)-1]
			offered := slices.ContainsFunc(tools, func(t ToolSpec) bool { return t.Name == l.tool })
			switch {
			case l.tool != "" && !offered:
				l = instruction{text: fmt.Sprintf("I was not given the tool %s.", l.tool)}
			case l.tool != "" && len(at.calls()) == ToolCallsMax:
				l = instruction{text: fmt.Sprintf("I make at most %d calls at once.", ToolCallsMax)}
			}
			*at = append(*at, l)
		}
	}
	return slices.DeleteFunc(stages, func(s stage) bool { return len(s) == 0 })
}

func parseInstruction(text string) (instruction, bool) {
	if rest, ok := cutKeyword(text, "say"); ok && rest != "" {
		return instruction{text: rest}, true
	}
	if rest, ok := cutKeyword(text, "use"); ok && rest != "" {
		tool, arguments, _ := strings.Cut(rest, " ")
		if arguments = strings.TrimSpace(arguments); arguments == "" {
			arguments = "{}"
		}
		return instruction{tool: tool, arguments: arguments}, true
	}
	rest, ok := cutKeyword(text, "ask")
	if !ok {
		return instruction{}, false
	}
	if after, ok := cutKeyword(rest, "the"); ok {
		rest = after
	}
	name, message, _ := strings.Cut(rest, " ")
	if before, ok := strings.CutSuffix(name, ":"); ok {
		return callInstruction(before, message)
	}
	message, ok = cutKeyword(message, "agent")
	if !ok {
		return instruction{}, false
	}
	if after, ok := cutKeyword(message, "to"); ok {
		message = after
	}
	return callInstruction(name, strings.TrimPrefix(message, ":"))
}

func callInstruction(name, message string) (instruction, bool) {
	if message = strings.TrimSpace(message); name == "" || message == "" {
		return instruction{}, false
	}
	arguments := marshal(struct {
		Agent   string `json:"agent_id"`
		Message string `json:"message"`
	}{name, strings.ToValidUTF8(message, "\uFFFD")})
	return instruction{tool: "call_agent", arguments: string(arguments)}, true
}

// cutKeyword takes the word off the front of text, if it stands there by itself.
func cutKeyword(text, word string) (rest string, ok bool) {
	if len(text) < len(word) || !strings.EqualFold(text[:len(word)], word) {
		return text, false
	}
	rest = text[len(word):]
	if rest != "" && rest[0] != ' ' && rest[0] != '\t' && rest[0] != ':' {
		return text, false
	}
	return strings.TrimLeft(rest, " \t"), true
}

// nextStage is the first stage with calls that were not made yet.
func nextStage(stages []stage, since []Message) int {
	made := 0
	for _, m := range since {
		if len(m.Calls) > 0 {
			made++
		}
	}
	for at, s := range stages {
		if len(s.calls()) == 0 {
			continue
		}
		if made == 0 {
			return at
		}
		made--
	}
	return len(stages)
}

// scriptAnswer puts the results that have come in to the lines that asked for them.
func scriptAnswer(told string, stages []stage, since []Message) string {
	var results []string
	for _, m := range since {
		for _, c := range m.Calls {
			at := slices.IndexFunc(since, func(r Message) bool { return r.Role == Tool && r.CallID == c.ID })
			if at < 0 {
				results = append(results, "There is no result.")
				continue
			}
			results = append(results, since[at].Text)
		}
	}
	var said []string
	for _, s := range stages {
		for _, l := range s {
			text := l.text
			if l.tool != "" {
				text = "There is no result."
				if len(results) > 0 {
					text, results = results[0], results[1:]
				}
			}
			said = append(said, text)
		}
	}
	if len(said) == 0 {
		if strings.TrimSpace(told) == "" {
			return "You said nothing."
		}
		return actor.FitText("You said: "+told, OutputBytesMax)
	}
	return actor.FitText(strings.Join(said, "\n"), OutputBytesMax)
}

// scriptUsage counts four bytes as a token.
func scriptUsage(p Prompt, c Completion) Usage {
	u := Usage{Known: true}
	for _, m := range p.Messages {
		u.Input += int64(len(m.Text)+3) / 4
	}
	u.Output = int64(len(c.Text)+3) / 4
	for _, call := range c.Calls {
		u.Output += int64(len(call.Arguments)+3) / 4
	}
	u.Total = u.Input + u.Output
	return u
}
