// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

func TestDecodeChat(t *testing.T) {
	in, r := DecodeChat([]byte(`{"model":"planner","temperature":0.2,"user":"x","stream":true,"stream_options":{"include_usage":true},"messages":[
		{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
		{"role":"assistant","content":null,"tool_calls":[]},{"role":"assistant","content":"c"},{"role":"user","content":"d"}]}`))
	want := "{planner [{user be brief} {user ab} {assistant c}] d true true}"
	if got := fmt.Sprint(in); r != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, r, want)
	}
	for _, c := range []struct{ body, field, want string }{
		{`[]`, "", "object"},
		{`{"model":"m","model":"m"}`, "model", "duplicate"},
		{`{"messages":[{"role":"user","content":"x"}]}`, "model", "/v1/openai/models"},
		{`{"model":"m"}`, "messages", "missing"},
		{`{"model":"m","messages":[]}`, "messages", "empty"},
		{`{"model":"m","messages":[{"role":"user","content":""}]}`, "messages", "last message is empty"},
		{`{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}]}`, "messages", "last message has the role assistant"},
		{`{"model":"m","messages":[{"role":"boss","content":"x"}]}`, "messages", `role "boss"`},
		{`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "messages", `want "text"`},
		{`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", ChatTextMax+1) + `"}]}`, "messages", "1048577 bytes"},
		{`{"model":"m","n":2,"messages":[{"role":"user","content":"x"}]}`, "n", "want 1"},
		{`{"model":"m","tools":[{}],"messages":[{"role":"user","content":"x"}]}`, "tools", "tools of this server"},
		{`{"model":"m","response_format":{"type":"json_object"},"messages":[{"role":"user","content":"x"}]}`, "response_format", "form of its answer"},
	} {
		if _, r := DecodeChat([]byte(c.body)); r == nil || r.Field != c.field || !strings.Contains(r.Detail, c.want) {
			t.Errorf("%.80s: got %v, want %s of %s", c.body, r, c.want, c.field)
		}
	}
}

func TestChatKeys(t *testing.T) {
	user, assistant := func(text string) ChatText { return ChatText{actor.RoleUser, text} }, func(text string) ChatText { return ChatText{actor.RoleAssistant, text} }
	mine := actor.ID{Tenant: "ann", Agent: "planner"}
	key := NewChatKey(mine, []ChatText{user("a"), assistant("b")})
	if NewChatKey(mine, []ChatText{user("a")}).With(assistant(" b\n")) != key {
		t.Error("blanks around an answer change the key")
	}
	for what, other := range map[string]ChatKey{
		"user":    NewChatKey(actor.ID{Tenant: "bob", Agent: "planner"}, []ChatText{user("a"), assistant("b")}),
		"agent":   NewChatKey(actor.ID{Tenant: "ann", Agent: "helper"}, []ChatText{user("a"), assistant("b")}),
		"role":    NewChatKey(mine, []ChatText{user("a"), user("b")}),
		"text":    NewChatKey(mine, []ChatText{user("a"), assistant("c")}),
		"border":  NewChatKey(mine, []ChatText{user("ab"), assistant("")}),
		"message": NewChatKey(mine, []ChatText{user("a"), assistant("b"), user("c")}),
	} {
		if other == key {
			t.Errorf("another %s has the same key", what)
		}
	}
}

// The text of a stream only grows, and ends with the answer.
func TestChatAnswer(t *testing.T) {
	delta := func(text string) runs.Event { return runs.Event{Type: runs.AgentStreamDelta, Step: 1, Text: text} }
	asks := runs.Event{Type: runs.LLMCallStarted, Step: 1}
	again := runs.Event{Type: runs.Attempt, Step: 1, Attempt: 2, Discards: 1}
	done := func(text string) runs.Event { return runs.Event{Type: runs.RunDone, Text: text} }
	for _, c := range []struct {
		name   string
		events []runs.Event
		want   []string
	}{
		{"streamed", []runs.Event{asks, delta("a"), delta("b"), done("ab")}, []string{"", "a", "b", ""}},
		{"whole", []runs.Event{done("ab")}, []string{"ab"}},
		{"rest", []runs.Event{asks, delta("a"), done("ab")}, []string{"", "a", "b"}},
		{"text before a tool call", []runs.Event{asks, delta("I look."), asks, delta("Found"), delta("."), done("Found.")}, []string{"", "I look.", "", "\n\nFound", ".", ""}},
		{"repeated", []runs.Event{asks, delta("one "), delta("two"), again, delta("one"), delta(" two three"), done("one two three")}, []string{"", "one ", "two", "", "", " three", ""}},
		{"repeated in other words", []runs.Event{asks, delta("one "), delta("two"), again, delta("one "), delta("2"), done("one 2")}, []string{"", "one ", "two", "", "", "\n\none 2", ""}},
		{"shorter in the end", []runs.Event{asks, delta("one two"), done("one")}, []string{"", "one two", "\n\none"}},
		{"another in the end", []runs.Event{asks, delta("one"), done("two")}, []string{"", "one", "\n\ntwo"}},
	} {
		var a ChatAnswer
		for i, e := range c.events {
			e.Seq = uint64(i + 1)
			if got := a.Apply(&e); got != c.want[i] {
				t.Errorf("%s, event %d: got %q, want %q", c.name, i, got, c.want[i])
			}
		}
	}
}

func TestChatFrames(t *testing.T) {
	run, _ := actor.ParseCallID("0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55")
	h, usage := NewChatHead(run, 7, "planner"), actor.Usage{Input: 2, Output: 3, Total: 5}
	const head = `{"id":"chatcmpl-0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55","object":"chat.completion`
	for _, c := range []struct{ got, want string }{
		{string(h.Completion("hi", "stop", usage)), head + `","created":7,"model":"planner","choices":[{"index":0,"message":{"role":"assistant","content":"hi","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`},
		{string(h.Chunk(ChatChunk{Role: "assistant"}, false)), "data: " + head + `.chunk","created":7,"model":"planner","choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}` + "\n\n"},
		{string(h.Chunk(ChatChunk{Text: "a\nb"}, true)), "data: " + head + `.chunk","created":7,"model":"planner","choices":[{"index":0,"delta":{"content":"a\nb"},"finish_reason":null}],"usage":null}` + "\n\n"},
		{string(h.Chunk(ChatChunk{Finish: ChatFinish(actor.Partial)}, false)), "data: " + head + `.chunk","created":7,"model":"planner","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\n"},
		{string(h.UsageChunk(usage)), "data: " + head + `.chunk","created":7,"model":"planner","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}` + "\n\n"},
		{string(ChatEnd), "data: [DONE]\n\n"},
	} {
		if c.got != c.want {
			t.Errorf("got %s\nwant %s", c.got, c.want)
		}
	}
}
