// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
)

// toolModel is a provider whose model asks for the tool calls of its script, one
// completion after the other, and then answers "done". It records the requests.
type toolModel struct {
	*httptest.Server
	mu       sync.Mutex
	script   [][]string // tool calls of each completion: name, space, arguments
	requests []modelRequest
}

// modelRequest is the part of a request that tests read.
type modelRequest struct {
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name        string `json:"name"`
			Description string `json:"description"`
		} `json:"function"`
	} `json:"tools"`
}

// tool returns the description of a tool, and whether it is offered.
func (r modelRequest) tool(name string) (string, bool) {
	for _, t := range r.Tools {
		if t.Function.Name == name {
			return t.Function.Description, true
		}
	}
	return "", false
}

// last returns the text of the last message.
func (r modelRequest) last() string { return r.Messages[len(r.Messages)-1].Content }

// startToolModel starts a model with a script, and a server with the model "big".
func startToolModel(t *testing.T, script ...[]string) (*toolModel, *server) {
	m := &toolModel{script: script}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.big]\nurl = \""+m.URL+"/v1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return m, startServerWithBuiltins(t, filepath.Join(dir, "data"), "--config", config)
}

func (m *toolModel) serve(w http.ResponseWriter, r *http.Request) {
	var request modelRequest
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	m.requests = append(m.requests, request)
	var calls []string
	if len(m.script) > 0 {
		calls, m.script = m.script[0], m.script[1:]
	}
	m.mu.Unlock()
	type function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	type call struct {
		Index    int      `json:"index"`
		ID       string   `json:"id"`
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	var chunk struct {
		Choices [1]struct {
			Delta struct {
				Content string `json:"content,omitzero"`
				Calls   []call `json:"tool_calls,omitempty"`
			} `json:"delta"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
	}
	c := &chunk.Choices[0]
	c.Delta.Content, c.Finish = "done", "stop"
	if len(calls) > 0 {
		c.Delta.Content, c.Finish = "", "tool_calls"
	}
	for i, text := range calls {
		name, arguments, _ := strings.Cut(text, " ")
		c.Delta.Calls = append(c.Delta.Calls, call{i, "id" + name + string(rune('0'+i)), "function", function{name, arguments}})
	}
	b, _ := json.Marshal(chunk)
	writeEvents(w, "data: "+string(b), "data: [DONE]")
}

// take returns the recorded requests and forgets them.
func (m *toolModel) take() []modelRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.requests
	m.requests = nil
	return all
}

func (m *toolModel) setScript(script ...[]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.script = script
}

// A model asks for a tool that its agent may not use and calls an agent that it may not
// call, alone and beside a permitted call. The run's events show each refusal once.
func TestRefusedToolsAreEvents(t *testing.T) {
	m, s := startToolModel(t)
	s.putAgent(`{"name":"a","model":"big","agents":["helper"]}`)
	s.putAgent(`{"name":"strict","model":"big","on_failure":"fail_run"}`)
	const fly, oracle, helper = `fly {"to":"moon"}`, `call_agent {"agent_id":"oracle","message":"hi"}`, `call_agent {"agent_id":"helper","message":"hi"}`
	const flyRefused = `tool_call_created fly {"to":"moon"} /tool_result fly  a may not use a tool "fly": it has call_agent`
	const oracleRefused = `agent_call_refused oracle  a may not call "oracle": it may call helper`
	for _, c := range []struct {
		agent  string
		script [][]string
		want   string
	}{
		{"a", [][]string{{fly}}, flyRefused},
		{"a", [][]string{{oracle}}, oracleRefused},
		{"a", [][]string{{helper, fly, oracle}}, flyRefused + "/" + oracleRefused},
		{"a", [][]string{{fly}, {helper}, {oracle}}, flyRefused + "/" + oracleRefused},
		{"a", [][]string{{helper}, {helper}, {helper}}, `tool_call_created call_agent {"agent_id":"helper","message":"hi"} /tool_result call_agent  call_agent was asked for 3 times with the same input: it will not say anything else`},
		{"strict", [][]string{{fly}}, strings.ReplaceAll(flyRefused, " a may", " strict may")},
	} {
		m.setScript(c.script...)
		var got []string
		events := s.stream(c.agent, "go", nil)
		for _, e := range events {
			if p := e.Payload; e.Type == "tool_call_created" || e.Type == "tool_result" || e.Type == "agent_call_refused" {
				got = append(got, strings.Join([]string{e.Type, p.Name, p.Text, p.Error.Detail}, " "))
			}
		}
		if text := strings.Join(got, "/"); text != c.want {
			t.Errorf("%q: events\n%s\nwant\n%s", c.script, text, c.want)
		}
		if last, failed := events[len(events)-1].Type, c.agent == "strict"; last != map[bool]string{false: "run_done", true: "run_failed"}[failed] {
			t.Errorf("%q: the run ends with %s", c.script, last)
		}
	}
}
