// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// testTools returns a registry with call_agent and a tool that returns its input.
func testTools(t interface{ Fatal(...any) }) *tools.Registry {
	r := tools.NewRegistry()
	err := r.RegisterBuiltin(tools.Tool{Name: "text.echo", Description: "Returns its input.",
		Schema:  `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"],"additionalProperties":false}`,
		Handler: func(_ context.Context, input []byte) tools.Result { return tools.JSON(input) }})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func compileTOML(t interface{ Fatal(...any) }, toml string) actor.Behavior {
	spec, err := agents.ReadTOML(toml)
	if err != nil {
		t.Fatal(err)
	}
	def, err := agents.Compile(spec, testTools(t))
	if err != nil {
		t.Fatal(err)
	}
	return def.Behavior
}

// loopFixture is the environment of one declared agent. Its model follows a script,
// and then behaves like the built-in model. Tools are real. Calls of agents are
// answered by the name of the agent.
type loopFixture struct {
	t       interface{ Fatalf(string, ...any) }
	tools   *tools.Registry
	script  []upstream.Completion
	agents  map[string]string
	prompts []upstream.Prompt
	asks    []actor.Ask
	answers [][]actor.Answer
}

func newLoopFixture(t *testing.T, script ...upstream.Completion) *loopFixture {
	return &loopFixture{t: t, tools: testTools(t), script: script, agents: map[string]string{"helper": "response from helper"}}
}

func completionAnswer(c upstream.Completion) actor.Answer {
	return actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: c.Encode()}}}
}

func (f *loopFixture) answer(_ context.Context, ask actor.Ask) actor.Answer {
	f.asks = append(f.asks, ask)
	if ask.Kind == actor.AskModel {
		prompt, err := upstream.DecodePrompt(ask.Body)
		if err != nil {
			f.t.Fatalf("invalid prompt: %v", err)
		}
		f.prompts = append(f.prompts, prompt)
		if len(f.prompts) <= len(f.script) {
			return completionAnswer(f.script[len(f.prompts)-1])
		}
		return completionAnswer(upstream.Script(prompt))
	}
	ec := tools.NewContext(begin("").Call, time.Minute, dispatcher.Asks{})
	planned, done := f.tools.Plan(ec, ask)
	switch {
	case done != nil:
		return *done
	case planned.Kind == actor.AskCall:
		if reply, ok := f.agents[planned.Name]; ok {
			return text(reply + ": " + actor.TextOf(planned.Parts))
		}
		return actor.Answer{Refusal: actor.Refuse(actor.NotFound, "no agent is named %s", planned.Name)}
	default:
		return f.tools.Execute(context.Background(), planned.Name, planned.Parts[0].Bytes, ec)
	}
}

// execute runs a whole turn and verifies that a replay makes the same actions.
func (f *loopFixture) execute(b actor.Behavior, message string) actor.Outcome {
	turn := b.Begin(begin(message))
	defer turn.Stop()
	f.answers = nil
	var answers []actor.Answer
	for {
		action, err := turn.Next(answers)
		if err != nil {
			f.t.Fatalf("%v", err)
		}
		if action.Done != nil {
			if err := agents.SameTurn(b, b, begin(message), f.answers); err != nil {
				f.t.Fatalf("replay differs: %v", err)
			}
			return *action.Done
		}
		answers = nil
		for _, ask := range action.Asks {
			answers = append(answers, f.answer(context.Background(), ask))
		}
		f.answers = append(f.answers, answers)
	}
}

func toolCompletion(calls ...string) upstream.Completion {
	c := upstream.Completion{Finish: upstream.FinishCalls}
	for i, call := range calls {
		name, arguments, _ := strings.Cut(call, " ")
		c.Calls = append(c.Calls, upstream.ToolCall{ID: fmt.Sprintf("id%d", i), Name: name, Arguments: arguments})
	}
	return c
}

func textCompletion(text string) upstream.Completion {
	return upstream.Completion{Text: text, Finish: upstream.FinishStop}
}

// toolResults returns the tool results in the last prompt.
func (f *loopFixture) toolResults() string {
	var all []string
	for _, m := range f.prompts[len(f.prompts)-1].Messages {
		if m.Role == upstream.Tool {
			all = append(all, m.Text)
		}
	}
	return strings.Join(all, "\n")
}

func TestDeclaredAgentCallsAgent(t *testing.T) {
	f := newLoopFixture(t)
	out := f.execute(compileTOML(t, `name = "coordinator"`), "Ask the helper agent xyzzy")
	if out.Status != actor.Succeeded || actor.TextOf(out.Parts) != "response from helper: xyzzy" {
		t.Errorf("%+v", out)
	}
	if len(f.asks) != 3 || f.asks[0].Kind != actor.AskModel || f.asks[0].Name != upstream.ScriptName || !f.asks[0].Idempotent ||
		f.asks[1].Kind != actor.AskTool || f.asks[1].Name != tools.CallAgent || f.asks[2].Kind != actor.AskModel {
		t.Errorf("asked %v", f.asks)
	}
	if got := actor.TextOf(f.asks[0].Parts); got != "Ask the helper agent xyzzy" {
		t.Errorf("first ask: text %q", got)
	}
	if got := actor.TextOf(f.asks[2].Parts); got != "call_agent: response from helper: xyzzy" {
		t.Errorf("third ask: text %q", got)
	}
}

func TestPromptHasSpecSettings(t *testing.T) {
	f := newLoopFixture(t, textCompletion("done"))
	f.execute(compileTOML(t, `
name = "planner"
model = "big"
prompt = "You plan."
tools = ["call_agent", "text.echo", "browser.open"]
agents = ["helper", "archive"]
parameters = { temperature = 0.5, max_tokens = 100, seed = 7 }
limits.model_timeout_ms = 1500
`), "go")
	p, ask := f.prompts[0], f.asks[0]
	if p.Messages[0].Text != "You plan." || p.Messages[0].Role != upstream.System || p.Messages[1].Text != "go" || p.Messages[1].Role != upstream.User {
		t.Errorf("messages %+v", p.Messages)
	}
	if *p.Temperature != 0.5 || p.MaxTokens != 100 || *p.Seed != 7 || ask.Timeout != 1500*time.Millisecond || ask.Name != "big" {
		t.Errorf("prompt %+v, ask %v", p, ask)
	}
	// browser.open is not registered: the agent runs without it.
	if len(p.Tools) != 2 || p.Tools[0].Name != tools.CallAgent || !strings.HasSuffix(p.Tools[0].Description, "You may call: helper, archive.") || p.Tools[1].Name != "text.echo" {
		t.Errorf("tools %+v", p.Tools)
	}
}

func TestToolCallsOfOneCompletionRunTogether(t *testing.T) {
	f := newLoopFixture(t, toolCompletion(`text.echo {"text": "a"}`, `call_agent {"agent_id":"helper","message":"b"}`, `text.echo {"text":"c"}`), textCompletion("done"))
	turn := compileTOML(t, "name = \"planner\"\ntools = [\"call_agent\", \"text.echo\"]\nlimits.tool_timeout_ms = 2000\nlimits.call_timeout_ms = 3000").Begin(begin("go"))
	first, _ := turn.Next(nil)
	second, err := turn.Next([]actor.Answer{f.answer(context.Background(), first.Asks[0])})
	if err != nil || len(second.Asks) != 3 {
		t.Fatalf("%+v, %v", second, err)
	}
	for i, want := range []actor.Duration{2 * time.Second, 3 * time.Second, 2 * time.Second} {
		if second.Asks[i].Timeout != want {
			t.Errorf("ask %d: %v", i, second.Asks[i])
		}
	}
	if got := string(second.Asks[0].Parts[0].Bytes); got != `{"text":"a"}` {
		t.Errorf("input %s", got)
	}
	// The results are in the order of the calls.
	third, err := turn.Next([]actor.Answer{text("A"), text("B"), {Parts: actor.Text("C"), Warnings: []string{"half of it"}}})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := upstream.DecodePrompt(third.Asks[0].Body)
	want := []upstream.Message{{Role: upstream.Tool, Text: "A", CallID: "id0"}, {Role: upstream.Tool, Text: "B", CallID: "id1"}, {Role: upstream.Tool, Text: "C\nwarning: half of it", CallID: "id2"}}
	if got := p.Messages[3:]; !reflect.DeepEqual(got, want) {
		t.Errorf("messages %+v", got)
	}
}

func TestFailedToolCallIsReturnedToModel(t *testing.T) {
	const agent = "name = \"planner\"\ntools = [\"call_agent\", \"text.echo\", \"browser.open\"]\nagents = [\"helper\", \"ghost\"]"
	for _, c := range []struct {
		call, want string
		issued     int // number of issued asks
	}{
		{`fly {}`, `error call_rejected: AgentCallRejected: planner may not use a tool "fly": it has call_agent, text.echo, browser.open`, 0},
		{`troupe.announce {"items":[]}`, `error call_rejected: AgentCallRejected: planner may not use a tool "troupe.announce"`, 0},
		{`browser.open {}`, `error agent_not_found: AgentNotFound: no tool is named "browser.open"`, 1},
		{`call_agent {"agent_id":"ghost","message":"hi"}`, `error agent_not_found: AgentNotFound: no agent is named ghost`, 1},
		{`call_agent {"agent_id":"oracle/s-1","message":"hi"}`, `error call_rejected: AgentCallRejected: planner may not call "oracle/s-1": it may call helper, ghost`, 0},
		{"call_agent \t\n{\"agent_id\":\"oracle\",\"message\":\"hi\"}", `error call_rejected: AgentCallRejected: planner may not call "oracle": it may call helper, ghost`, 0},
		{"call_agent \u00a0{\"agent_id\":\"oracle\",\"message\":\"hi\"}", `error invalid_request: InvalidInput: call_agent:`, 1},
		{"call_agent {\"agent_id\":\"oracle\",\"message\":\"hi\"}\u2028", `error invalid_request: InvalidInput: call_agent:`, 1},
		{"call_agent {\"agent_id\":\"helper\",\"agent_id\":\"oracle\",\"message\":\"hi\"}", `error invalid_request: InvalidInput: call_agent:`, 1},
		{`call_agent {"agent_id":"helper"}`, `error invalid_request: InvalidInput: call_agent:`, 1},
		{`call_agent {"agent_id":"helper","message":`, `error invalid_request: InvalidInput: call_agent:`, 1},
		{`call_agent ["helper"]`, `error invalid_request: InvalidInput: call_agent:`, 1},
		{`text.echo {"text":7}`, `error invalid_request: InvalidInput: text.echo: text:`, 1},
		{`text.echo `, `error invalid_request: InvalidInput: text.echo:`, 1},
	} {
		f := newLoopFixture(t, toolCompletion(c.call), textCompletion("done without it"))
		out := f.execute(compileTOML(t, agent), "go")
		if out.Status != actor.Succeeded || actor.TextOf(out.Parts) != "done without it" {
			t.Errorf("%s: %+v", c.call, out)
			continue
		}
		if got := f.toolResults(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: tool result %q, want %q", c.call, got, c.want)
		}
		if got := len(f.asks) - len(f.prompts); got != c.issued {
			t.Errorf("%s: %d asks issued, want %d", c.call, got, c.issued)
		}
		// With on_failure = "fail_run" the run fails instead.
		f = newLoopFixture(t, toolCompletion(c.call), textCompletion("done without it"))
		if out := f.execute(compileTOML(t, agent+"\non_failure = \"fail_run\""), "go"); out.Refusal == nil || len(f.prompts) != 1 {
			t.Errorf("%s: fail_run: %+v", c.call, out)
		}
	}
}

func TestToolResultsKeepCallOrder(t *testing.T) {
	f := newLoopFixture(t, toolCompletion(`fly {}`, `text.echo {"text":"a"}`, `fly {"to":"moon"}`, `text.echo {"text":"b"}`), textCompletion("done"))
	f.execute(compileTOML(t, "name = \"a\"\ntools = [\"text.echo\"]"), "go")
	got := strings.Split(f.toolResults(), "\n")
	if len(got) != 4 || !strings.HasPrefix(got[0], "error call_rejected") || got[1] != `{"text":"a"}` || !strings.HasPrefix(got[2], "error call_rejected") || got[3] != `{"text":"b"}` {
		t.Errorf("tool results %q", got)
	}
}

func TestCallAgentNotOfferedWithoutTargets(t *testing.T) {
	f := newLoopFixture(t, textCompletion("done"))
	f.execute(compileTOML(t, "name = \"a\"\nagents = []"), "go")
	if len(f.prompts[0].Tools) != 0 {
		t.Errorf("offered %+v", f.prompts[0].Tools)
	}
}

// A tool that the node lacks does not hide the tools after it.
func TestUnknownToolIsNotOffered(t *testing.T) {
	f := newLoopFixture(t, textCompletion("done"))
	f.execute(compileTOML(t, "name = \"a\"\ntools = [\"absent.tool\", \"text.echo\"]"), "go")
	var offered []string
	for _, tool := range f.prompts[0].Tools {
		offered = append(offered, tool.Name)
	}
	if !slices.Contains(offered, "text.echo") || slices.Contains(offered, "absent.tool") {
		t.Errorf("offered %q", offered)
	}
}

// TestDeclaredToolIsSpelledForModels shows that models see and use a spelling without dots,
// and that the call has the real name.
func TestDeclaredToolIsSpelledForModels(t *testing.T) {
	spec, err := agents.ReadTOML("name = \"a\"\ntools = [\"weather.get\", \"text.echo\", \"gone.tool\"]\n")
	if err != nil {
		t.Fatal(err)
	}
	compile := func(declared ...tools.Declared) actor.Behavior {
		registry, err := testTools(t).With(declared, nil)
		if err != nil {
			t.Fatal(err)
		}
		def, err := agents.Compile(spec, registry)
		if err != nil {
			t.Fatal(err)
		}
		return def.Behavior
	}
	weather := tools.Declared{Name: "weather.get", Description: "Current weather.", URL: "http://h"}
	for _, c := range []struct{ called, planned string }{
		{"weather__get", "weather.get"},
		{"weather.get", "weather.get"},
		{"weather_get", ""},
		{"gone__tool", "gone.tool"}, // the registry answers that there is none
		{"unknown__tool", ""},
	} {
		f := newLoopFixture(t, toolCompletion(c.called+" {}"), textCompletion("done"))
		f.execute(compile(weather), "hello")
		var offered []string
		for _, tool := range f.prompts[0].Tools {
			offered = append(offered, tool.Name)
		}
		if got := strings.Join(offered, " "); got != "weather__get text.echo" {
			t.Errorf("offered: %s", got)
		}
		planned := ""
		if len(f.asks) == 3 {
			planned = f.asks[1].Name
		}
		if planned != c.planned {
			t.Errorf("a call of %s is planned as %q, want %q", c.called, planned, c.planned)
		}
		messages := f.prompts[1].Messages
		if calls := messages[len(messages)-2].Calls; calls[0].Name != c.called {
			t.Errorf("%s is repeated to the model as %s", c.called, calls[0].Name)
		}
		if got := f.toolResults(); c.planned == "" && !strings.Contains(got, fmt.Sprintf("a may not use a tool %q: it has weather.get, text.echo, gone.tool", c.called)) {
			t.Errorf("%s: got %s", c.called, got)
		}
	}
	f := newLoopFixture(t)
	f.execute(compile(weather), "use weather.get {}")
	if len(f.asks) < 2 || f.asks[1].Name != "weather.get" {
		t.Errorf("the scripted model does not use the tool: %v", f.asks)
	}
}

func TestModelAskPartsAreTruncated(t *testing.T) {
	f := newLoopFixture(t)
	f.execute(compileTOML(t, `name = "a"`), strings.Repeat("long ", 10_000))
	if n := actor.SizeOf(f.asks[0].Parts); n < 500 || n > 1<<10 {
		t.Errorf("the ask has parts of %d bytes, want 500 to 1024", n)
	}
}

func TestCompileMapsSpecToDefinition(t *testing.T) {
	for text, want := range map[string]actor.Definition{
		`name = "a"`: {Kind: actor.Declared, Requests: []string{}, Transcript: 100, Sends: []string{}},
		"name = \"a\"\ndescription = \"x\"\ndurability = \"none\"\nturns = \"interleaved\"\nrecursion = \"by_actor\"": {Kind: actor.Declared, Requests: []string{}, Doc: "x", Sends: []string{},
			Durability: actor.Volatile, Turns: actor.Interleaved, Recursion: actor.ByActor},
		"name = \"a\"\nendpoint = \"http://127.0.0.1:9\"\nmax_active = 3\ndefault_session = \"main\"": {Kind: actor.External, Transcript: 50, MaxActive: 3, OneSession: true, Target: upstream.Target{URL: "http://127.0.0.1:9", Concurrency: 64}.Encode()},
		"name = \"a\"\ntranscript = \"all\"":                          {Kind: actor.Declared, Requests: []string{}, Transcript: actor.TranscriptAll, Sends: []string{}},
		"name = \"a\"\ntools = [\"agent_call\"]\nskills = [\"look\"]": {Kind: actor.Declared, Requests: []string{}, Transcript: 100, Callees: []string{}, Skills: []string{"look"}},
		"name = \"a\"\ntools = [\"agent_call\"]\nagents = [\"b\"]":    {Kind: actor.Declared, Requests: []string{}, Transcript: 100, Callees: []string{}, Sends: []string{"b"}},
	} {
		spec, err := agents.ReadTOML(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := agents.Compile(spec, testTools(t))
		want.Name, want.Title, want.Hash, want.Spec = "a", "a", spec.Hash(), spec.Encode()
		got.Behavior = nil
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	open, err := agents.ReadTOML(`name = "a"`)
	if err != nil {
		t.Fatal(err)
	}
	open.Tools = nil // Compile MUST NOT fill in defaults: they may change
	for _, bad := range []agents.Spec{open, {}, {ID: "a"}, {ID: "a", Name: "a", Kind: agents.KindDeclared}, {ID: "a", Name: "a", Kind: agents.KindExternal, Endpoint: "x"}} {
		if _, err := agents.Compile(bad, testTools(t)); err == nil {
			t.Errorf("Compile(%+v): want an error", bad)
		}
	}
}

// TestReplayedTextsAreStable checks the texts that agents add to prompts themselves.
// An open turn replays only if its prompts equal the recorded prompts. A store of an
// earlier version therefore depends on each byte.
func TestReplayedTextsAreStable(t *testing.T) {
	const echo = `text.echo {"text":"x"}`
	for _, c := range []struct{ agent, calls, want string }{
		{`name = "a"`, `fly {}`, `a may not use a tool "fly": it has call_agent`},
		{"name = \"a\"\ntools = []", `fly {}`, `a may not use a tool "fly": it has none`},
		{"name = \"a\"\nagents = [\"b\", \"c\"]", `call_agent {"agent_id":"d","message":"hi"}`, `a may not call "d": it may call b, c`},
		{"name = \"a\"\nagents = []", `call_agent {"agent_id":"d","message":"hi"}`, `a may not call "d": it may call nobody`},
		{"name = \"a\"\ntools = [\"text.echo\"]", echo + "\n" + echo + "\n" + echo, `text.echo was asked for 3 times with the same input: it will not say anything else`},
	} {
		var script []upstream.Completion
		for call := range strings.SplitSeq(c.calls, "\n") {
			script = append(script, toolCompletion(call))
		}
		f := newLoopFixture(t, append(script, textCompletion("done"))...)
		f.execute(compileTOML(t, c.agent), "go")
		last := f.prompts[len(f.prompts)-1].Messages
		if got, want := last[len(last)-1].Text, "error call_rejected: AgentCallRejected: "+c.want; got != want {
			t.Errorf("%s: text %q, want %q", c.calls, got, want)
		}
	}
}

func TestRetryableRefusalNamesRetryDelay(t *testing.T) {
	turn := compileTOML(t, `name = "planner"`).Begin(begin("go"))
	_, _ = turn.Next(nil)
	_, _ = turn.Next([]actor.Answer{completionAnswer(toolCompletion(`call_agent {"agent_id":"helper","message":"hi"}`))})
	action, err := turn.Next([]actor.Answer{{Refusal: actor.RefuseBusy(actor.ScopeCallee, 1500*time.Millisecond, "helper/s-1 is full")}})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := upstream.DecodePrompt(action.Asks[0].Body)
	if got := p.Messages[3].Text; got != "error agent_busy: AgentBusy: helper/s-1 is full (it may be tried again after 1.5s)" {
		t.Errorf("tool result %q", got)
	}
}

func TestOutcomeByFinishReason(t *testing.T) {
	for _, c := range []struct {
		completion upstream.Completion
		status     actor.Status
		reason     actor.Reason
		want       string
	}{
		{textCompletion("all of it"), actor.Succeeded, 0, ""},
		{upstream.Completion{Text: "all of it", Finish: upstream.FinishAnother}, actor.Succeeded, 0, ""},
		{upstream.Completion{Text: "a part", Finish: upstream.FinishLength}, actor.Partial, 0, "reached its token limit"},
		{upstream.Completion{Text: "a part", Finish: upstream.FinishFilter}, actor.Partial, 0, "filtered a part of it"},
		{upstream.Completion{Text: "a part"}, actor.Partial, 0, "stopped early"},
		{upstream.Completion{Finish: upstream.FinishLength}, actor.Failed, actor.Unavailable, "before any text"},
		{upstream.Completion{Finish: upstream.FinishFilter}, actor.Failed, actor.Rejected, "content_filter"},
		{upstream.Completion{}, actor.Failed, actor.Unavailable, "before any text"},
	} {
		for name, b := range map[string]actor.Behavior{"declared": compileTOML(t, `name = "a"`), "external": compileTOML(t, "name = \"a\"\nendpoint = \"http://127.0.0.1:9\"")} {
			actions, err := agents.Replay(b, begin("go"), [][]actor.Answer{{completionAnswer(c.completion)}})
			if err != nil || len(actions) != 2 {
				t.Fatalf("%s %+v: %v", name, c.completion, err)
			}
			out := actions[1].Done
			message := strings.Join(out.Warnings, ";")
			if out.Refusal != nil {
				message = out.Refusal.Detail
			}
			if out.Status != c.status || !strings.Contains(message, c.want) || (c.reason != 0) != (out.Refusal != nil) || out.Refusal != nil && out.Refusal.Reason != c.reason {
				t.Errorf("%s %+v ends with %+v", name, c.completion, out)
			}
		}
	}
}

func TestEmptyCompletionIsRefused(t *testing.T) {
	f := newLoopFixture(t, textCompletion(""))
	if out := f.execute(compileTOML(t, `name = "a"`), "go"); out.Refusal == nil || out.Refusal.Reason != actor.Unavailable || !strings.Contains(out.Refusal.Detail, "empty answer") {
		t.Errorf("%+v", out)
	}
	// For an external agent an empty answer is valid.
	actions, err := agents.Replay(compileTOML(t, "name = \"a\"\nendpoint = \"http://127.0.0.1:9\""), begin("go"), [][]actor.Answer{{completionAnswer(textCompletion(""))}})
	if err != nil || actions[1].Done.Status != actor.Succeeded {
		t.Errorf("%+v, %v", actions, err)
	}
}

// A refusal after a performed tool call would invite a client to repeat the call.
func TestEmptyCompletionAfterToolCallIsAnAnswer(t *testing.T) {
	for _, c := range []struct {
		before string
		last   upstream.Completion
		status actor.Status
		want   string
	}{
		{"", textCompletion(""), actor.Succeeded, ""},
		{"I pay.", textCompletion(""), actor.Succeeded, "I pay."},
		{"I pay.", textCompletion("Paid."), actor.Succeeded, "Paid."},
		{"I pay.", upstream.Completion{Finish: upstream.FinishCalls}, actor.Succeeded, "I pay."}, // without calls
		{"I pay.", upstream.Completion{Finish: upstream.FinishLength}, actor.Partial, "I pay."},
		{"I pay.", upstream.Completion{Finish: upstream.FinishFilter}, actor.Partial, "I pay."},
		{"", upstream.Completion{Finish: upstream.FinishLength}, actor.Partial, ""},
		{"", upstream.Completion{Finish: upstream.FinishFilter}, actor.Partial, ""},
	} {
		first := toolCompletion(`text.echo {"text":"a"}`)
		first.Text = c.before
		out := newLoopFixture(t, first, c.last).execute(compileTOML(t, "name = \"a\"\ntools = [\"text.echo\"]"), "go")
		if out.Status != c.status || out.Refusal != nil || actor.TextOf(out.Parts) != c.want || (c.status == actor.Partial) != (len(out.Warnings) > 0) {
			t.Errorf("%q, then %+v: ends with %+v", c.before, c.last, out)
		}
	}
	// No tool was performed: the model may be asked again.
	out := newLoopFixture(t, toolCompletion(`no.such {}`), textCompletion("")).execute(compileTOML(t, `name = "a"`), "go")
	if out.Refusal == nil || out.Refusal.Reason != actor.Unavailable {
		t.Errorf("after a refused call: %+v", out)
	}
}

// Thinking models refuse a prompt that lacks what they have sent with their tool calls.
func TestReasoningGoesBackWithinTheTurn(t *testing.T) {
	first := toolCompletion(`text.echo {"text":"a"}`)
	first.Kept = `{"reasoning_content":"Hm"}`
	first.Calls[0].Kept = `{"extra_content":{"google":{"thought_signature":"c2ln"}}}`
	f := newLoopFixture(t, first, textCompletion("done"))
	f.execute(compileTOML(t, "name = \"a\"\ntools = [\"text.echo\"]"), "go") // replays the turn from its answers as well
	prompt := f.prompts[1]
	if m := prompt.Messages[2]; m.Kept != first.Kept || len(m.Calls) != 1 || m.Calls[0].Kept != first.Calls[0].Kept {
		t.Errorf("got %+v", m)
	}
	request, refusal := upstream.Model{URL: "http://127.0.0.1:9"}.Request(prompt)
	if refusal != nil || !strings.Contains(string(request.Body), `"reasoning_content":"Hm"`) || !strings.Contains(string(request.Body), `"extra_content":{"google":{"thought_signature":"c2ln"}}}`) {
		t.Errorf("%s, %v", request.Body, refusal)
	}
}

func TestFailedModelFailsRun(t *testing.T) {
	for _, answer := range []actor.Answer{{Refusal: actor.Refuse(actor.Busy, "no quota")}, {}, text("no completion"), {Parts: append(completionAnswer(textCompletion("a")).Parts, completionAnswer(textCompletion("b")).Parts...)},
		completionAnswer(upstream.Completion{Finish: upstream.FinishCalls, Calls: []upstream.ToolCall{{ID: "x"}}}),
		completionAnswer(upstream.Completion{Finish: upstream.FinishCalls, Calls: []upstream.ToolCall{{ID: "x", Name: strings.Repeat("n", 500)}}})} {
		actions, err := agents.Replay(compileTOML(t, `name = "a"`), begin("go"), [][]actor.Answer{{answer}})
		if err != nil || actions[1].Done == nil || actions[1].Done.Refusal == nil {
			t.Fatalf("%+v: %+v, %v", answer, actions, err)
		}
		if answer.Refusal != nil && actions[1].Done.Refusal.Reason != actor.Busy {
			t.Errorf("%+v", actions[1].Done.Refusal)
		}
	}
}

func TestDuplicateToolCallIDsAreReplaced(t *testing.T) {
	f := newLoopFixture(t, toolCompletion(`text.echo {"text":"a"}`), toolCompletion(`text.echo {"text":"b"}`), toolCompletion(`text.echo {"text":"c"}`), textCompletion("done"))
	f.execute(compileTOML(t, "name = \"a\"\ntools = [\"text.echo\"]"), "go")
	var ids []string
	for _, m := range f.prompts[3].Messages {
		for _, c := range m.Calls {
			ids = append(ids, c.ID)
		}
	}
	if len(ids) != 3 || ids[0] != "id0" || len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 3 {
		t.Errorf("ids %v", ids)
	}
}

func TestExternalAgentMakesOneInvocation(t *testing.T) {
	for _, c := range []struct {
		more       string
		idempotent bool
		timeout    time.Duration
		target     upstream.Target
	}{
		{"", true, 0, upstream.Target{URL: "http://127.0.0.1:9001", Concurrency: upstream.ConcurrencyDefault}},
		{"retry = \"never\"", false, 0, upstream.Target{URL: "http://127.0.0.1:9001", Concurrency: upstream.ConcurrencyDefault}},
		{"retry = \"safe\"\nconcurrency = 2\nauth.env = \"TROUPE_AUTH_X\"\nlimits.invoke_timeout_ms = 1500", true, 1500 * time.Millisecond,
			upstream.Target{URL: "http://127.0.0.1:9001", Concurrency: 2, AuthEnv: "TROUPE_AUTH_X", Safe: true}},
	} {
		turn := compileTOML(t, "name = \"pythia\"\nendpoint = \"http://127.0.0.1:9001\"\n"+c.more).Begin(begin("will it rain?"))
		action, err := turn.Next(nil)
		if err != nil || len(action.Asks) != 1 {
			t.Fatalf("%+v, %v", action, err)
		}
		ask := action.Asks[0]
		target, err := upstream.DecodeTarget(ask.Parts[0].Bytes)
		if err != nil || target != c.target || ask.Kind != actor.AskInvoke || ask.Name != "pythia" || ask.Idempotent != c.idempotent || ask.Timeout != c.timeout {
			t.Errorf("%v to %+v, %v", ask, target, err)
		}
		action, err = turn.Next([]actor.Answer{completionAnswer(textCompletion("it will"))})
		if err != nil || action.Done == nil || actor.TextOf(action.Done.Parts) != "it will" {
			t.Errorf("%+v, %v", action, err)
		}
	}
	actions, err := agents.Replay(compileTOML(t, "name = \"a\"\nendpoint = \"http://127.0.0.1:9\""), begin("go"), [][]actor.Answer{{{Refusal: actor.Refuse(actor.Unknown, "the line broke")}}})
	if err != nil || actions[1].Done.Refusal.Reason != actor.Unknown {
		t.Errorf("%+v, %v", actions, err)
	}
}

// For any answers of models and tools, a turn ends within its limits, and a replay
// makes the same actions.
func TestAnyConversationEndsAndReplays(t *testing.T) {
	call := rapid.SampledFrom([]string{`fly {}`, `text.echo {"text":"a"}`, `text.echo {"text":"b"}`, `text.echo {`, `text.echo null`, `call_agent {"agent_id":"helper","message":"m"}`,
		`call_agent {"agent_id":"ghost","message":"m"}`, `call_agent {"agent_id":"oracle","message":"m"}`, `browser.open {}`, `text.echo {"text":1e999}`})
	completion := rapid.Custom(func(t *rapid.T) upstream.Completion {
		c := toolCompletion(rapid.SliceOfN(call, 0, 4).Draw(t, "calls")...)
		c.Text = rapid.SampledFrom([]string{"", "well", "\x00\"<"}).Draw(t, "text")
		c.Finish = upstream.Finish(rapid.IntRange(0, 5).Draw(t, "finish"))
		return c
	})
	spec := rapid.SampledFrom([]string{"", "on_failure = \"fail_run\"\n", "agents = [\"helper\"]\n", "agents = []\n", "limits.steps = 2\n"})
	rapid.Check(t, func(r *rapid.T) {
		f := &loopFixture{t: r, tools: testTools(t), script: rapid.SliceOfN(completion, 0, 12).Draw(r, "script"), agents: map[string]string{"helper": "ok"}}
		b := compileTOML(t, "name = \"a\"\ntools = [\"call_agent\", \"text.echo\", \"browser.open\"]\n"+spec.Draw(r, "spec"))
		out := f.execute(b, rapid.String().Draw(r, "message"))
		if (out.Refusal != nil) != (out.Status == actor.Failed) || len(f.prompts) > agents.StepsMax {
			r.Fatalf("%+v after %d prompts", out, len(f.prompts))
		}
		for _, ask := range f.asks {
			if ask.Check(actor.MessageBytesMax) != nil || ask.Kind == actor.AskModel && actor.SizeOf(ask.Parts) > 1<<10 {
				r.Fatalf("invalid ask %v of %d bytes", ask, actor.SizeOf(ask.Parts))
			}
		}
	})
}

func BenchmarkModelLoop(b *testing.B) {
	behavior := compileTOML(b, `name = "coordinator"`)
	answers := [][]actor.Answer{{completionAnswer(toolCompletion(`call_agent {"agent_id":"helper","message":"b"}`))}, {text("x")}, {completionAnswer(textCompletion("done"))}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := agents.Replay(behavior, begin("go"), answers); err != nil {
			b.Fatal(err)
		}
	}
}
