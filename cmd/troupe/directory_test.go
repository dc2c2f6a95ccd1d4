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

type said struct {
	Run     string `json:"run_id"`
	Content string `json:"content"`
	Detail  string `json:"detail"`
	Code    string `json:"code"`
}

// tell sends a message to an agent.
func (s *server) tell(agent, message string) (int, said) {
	s.Helper()
	var a said
	status, err := s.ask("POST", "/v1/agents/"+agent+"/messages", `{"content":"`+message+`"}`, "", &a)
	if err != nil {
		s.Fatal(err)
	}
	return status, a
}

// Agents come from files, know each other, and are there after a crash; the
// scripted model needs no key and no network.
func TestAgentsOfFilesAskEachOther(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	files := filesIn(t, ">> coordinator.toml\nname = \"coordinator\"\nagents = [\"helper\"]\n>> helper.toml\nname = \"helper\"\n>> loner.toml\nname = \"loner\"\nagents = []")
	s := serveBare(t, dir, "--agents", files)
	if status, a := s.tell("coordinator", "Ask the helper agent xyzzy"); status != 200 || a.Content != "You said: xyzzy" {
		t.Errorf("%d %+v", status, a)
	}
	if status, a := s.tell("loner", "Ask the helper agent xyzzy"); status != 200 || a.Content != "I was not given the tool call_agent." {
		t.Errorf("%d %+v", status, a)
	}
	s.end(syscall.SIGKILL)

	// What was taken from files is kept, without the folder too.
	s = serveBare(t, dir)
	if status, a := s.tell("coordinator", "Ask the helper agent plugh"); status != 200 || a.Content != "You said: plugh" {
		t.Errorf("%d %+v", status, a)
	}
	s.end(syscall.SIGKILL)

	// A file that has changed is taken anew; one that is gone changes nothing.
	if err := os.WriteFile(filepath.Join(files, "coordinator.toml"), []byte("name = \"coordinator\"\nagents = [\"nobody\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(files, "helper.toml")); err != nil {
		t.Fatal(err)
	}
	s = serveBare(t, dir, "--agents", files)
	if status, a := s.tell("coordinator", "Ask the helper agent xyzzy"); status != 200 || !strings.Contains(a.Content, `may not call "helper": it may call nobody`) {
		t.Errorf("%d %+v", status, a)
	}
	if status, a := s.tell("helper", "xyzzy"); status != 200 || a.Content != "You said: xyzzy" {
		t.Errorf("%d %+v", status, a)
	}
	if status, a := s.tell("ghost", "x"); status != 404 || a.Code != "agent_not_found" {
		t.Errorf("%d %+v", status, a)
	}
	if code := s.end(syscall.SIGTERM); code != 0 {
		t.Errorf("told to stop it ended with %d", code)
	}
}

func TestAServerDoesNotStartWithFilesThatAreWrong(t *testing.T) {
	files := filesIn(t, ">> a.toml\nname = \"a\"\npromt = \"x\"\n>> b.toml\nname = \"b\"\nlimits.steps = 0")
	code, out, talk := command(t, "serve", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--agents", files)
	if code != failed || out != "" || !strings.Contains(talk, "a.toml:2:1: promt: is unknown; did you mean prompt?") ||
		!strings.Contains(talk, "b.toml:2:8: limits.steps: 0: want 1 to 50") || !strings.Contains(talk, "troupe check") {
		t.Errorf("code %d, out %q, talk %s", code, out, talk)
	}
	taken := filesIn(t, ">> helper.toml\nname = \"helper\"")
	code, _, talk = command(t, "serve", "--ready", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--agents", taken)
	if code != failed || !strings.Contains(talk, "helper is part of this program; choose another name") {
		t.Errorf("code %d, talk %s", code, talk)
	}
}

// Of two agents of one name a node would not know which has the open runs.
func TestAServerDoesNotStartWithTwoAgentsOfAName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := serveBare(t, dir)
	s.put(`{"name":"helper"}`)
	s.end(syscall.SIGTERM)
	code, out, talk := command(t, "serve", "--ready", "--data", dir, "--listen", "127.0.0.1:0")
	if code != failed || out != "" || !strings.Contains(talk, "there are two agents helper") || !strings.Contains(talk, "without --ready") {
		t.Errorf("code %d, out %q, talk %s", code, out, talk)
	}
}

// put has the server know an agent.
func (s *server) put(body string) {
	s.Helper()
	var a struct {
		OK     bool   `json:"ok"`
		Detail string `json:"detail"`
	}
	if status, err := s.ask("POST", "/v1/agents", body, "", &a); err != nil || !a.OK {
		s.Fatalf("%s: %d %s %v", body, status, a.Detail, err)
	}
}

// The requests of the first seed's own story, as curl sends them: two agents by
// nothing but their names, and one is told to ask the other.
func TestTheSeedsOwnRequests(t *testing.T) {
	s := serveBare(t, filepath.Join(t.TempDir(), "data"))
	for _, name := range []string{"helper", "coordinator"} {
		var a struct {
			ID      string `json:"agent_id"`
			Created bool   `json:"created"`
		}
		if status, err := s.ask("POST", "/v1/agents", `{"name": "`+name+`"}`, "", &a); err != nil || status != 201 || a.ID != name || !a.Created {
			t.Errorf("create %s: %d %+v %v", name, status, a, err)
		}
	}
	// curl calls what -d gives a form, whatever it is.
	response, err := http.Post(s.url+"/v1/agents/coordinator/messages", "application/x-www-form-urlencoded", strings.NewReader(`{"content": "Ask the helper agent for assistance"}`))
	if err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 200 || !strings.Contains(string(said), `"status":"succeeded"`) {
		t.Errorf("%d %s %v", response.StatusCode, said, err)
	}
	response.Body.Close() //nolint:errcheck // read to its end
	status, a := s.tell("coordinator", "Ask the helper agent what xyzzy means")
	if status != 200 || a.Content != "You said: what xyzzy means" {
		t.Errorf("%d %+v", status, a)
	}
	if code, out, talk := command(t, "runs", "show", a.Run, "--tree", "--server", s.url); code != 0 || !strings.Contains(out, "└─ helper/main  DONE  depth 1") {
		t.Errorf("code %d\n%s\n%s", code, out, talk)
	}
	if code, out, talk := command(t, "call", "coordinator", "Ask the helper agent hi", "--stream", "--server", s.url); code != 0 || out != "You said: hi\n" {
		t.Errorf("code %d\n%s\n%s", code, out, talk)
	}
	if code, out, talk := command(t, "agents", "show", "coordinator", "--server", s.url); code != 0 || !strings.Contains(out, `"model": "scripted"`) || !strings.Contains(out, "coordinator/main  mailbox 0") {
		t.Errorf("code %d\n%s\n%s", code, out, talk)
	}
}

// A run keeps the definition that it began with, whatever becomes of the agent,
// over a crash too.
func TestARunGoesOnAsItBegan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := serveBare(t, dir, "--ready", "--pace", "10s")
	s.put(`{"name":"asker"}`)
	began := make(chan said, 1)
	go func() {
		var a said
		_, _ = s.ask("POST", "/v1/agents/asker/messages", `{"content":"Ask the helper agent xyzzy"}`, "", &a)
		began <- a
	}()
	var list struct {
		Runs []struct {
			Run    string `json:"run_id"`
			Status string `json:"status"`
		} `json:"runs"`
	}
	poll(t, "the run is at its model", func() bool {
		_, err := s.ask("GET", "/v1/runs", "", "", &list)
		return err == nil && len(list.Runs) == 2 && list.Runs[0].Status == "RUNNING"
	})
	run := list.Runs[0].Run
	s.put(`{"name":"asker","tools":[]}`) // it could not ask anybody now
	s.end(syscall.SIGKILL)
	<-began

	s = serveBare(t, dir, "--ready")
	var goneOn struct {
		Status string `json:"status"`
		Text   string `json:"text"`
	}
	poll(t, "the run has ended", func() bool {
		_, err := s.ask("GET", "/v1/runs/"+run, "", "", &goneOn)
		return err == nil && goneOn.Status == "DONE"
	})
	if goneOn.Text != "response from helper: xyzzy" {
		t.Errorf("the run that began before says %q", goneOn.Text)
	}
	if _, a := s.tell("asker", "Ask the helper agent xyzzy"); a.Content != "I was not given the tool call_agent." {
		t.Errorf("a new one says %q", a.Content)
	}
	var deleted said
	if status, err := s.ask("DELETE", "/v1/agents/asker", "", "", &deleted); err != nil || status != 200 {
		t.Errorf("delete: %d %v", status, err)
	}
	if status, a := s.tell("asker", "x"); status != 404 {
		t.Errorf("a deleted agent: %d %+v", status, a)
	}
}

func TestWhoMakesAnAgentHearsWhatItLacks(t *testing.T) {
	s := serveBare(t, filepath.Join(t.TempDir(), "data"))
	var a struct {
		ID       string   `json:"agent_id"`
		Warnings []string `json:"warnings"`
	}
	status, err := s.ask("POST", "/v1/agents", `{"name":"x","model":"big","tools":["browser.open"]}`, "", &a)
	if err != nil || status != 201 || a.ID != "x" || len(a.Warnings) != 2 || !strings.Contains(a.Warnings[0], "browser.open") || !strings.Contains(a.Warnings[1], "which has scripted") {
		t.Errorf("%d %+v %v", status, a, err)
	}
	if status, a := s.tell("x", "hello"); status != 404 || !strings.Contains(a.Detail, "big") {
		t.Errorf("%d %+v", status, a)
	}
	for body, want := range map[string]string{
		`{"name":"x","promt":"y"}`:           "promt: is unknown; did you mean prompt?",
		`{"name":"x","name":"y"}`:            "duplicate",
		`{"name":"troupe"}`:                  "part of this program",
		`{"name":"x","endpoint":"http://a"}`: "register an external agent instead",
	} {
		var a said
		if status, err := s.ask("POST", "/v1/agents", body, "", &a); err != nil || status < 400 || status > 499 || !strings.Contains(a.Detail, want) {
			t.Errorf("%s: %d %+v %v", body, status, a, err)
		}
	}
}

func TestARunIsFollowedAndCancelled(t *testing.T) {
	s := serveBare(t, filepath.Join(t.TempDir(), "data"), "--pace", "1m")
	s.put(`{"name":"slow"}`)
	ended := make(chan string, 1)
	go func() {
		_, _, talk := command(t, "call", "slow", "say something", "--stream", "--server", s.url)
		ended <- talk
	}()
	var list struct {
		Runs []struct {
			Run    string `json:"run_id"`
			Actor  string `json:"actor"`
			Status string `json:"status"`
		} `json:"runs"`
	}
	poll(t, "the run is there", func() bool {
		_, err := s.ask("GET", "/v1/runs?limit=1", "", "", &list)
		return err == nil && len(list.Runs) == 1 && list.Runs[0].Actor == "slow/main"
	})
	run := list.Runs[0].Run
	followed := make(chan string, 1)
	go func() {
		_, out, _ := command(t, "runs", "events", run, "--follow", "--server", s.url)
		followed <- out
	}()
	if code, _, talk := command(t, "runs", "cancel", run, "--server", s.url); code != 0 || !strings.Contains(talk, "is cancelled") {
		t.Errorf("cancel: code %d, %s", code, talk)
	}
	if talk := <-ended; !strings.Contains(talk, "cancelled: ") || !strings.Contains(talk, "troupe runs show "+run) {
		t.Errorf("who waited for it is told %q", talk)
	}
	if out := <-followed; !strings.Contains(out, "llm_call_started") || !strings.Contains(out, "run_cancelled") {
		t.Errorf("who followed it saw %s", out)
	}
	if code, _, talk := command(t, "runs", "cancel", "01a20005-a428-7384-9bef-9884ce95f28c", "--server", s.url); code != failed || !strings.Contains(talk, "not found") {
		t.Errorf("cancel nothing: code %d, %s", code, talk)
	}
	if code, _, talk := command(t, "runs", "events", run, "--follow", "--data", t.TempDir()); code != failed || !strings.Contains(talk, "leave --follow out") {
		t.Errorf("follow a folder: code %d, %s", code, talk)
	}
}
