// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/internal/servertest"
)

// A secret of the server reaches the service that its configuration names, and no other.
// A store with an agent that names another address does not send it either.
func TestSecretIsSentToItsAddressOnly(t *testing.T) {
	const secret = "canary-4711"
	t.Setenv("TROUPE_AUTH_SCRIBE", secret)
	var sent, stolen atomic.Int64
	answer := func(counter *atomic.Int64) *httptest.Server {
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Authorization"), secret) {
				counter.Add(1)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "event: delta\ndata: {\"text\":\"hello\"}\n\nevent: done\ndata: {}\n\n")
		}))
		t.Cleanup(service.Close)
		return service
	}
	scribe, thief := answer(&sent), answer(&stolen)
	register := func(id, url string) string {
		return fmt.Sprintf(`{"agent_id":%q,"endpoint":%q,"auth":{"env":"TROUPE_AUTH_SCRIBE"}}`, id, url)
	}
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir, "--auth", "TROUPE_AUTH_SCRIBE="+scribe.URL, "--auth", "TROUPE_AUTH_TEAM="+scribe.URL+"/team")
	for path, want := range map[string]int{"/team/a": 201, "/team/../b": 403, "/team/..;/c": 403, "/team/..;x=1/d": 403} { // some services ignore ';' and the text after it
		body := fmt.Sprintf(`{"agent_id":%q,"endpoint":%q,"auth":{"env":"TROUPE_AUTH_TEAM"}}`, "at-"+path[len(path)-1:], scribe.URL+path)
		if status, err := s.request("POST", "/v1/agents/register", body, "", nil); status != want {
			t.Errorf("register at %s: got %d %v, want %d", path, status, err, want)
		}
	}
	if status, err := s.request("POST", "/v1/agents/register", register("scribe", scribe.URL), "", nil); status != 201 {
		t.Fatalf("register: %d %v", status, err)
	}
	var problem struct {
		Code   string `json:"code"`
		Field  string `json:"field"`
		Detail string `json:"detail"`
	}
	status, _ := s.request("POST", "/v1/agents/register", register("thief", thief.URL), "", &problem)
	if want := "--auth TROUPE_AUTH_SCRIBE=" + strings.TrimPrefix(thief.URL, "http://"); status != 403 || problem.Code != "call_rejected" || problem.Field != "auth.env" || !strings.Contains(problem.Detail, want) {
		t.Errorf("register elsewhere: got %d %+v, want 403 and %s", status, problem, want)
	}
	if status, err := s.request("POST", "/v1/agents/scribe/messages", `{"content":"x"}`, "", nil); status != 200 || sent.Load() == 0 {
		t.Errorf("message: %d %v, the service received the secret %d times", status, err, sent.Load())
	}
	s.stop(syscall.SIGTERM)

	s, before := startServer(t, dir), sent.Load()
	if status, _ := s.request("POST", "/v1/agents/scribe/messages", `{"content":"x"}`, "", &problem); status != 403 || !strings.Contains(problem.Detail, "may not send the secret") {
		t.Errorf("without the binding: got %d %+v", status, problem)
	}
	s.stop(syscall.SIGTERM)
	if sent.Load() != before || stolen.Load() != 0 {
		t.Errorf("the secret was sent %d times without a binding, %d times to another address", sent.Load()-before, stolen.Load())
	}
	if log, _ := os.ReadFile(s.log); !strings.Contains(string(log), "--auth TROUPE_AUTH_SCRIBE=") || strings.Contains(string(log), secret) {
		t.Errorf("log: %s", log)
	}
	agentDir := t.TempDir()
	file := fmt.Sprintf("name = \"scribe\"\nendpoint = %q\nauth.env = \"TROUPE_AUTH_SCRIBE\"\n", scribe.URL)
	if err := os.WriteFile(filepath.Join(agentDir, "scribe.toml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := programCmd("serve", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--agents", agentDir)
	var text bytes.Buffer
	cmd.Stderr = &text
	if p, err := servertest.Start(cmd); err == nil {
		_ = p.Stop(syscall.SIGKILL)
		t.Error("a server with a file without a binding started")
	} else if !strings.Contains(text.String(), "scribe.toml: the server may not send the secret TROUPE_AUTH_SCRIBE") {
		t.Errorf("file without a binding: %v, %s", err, &text)
	}
}

func TestSecretBindingsInConfig(t *testing.T) {
	const file = "[auth]\nTROUPE_AUTH_A = \"a.example, b.example:9000\"\n"
	c, err := parseServe(t, file)
	if want := map[string]string{"TROUPE_AUTH_A": "a.example, b.example:9000"}; err != nil || !reflect.DeepEqual(c.Auth, want) {
		t.Errorf("file: got %v, %v, want %v", c.Auth, err, want)
	}
	c, err = parseServe(t, "", "--auth", "TROUPE_AUTH_A=a.example,b.example", "--auth", "TROUPE_AUTH_B=http://c.example/x")
	if want := map[string]string{"TROUPE_AUTH_A": "a.example,b.example", "TROUPE_AUTH_B": "http://c.example/x"}; err != nil || !reflect.DeepEqual(c.Auth, want) {
		t.Errorf("flags: got %v, %v, want %v", c.Auth, err, want)
	}
}
