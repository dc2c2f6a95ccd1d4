// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/agents"
)

// createLimitedKey creates an API key with the given fields and returns its text.
func (d *testGateway) createLimitedKey(fields string) string {
	d.Helper()
	var key struct {
		Key string `json:"key"`
	}
	if status := d.owner().doJSON(&key, "POST", "/v1/keys", fields); status != http.StatusCreated {
		d.Fatalf("create key %s: %d", fields, status)
	}
	return key.Key
}

// A key that is limited to agents calls and finds these only, on every face. What they call in turn is
// their own.
func TestLimitedKeyCallsItsAgentsOnly(t *testing.T) {
	d := startGateway(t, agents.Define("front", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		return turn.Call("helper", turn.Message())
	}))))
	if status, _, answer := d.do("POST", "/v1/agents", `{"name":"writer","provides":[{"code":"DOC_GENERATE","description":"Writes a document."}]}`); status != 201 {
		t.Fatal(answer)
	}
	key := d.createLimitedKey(`{"agents":["front"],"user":"site"}`)
	bearer := []string{"Authorization", "Bearer " + key}
	if status, answer := d.doAs(key, "POST", "/v1/agents/front/messages", `{"content":"x"}`); status != 200 || !strings.Contains(answer, "response from helper") {
		t.Errorf("its agent: %d %s", status, answer)
	}
	if status, answer := d.doAs(key, "POST", "/v1/openai/chat/completions", `{"model":"front","messages":[{"role":"user","content":"x"}]}`); status != 200 {
		t.Errorf("its agent as a model: %d %s", status, answer)
	}
	for _, c := range []struct{ method, path, body, code string }{
		{"POST", "/v1/agents/helper/messages", `{"content":"x"}`, "agent_not_found"},
		{"POST", "/v1/agents/helper/messages", `{"content":"x","user_id":"site"}`, "agent_not_found"},
		{"POST", "/v1/openai/chat/completions", `{"model":"helper","messages":[{"role":"user","content":"x"}]}`, "model_not_found"},
		{"GET", "/v1/openai/models/helper", "", "model_not_found"},
		{"GET", "/v1/agents/helper", "", "agent_not_found"},
		{"GET", "/v1/agents/absent", "", "agent_not_found"},
		{"POST", "/v1/agents", `{"name":"front"}`, "forbidden_scope"},
	} {
		if status, _, answer := d.do(c.method, c.path, c.body, bearer...); status < 400 || !strings.Contains(answer, `"code":"`+c.code+`"`) {
			t.Errorf("%s %s %s: %d %s, want %s", c.method, c.path, c.body, status, answer, c.code)
		}
	}
	if _, _, answer := d.do("POST", "/v1/agents/writer:invoke", `{"request_id":"6f9619ff-8b86-4011-b42d-00cf4fc964ff","source_agent":"CST","target_agent":"writer","capability_code":"DOC_GENERATE","inputs_json":{}}`, bearer...); !strings.Contains(answer, "DOC_GENERATE is no registered capability") {
		t.Errorf("another agent by the contract: %s", answer)
	}
	for _, path := range []string{"/v1/agents", "/v1/openai/models"} {
		if _, answer := d.doAs(key, "GET", path, ""); !strings.Contains(answer, `"front"`) || strings.Contains(answer, "helper") || strings.Contains(answer, "writer") {
			t.Errorf("GET %s shows %s", path, answer)
		}
	}
	c := d.channel(`{"type":"hello"}`, http.Header{"Authorization": {"Bearer " + key}})
	c.until("state", "READY")
	c.send(`{"type":"agent_invoke","request_id":"a","agent_id":"helper","message":{"role":"user","content":"x"}}`)
	if m := c.until("error", ""); m.Code != "agent_not_found" {
		t.Errorf("another agent over the channel: %+v", m)
	}
	c.send(`{"type":"agent_invoke","request_id":"b","agent_id":"front","message":{"role":"user","content":"x"}}`)
	c.until("done", "")
}

// A limit that its holder could lift is refused.
func TestLimitedKeyIsNarrow(t *testing.T) {
	d := startGateway(t)
	for body, field := range map[string]string{
		`{"agents":["front"],"scopes":["agents"]}`:       "scopes",
		`{"agents":["front"],"scopes":["operator"]}`:     "scopes",
		`{"agents":["front"],"scopes":["admin"]}`:        "scopes",
		`{"agents":["front","front"]}`:                   "agents",
		`{"agents":["a b"]}`:                             "agents",
		`{"agents":[""]}`:                                "agents",
		`{"agents":["` + strings.Repeat("a", 65) + `"]}`: "agents",
		`{"agents":["a` + strings.Join(strings.Split("bcdefghijklmnopqr", ""), `","a`) + `"]}`: "agents",
	} {
		if status, _, answer := d.owner().do("POST", "/v1/keys", body); status != 400 || !strings.Contains(answer, `"field":"`+field+`"`) {
			t.Errorf("%s: %d %s, want field %s", body, status, answer, field)
		}
	}
	if _, _, answer := d.owner().do("POST", "/v1/keys", `{"agents":["front"]}`); !strings.Contains(answer, `"scopes":["call","read"]`) { // not admin, though it is the first key
		t.Error(answer)
	}
}
