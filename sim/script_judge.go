// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// scriptLine is one line of a message, as the simulation writes it.
type scriptLine struct {
	text             string // of a line that adds text to the answer
	tool, arguments  string // of a line that calls a tool
	agent, forwarded string // of a line that calls an agent: its name and message
}

var (
	askLines = []*regexp.Regexp{
		regexp.MustCompile(`^(?:please )?ask ([^\s:]+): (.+)$`),
		regexp.MustCompile(`^ask ([^\s:]+) agent to (.+)$`),
		regexp.MustCompile(`^please ask the ([^\s:]+) agent: (.+)$`),
	}
	useLine = regexp.MustCompile(`^use (\S+)(?: (.+))?$`)
	sayLine = regexp.MustCompile(`^say (.+)$`)
)

// readScript returns the stages of a message. It returns false for a message with a line
// in another form than those that the simulation writes, or with too many calls.
func readScript(message string) (stages [][]scriptLine, ok bool) {
	stages = [][]scriptLine{nil}
	calls := 0
	for text := range strings.SplitSeq(message, "\n") {
		var l scriptLine
		if text == "then" {
			stages, calls = append(stages, nil), 0
			continue
		}
		if m := sayLine.FindStringSubmatch(text); m != nil {
			l.text = m[1]
		} else if m := useLine.FindStringSubmatch(text); m != nil {
			l.tool, l.arguments = m[1], m[2]
			if l.arguments == "" {
				l.arguments = "{}"
			}
		} else {
			i := slices.IndexFunc(askLines, func(r *regexp.Regexp) bool { return r.MatchString(text) })
			if i < 0 || strings.TrimSpace(text) != text {
				return nil, false
			}
			m := askLines[i].FindStringSubmatch(text)
			l.tool, l.agent, l.forwarded = tools.CallAgent, m[1], m[2]
		}
		if l.tool != "" {
			calls++
		}
		if calls > upstream.ToolCallsMax || strings.TrimSpace(text) != text {
			return nil, false
		}
		stages[len(stages)-1] = append(stages[len(stages)-1], l)
	}
	return stages, true
}

// judgeScript compares a completion of the built-in model with the lines of the message:
// the calls of the next stage, or one line of the answer for each line of the message.
func (w *Simulation) judgeScript(p upstream.Prompt, c upstream.Completion) {
	last := len(p.Messages) - 1
	for last >= 0 && p.Messages[last].Role != upstream.User {
		last--
	}
	if last < 0 {
		return
	}
	stages, ok := readScript(p.Messages[last].Text)
	if !ok || c.Text == orchestratorSays && strings.Contains(p.Messages[0].Text, orchestratorSays) { // its author's line comes first
		return
	}
	made, results, known := 0, []string(nil), map[string]bool{}
	for i, m := range p.Messages {
		for _, call := range m.Calls {
			known[call.ID] = true
			if i < last {
				continue
			}
			for _, r := range p.Messages[i:] {
				if r.Role == upstream.Tool && r.CallID == call.ID {
					results = append(results, r.Text)
					break
				}
			}
		}
		if i > last && len(m.Calls) > 0 {
			made++
		}
	}
	var next, called []scriptLine
	var answer []string
	for _, stage := range stages {
		var calls []scriptLine
		for _, l := range stage {
			if l.tool == "" {
				answer = append(answer, l.text)
				continue
			}
			if !slices.ContainsFunc(p.Tools, func(t upstream.ToolSpec) bool { return t.Name == l.tool }) {
				return // the wording for a tool that was not offered is the model's
			}
			calls = append(calls, l)
			if len(called)+len(calls) <= len(results) {
				answer = append(answer, results[len(called)+len(calls)-1])
			}
		}
		if len(calls) == 0 {
			continue
		}
		if made--; made < 0 {
			next = calls
			break
		}
		called = append(called, calls...)
	}
	w.judgeScriptUsage(p, c)
	if len(c.Calls) != len(next) || (c.Finish == upstream.FinishCalls) != (len(next) > 0) {
		w.fail(ScriptFollowed, fmt.Sprintf("the model makes %d calls and finishes with %v, want %d calls: %q", len(c.Calls), c.Finish, len(next), p.Messages[last].Text))
		return
	}
	if len(next) > 0 {
		w.Stats.Audit.ScriptFollowed++
	}
	for i, l := range next {
		if call := c.Calls[i]; !l.isCall(call) || known[call.ID] || call.ID == "" {
			w.fail(ScriptFollowed, fmt.Sprintf("call %d is %+v, want %+v with a new ID", i, call, l))
		} else {
			known[call.ID] = true
		}
	}
	if want := strings.Join(answer, "\n"); len(next) == 0 && len(called) == len(results) && len(want) < upstream.OutputBytesMax/8 && c.Text != want {
		w.fail(ScriptFollowed, fmt.Sprintf("the answer is %q, want %q", c.Text, want))
	}
}

// isCall reports whether a tool call is the one that the line asks for.
func (l *scriptLine) isCall(call upstream.ToolCall) bool {
	if l.agent == "" {
		return call.Name == l.tool && call.Arguments == l.arguments
	}
	var sent map[string]string
	return call.Name == l.tool && json.Unmarshal([]byte(call.Arguments), &sent) == nil && len(sent) == 2 &&
		sent["agent_id"] == l.agent && sent["message"] == strings.ToValidUTF8(l.forwarded, "\uFFFD")
}

// judgeScriptUsage compares the usage with one token for each four bytes of a text or of
// arguments, rounded up.
func (w *Simulation) judgeScriptUsage(p upstream.Prompt, c upstream.Completion) {
	tokens := func(text string) (n int64) {
		for ; text != ""; text = text[min(4, len(text)):] {
			n++
		}
		return n
	}
	want := upstream.Usage{Known: true, Output: tokens(c.Text)}
	for _, m := range p.Messages {
		want.Input += tokens(m.Text)
	}
	for _, call := range c.Calls {
		want.Output += tokens(call.Arguments)
	}
	if want.Total = want.Input + want.Output; c.Usage != want {
		w.fail(ScriptFollowed, fmt.Sprintf("the usage is %+v, want %+v", c.Usage, want))
	}
}
