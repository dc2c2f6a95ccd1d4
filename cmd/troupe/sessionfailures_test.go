// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// strictModel answers as strict templates do: 400 unless the messages behind the instructions begin with a user's
// and alternate, and too long for ever once one of them is long. Requests for "hang" wait until their end.
type strictModel struct {
	*httptest.Server
	mu    sync.Mutex
	heard []string // messages of each request, "u:" or "a:" before the text
	wrong []string
	hung  map[string]int // requests that waited, by the last line of their message
	asked chan string    // the last line of each request that waits
}

func startStrictModel(t *testing.T) *strictModel {
	m := &strictModel{hung: map[string]int{}, asked: make(chan string, 100)}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

func (m *strictModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
	}
	err := json.UnmarshalRead(r.Body, &in)
	var texts []string
	wrong := err != nil
	for _, one := range in.Messages {
		if one.Role == "system" && texts == nil {
			continue
		}
		if want := []string{"user", "assistant"}[len(texts)%2]; one.Role != want {
			wrong = true
		}
		texts = append(texts, one.Role[:1]+":"+one.Content)
	}
	all := strings.Join(texts, " | ")
	lines := strings.Split(all, "\n") // joined messages of a user are lines of one
	last := lines[len(lines)-1]
	last = last[strings.LastIndex(last, ":")+1:]
	m.mu.Lock()
	m.heard = append(m.heard, all)
	if wrong {
		m.wrong = append(m.wrong, all)
	}
	again := m.hung[last]
	if strings.HasPrefix(last, "hang") {
		m.hung[last]++
	}
	m.mu.Unlock()
	answer := func(status int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
	switch {
	case wrong:
		answer(400, `{"error":{"message":"conversation roles must alternate user/assistant/user/assistant"}}`)
	case strings.Contains(all, "too much"):
		answer(400, `{"error":{"message":"This model's maximum context length is 4097 tokens.","code":"context_length_exceeded"}}`)
	case last == "fail":
		answer(400, `{"error":{"message":"no"}}`)
	case last == "empty":
		answer(200, `{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}`)
	case strings.HasPrefix(last, "hang") && again == 0:
		m.asked <- last
		<-r.Context().Done()
	default:
		answer(200, fmt.Sprintf(`{"choices":[{"message":{"role":"assistant","content":%q},"finish_reason":"stop"}]}`, "answer to "+last))
	}
}

// A session goes on after a run that failed, was cancelled, was interrupted, or met a kill of the server: the model
// gets roles that alternate. A message that made the prompt too long is in no later prompt; the session keeps it.
func TestSessionGoesOnAfterEachFailure(t *testing.T) {
	model := startStrictModel(t)
	dir := filepath.Join(t.TempDir(), "data")
	files := writeFiles(t, ">> a.toml\nname = \"a\"\nmodel = \"m\"\nprompt = \"Answer.\"")
	config := filepath.Join(filepath.Dir(dir), "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.m]\nurl = \""+model.URL+"\"\nretry_attempts = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, dir, "--agents", files, "--config", config)
	send := func(text, more string) (int, messageReply) {
		t.Helper()
		var a messageReply
		status, err := s.request("POST", "/v1/agents/a/messages", fmt.Sprintf(`{"content":%q,"session_id":"s"%s}`, text, more), "", &a)
		if err != nil {
			t.Fatal(err)
		}
		return status, a
	}
	goesOn := func(text, more string) {
		t.Helper()
		if status, a := send(text, more); status != 200 || a.Content != "answer to "+text {
			t.Errorf("%s: %d %+v", text, status, a)
		}
	}
	begin := func(text string) string {
		t.Helper()
		code, out, stderr := runProgram(t, "call", "a", text, "--session", "s", "--async", "--server", s.url)
		if code != 0 {
			t.Fatal(stderr)
		}
		if got := <-model.asked; got != text {
			t.Fatalf("the model was asked %q, want %q", got, text)
		}
		return strings.TrimSpace(out)
	}
	status := func(run string) string {
		var r struct {
			Status string `json:"status"`
		}
		_, _ = s.request("GET", "/v1/runs/"+run, "", "", &r)
		return r.Status
	}
	ends := func(run, want string) {
		t.Helper()
		waitUntil(t, run+" to be "+want, func() bool { return status(run) == want })
	}

	if status, a := send("fail", ""); status != 502 || a.Code != "model_rejected" { // the first of the session
		t.Errorf("fail: %d %+v", status, a)
	}
	goesOn("after the failure", "")
	if status, a := send("empty", ""); status != 503 || a.Code != "agent_unavailable" {
		t.Errorf("empty: %d %+v", status, a)
	}
	goesOn("after the empty answer", "")
	run := begin("hang for a cancellation")
	if code, err := s.request("POST", "/v1/runs/"+run+":cancel", "", "", &struct{}{}); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	ends(run, "CANCELLED")
	goesOn("after the cancellation", "")
	run = begin("hang for an interruption")
	goesOn("after the interruption", `,"if_busy":"interrupt"`)
	ends(run, "CANCELLED")
	status502, long := send("too much "+strings.Repeat("x", 10_000), "")
	if status502 != 502 || long.Code != "model_rejected" || !strings.Contains(long.Detail, "maximum context length") {
		t.Errorf("too long: %d %s %s", status502, long.Code, long.Detail)
	}
	goesOn("after the long message", "")
	run = begin("hang for a kill")
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir, "--agents", files, "--config", config)
	ends(run, "DONE")
	goesOn("after the kill", "")

	if len(model.wrong) > 0 {
		t.Errorf("prompts that a strict model refuses: %q", model.wrong)
	}
	want := "u:fail\nafter the failure | a:answer to after the failure | u:empty\nafter the empty answer | a:answer to after the empty answer | " +
		"u:hang for a cancellation\nafter the cancellation | a:answer to after the cancellation | u:hang for an interruption\nafter the interruption | " +
		"a:answer to after the interruption | u:after the long message | a:answer to after the long message | u:hang for a kill | a:answer to hang for a kill | u:after the kill"
	if got := model.heard[len(model.heard)-1]; strings.ReplaceAll(got, "\n\n", "\n") != want {
		t.Errorf("the last prompt is\n%s\nwant\n%s", got, want)
	}
	var page struct {
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
	}
	if code, err := s.request("GET", "/v1/sessions/s/messages?limit=100", "", "", &page); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	kept := slices.IndexFunc(page.Messages, func(m struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}) bool {
		return strings.HasPrefix(m.Content, "too much")
	})
	if len(page.Messages) != 19 || kept < 0 {
		t.Errorf("the session has %d messages, want 19 with the long one", len(page.Messages))
	}
	code, out, stderr := runProgram(t, "runs", "events", long.Run, "--server", s.url)
	if code != 0 || !strings.Contains(out, "message_left_out") {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
}
