// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

type messageReply struct {
	Run     string `json:"run_id"`
	Session string `json:"session_id"`
	Content string `json:"content"`
	Detail  string `json:"detail"`
	Code    string `json:"code"`
}

// call sends a message to an agent and returns the status and the body.
func (s *server) call(agent, message string) (int, messageReply) {
	s.Helper()
	var a messageReply
	status, err := s.request("POST", "/v1/agents/"+agent+"/messages", `{"content":"`+message+`"}`, "", &a)
	if err != nil {
		s.Fatal(err)
	}
	return status, a
}

// Agents from files can call each other and survive a crash. The scripted model
// needs no key and no network.
func TestAgentsFromFilesSurviveCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	files := writeFiles(t, ">> coordinator.toml\nname = \"coordinator\"\nagents = [\"helper\"]\n>> helper.toml\nname = \"helper\"\n>> loner.toml\nname = \"loner\"\nagents = []")
	s := startServer(t, dir, "--agents", files)
	if status, a := s.call("coordinator", "Ask the helper agent xyzzy"); status != 200 || a.Content != "You said: xyzzy" {
		t.Errorf("status %d, body %+v", status, a)
	}
	if status, a := s.call("loner", "Ask the helper agent xyzzy"); status != 200 || a.Content != "I was not given the tool call_agent." {
		t.Errorf("status %d, body %+v", status, a)
	}
	s.stop(syscall.SIGKILL)

	// Agents from files are stored, and served without the folder.
	s = startServer(t, dir)
	if status, a := s.call("coordinator", "Ask the helper agent plugh"); status != 200 || a.Content != "You said: plugh" {
		t.Errorf("status %d, body %+v", status, a)
	}
	s.stop(syscall.SIGKILL)

	// A changed file replaces its agent. A removed file changes nothing.
	if err := os.WriteFile(filepath.Join(files, "coordinator.toml"), []byte("name = \"coordinator\"\nagents = [\"nobody\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(files, "helper.toml")); err != nil {
		t.Fatal(err)
	}
	s = startServer(t, dir, "--agents", files)
	if status, a := s.call("coordinator", "Ask the helper agent xyzzy"); status != 200 || !strings.Contains(a.Content, `may not call "helper": it may call nobody`) {
		t.Errorf("status %d, body %+v", status, a)
	}
	if status, a := s.call("helper", "xyzzy"); status != 200 || a.Content != "You said: xyzzy" {
		t.Errorf("status %d, body %+v", status, a)
	}
	if status, a := s.call("ghost", "x"); status != 404 || a.Code != "agent_not_found" {
		t.Errorf("status %d, body %+v", status, a)
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM: want 0, got %d", code)
	}
}

func TestServeRejectsInvalidAgentFiles(t *testing.T) {
	files := writeFiles(t, ">> a.toml\nname = \"a\"\npromt = \"x\"\n>> b.toml\nname = \"b\"\nlimits.steps = 0")
	code, out, stderr := runProgram(t, "serve", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--agents", files)
	if code != exitFailed || out != "" || !strings.Contains(stderr, "a.toml:2:1: promt: is unknown; did you mean prompt?") ||
		!strings.Contains(stderr, "b.toml:2:8: limits.steps: 0: want 1 to 50") || !strings.Contains(stderr, "troupe check") {
		t.Errorf("exit code %d, stdout %q, stderr %s", code, out, stderr)
	}
	conflicting := writeFiles(t, ">> helper.toml\nname = \"helper\"")
	code, _, stderr = runProgram(t, "serve", "--ready", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--agents", conflicting)
	if code != exitFailed || !strings.Contains(stderr, "helper is part of this program; choose another name") {
		t.Errorf("exit code %d, stderr %s", code, stderr)
	}
}

// With two agents of one name, a node could not assign the open runs.
func TestServeRejectsDuplicateAgentName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	s.putAgent(`{"name":"helper"}`)
	s.stop(syscall.SIGTERM)
	code, out, stderr := runProgram(t, "serve", "--ready", "--data", dir, "--listen", "127.0.0.1:0")
	if code != exitFailed || out != "" || !strings.Contains(stderr, "two agents are named helper") || !strings.Contains(stderr, "troupe agents delete helper --data "+dir) {
		t.Errorf("exit code %d, stdout %q, stderr %s", code, out, stderr)
	}
	if code, _, stderr := runProgram(t, "agents", "delete", "helper", "--data", dir); code != 0 {
		t.Errorf("exit code %d, stderr %s", code, stderr)
	}
	startServer(t, dir, "--ready")
}

// Without --ready a key with the scope agents alone cannot take the name of a built-in agent, and so
// cannot keep a server with --ready from starting. The first commands of a new user need no key.
func TestNamesOfBuiltinAgentsAreReserved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	for _, c := range []struct {
		scopes []string // of the key; empty: none
		want   int
	}{
		{[]string{"call", "read", "agents"}, http.StatusForbidden}, {[]string{"agents", "operator"}, http.StatusCreated}, {[]string{"admin"}, http.StatusCreated}, {nil, http.StatusCreated},
	} {
		s.apiKey = ""
		if len(c.scopes) > 0 {
			args := []string{"keys", "create", "--data", dir}
			for _, scope := range c.scopes {
				args = append(args, "--scope", scope)
			}
			code, out, stderr := runProgram(t, args...)
			if s.apiKey = strings.TrimSpace(out); code != 0 {
				t.Fatal(code, stderr)
			}
		}
		for body, want := range map[string]int{`{"name":"helper"}`: c.want, `{"name":"Coordinator"}`: c.want, `{"agent_id":"x","name":"Helper"}`: c.want, `{"name":"free"}`: http.StatusCreated} {
			var a struct {
				ID     string `json:"agent_id"`
				Detail string `json:"detail"`
			}
			if status, err := s.request("POST", "/v1/agents", body, "", &a); err != nil || status != want || want == http.StatusForbidden && !strings.Contains(a.Detail, "an agent of this program") {
				t.Errorf("%s with %q: %d %q %v, want %d", body, c.scopes, status, a.Detail, err, want)
			}
			if a.ID == "" {
				continue
			}
			if status, err := s.request("DELETE", "/v1/agents/"+a.ID, "", "", &a); err != nil || status != http.StatusOK {
				t.Errorf("delete %s: %d %v", a.ID, status, err)
			}
		}
	}
}

// putAgent creates or replaces an agent.
func (s *server) putAgent(body string) {
	s.Helper()
	var a struct {
		OK     bool   `json:"ok"`
		Detail string `json:"detail"`
	}
	if status, err := s.request("POST", "/v1/agents", body, "", &a); err != nil || !a.OK {
		s.Fatalf("%s: %d %s %v", body, status, a.Detail, err)
	}
}

// The requests of the original walkthrough, as curl sends them. Two agents are
// created by name only, and one is asked to call the other.
func TestCreateAndCallAgentsWithCurl(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	for _, name := range []string{"helper", "coordinator"} {
		var a struct {
			ID      string `json:"agent_id"`
			Created bool   `json:"created"`
		}
		if status, err := s.request("POST", "/v1/agents", `{"name": "`+name+`"}`, "", &a); err != nil || status != 201 || a.ID != name || !a.Created {
			t.Errorf("create %s: status %d, body %+v, error %v", name, status, a, err)
		}
	}
	// With -d, curl sends every body as a form.
	response, err := http.Post(s.url+"/v1/agents/coordinator/messages", "application/x-www-form-urlencoded", strings.NewReader(`{"content": "Ask the helper agent for assistance"}`))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 200 || !strings.Contains(string(body), `"status":"succeeded"`) {
		t.Errorf("status %d, body %s, error %v", response.StatusCode, body, err)
	}
	response.Body.Close() //nolint:errcheck // the body has been read
	status, a := s.call("coordinator", "Ask the helper agent what xyzzy means")
	if status != 200 || a.Content != "You said: what xyzzy means" {
		t.Errorf("status %d, body %+v", status, a)
	}
	if code, out, stderr := runProgram(t, "runs", "show", a.Run, "--tree", "--server", s.url); code != 0 || !strings.Contains(out, "└─ helper/"+a.Session+"  DONE  depth 1") {
		t.Errorf("exit code %d\nstdout %s\nstderr %s", code, out, stderr)
	}
	if code, out, stderr := runProgram(t, "call", "coordinator", "Ask the helper agent hi", "--stream", "--server", s.url); code != 0 || out != "You said: hi\n" {
		t.Errorf("exit code %d\nstdout %s\nstderr %s", code, out, stderr)
	}
	if code, out, stderr := runProgram(t, "agents", "show", "coordinator", "--server", s.url); code != 0 || !strings.Contains(out, `"model": "scripted"`) || !strings.Contains(out, "coordinator/"+a.Session+"  mailbox 0") {
		t.Errorf("exit code %d\nstdout %s\nstderr %s", code, out, stderr)
	}
}

// A run keeps the definition it started with after the agent changes, and also
// across a crash.
func TestRunKeepsDefinitionAcrossCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir, "--ready", "--pace", "10s")
	s.putAgent(`{"name":"asker"}`)
	interrupted := make(chan messageReply, 1)
	go func() {
		var a messageReply
		_, _ = s.request("POST", "/v1/agents/asker/messages", `{"content":"Ask the helper agent xyzzy"}`, "", &a)
		interrupted <- a
	}()
	var list struct {
		Runs []struct {
			Run    string `json:"run_id"`
			Status string `json:"status"`
		} `json:"runs"`
	}
	waitUntil(t, "run with an open model request", func() bool {
		_, err := s.request("GET", "/v1/runs", "", "", &list)
		return err == nil && len(list.Runs) == 1 && list.Runs[0].Status == "RUNNING"
	})
	run := list.Runs[0].Run
	s.putAgent(`{"name":"asker","tools":[]}`) // the new definition cannot call agents
	s.stop(syscall.SIGKILL)
	<-interrupted

	s = startServer(t, dir, "--ready")
	var resumed struct {
		Status string `json:"status"`
		Text   string `json:"text"`
	}
	waitUntil(t, "completed run", func() bool {
		_, err := s.request("GET", "/v1/runs/"+run, "", "", &resumed)
		return err == nil && resumed.Status == "DONE"
	})
	if resumed.Text != "response from helper: xyzzy" {
		t.Errorf("run started before the change: got %q", resumed.Text)
	}
	if _, a := s.call("asker", "Ask the helper agent xyzzy"); a.Content != "I was not given the tool call_agent." {
		t.Errorf("run started after the change: got %q", a.Content)
	}
	var deleted messageReply
	if status, err := s.request("DELETE", "/v1/agents/asker", "", "", &deleted); err != nil || status != 200 {
		t.Errorf("delete: status %d, error %v", status, err)
	}
	if status, a := s.call("asker", "x"); status != 404 {
		t.Errorf("call of a deleted agent: want 404, got %d, body %+v", status, a)
	}
}

func TestCreateAgentReturnsWarnings(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	var a struct {
		ID       string   `json:"agent_id"`
		Warnings []string `json:"warnings"`
	}
	status, err := s.request("POST", "/v1/agents", `{"name":"x","model":"big","tools":["browser.open"]}`, "", &a)
	if err != nil || status != 201 || a.ID != "x" || len(a.Warnings) != 2 || !strings.Contains(a.Warnings[0], "browser.open") || !strings.Contains(a.Warnings[1], "which has scripted") {
		t.Errorf("status %d, body %+v, error %v", status, a, err)
	}
	if status, a := s.call("x", "hello"); status != 502 || a.Code != "model_not_found" || !strings.Contains(a.Detail, "big") {
		t.Errorf("status %d, body %+v", status, a)
	}
	for body, want := range map[string]string{
		`{"name":"x","promt":"y"}`:           "promt: is unknown; did you mean prompt?",
		`{"name":"x","name":"y"}`:            "is a duplicate",
		`{"name":"troupe"}`:                  "part of this program",
		`{"name":"x","endpoint":"http://a"}`: "register an external agent instead",
	} {
		var a messageReply
		if status, err := s.request("POST", "/v1/agents", body, "", &a); err != nil || status < 400 || status > 499 || !strings.Contains(a.Detail, want) {
			t.Errorf("%s: status %d, body %+v, error %v", body, status, a, err)
		}
	}
}

func TestRunFollowAndCancel(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--pace", "1m")
	s.putAgent(`{"name":"slow"}`)
	callStderr := make(chan string, 1)
	go func() {
		_, _, stderr := runProgram(t, "call", "slow", "say something", "--stream", "--server", s.url)
		callStderr <- stderr
	}()
	var list struct {
		Runs []struct {
			Run    string `json:"run_id"`
			Actor  string `json:"actor"`
			Status string `json:"status"`
		} `json:"runs"`
	}
	waitUntil(t, "admitted run", func() bool {
		_, err := s.request("GET", "/v1/runs?limit=1", "", "", &list)
		return err == nil && len(list.Runs) == 1 && strings.HasPrefix(list.Runs[0].Actor, "slow/")
	})
	run := list.Runs[0].Run
	events := make(chan string, 1)
	go func() {
		_, out, _ := runProgram(t, "runs", "events", run, "--follow", "--server", s.url)
		events <- out
	}()
	if code, _, stderr := runProgram(t, "runs", "cancel", run, "--server", s.url); code != 0 || !strings.Contains(stderr, "is cancelled") {
		t.Errorf("cancel: exit code %d, stderr %s", code, stderr)
	}
	if stderr := <-callStderr; !strings.Contains(stderr, "cancelled: local cancelled the run") || !strings.Contains(stderr, "troupe runs show "+run) {
		t.Errorf("stderr of the waiting call: want the cancellation, got %q", stderr)
	}
	if out := <-events; !strings.Contains(out, "llm_call_started") || !strings.Contains(out, "run_cancelled") {
		t.Errorf("followed events: want run_cancelled, got %s", out)
	}
	if code, _, stderr := runProgram(t, "runs", "cancel", "01a20005-a428-7384-9bef-9884ce95f28c", "--server", s.url); code != exitFailed || !strings.Contains(stderr, "not found") {
		t.Errorf("cancel an unknown run: exit code %d, stderr %s", code, stderr)
	}
	if code, _, stderr := runProgram(t, "runs", "events", run, "--follow", "--data", t.TempDir()); code != exitFailed || !strings.Contains(stderr, "--follow cannot be used with --data") {
		t.Errorf("follow a data folder: exit code %d, stderr %s", code, stderr)
	}
}
