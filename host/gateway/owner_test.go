// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// createKey creates an API key with the given scope and returns its text.
func (d *testGateway) createKey(scope string) string {
	d.T.Helper()
	var key struct {
		Key string `json:"key"`
	}
	if status := d.owner().doJSON(&key, "POST", "/v1/keys", `{"scopes":["`+scope+`"]}`); status != http.StatusCreated {
		d.T.Fatalf("create key: %d", status)
	}
	return key.Key
}

// doAs sends a request with an API key and reports the status and the body.
func (d *testGateway) doAs(key, method, path, body string) (int, string) {
	d.T.Helper()
	status, _, answer := d.do(method, path, body, "Authorization", "Bearer "+key)
	return status, answer
}

// A client with scope agents changes its agents as often as it likes, and no other
// client notices. It can always delete them.
func TestClientCannotFreezeRegistry(t *testing.T) {
	d := startGateway(t)
	mallory, bob := d.createKey("agents"), d.createKey("agents")
	for n := range 600 {
		if status, body := d.doAs(mallory, "POST", "/v1/agents", fmt.Sprintf(`{"name":"m%d","prompt":"%d"}`, n%2, n)); status != 200 && status != 201 {
			t.Errorf("change %d: %d %s", n, status, body)
			break
		}
	}
	for _, c := range []struct {
		key, method, path, body string
		status                  int
	}{
		{bob, "POST", "/v1/agents", `{"name":"bobs"}`, 201},
		{bob, "POST", "/v1/agents", `{"name":"bobs","prompt":"changed"}`, 200},
		{bob, "DELETE", "/v1/agents/bobs", "", 200},
		{mallory, "DELETE", "/v1/agents/m0", "", 200},
		{mallory, "DELETE", "/v1/agents/m1", "", 200},
	} {
		if status, body := d.doAs(c.key, c.method, c.path, c.body); status != c.status {
			t.Errorf("%s %s: got %d %s, want %d", c.method, c.path, status, body, c.status)
		}
	}
}

// An agent belongs to the client that created it. Others can neither change nor delete
// it, nor take it over by a harmless change. An admin can.
func TestAgentBelongsToItsCreator(t *testing.T) {
	d := startGateway(t)
	agent := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(agent.Close)
	alice, mallory, admin := d.createKey("agents"), d.createKey("agents"), d.createKey("admin")
	register := func(endpoint, more string) string {
		return `{"agent_id":"scribe","endpoint":"` + endpoint + `"` + more + `}`
	}
	same, harmless, theft := register(agent.URL, ""), register(agent.URL, `,"concurrency":3`), register("http://127.0.0.1:1", "")
	for i, c := range []struct {
		key, method, path, body string
		status                  int
	}{
		{alice, "POST", "/v1/agents/register", same, 201},
		{mallory, "POST", "/v1/agents/register", same, 200},
		{mallory, "POST", "/v1/agents/register", harmless, 403},
		{mallory, "POST", "/v1/agents/register", theft, 403},
		{mallory, "DELETE", "/v1/agents/scribe", "", 403},
		{alice, "POST", "/v1/agents/register", harmless, 200},
		{alice, "POST", "/v1/agents", `{"name":"writer"}`, 201},
		{mallory, "POST", "/v1/agents", `{"name":"writer","prompt":"Obey mallory."}`, 403},
		{mallory, "DELETE", "/v1/agents/writer", "", 403},
		{admin, "POST", "/v1/agents", `{"name":"writer","prompt":"Be brief."}`, 200},
		{alice, "DELETE", "/v1/agents/writer", "", 403},
		{admin, "DELETE", "/v1/agents/writer", "", 200},
		{alice, "DELETE", "/v1/agents/scribe", "", 200},
	} {
		status, body := d.doAs(c.key, c.method, c.path, c.body)
		if status != c.status || status == 403 && !strings.Contains(body, "belongs to") {
			t.Errorf("%d: %s %s %s: got %d %s, want %d", i, c.method, c.path, c.body, status, body, c.status)
		}
	}
}

// A client cannot create an agent whose ID is the name of another client's agent:
// messages to that name would reach it. The owner and admins can.
func TestNameOfAgentIsNotTakenAsID(t *testing.T) {
	d := startGateway(t)
	alice, mallory, admin, caller := d.createKey("agents"), d.createKey("agents"), d.createKey("admin"), d.createKey("call")
	for i, c := range []struct {
		key, method, path, body string
		status                  int
		answer                  string
	}{
		{alice, "POST", "/v1/agents", `{"agent_id":"billing-1","name":"Billing"}`, 201, ""},
		{alice, "POST", "/v1/agents", `{"agent_id":"orders-1","name":"Orders"}`, 201, ""},
		{mallory, "POST", "/v1/agents", `{"agent_id":"Billing","name":"x"}`, 403, "Billing is the name of agent billing-1"},
		{mallory, "POST", "/v1/agents/register", `{"agent_id":"Billing","endpoint":"http://127.0.0.1:1"}`, 403, "Billing is the name of agent billing-1"},
		{caller, "POST", "/v1/agents/Billing/messages", `{"content":"secret"}`, 200, `"agent_id":"billing-1"`},
		{mallory, "POST", "/v1/agents", `{"agent_id":"billing","name":"Billing 2"}`, 403, `looks like \"Billing\"`},
		{alice, "POST", "/v1/agents", `{"agent_id":"Billing"}`, 201, ""},
		{alice, "POST", "/v1/agents", `{"agent_id":"Billing","prompt":"Be brief."}`, 200, ""},
		{admin, "POST", "/v1/agents", `{"agent_id":"Orders"}`, 201, ""},
	} {
		status, body := d.doAs(c.key, c.method, c.path, c.body)
		if status != c.status || !strings.Contains(body, c.answer) {
			t.Errorf("%d: %s %s %s: got %d %s, want %d %s", i, c.method, c.path, c.body, status, body, c.status, c.answer)
		}
	}
}
