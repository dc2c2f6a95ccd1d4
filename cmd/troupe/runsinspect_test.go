// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// Each step of a run and of the run that it called is shown, with what the model was sent.
func TestRunIsInspected(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := startServer(t, data)
	s.putAgent(`{"name":"lead","prompt":"You lead.","agents":["helper"]}`)
	s.putAgent(`{"name":"helper","prompt":"You help."}`)
	var reply struct {
		Run string `json:"run_id"`
	}
	if code, err := s.request("POST", "/v1/agents/lead/messages", `{"content":"use call_agent {\"agent_id\":\"helper\",\"message\":\"say hi\"}"}`, "", &reply); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	source := []string{"--server", s.url}
	inspect := func(args ...string) string {
		t.Helper()
		code, out, stderr := runProgram(t, append(append([]string{"runs", "inspect"}, source...), args...)...)
		if code != 0 {
			t.Fatal(code, stderr)
		}
		return out + stderr
	}
	served := inspect(reply.Run, "--prompt")
	s.stop(syscall.SIGKILL)
	source = []string{"--data", data}
	whole := inspect(reply.Run, "--prompt")
	if served != whole {
		t.Errorf("the server shows\n%swant\n%s", served, whole)
	}
	for _, want := range []string{"run " + reply.Run + " of lead/", "step 1  state 0 answers, ", "; then 1 answers, ", `Request model {"name":"scripted"}`, "prompt {", "You lead.",
		`RequestToolCall {"parameters":{"agent_id":"helper","message":"say hi"},"run_id":"`, "    answer hi\n", `Complete {"response":`} {
		if !strings.Contains(whole, want) {
			t.Errorf("want %q in\n%s", want, whole)
		}
	}
	if strings.Contains(whole, "not shown") {
		t.Error(whole)
	}
	child := regexp.MustCompile(`"run_id":"([^"]+)"`).FindStringSubmatch(whole)
	if child == nil {
		t.Fatal(whole)
	}
	if got := inspect(child[1], "--prompt"); !strings.Contains(got, "You help.") || !strings.Contains(got, `Complete {"response":"hi"}`) {
		t.Error(got)
	}
	if got := inspect(reply.Run, "--at", "1"); strings.Contains(got, "step 2") || strings.Contains(got, "prompt") {
		t.Error(got)
	}
	for want, args := range map[string][]string{"has no step 9; to see all: troupe runs inspect ": {reply.Run, "--at", "9"}, "--at: want the number of a step": {reply.Run, "--at=-1"}, " not found (see: troupe runs list --data ": {actor.NewCallID(1, 2, 3).String()}} {
		if code, _, stderr := runProgram(t, append([]string{"runs", "inspect", "--data", data}, args...)...); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%v: got %d %s, want %q", args, code, stderr, want)
		}
	}
}

// A tree is replayed with another result of a tool of the lower agent: the first difference is its next prompt.
func TestRunIsReplayedWithOtherResults(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"sky":"blue"}`))
	}))
	t.Cleanup(served.Close)
	s := startServer(t, data)
	if code, err := s.request("POST", "/v1/tools", `{"tool_name":"weather.get","url":"`+served.URL+`"}`, "", &struct{}{}); err != nil || code != 201 {
		t.Fatal(code, err)
	}
	s.putAgent(`{"name":"lead","agents":["helper"]}`)
	s.putAgent(`{"name":"helper","tools":["weather.get"]}`)
	var reply struct {
		Run string `json:"run_id"`
	}
	if code, err := s.request("POST", "/v1/agents/lead/messages", `{"content":"use call_agent {\"agent_id\":\"helper\",\"message\":\"use weather.get {}\"}"}`, "", &reply); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	s.stop(syscall.SIGKILL)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	rain, same := write("rain.json", "{\"sky\":\"grey\"}\n"), write("same.json", `{"sky":"blue"}`)
	for _, c := range []struct {
		swap string
		code int
		want []string
	}{
		{"weather.get=" + rain, 0, []string{" of helper/", " differs in step 3\n", `recorded Request model {"name":"scripted"}`, `{\"sky\":\"blue\"}`, `replayed Request model {"name":"scripted"}`, `{\"sky\":\"grey\"}`}},
		{"weather.get#1=" + same, 0, []string{"the replay with 1 other results is as recorded"}},
		{"weather.get#2=" + rain, 1, []string{"--swap: no call of weather.get#2="}},
		{"other=" + rain, 1, []string{"--swap: no call of other="}},
		{"weather.get#0=" + rain, 1, []string{"want TOOL=FILE or TOOL#N=FILE"}},
		{"weather.get=" + write("text.json", "grey"), 1, []string{"text.json is no JSON"}},
		{"weather.get=" + filepath.Join(dir, "absent.json"), 1, []string{"no such file"}},
	} {
		code, out, stderr := runProgram(t, "runs", "replay", reply.Run, "--data", data, "--swap", c.swap)
		for _, want := range c.want {
			if code != c.code || !strings.Contains(out+stderr, want) {
				t.Errorf("%s: got %d, %s%s, want %q", c.swap, code, out, stderr, want)
			}
		}
	}
}
