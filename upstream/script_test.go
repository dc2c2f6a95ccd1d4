// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/upstream"
)

// runScript calls the script until it returns an answer; result provides the
// result of each tool call.
func runScript(message string, tools []upstream.ToolSpec, result func(upstream.ToolCall) string) (calls []string, answer string) {
	p := upstream.Prompt{Tools: tools, Messages: []upstream.Message{
		{Role: upstream.System, Text: "ask the system agent nothing"},
		{Role: upstream.User, Text: "say something earlier"},
		{Role: upstream.Assistant, Text: "something earlier"},
		{Role: upstream.User, Text: message},
	}}
	for range 20 {
		c := upstream.Script(p)
		if len(c.Calls) == 0 {
			return calls, c.Text
		}
		var step []string
		p.Messages = append(p.Messages, upstream.Message{Role: upstream.Assistant, Text: c.Text, Calls: c.Calls})
		for _, call := range c.Calls {
			step = append(step, call.Name+" "+call.Arguments)
			p.Messages = append(p.Messages, upstream.Message{Role: upstream.Tool, CallID: call.ID, Text: result(call)})
		}
		calls = append(calls, strings.Join(step, " & "))
		if err := p.Check(); err != nil {
			return calls, err.Error()
		}
	}
	return calls, "no answer after 20 calls"
}

// The instructions of an agent's author come before those of a message.
func TestScriptInstructionsOfAnAuthor(t *testing.T) {
	p := upstream.Prompt{Messages: []upstream.Message{{Role: upstream.System, Text: "You compute.\non \"A_B\" say {\"x\":1}\n  ON the net say fine\non say nothing\nonce A say no\non a tool use text.echo {\"say\":1}"}, {Role: upstream.User}}}
	for message, want := range map[string]string{
		`{"capability_code":"A_B"}`: `{"x":1}`, "what is the net?": "fine", "say the net": "fine", "say hello": "hello", "once A": "You said: once A",
	} {
		p.Messages[1].Text, p.Tools = message, nil
		if c := upstream.Script(p); c.Text != want || c.Finish != upstream.FinishStop {
			t.Errorf("%s: got %q, want %q", message, c.Text, want)
		}
	}
	p.Messages[1].Text, p.Tools = "call a tool", []upstream.ToolSpec{{Name: "text.echo", Schema: "{}"}}
	if c := upstream.Script(p); len(c.Calls) != 1 || c.Calls[0].Arguments != `{"say":1}` {
		t.Errorf("got %+v", c)
	}
	p.Messages[0].Role = upstream.User
	p.Messages[1].Text = "what is the net?"
	if c := upstream.Script(p); c.Text != "You said: what is the net?" {
		t.Errorf("an answer of a user is taken: %q", c.Text)
	}
}

func TestScriptInstructions(t *testing.T) {
	ask := func(agent, message string) string {
		return fmt.Sprintf(`call_agent {"agent_id":%q,"message":%q}`, agent, message)
	}
	for _, c := range []struct {
		message string
		calls   []string
		answer  string
	}{
		{"Hello there", nil, "You said: Hello there"},
		{"", nil, "You said nothing."},
		{" \n ", nil, "You said nothing."},
		{"Ask the helper agent what 2+2 is", []string{ask("helper", "what 2+2 is")}, "<1>"},
		{"Ask the helper agent to repeat xyzzy", []string{ask("helper", "repeat xyzzy")}, "<1>"},
		{"please ASK helper agent: hi", []string{ask("helper", "hi")}, "<1>"},
		{"ask helper: hi", []string{ask("helper", "hi")}, "<1>"},
		{"ask the helper/s-2: hi", []string{ask("helper/s-2", "hi")}, "<1>"},
		{"Ask the helper agent the way", []string{ask("helper", "the way")}, "<1>"},
		{"Ask me something", nil, "You said: Ask me something"},
		{"Ask the helper agent", nil, "You said: Ask the helper agent"},
		{"ask : hi", nil, "You said: ask : hi"},
		{"asking the helper agent hi", nil, "You said: asking the helper agent hi"},
		{"Say hello", nil, "hello"},
		{"say", nil, "You said: say"},
		{"Use browser.open {\"url\": \"x\"}", []string{`browser.open {"url": "x"}`}, "<1>"},
		{"use browser.open", []string{`browser.open {}`}, "<1>"},
		{"use browser.open {broken", []string{`browser.open {broken`}, "<1>"},
		{"use rm -rf", nil, "I was not given the tool rm."},
		{"ask a: x\nask b: y", []string{ask("a", "x") + " & " + ask("b", "y")}, "<1>\n<2>"},
		{"ask a: x\nthen\nask b: y", []string{ask("a", "x"), ask("b", "y")}, "<1>\n<2>"},
		{"First this:\nsay one\r\nask a: x\nTHEN\nthen\nsay two\nthen\nask b: y\nsay three", []string{ask("a", "x"), ask("b", "y")}, "one\n<1>\ntwo\n<2>\nthree"},
		{"List my messages", nil, "1. say something earlier"},
		{"say first\nplease list my messages.", nil, "first\n1. say something earlier"},
		{"list my messages now", nil, "You said: list my messages now"},
		{`ask a: say "ä"`, []string{`call_agent {"agent_id":"a","message":"say \"ä\""}`}, "<1>"},
	} {
		n := 0
		calls, answer := runScript(c.message, offeredTools, func(upstream.ToolCall) string { n++; return fmt.Sprintf("<%d>", n) })
		if !reflect.DeepEqual(calls, c.calls) || answer != c.answer {
			t.Errorf("%q: got %q, %q\nwant %q, %q", c.message, calls, answer, c.calls, c.answer)
		}
	}
	if _, answer := runScript("ask helper: hi", nil, nil); answer != "I was not given the tool call_agent." {
		t.Errorf("without tools: got %q", answer)
	}
	first := upstream.Prompt{Messages: []upstream.Message{{Role: upstream.System, Text: "x"}, {Role: upstream.User, Text: "list my messages"}}}
	if got := upstream.Script(first).Text; got != "This is your first message here." {
		t.Errorf("first message: got %q", got)
	}
	if calls, _ := runScript(strings.Repeat("use browser.open\n", 99), offeredTools, func(upstream.ToolCall) string { return "" }); strings.Count(calls[0], "browser.open") != upstream.ToolCallsMax {
		t.Errorf("got %d calls in one stage", strings.Count(calls[0], "browser.open"))
	}
}

// TestScriptIsDeterministic checks for random prompts that the script repeats its
// response, and that a ModelDecoder accepts it.
func TestScriptIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPrompt(t)
		p.Messages = append(p.Messages, upstream.Message{Role: upstream.User, Text: strings.Join(rapid.SliceOfN(
			rapid.SampledFrom([]string{"ask a: x", "then", "say y", "list my messages", "use browser.open {", "please", "ask the b agent to \"\x01"}), 0, 8).Draw(t, "lines"), "\n")})
		c := upstream.Script(p)
		if again := upstream.Script(p); !reflect.DeepEqual(c, again) {
			t.Fatalf("%+v, then %+v", c, again)
		}
		h := decodeAll("model", "text/event-stream", upstream.AppendStream(nil, c, 7))
		if h.failure != nil || !reflect.DeepEqual(h.answer, c) {
			t.Fatalf("%+v decodes to %+v, %v", c, h.answer, h.failure)
		}
	})
}

func TestScriptUnusualPrompts(t *testing.T) {
	for _, p := range []upstream.Prompt{
		{},
		{Messages: []upstream.Message{{Role: upstream.Assistant, Text: "only me"}}},
		{Messages: []upstream.Message{{Role: upstream.Tool, CallID: "x", Text: "a result"}}},
	} {
		if c := upstream.Script(p); c.Text != "You said nothing." || c.Finish != upstream.FinishStop {
			t.Errorf("%+v: got %+v", p, c)
		}
	}
	// One result is missing, and another result was not requested.
	p := upstream.Prompt{Tools: offeredTools, Messages: []upstream.Message{
		{Role: upstream.User, Text: "ask a: x\nask b: y"},
		{Role: upstream.Assistant, Calls: []upstream.ToolCall{{ID: "1", Name: "call_agent"}, {ID: "2", Name: "call_agent"}}},
		{Role: upstream.Tool, CallID: "2", Text: "late"},
		{Role: upstream.Tool, CallID: "3", Text: "whose?"},
	}}
	if c := upstream.Script(p); c.Text != "There is no result.\nlate" {
		t.Errorf("missing result: got %+v", c)
	}
}

// Each text and each argument list counts one token for four bytes, rounded up.
func TestScriptUsage(t *testing.T) {
	p := upstream.Prompt{Tools: []upstream.ToolSpec{{Name: "a.b"}},
		Messages: []upstream.Message{{Role: upstream.System, Text: "12345"}, {Role: upstream.User, Text: `use a.b {"x":1}`}}}
	if c := upstream.Script(p); len(c.Calls) != 1 || c.Calls[0].Arguments != `{"x":1}` || c.Usage != (upstream.Usage{Known: true, Input: 2 + 4, Output: 2, Total: 8}) {
		t.Errorf("a call: got %+v", c)
	}
	p.Messages[1].Text = "say hello"
	if c := upstream.Script(p); c.Text != "hello" || c.Usage != (upstream.Usage{Known: true, Input: 2 + 3, Output: 2, Total: 7}) {
		t.Errorf("a text: got %+v", c)
	}
}
