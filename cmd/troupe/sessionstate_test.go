// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// What agents note in a session is there for the next one after a kill of the server, and goes with the session.
func TestNotesOfASessionOverAKill(t *testing.T) {
	files := ">> cst.toml\nname = \"cst\"\ntools = [\"note_session\"]\nprompt = '''\n" +
		"on budget use note_session {\"kind\":\"constraint\",\"name\":\"budget\",\"value\":[1,2]}\n" +
		"on progress use note_session {\"kind\":\"state\",\"value\":{\"scenarios\":3}}\n'''\n" +
		">> anl.toml\nname = \"anl\"\ntools = [\"note_session\", \"read_session\"]\nprompt = '''\n" +
		"on correct use note_session {\"kind\":\"constraint\",\"name\":\"budget\",\"value\":[1,3]}\n" +
		"on wrong use note_session {\"kind\":\"state\",\"name\":\"mine\",\"value\":1}\n" +
		"on read use read_session {}\n'''\n"
	dir, folder := filepath.Join(t.TempDir(), "data"), writeFiles(t, files)
	s := startServer(t, dir, "--agents", folder)
	say := func(agent, text, session string) string {
		t.Helper()
		var run struct {
			Answer string `json:"content"`
		}
		body := fmt.Sprintf(`{"content":%q,"session_id":%q}`, text, session)
		if code, err := s.request("POST", "/v1/agents/"+agent+"/messages", body, "", &run); code != 200 || err != nil {
			t.Fatal(code, err)
		}
		return run.Answer
	}
	say("cst", "the budget", "s-1")
	say("cst", "the progress", "s-1")
	say("cst", "the budget", "s-2") // of another session
	say("anl", "correct it", "s-1")
	if got := say("anl", "a wrong one", "s-1"); !strings.Contains(got, "want none") {
		t.Errorf("got %s", got)
	}
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir, "--agents", folder)

	var state jsontext.Value
	if code, err := s.request("GET", "/v1/sessions/s-1/state", "", "", &state); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	for _, want := range []string{`"session_id":"s-1","pendingRequests":{},"workflow":null`, `"anl":{}`, `"cst":{"state":{"scenarios":3},"version":1,"run_id":"`,
		`"notes":[{"kind":"constraint","name":"budget","value":[1,3],"version":2,"agent_id":"anl","run_id":"`} {
		if !strings.Contains(string(state), want) {
			t.Errorf("got %s\nwant %s", state, want)
		}
	}
	if got := say("anl", "read it", "s-1"); !strings.Contains(got, `"value":[1,3],"version":2,"agent_id":"anl"`) {
		t.Errorf("the next agent reads %s", got)
	}
	if code, _ := s.request("DELETE", "/v1/sessions/s-1", "", "", &state); code != 204 {
		t.Fatal(code)
	}
	if code, _ := s.request("GET", "/v1/sessions/s-1/state", "", "", &state); code != 404 {
		t.Errorf("after the deletion: %d", code)
	}
	if got := say("anl", "read it", "s-2"); !strings.Contains(got, `"value":[1,2],"version":1,"agent_id":"cst"`) {
		t.Errorf("the other session has %s", got)
	}
}
