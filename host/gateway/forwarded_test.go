// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// A service that knows no run token names its run in x-run-id or run_id. With the key of the
// principal that registered it, its call acts in the namespace of the run, and nowhere else.
func TestServiceNamesItsRun(t *testing.T) {
	d := startGateway(t)
	const scopes = `"scopes":["call","read","agents"]`
	owner, stranger, admin := d.newUser(`"user":"olga",`+scopes), d.newUser(`"user":"mallory",`+scopes), d.newUser(`"scopes":["admin"]`)
	reader := d.newUser(`"user":"olga","scopes":["read"]`)
	ended, invoked := make(chan struct{}), make(chan string, 1)
	served := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/invoke" {
			invoked <- r.Header.Get("x-run-id")
			<-ended
		}
	}))
	t.Cleanup(served.Close)
	if status, body := owner.do("POST", "/v1/agents/register", `{"agent_id":"outside","endpoint":"`+served.URL+`"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	const path = "/v1/agents/helper:invoke"
	stream := d.openStream("POST", "/v1/agents/outside/messages", `{"content":"x","session_id":"s-7"}`, userHeader, "alice")
	run := <-invoked
	other := d.openStream("POST", "/v1/agents/outside/messages", `{"content":"x","session_id":"s-8"}`, userHeader, "bob")
	second := <-invoked
	inBody := fmt.Sprintf(`{"input_message":{"role":"user","content":"y"},"run_id":%q,"context":{"user_id":"alice"}}`, run)
	for name, c := range map[string]struct {
		by      user
		body    string
		headers []string
		status  int
		want    string
	}{
		"header":                     {owner, `{"message":"y"}`, []string{runHeader, run}, 200, "response from helper: y"},
		"field":                      {owner, inBody, nil, 200, "response from helper: y"},
		"both":                       {owner, inBody, []string{runHeader, run, userHeader, "alice"}, 200, "response from helper: y"},
		"two runs":                   {owner, inBody, []string{runHeader, second}, 403, "forbidden_run"},
		"another user":               {owner, `{"message":"y"}`, []string{runHeader, run, userHeader, "bob"}, 404, "run_not_found"},
		"key of a stranger":          {stranger, `{"message":"y"}`, []string{runHeader, run}, 404, "run_not_found"},
		"key of a stranger, field":   {stranger, inBody, nil, 404, "run_not_found"},
		"administrator":              {admin, `{"message":"y"}`, []string{runHeader, run}, 200, "response from helper: y"},
		"key without the scope call": {reader, `{"message":"y"}`, []string{runHeader, run}, 403, "forbidden_scope"},
		"no run":                     {owner, `{"message":"y"}`, nil, 401, "unauthorized"},
		"empty run":                  {owner, `{"message":"y","run_id":""}`, nil, 401, "unauthorized"},
		"not a run":                  {owner, `{"message":"y"}`, []string{runHeader, "job 7"}, 400, `"field":"x-run-id"`},
		"field that is not a run":    {owner, `{"message":"y","run_id":"job 7"}`, nil, 400, `"field":"run_id"`},
		"unknown run":                {owner, `{"message":"y"}`, []string{runHeader, "01a20f00-1aeb-7791-84a0-d6b7700bd6ef"}, 404, "run_not_found"},
		"bad token":                  {owner, `{"message":"y"}`, []string{runHeader, run, RunToken, "troupe-run.a.b"}, 401, "unauthorized"},
	} {
		if status, body := c.by.do("POST", path, c.body, c.headers...); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d with %s", name, status, body, c.status, c.want)
		}
	}
	if status, _, body := d.do("POST", path, `{"message":"y"}`, runHeader, run); status != 404 { // the agent is not that of local clients
		t.Errorf("keyless client: %d %s, want 404", status, body)
	}
	_, _, tree := d.do("GET", "/v1/runs/"+run+"?tree=1", "", userHeader, "alice")
	if n := strings.Count(tree, `"actor":"alice/helper/s-7"`); n != 4 {
		t.Errorf("got %d calls in the namespace of alice, want 4: %s", n, tree)
	}
	if _, body := owner.do("GET", "/v1/runs?agent_id=helper", ""); strings.Contains(body, "run_id") {
		t.Errorf("a call acted in the namespace of the service: %s", body)
	}
	close(ended)
	stream.readUntil("run_failed")
	other.readUntil("run_failed")
	if status, body := owner.do("POST", path, `{"message":"y"}`, runHeader, run); status != 404 || !strings.Contains(body, "run_not_found") {
		t.Errorf("ended run: %d %s, want 404", status, body)
	}
}

// With its run in x-run-id and the key of the principal that registered it, a service reads the messages of the session
// of that run, and reads and writes the contexts of it, in the namespace of the run's user. It gets nothing else.
func TestServiceReachesTheSessionOfItsRun(t *testing.T) {
	d := startGateway(t)
	const scopes = `"scopes":["call","read","agents"]`
	owner, stranger, admin := d.newUser(`"user":"olga",`+scopes), d.newUser(`"user":"mallory",`+scopes), d.newUser(`"scopes":["admin"]`)
	caller := d.newUser(`"user":"olga","scopes":["call"]`)
	ended, invoked := make(chan struct{}), make(chan string, 1)
	served := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/invoke" {
			invoked <- r.Header.Get("x-run-id")
			<-ended
		}
	}))
	end := sync.OnceFunc(func() { close(ended) })
	t.Cleanup(served.Close)
	t.Cleanup(end)
	if status, body := owner.do("POST", "/v1/agents/register", `{"agent_id":"outside","endpoint":"`+served.URL+`"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	stream := d.openStream("POST", "/v1/agents/outside/messages", `{"content":"of alice","session_id":"s-7"}`, userHeader, "alice")
	run := <-invoked
	other := d.openStream("POST", "/v1/agents/outside/messages", `{"content":"of bob","session_id":"s-8"}`, userHeader, "bob")
	second := <-invoked
	named := []string{runHeader, run}
	created := struct {
		Key string `json:"context_key"`
	}{}
	status, body := owner.do("POST", "/v1/context", `{"data":{"kept":1}}`, named...)
	if err := json.Unmarshal([]byte(body), &created); err != nil || status != 201 || !strings.HasSuffix(created.Key, ".s-7") {
		t.Fatalf("a context in the session of the run: %d %s %v", status, body, err)
	}
	context := "/v1/context/" + created.Key
	for _, c := range []struct {
		name, method, path, body string
		by                       user
		headers                  []string
		status                   int
		want                     string
	}{
		{"messages", "GET", "/v1/sessions/s-7/messages", "", owner, named, 200, "of alice"},
		{"messages, administrator", "GET", "/v1/sessions/s-7/messages", "", admin, named, 200, "of alice"},
		{"messages, with the user", "GET", "/v1/sessions/s-7/messages", "", owner, append(named, userHeader, "alice"), 200, "of alice"},
		{"messages of another session", "GET", "/v1/sessions/s-8/messages", "", owner, named, 404, "session_not_found"},
		{"messages of another user", "GET", "/v1/sessions/s-7/messages", "", owner, append(named, userHeader, "bob"), 404, "run_not_found"},
		{"messages without the run", "GET", "/v1/sessions/s-7/messages", "", owner, nil, 404, "session_not_found"},
		{"messages, a stranger", "GET", "/v1/sessions/s-7/messages", "", stranger, named, 404, "run_not_found"},
		{"messages, without the scope read", "GET", "/v1/sessions/s-7/messages", "", caller, named, 403, "forbidden_scope"},
		{"messages, no run", "GET", "/v1/sessions/s-7/messages", "", owner, []string{runHeader, "job 7"}, 400, `"field":"x-run-id"`},
		{"a context", "GET", context, "", owner, named, 200, `"kept":1`},
		{"its next version", "PUT", context, `{"data":{"kept":2}}`, owner, named, 200, `"version":2`},
		{"a context with the session", "POST", "/v1/context", `{"data":1,"session_id":"s-7"}`, owner, named, 201, ".s-7"},
		{"a context of another session", "POST", "/v1/context", `{"data":1,"session_id":"s-8"}`, owner, named, 404, "session_not_found"},
		{"a context for the run of bob", "GET", context, "", owner, []string{runHeader, second}, 404, "context_not_found"},
		{"a context, a stranger", "PUT", context, `{"data":{"kept":3}}`, stranger, named, 404, "run_not_found"},
		{"appended messages", "POST", "/v1/sessions/s-7/messages", `{"messages":[{"role":"user","content":"x"}]}`, owner, named, 403, "forbidden_scope"},
		{"the session", "GET", "/v1/sessions/s-7", "", owner, named, 404, "session_not_found"},
		{"the run", "GET", "/v1/runs/" + run, "", owner, named, 404, "run_not_found"},
	} {
		if status, body := c.by.do(c.method, c.path, c.body, c.headers...); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d with %s", c.name, status, body, c.status, c.want)
		}
	}
	if status, _, body := d.do("GET", context, "", userHeader, "alice"); status != 200 || !strings.Contains(body, `"kept":2`) {
		t.Errorf("the context is not that of alice: %d %s", status, body)
	}
	if _, body := owner.do("GET", "/v1/sessions", ""); !strings.Contains(body, `"sessions":[]`) {
		t.Errorf("a session in the namespace of the service: %s", body)
	}
	end()
	stream.readUntil("run_failed")
	other.readUntil("run_failed")
	for _, path := range []string{context, "/v1/sessions/s-7/messages"} {
		if status, body := owner.do("GET", path, "", named...); status != 404 || !strings.Contains(body, "run_not_found") {
			t.Errorf("%s after the run: %d %s", path, status, body)
		}
	}
}
