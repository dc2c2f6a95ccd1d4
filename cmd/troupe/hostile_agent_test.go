// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An external agent streams states without end. Its run fails with a code of its own,
// the server closes the connection, and the events before are kept.
func TestEndlessAnswerOfExternalAgentIsStopped(t *testing.T) {
	closed := make(chan struct{})
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		defer close(closed)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(w, "event: state\ndata: {\"state\":\"s%d\"}\n\n", i); err != nil {
				return
			}
			if i%100 == 0 {
				w.(http.Flusher).Flush()
			}
		}
	}))
	defer hostile.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[limits]\nstream_events_max = 150\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config)
	var answer struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
		Run    string `json:"run_id"`
	}
	if code, err := s.request("POST", "/v1/agents/register", `{"agent_id":"hostile","endpoint":"`+hostile.URL+`"}`, "", &answer); err != nil || code >= 300 {
		t.Fatalf("registration: %d %+v %v", code, answer, err)
	}
	code, err := s.request("POST", "/v1/agents/hostile/messages", `{"content":"go","timeout_ms":20000}`, "", &answer)
	if err != nil || code != http.StatusPaymentRequired || answer.Code != "events_exceeded" || !strings.Contains(answer.Detail, "stream_events_max") {
		t.Fatalf("got %d %+v %v, want events_exceeded", code, answer, err)
	}
	<-closed
	exit, out, text := runProgram(t, "runs", "events", answer.Run, "--server", s.url)
	if kept := strings.Count(out, "agent_state"); exit != 0 || kept < 150 || kept > 160 || !strings.Contains(out, "EventsExceeded") {
		t.Errorf("exit code %d, %d states kept: %s %s", exit, kept, out[max(0, len(out)-300):], text)
	}
}
