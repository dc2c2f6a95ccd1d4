// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe"
)

// An agent of a program is asked for a capability by an orchestrator in a file, by another agent, and over HTTP.
func TestCapabilityOfProgram(t *testing.T) {
	files := t.TempDir()
	desk := `name = "desk"
kind = "orchestrator"
prompt = 'on value say {"primary_intent":"value","intent_confidence":1,"workflow":"value","inputs":{"cash_flows":[-1,2]}}'
[workflow.value]
description = "a value"
[[workflow.value.steps]]
title = "Present value"
capability = "ANL_NPV"
`
	if err := os.WriteFile(filepath.Join(files, "desk.toml"), []byte(desk), 0o600); err != nil {
		t.Fatal(err)
	}
	analyst := troupe.Agent{Name: "analyst", Code: "ANL", Provides: `
[[provides]]
code = "ANL_NPV"
description = "Computes a present value."
version = "1.0"
timeout_ms = 15000
input_schema = { type = "object", required = ["cash_flows"] }
output_schema = '''{"type":"object","properties":{"npv":{"type":"number"}},"required":["npv"]}'''
example = { cash_flows = [-1, 2] }
`,
		Func: func(t *troupe.Turn) (string, error) {
			var in struct {
				Capability string `json:"capability_code"`
				Inputs     struct {
					Flows []float64 `json:"cash_flows"`
				} `json:"inputs_json"`
			}
			if err := json.Unmarshal([]byte(t.Message()), &in); err != nil || in.Capability != "ANL_NPV" {
				return "", troupe.Refuse(troupe.CodeInvalid, "want a request: %v", err)
			}
			if len(in.Inputs.Flows) == 3 {
				return `{"npv":"much"}`, nil
			}
			return `{"npv":1.5}`, nil
		}}
	asker := troupe.Agent{Name: "asker", Func: func(t *troupe.Turn) (string, error) {
		result, err := t.Tool("request_capability", json.RawMessage(t.Message()))
		return string(result), err
	}}
	s := openWith(t, troupe.Config{Temporary: true, AgentFiles: files, Agents: []troupe.Agent{analyst, asker}})
	if got := call(t, s, "desk", "the value"); !strings.Contains(got.Text, "npv 1.5") {
		t.Errorf("the orchestrator answers %q", got.Text)
	}
	if got := call(t, s, "asker", `{"capability_code":"ANL_NPV","inputs_json":{"cash_flows":[1]}}`); got.Text != `{"npv":1.5}` {
		t.Errorf("the agent answers %q", got.Text)
	}
	_, err := s.Call(t.Context(), "asker", `{"capability_code":"ANL_NPV","inputs_json":{"cash_flows":[1,2,3]}}`)
	if err == nil || !strings.Contains(err.Error(), "result_json/npv: want number") {
		t.Errorf("a result that breaks its schema: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	response, err := http.Post("http://"+l.Addr().String()+"/v1/agents/ANL:invoke", "application/json", strings.NewReader(
		`{"source_agent":"CST","target_agent":"ANL","capability_code":"ANL_NPV","request_id":"s-20250118-143022","inputs_json":{"cash_flows":[1]}}`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || !strings.Contains(string(body), `"status":"SUCCESS"`) || !strings.Contains(string(body), `"capability_version":"1.0"`) {
		t.Errorf("%s %v", body, err)
	}
	closeServer(t, s)
	<-ended
}

// A reminder of an agent begins a later turn of its session.
func TestRemind(t *testing.T) {
	heard := make(chan string, 1)
	s := openWith(t, troupe.Config{Temporary: true, Agents: []troupe.Agent{{Name: "clock", Func: func(t *troupe.Turn) (string, error) {
		if t.Correlation != "" {
			text, err := t.Outcome.Text()
			heard <- t.Correlation + " " + text
			return "", err
		}
		for _, c := range []struct {
			text  string
			after time.Duration
		}{{"", time.Second}, {"x", 0}, {"x", 367 * 24 * time.Hour}} {
			var refusal *troupe.Refusal
			if _, err := t.Remind(c.text, c.after); !errors.As(err, &refusal) || refusal.Code != troupe.CodeInvalid {
				return "", fmt.Errorf("%+v: %v", c, err)
			}
		}
		correlation, err := t.Remind("water the plants", 20*time.Millisecond)
		if err != nil {
			return "", err
		}
		if pending, err := t.Pending(); err != nil || !slices.Equal(pending, []string{correlation}) {
			return "", fmt.Errorf("%v is pending, %v", pending, err)
		}
		return correlation, nil
	}}}})
	correlation := call(t, s, "clock", "x").Text
	if got := <-heard; got != correlation+" water the plants" {
		t.Errorf("heard %q, want %s", got, correlation)
	}
}
