// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// ScriptName is the name of the built-in model, which needs neither key nor
// network.
const ScriptName = "scripted"

// Script responds to a prompt by executing the instructions in the last message of
// a User, one per line. Keywords are case-insensitive and may follow "please":
//
//	ask [the] NAME agent [to | :] MESSAGE   calls the agent NAME, or NAME/KEY,
//	ask NAME: MESSAGE                       with call_agent
//	use TOOL [JSON]                         calls any offered tool
//	say TEXT                                adds a line to the answer
//	list my messages                        adds the earlier messages of the user that
//	                                        the prompt has, numbered
//	then                                    ends a stage
//
// The author of an agent may give instructions for certain messages: of the lines "on WORDS INSTRUCTION" in
// the first System message, the first one whose words the message contains is followed instead of the message.
//
// Other lines are ignored. The calls of a stage are made together. The calls of the
// next stage are made once all results have arrived. After the last stage, Script
// answers with one line per instruction, in order: the text or the result. A tool
// that was not offered is not called, and the answer reports it. A message without
// instructions is echoed.
//
// The response is a pure function of the prompt.
func Script(p Prompt) Completion {
	last := -1
	for i, m := range p.Messages {
		if m.Role == User {
			last = i
		}
	}
	var message string
	if last >= 0 {
		message = p.Messages[last].Text
	}
	if own, ok := ownInstruction(&p, message); ok {
		message = own
	}
	stages := parseScript(message, p.Tools, p.Messages[:max(last, 0)])
	c := Completion{Model: ScriptName, Finish: FinishStop}
	if at := nextStage(stages, p.Messages[last+1:]); at < len(stages) {
		for i, l := range stages[at].calls() {
			c.Calls = append(c.Calls, ToolCall{ID: fmt.Sprintf("call_%d_%d", len(p.Messages), i), Name: l.tool, Arguments: l.arguments})
		}
		c.Finish = FinishCalls
	} else {
		c.Text = scriptAnswer(message, stages, p.Messages[last+1:])
	}
	c.Usage = scriptUsage(p, c)
	return c
}

// ownInstruction returns the instruction that the author of an agent gives for a message.
func ownInstruction(p *Prompt, message string) (instruction string, ok bool) {
	if len(p.Messages) == 0 || p.Messages[0].Role != System {
		return "", false
	}
	for line := range strings.Lines(p.Messages[0].Text) {
		rest, found := cutKeyword(strings.TrimSpace(line), "on")
		at := -1
		for _, verb := range []string{" say ", " use ", " ask "} {
			if i := strings.Index(rest, verb); i >= 0 && (at < 0 || i < at) {
				at = i
			}
		}
		if found && at > 0 && strings.Contains(message, strings.TrimSpace(rest[:at])) {
			return rest[at+1:], true
		}
	}
	return "", false
}

// instruction is a tool call, or a text for the answer.
type instruction struct {
	tool, arguments string
	text            string
}

// stage is the instructions between two "then".
type stage []instruction

func (s stage) calls() []instruction {
	return slices.DeleteFunc(slices.Clone(s), func(l instruction) bool { return l.tool == "" })
}

func parseScript(message string, tools []ToolSpec, earlier []Message) []stage {
	stages := []stage{nil}
	calls := 0         // of the last stage
	var listed *string // the messages of the user, once they were asked for
	for text := range strings.Lines(message) {
		text = strings.TrimSpace(text)
		if rest, ok := cutKeyword(text, "please"); ok {
			text = rest
		}
		if strings.EqualFold(strings.TrimSuffix(text, "."), "list my messages") {
			if listed == nil {
				text := listMessages(earlier)
				listed = &text
			}
			at := &stages[len(stages)-1]
			*at = append(*at, instruction{text: *listed})
			continue
		}
		if strings.EqualFold(text, "then") {
			stages, calls = append(stages, nil), 0
			continue
		}
		if l, ok := parseInstruction(text); ok {
			at := &stages[len(stages)-1]
			offered := false
			for _, name := range []string{l.tool, strings.ReplaceAll(l.tool, ".", "__")} { // the second: the spelling of a declared tool
				if !offered && slices.ContainsFunc(tools, func(t ToolSpec) bool { return t.Name == name }) {
					l.tool, offered = name, true
				}
			}
			switch {
			case l.tool != "" && !offered:
				l = instruction{text: fmt.Sprintf("I was not given the tool %s.", l.tool)}
			case l.tool != "" && calls == ToolCallsMax:
				l = instruction{text: fmt.Sprintf("I make at most %d calls at once.", ToolCallsMax)}
			case l.tool != "":
				calls++
			}
			*at = append(*at, l)
		}
	}
	return slices.DeleteFunc(stages, func(s stage) bool { return len(s) == 0 })
}

// listMessages returns the messages of a user, one per line. They show which part of a
// conversation a model is given.
func listMessages(earlier []Message) string {
	var lines []string
	for _, m := range earlier {
		if m.Role == User {
			lines = append(lines, fmt.Sprintf("%d. %s", len(lines)+1, m.Text))
		}
	}
	if len(lines) == 0 {
		return "This is your first message here."
	}
	return strings.Join(lines, "\n")
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

// cutKeyword removes word from the start of text if it is a whole word.
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

// nextStage returns the index of the first stage whose calls have not been made.
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

// scriptAnswer builds the answer: one line per instruction, with tool calls
// replaced by their results.
func scriptAnswer(message string, stages []stage, since []Message) string {
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
	var lines []string
	size := 0
	for _, s := range stages {
		for _, l := range s {
			if size > OutputBytesMax { // fitOutput cuts the answer there
				return fitOutput(strings.Join(lines, "\n"))
			}
			text := l.text
			if l.tool != "" {
				text = "There is no result."
				if len(results) > 0 {
					text, results = results[0], results[1:]
				}
			}
			lines = append(lines, text)
			size += len(text) + 1
		}
	}
	if len(lines) == 0 {
		if strings.TrimSpace(message) == "" {
			return "You said nothing."
		}
		return fitOutput("You said: " + message)
	}
	return fitOutput(strings.Join(lines, "\n"))
}

// scriptUsage counts four bytes as one token.
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

// fitOutput truncates a text so that an answer may contain it: OutputBytesMax counts
// its bytes in JSON.
func fitOutput(text string) string {
	limit := OutputBytesMax
	for size := jsonBytesMax(text); size > OutputBytesMax; size = jsonBytesMax(text) {
		limit = min(limit, int(int64(len(text))*OutputBytesMax/int64(size))) - 8
		text = actor.FitText(text, limit)
	}
	return text
}
