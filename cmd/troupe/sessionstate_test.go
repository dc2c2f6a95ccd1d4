// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
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
	for _, c := range []struct {
		flag  string
		wants []string
	}{
		{"--agent=cst", []string{"user: the budget\n", "note   anl  constraint budget  [1,3]\n", "state  cst  {\"scenarios\":3}"}},
		{"--state", []string{"note   anl  constraint budget  [1,3]\nstate  cst  {\"scenarios\":3}"}},
	} {
		code, out, stderr := runProgram(t, "sessions", "show", "s-1", c.flag, "--server", s.url)
		for _, want := range c.wants {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%s: %d %s%s, want %s", c.flag, code, out, stderr, want)
			}
		}
	}
	if code, out, _ := runProgram(t, "sessions", "show", "s-1", "--state", "--json", "--server", s.url); code != 0 || !strings.Contains(out, `"pendingRequests"`) {
		t.Errorf("%d %s", code, out)
	}
	if code, _, stderr := runProgram(t, "runs", "inspect", "0190d5b2", "--data", dir, "--user", "bob"); code == 0 || !strings.Contains(stderr, "ask it: troupe runs inspect 0190d5b2 --server "+s.url+" --user bob") {
		t.Errorf("inspect of a folder that a server uses, of a user: %d %s", code, stderr)
	}
	if code, _, stderr := runProgram(t, "runs", "inspect", "0190d5b2", "--data", dir); code == 0 || !strings.Contains(stderr, "ask it: troupe runs inspect 0190d5b2 --server "+s.url) {
		t.Errorf("%d %s", code, stderr)
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

// What a service reports of itself in its answers is its state in the session: while it answers, after a kill of the
// server, and after an answer that fails. Other sessions and other agents do not have it.
func TestStateOfAServiceOverAKill(t *testing.T) {
	type event struct{ name, data string }
	answers, ended := make(chan []event), make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/invoke" {
			return // a poll of its health
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			select {
			case all := <-answers:
				for _, e := range all {
					_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.name, e.data)
					w.(http.Flusher).Flush()
					if e.name == "done" || e.name == "error" {
						return
					}
				}
			case <-r.Context().Done():
				return
			case <-ended:
				return
			}
		}
	}))
	defer service.Close()
	defer close(ended)
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	var registered jsontext.Value
	if code, err := s.request("POST", "/v1/agents/register", `{"agent_id":"scout","endpoint":"`+service.URL+`"}`, "", &registered); code != 201 || err != nil {
		t.Fatal(code, err)
	}
	state := func(session string) string {
		t.Helper()
		var v jsontext.Value
		if _, err := s.request("GET", "/v1/sessions/"+session+"/state", "", "", &v); err != nil {
			t.Fatal(err)
		}
		return string(v)
	}
	await := func(session, want string) {
		t.Helper()
		waitUntil(t, session+" has "+want, func() bool { return strings.Contains(state(session), want) })
	}
	say := func(session string) chan int {
		over := make(chan int, 1)
		go func() {
			code, _ := s.request("POST", "/v1/agents/scout/messages", `{"content":"look","session_id":"`+session+`"}`, "", nil)
			over <- code
		}()
		return over
	}
	over := say("s-1")
	answers <- []event{{"state", `{"state":"searching","detail":{"pages":1}}`}, {"delta", `{"text":"I "}`}, {"state", `{"state":"searching","detail":{"pages":2}}`}}
	await("s-1", `"scout":{"state":"searching","detail":{"pages":2},"version":2,"run_id":"`)
	answers <- []event{{"state", `{"state":"idle"}`}, {"state", `{"state":"idle"}`}, {"done", `{}`}}
	if code := <-over; code != 200 {
		t.Fatal(code)
	}
	if got := state("s-1"); !strings.Contains(got, `"scout":{"state":"idle","version":3,"run_id":"`) { // its last state is there with the answer
		t.Errorf("after the answer: %s", got)
	}
	// A client that leaves stops no report.
	leaving, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(leaving, "POST", s.url+"/v1/agents/scout/messages", strings.NewReader(`{"content":"look","session_id":"s-3"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "text/event-stream")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answers <- []event{{"state", `{"state":"asked"}`}}
	await("s-3", `"scout":{"state":"asked","version":1,`)
	leave()
	_ = response.Body.Close()
	answers <- []event{{"state", `{"state":"alone","detail":null}`}, {"done", `{}`}}
	await("s-3", `"scout":{"state":"alone","version":2,`)
	for i, good := range [][2]string{{`{"state":"a\"b\u2028","detail":[null]}`, `"state":"a\"b`}, {`{"state":"x","detail":{"n":1,"n":2}}`, `"state":"x"`}, {`{"state":"x","detail":"\ud800"}`, `"state":"x"`}, {`{"state":"x","more":1}`, `"state":"x"`}} {
		session := fmt.Sprintf("good-%d", i)
		over = say(session)
		answers <- []event{{"state", good[0]}, {"done", `{}`}}
		if code := <-over; code != 200 {
			t.Errorf("%s: %d", good[0], code)
		}
		if got := state(session); !strings.Contains(got, good[1]) {
			t.Errorf("%s: %s", good[0], got)
		}
	}
	over = say("s-2")
	answers <- []event{{"state", `{"state":"lost"}`}, {"error", `{"code":"invalid_request","message":"where?"}`}}
	<-over
	await("s-2", `"scout":{"state":"lost","version":1,"run_id":"`)
	kept := state("s-1")
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir)
	if got := state("s-1"); got != kept || !strings.Contains(got, `"scout":{"state":"idle","version":3,`) {
		t.Errorf("after the kill: %s, before %s", got, kept)
	}
}

// An event that names no state ends each attempt of an answer, and a client is told the event and the rule. The state before
// it stays, and nothing of the event is kept.
func TestInvalidStateOfAService(t *testing.T) {
	var attempts atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/invoke" {
			return // a poll of its health
		}
		var in struct {
			Message struct {
				Content string `json:"content"`
			} `json:"input_message"`
		}
		if err := json.UnmarshalRead(r.Body, &in); err != nil {
			t.Error(err)
		}
		attempts.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "event: state\ndata: {\"state\":\"searching\",\"detail\":{\"pages\":1}}\n\nevent: state\ndata: %s\n\nevent: done\ndata: {}\n\n", in.Message.Content)
	}))
	defer service.Close()
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	var v jsontext.Value
	if code, err := s.request("POST", "/v1/agents/register", `{"agent_id":"scout","endpoint":"`+service.URL+`"}`, "", &v); code != 201 || err != nil {
		t.Fatal(code, err)
	}
	bad := []string{`{"state":null,"detail":{"half":1}}`, `{"state":""}`, `{}`, `searching`, `{"state":"` + strings.Repeat("x", 4096) + `"}`, `{"state":"x","detail":"` + strings.Repeat("half", 4096) + `"}`}
	var all sync.WaitGroup
	for i, data := range bad {
		all.Go(func() {
			body, _ := json.Marshal(map[string]string{"content": data, "session_id": fmt.Sprint("bad-", i)})
			code, out, failed := s.post(string(body))
			if failed != nil || code != 502 || !strings.Contains(out, `"code":"outcome_unknown"`) || !strings.Contains(out, "event 2, state: ") || len(out) > 2<<10 {
				t.Errorf("%.40s: %d %s %v", data, code, out, failed)
			}
			var state jsontext.Value
			if _, err := s.request("GET", fmt.Sprint("/v1/sessions/bad-", i, "/state"), "", "", &state); err != nil ||
				!strings.Contains(string(state), `"scout":{"state":"searching","detail":{"pages":1},"version":1,`) || strings.Contains(string(state), "half") {
				t.Errorf("%.40s: %s %v", data, state, err)
			}
		})
	}
	all.Wait()
	if n := attempts.Load(); int(n) != len(bad) {
		t.Errorf("%d attempts of %d answers: what the agent did is not known", n, len(bad))
	}
}

// post sends a message to the agent scout.
func (s *server) post(body string) (code int, out string, err error) {
	response, err := http.Post(s.url+"/v1/agents/scout/messages", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return response.StatusCode, string(b), err
}
