// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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
