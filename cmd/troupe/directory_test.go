// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	if code != failed || !strings.Contains(talk, "helper is a part of this program: take another name") {
		t.Errorf("code %d, talk %s", code, talk)
	}
}
