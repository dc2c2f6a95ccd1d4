// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe"
)

// provider is an HTTP server with the API of a model. It calls the offered tool once, then answers in two
// pieces with the result.
type provider struct {
	mu      sync.Mutex
	prompts []map[string]any
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	var prompt map[string]any
	if err = errors.Join(err, json.Unmarshal(b, &prompt)); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.prompts = append(p.prompts, prompt)
	p.mu.Unlock()
	messages := prompt["messages"].([]any)
	last := messages[len(messages)-1].(map[string]any)
	w.Header().Set("Content-Type", "text/event-stream")
	chunk := func(delta map[string]any, finish any) {
		b, _ := json.Marshal(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}})
		fmt.Fprintf(w, "data: %s\n\n", b)
		w.(http.Flusher).Flush()
	}
	if tools, _ := prompt["tools"].([]any); len(tools) > 0 && last["role"] != "tool" {
		name := tools[0].(map[string]any)["function"].(map[string]any)["name"]
		chunk(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "c1", "type": "function", "function": map[string]any{"name": name, "arguments": `{"to":"ada","amount":5}`}}}}, "tool_calls")
	} else {
		chunk(map[string]any{"content": "heard "}, nil)
		chunk(map[string]any{"content": last["content"]}, "stop")
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.prompts)
}

func TestModelIsPromptedWithToolsAndReplayed(t *testing.T) {
	p := &provider{}
	model := httptest.NewServer(p)
	defer model.Close()
	var l ledger
	config := troupe.Config{Data: filepath.Join(t.TempDir(), "data"), Models: map[string]troupe.Model{"big": {URL: model.URL, Temperature: new(float64)}}, Allow: []string{"127.0.0.1"},
		Agents: []troupe.Agent{{Name: "clerk", Tools: []string{"bank.pay"}, Transcript: "all", Func: func(t *troupe.Turn) (string, error) {
			first, err := t.Model(troupe.Prompt{Model: "big", Instructions: "Pay.", MaxTokens: 7})
			if err != nil {
				return "", err
			}
			if _, err := t.Wait("go", time.Minute); err != nil {
				return "", err
			}
			second, err := t.Model(troupe.Prompt{Model: "big", Tools: []string{}, Messages: []troupe.Message{{Role: troupe.RoleAssistant, Text: first}, {Role: troupe.RoleUser, Text: "sure?"}}})
			return first + "; " + second, err
		}}},
		Tools: []troupe.Tool{troupe.NewTool("bank.pay", "Pays.", l.pay, troupe.Policy(troupe.RequireApproval))}}
	s := openWith(t, config)
	reply, err := s.Begin(t.Context(), "clerk", "five to ada", troupe.Session("s"))
	if err != nil {
		t.Fatal(err)
	}
	var w *troupe.Waiting
	if _, err = s.Await(t.Context(), reply.Run); !errors.As(err, &w) || len(w.Approvals) != 1 {
		t.Fatal(err)
	}
	closeServer(t, s)
	s = openWith(t, config)
	if _, err := s.Decide(t.Context(), w.Approvals[0].ID, troupe.Approve, ""); err != nil {
		t.Fatal(err)
	}
	for _, err = s.Await(t.Context(), reply.Run); !errors.As(err, &w) || w.Signal == ""; _, err = s.Await(t.Context(), reply.Run) { // the approved call ends first
		if !errors.As(err, new(*troupe.Waiting)) {
			t.Fatal(err)
		}
	}
	closeServer(t, s)
	s = openWith(t, config)
	if err = s.Signal(t.Context(), w.To, w.Signal, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.Await(t.Context(), reply.Run)
	want := `heard {"agent":"clerk","paid":5,"run":true,"session":"s","user":"local"}; heard sure?`
	if err != nil || r.Text != want || p.count() != 3 || len(l.calls) != 1 {
		t.Errorf("%q, %v; want %q, 3 prompts, 1 payment; got %d and %d", r.Text, err, want, p.count(), len(l.calls))
	}
	first := p.prompts[0]
	if m := first["messages"].([]any); len(m) != 2 || m[0].(map[string]any)["content"] != "Pay." || m[1].(map[string]any)["content"] != "five to ada" || first["max_tokens"] != 7.0 {
		t.Errorf("%v", first)
	}
	// Its prompt begins with an answer, so a model gets a word of the user before it.
	if last := p.prompts[2]; last["tools"] != nil || len(last["messages"].([]any)) != 4 {
		t.Errorf("%v", last)
	}
	deltas := ""
	for _, e := range collect(t, s.Stream(t.Context(), reply.Run)) {
		if e.Type == troupe.EventDelta {
			deltas += e.Text
		}
	}
	if deltas != strings.ReplaceAll(want, "; ", "") {
		t.Errorf("deltas %q", deltas)
	}
}

func TestModelRefusals(t *testing.T) {
	model := httptest.NewServer(&provider{})
	defer model.Close()
	prompts := map[string]troupe.Prompt{
		"model":        {},
		"name":         {Model: "a b"},
		"steps":        {Model: "big", Steps: 26},
		"tokens":       {Model: "big", MaxTokens: -1},
		"messages":     {Model: "big", Messages: []troupe.Message{}},
		"role":         {Model: "big", Messages: []troupe.Message{{Role: "king"}, {Role: troupe.RoleUser, Text: "x"}}},
		"timeout":      {Model: "big", Timeout: -1},
		"temperature":  {Model: "big", Temperature: ptr(3.0)},
		"no model":     {Model: "huge"},
		"failed":       {Model: "big", FailRun: true},
		"budget":       {Model: "big", Steps: 1},
		"returned":     {Model: "big"},
		"not offered":  {Model: "scripted", Messages: []troupe.Message{{Role: troupe.RoleUser, Text: "use gone {}"}}},
		"other agents": {Model: "scripted", Tools: []string{"call_agent"}, Messages: []troupe.Message{{Role: troupe.RoleUser, Text: "ask echo: hello"}}},
	}
	s := openWith(t, troupe.Config{Temporary: true, Models: map[string]troupe.Model{"big": {URL: model.URL}}, Allow: []string{"127.0.0.1"},
		Agents: []troupe.Agent{
			{Name: "a", Tools: []string{"fails"}, Func: func(t *troupe.Turn) (string, error) { return t.Model(prompts[t.Message()]) }},
			{Name: "echo", Func: func(t *troupe.Turn) (string, error) { return "echo " + t.Message(), nil }},
		},
		Tools: []troupe.Tool{troupe.NewTool("fails", "", func(context.Context, map[string]any) (string, error) { return "", errors.New("no power") })}})
	for name, want := range map[string]struct {
		code troupe.Code
		text string
	}{
		"model":       {troupe.CodeInvalid, "Prompt.Model is empty"},
		"name":        {troupe.CodeInvalid, "only letters"},
		"steps":       {troupe.CodeInvalid, "got 26"},
		"tokens":      {troupe.CodeInvalid, "got -1"},
		"messages":    {troupe.CodeInvalid, "last message"},
		"role":        {troupe.CodeInvalid, `got "king"`},
		"timeout":     {troupe.CodeInvalid, "negative"},
		"temperature": {troupe.CodeInvalid, "got 3"},
		"no model":    {troupe.CodeModelNotFound, "huge"},
		"failed":      {troupe.CodeUnavailable, "fails: no power"},
		"budget":      {troupe.CodeBudgetExceeded, "1 prompts"},
	} {
		_, err := s.Call(t.Context(), "a", name)
		if r := wantCode(t, name, err, want.code); !strings.Contains(r.Detail, want.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, want := range map[string]string{"returned": "no power", "not offered": "gone", "other agents": "echo hello"} {
		if r := call(t, s, "a", name); !strings.Contains(r.Text, want) {
			t.Errorf("%s: %q", name, r.Text)
		}
	}
}

func ptr[T any](v T) *T { return &v }
