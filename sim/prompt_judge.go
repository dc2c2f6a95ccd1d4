// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// wirePrompt is the body of a prompt, decoded without the program's own types. The agent
// encodes it once, and the node encodes it again as a request.
type wirePrompt struct {
	Model    string        `json:"model"`
	Messages []wireMessage `json:"messages"`
	Tools    []struct {
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
	MaxTokens           int      `json:"max_tokens"`
	MaxCompletionTokens int      `json:"max_completion_tokens"`
	Temperature         *float64 `json:"temperature"`
	Seed                *int64   `json:"seed"`
	Stream              bool     `json:"stream"`
	WithUsage           struct {
		Include bool `json:"include_usage"`
	} `json:"stream_options"`
}

// wireMessage is one message of a prompt.
type wireMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	CallID  string `json:"tool_call_id"`
	Calls   []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// checkPromptBytes compares the request of a model with the prompt as the agent encoded
// it, and with the spec of the agent.
func (s *upstreamConn) checkPromptBytes(sent *wirePrompt) {
	var asked wirePrompt
	if json.Unmarshal(s.exchange.body, &asked) != nil {
		s.checkWire("a body", "other bytes", "JSON")
		return
	}
	s.checkWire("the parameters", sent.parameters(), asked.parameters())
	asked.Messages = turns(asked.Messages, func(m *wireMessage) (string, *string, bool) {
		return m.Role, &m.Content, m.CallID != "" || len(m.Calls) > 0
	}, wireMessage{Role: "user", Content: startOfConversation})
	s.checkWire("the number of messages", fmt.Sprint(len(sent.Messages)), fmt.Sprint(len(asked.Messages)))
	for i := range min(len(sent.Messages), len(asked.Messages)) {
		got, want := &sent.Messages[i], &asked.Messages[i]
		if want.CallID != "" && want.Content == "" {
			want.Content = "(empty)"
		}
		if got.Role != want.Role || got.Content != want.Content || got.CallID != want.CallID || len(got.Calls) != len(want.Calls) {
			s.checkWire(fmt.Sprintf("message %d", i), fmt.Sprint(got), fmt.Sprint(want))
		}
		for j := range min(len(got.Calls), len(want.Calls)) {
			got, want := &got.Calls[j], &want.Calls[j]
			s.checkWire("a call", got.ID+" "+got.Function.Name, want.ID+" "+wireName(want.Function.Name))
			if isObject(want.Function.Arguments) {
				s.checkWire("the arguments of a call", got.Function.Arguments, strings.TrimSpace(want.Function.Arguments))
			}
		}
	}
	for i := range min(len(sent.Tools), len(asked.Tools)) {
		got, want := &sent.Tools[i].Function, &asked.Tools[i].Function
		schema := string(want.Parameters)
		if !strings.Contains(schema, `"properties":`) {
			schema = strings.TrimSuffix(schema, "}") + `,"properties":{}}`
		}
		if string(got.Parameters) != schema {
			s.checkWire("the schema of "+got.Name, string(got.Parameters), schema)
		}
	}
	if spec := s.exchange.n.w.plan.Specs[s.exchange.call.To.Agent]; spec != nil {
		s.checkSpec(sent, spec)
		s.checkResults(sent)
	}
}

// startOfConversation is the user's message before an answer that has none.
const startOfConversation = "(start of the conversation)"

// turns returns the messages as a model expects them: the first one behind the instructions is the
// user's, and no two neighbours have one role, apart from calls and their results.
func turns[M any](asked []M, read func(*M) (role string, text *string, apart bool), start M) (all []M) {
	former, formerApart := "", false
	for i, m := range asked {
		role, text, apart := read(&m)
		if role == "assistant" && (former == "" || former == "system" && len(all) == 1) {
			all, former = append(all, start), "user"
		}
		if i > 0 && role == former && !formerApart && role != "tool" {
			_, before, _ := read(&all[len(all)-1])
			*text = strings.Join(slices.DeleteFunc([]string{*before, *text}, func(s string) bool { return s == "" }), "\n\n")
			all = all[:len(all)-1]
		}
		all, former, formerApart = append(all, m), role, apart
	}
	return all
}

func (p *wirePrompt) parameters() string {
	return fmt.Sprint(number(p.Temperature), " ", number(p.Seed), " ", p.MaxTokens+p.MaxCompletionTokens)
}

// checkSpec compares a request with the spec of its agent.
func (s *upstreamConn) checkSpec(sent *wirePrompt, spec map[string]any) {
	want := "default default 0"
	if p, ok := spec["parameters"].(map[string]any); ok {
		want = fmt.Sprint(p["temperature"], " ", p["seed"], " ", p["max_tokens"])
	}
	s.checkWire("the parameters of the spec", sent.parameters(), want)
	s.checkWire("the model of the spec", sent.Model, fmt.Sprint(spec["model"]))
	if prompt, ok := spec["prompt"].(string); ok && len(sent.Messages) > 0 {
		first, _, _ := strings.Cut(sent.Messages[0].Content+"\n\n", prompt+"\n\n") // joined with another of its role
		s.checkWire("the prompt of the spec", sent.Messages[0].Role+" "+first, "system ")
	}
}

// drawModelSettings draws the settings of a declared agent that reach its model.
func drawModelSettings(c Entropy, spec map[string]any) {
	if c.Int(2) == 1 {
		spec["parameters"] = map[string]any{"temperature": [...]float64{0.5, 0, 2}[c.Int(3)], "max_tokens": 1 + c.Int(4000), "seed": c.Int(3) - 1}
	}
	if c.Int(2) == 1 {
		spec["prompt"] = fmt.Sprintf("You are %s.\nObey the %d rules.", spec["agent_id"], c.Int(10))
	}
	if c.Int(2) == 1 {
		limits := spec["limits"].(map[string]any)
		limits["model_timeout_ms"], limits["tool_timeout_ms"] = 2_000+c.Int(20_000), 1_000+c.Int(20_000)
	}
}

// drawRetrySettings draws how invocations of an external agent are repeated.
func drawRetrySettings(c Entropy, spec map[string]any) {
	if c.Int(2) == 1 {
		delay := 1 + c.Int(500)
		spec["limits"] = map[string]any{"invoke_timeout_ms": 2_000 + c.Int(20_000), "retry_attempts": 1 + c.Int(6), "retry_delay_ms": delay,
			"retry_delay_max_ms": delay + c.Int(2_000), "retry_time_ms": 1_000 + c.Int(20_000), "retry_jitter": c.Int(2) == 1}
	}
}

// checkRetryPolicy checks that the invocations of an agent are repeated as its spec states.
func (w *Simulation) checkRetryPolicy(agent string, got upstream.RetryPolicy) {
	limits, ok := w.plan.Specs[agent]["limits"].(map[string]any)
	if !ok {
		return
	}
	time := func(name string) actor.Duration { return w.specTime(agent, name, 0) }
	want := upstream.RetryPolicy{Tries: limits["retry_attempts"].(int), Delay: time("retry_delay_ms"), DelayMax: time("retry_delay_max_ms"), Time: time("retry_time_ms"),
		Exact: !limits["retry_jitter"].(bool) || w.plan.Patience.Retry.Exact}
	if got != want {
		w.fail(RequestAsAsked, fmt.Sprintf("invocations of %s are repeated by %+v, want %+v", agent, got, want))
	}
}

// specTime returns a timeout of an agent, or the documented default.
func (w *Simulation) specTime(agent, name string, otherwise actor.Duration) actor.Duration {
	if limits, ok := w.plan.Specs[agent]["limits"].(map[string]any); ok {
		if ms, ok := limits[name].(int); ok {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return otherwise
}

// checkAnswerTime checks the time that a model or an external agent has for its answer.
// A later attempt may have more time: a run that is held extends its open requests.
func (n *node) checkAnswerTime(x *exchange, left actor.Duration, name string, otherwise actor.Duration) {
	to := x.call.To
	if limit := n.w.specTime(to.Agent, name, otherwise); left > limit && x.attempt == 1 && n.w.team == nil {
		n.w.fail(RequestAsAsked, fmt.Sprintf("an upstream has %v for its answer to %s, want at most %v", left, to, limit))
	}
}

// checkToolTime checks the time that a tool has for its result.
func (n *node) checkToolTime(op *runtime.Tool) {
	agent := op.Context.AgentID
	if limit := n.w.specTime(agent, "tool_timeout_ms", time.Minute); n.w.plan.Specs[agent] != nil && op.Left > limit {
		n.w.fail(RequestAsAsked, fmt.Sprintf("tool %s has %v for its result to %s, want at most %v", op.Name, op.Left, agent, limit))
	}
}
