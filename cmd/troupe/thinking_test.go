// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// What a model thought before a tool call, and the signature of that call, go back to it behind the result, also if the
// server is killed while a person decides about the call. The next message of the session does not have them.
func TestThoughtsOutliveAKill(t *testing.T) {
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"receipt":1}`)
	}))
	defer bank.Close()
	asked := make(chan []jsontext.Value, 10) // the messages of each request
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Messages []jsontext.Value `json:"messages"`
			Tools    []struct {
				Function struct {
					Name string `json:"name"`
				} `json:"function"`
			} `json:"tools"`
		}
		if err := json.UnmarshalRead(r.Body, &in); err != nil || len(in.Tools) == 0 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		asked <- in.Messages
		w.Header().Set("Content-Type", "application/json")
		if last := string(in.Messages[len(in.Messages)-1]); strings.Contains(last, "please") {
			fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":null,"reasoning_content":"Is it allowed? Yes.","reasoning_details":[{"type":"reasoning.text","text":"Hm"}],`+
				`"tool_calls":[{"id":"c1","type":"function","function":{"name":%q,"arguments":"{\"amount\":5}"},"extra_content":{"google":{"thought_signature":"c2ln"}}}]},"finish_reason":"tool_calls"}]}`, in.Tools[0].Function.Name)
			return
		}
		fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":"paid"},"finish_reason":"stop"}]}`)
	}))
	defer model.Close()
	dir := filepath.Join(t.TempDir(), "data")
	files := writeFiles(t, ">> a.toml\nname = \"a\"\nmodel = \"m\"\nprompt = \"x\"\nagents = []\ntools = [\"pay\"]\n>> pay.toml\n[tool]\ntool_name = \"pay\"\nurl = \""+bank.URL+
		"\"\npolicy = \"require_approval\"\ninput_schema = '{\"type\": \"object\", \"properties\": {\"amount\": {}}}'")
	config := filepath.Join(filepath.Dir(dir), "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.m]\nurl = \""+model.URL+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, dir, "--agents", files, "--config", config)
	code, out, stderr := runProgram(t, "call", "a", "pay, please", "--session", "s", "--async", "--server", s.url)
	if code != 0 {
		t.Fatal(stderr)
	}
	run := strings.TrimSpace(out)
	<-asked
	var page struct {
		Approvals []approvalView `json:"approvals"`
	}
	pending := func() bool {
		code, err := s.request("GET", "/v1/approvals", "", "", &page)
		return err == nil && code == 200 && len(page.Approvals) == 1
	}
	waitUntil(t, "the approval", pending)
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir, "--agents", files, "--config", config)
	waitUntil(t, "the approval after the kill", pending)
	if code, err := s.request("POST", "/v1/approvals/"+page.Approvals[0].ID+":decide", `{"decision":"approve"}`, "", &struct{}{}); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	thoughts := []string{`"reasoning_content":"Is it allowed? Yes."`, `"reasoning_details":[{`, `"text":"Hm"`, `"type":"reasoning.text"`, `"extra_content":{"google":{"thought_signature":"c2ln"}}`}
	second := <-asked
	if len(second) < 3 || !strings.Contains(string(second[len(second)-1]), "receipt") {
		t.Fatalf("got %s, want the call and its result at the end", second)
	}
	for _, want := range thoughts {
		if got := string(second[len(second)-2]); !strings.Contains(got, want) {
			t.Errorf("the call is sent back as %s, want %s", got, want)
		}
	}
	waitUntil(t, "the end of the run", func() bool {
		var r struct {
			Status string `json:"status"`
		}
		code, err := s.request("GET", "/v1/runs/"+run, "", "", &r)
		return err == nil && code == 200 && r.Status == "DONE"
	})
	var next messageReply
	if code, err := s.request("POST", "/v1/agents/a/messages", `{"content":"thanks","session_id":"s"}`, "", &next); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	if third := fmt.Sprintf("%s", <-asked); strings.Contains(third, "Is it allowed") || !strings.Contains(third, "paid") {
		t.Errorf("the next turn begins with %s", third)
	}
}
