// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// The priority and the project of a message are those of its run, and the metrics count
// waiting calls by priority.
func TestMessagePriorityAndProject(t *testing.T) {
	s := startServerWithBuiltins(t, t.TempDir()+"/data")
	if code, err := s.request("POST", "/v1/agents", `{"agent_id":"slow","priority":"LOW"}`, "", new(map[string]any)); err != nil || code >= 300 {
		t.Fatalf("create an agent: %d %v", code, err)
	}
	for _, c := range []struct{ agent, fields, priority, project string }{
		{"slow", "", "low", ""},
		{"slow", `,"priority":"high","project_id":"p-1"`, "high", "p-1"},
		{"slow", `,"priority":"NORMAL"`, "normal", ""},
		{"helper", "", "normal", ""},
		{"helper", `,"project_id":"p-2","priority":"low"`, "low", "p-2"},
	} {
		var answer, run struct {
			Run      string `json:"run_id"`
			Priority string `json:"priority"`
			Project  string `json:"project_id"`
		}
		if _, err := s.request("POST", "/v1/agents/"+c.agent+"/messages", `{"content":"say hello"`+c.fields+`}`, "", &answer); err != nil {
			t.Fatal(err)
		}
		if code, err := s.request("GET", "/v1/runs/"+answer.Run, "", "", &run); err != nil || code != http.StatusOK || run.Priority != c.priority || run.Project != c.project {
			t.Errorf("%s%s: got %d %+v %v, want priority %s, project %q", c.agent, c.fields, code, run, err, c.priority, c.project)
		}
		code, out, text := runProgram(t, "runs", "show", answer.Run, "--server", s.url)
		if code != 0 || strings.Contains(out, "priority "+c.priority) != (c.priority != "normal") || c.project != "" && !strings.Contains(out, c.project) {
			t.Errorf("runs show: exit code %d: %s%s", code, out, text)
		}
	}
	for _, fields := range []string{`,"priority":"urgent"`, `,"priority":7`, `,"project_id":"a/b"`} {
		var p struct {
			Code  string `json:"code"`
			Field string `json:"field"`
		}
		code, err := s.request("POST", "/v1/agents/slow/messages", `{"content":"x"`+fields+`}`, "", &p)
		if err != nil || code != http.StatusBadRequest || p.Code != "invalid_request" || !strings.Contains(fields, p.Field) {
			t.Errorf("%s: got %d %+v %v", fields, code, p, err)
		}
	}
	response, err := s.client.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var text strings.Builder
	if err := response.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, priority := range []string{"high", "normal", "low"} {
		if want := fmt.Sprintf(`queued_calls{cell="0",priority="%s"} 0`, priority); !strings.Contains(text.String(), want) {
			t.Errorf("metrics have no %s", want)
		}
	}
}

// The flags of a call set the priority and the project of its run.
func TestCallPriorityAndProject(t *testing.T) {
	s := startServerWithBuiltins(t, t.TempDir()+"/data")
	for _, c := range []struct {
		flags             []string
		priority, project string
	}{
		{nil, "normal", ""},
		{[]string{"--priority", "high"}, "high", ""},
		{[]string{"--priority=low", "--project", "p-1"}, "low", "p-1"},
		{[]string{"--project-id", "p-2"}, "normal", "p-2"},
	} {
		code, out, text := runProgram(t, append([]string{"call", "helper", "hello", "--json", "--server", s.url}, c.flags...)...)
		var answer, run struct {
			Run      string `json:"run_id"`
			Priority string `json:"priority"`
			Project  string `json:"project_id"`
		}
		if err := json.Unmarshal([]byte(out), &answer); err != nil || code != 0 {
			t.Fatalf("%v: exit code %d: %s%s", c.flags, code, out, text)
		}
		if code, err := s.request("GET", "/v1/runs/"+answer.Run, "", "", &run); err != nil || code != http.StatusOK || run.Priority != c.priority || run.Project != c.project {
			t.Errorf("%v: got %d %+v %v, want priority %s, project %q", c.flags, code, run, err, c.priority, c.project)
		}
	}
	for flag, field := range map[string]string{"--priority=urgent": "high, normal or low", "--project=a/b": "project_id"} {
		if code, out, text := runProgram(t, "call", "helper", "x", "--server", s.url, flag); code == 0 || !strings.Contains(text, field) {
			t.Errorf("%s: got exit code %d, %s%s", flag, code, out, text)
		}
	}
}
