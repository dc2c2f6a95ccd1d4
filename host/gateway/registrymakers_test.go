// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/ingress"
)

// Runs of the registry, their events and the list of keys name the user and the key that made a
// change. An administrator keeps the rights of the operator.
func TestChangesOfRegistryNameTheirMaker(t *testing.T) {
	d := startGateway(t)
	alice := d.newUser(`"user":"alice","scopes":["admin"]`)
	carol := d.newUser(`"user":"carol","scopes":["agents"]`)
	nobody := d.newUser(`"scopes":["admin"]`)
	id := func(u user) string { id, _ := ingress.KeyID(u.key); return id }
	for _, c := range []struct {
		by                 user
		method, path, body string
		status             int
	}{
		{carol, "POST", "/v1/agents", `{"name":"hers"}`, 201},
		{alice, "POST", "/v1/agents", `{"name":"hers","prompt":"changed"}`, 200}, // has the rights of the operator, who now owns it
		{carol, "POST", "/v1/agents", `{"name":"hers","prompt":"again"}`, 403},
		{nobody, "DELETE", "/v1/agents/hers", "", 200},
		{alice, "POST", "/v1/tools", `{"tool_name":"of_alice","url":"http://127.0.0.1:1/"}`, 201},
		{alice, "POST", "/v1/keys", `{"name":"by alice","scopes":["read"]}`, 201},
		{user{d.owner(), ""}, "POST", "/v1/agents", `{"name":"of-owner"}`, 201},
	} {
		status, answer := 0, ""
		if c.by.key == "" { // the socket
			status, _, answer = c.by.testGateway.do(c.method, c.path, c.body)
		} else {
			status, answer = c.by.do(c.method, c.path, c.body)
		}
		if status != c.status {
			t.Fatalf("%s %s %s: %d %s, want %d", c.method, c.path, c.body, status, answer, c.status)
		}
	}
	var made []string
	rows, _ := d.owner().listAll("system=true&agent_id=troupe")
	for _, row := range rows {
		var run, input struct {
			Principal string `json:"principal"`
			Key       string `json:"key_id"`
		}
		var events struct {
			Events []struct {
				Type    string `json:"type"`
				Payload any    `json:"payload"`
			} `json:"events"`
		}
		d.owner().doJSON(&run, "GET", "/v1/runs/"+row.Run, "")
		d.owner().doJSON(&events, "GET", "/v1/runs/"+row.Run+"/events", "")
		payload, _ := json.Marshal(events.Events[0].Payload)
		if err := json.Unmarshal(payload, &input); err != nil || input != run {
			t.Errorf("the run names %+v, its event %s %s", run, events.Events[0].Type, payload)
		}
		made = append(made, strings.TrimSpace(run.Principal+" "+run.Key))
	}
	want := []string{"local", "alice " + id(alice), "alice " + id(alice), "key:" + id(nobody) + " " + id(nobody), "carol " + id(carol), "alice " + id(alice), "carol " + id(carol), "local", "local", "local"}
	slices.Sort(made) // runs of one millisecond are in no order
	slices.Sort(want)
	if strings.Join(made, ", ") != strings.Join(want, ", ") {
		t.Errorf("changes are made by\n%q, want\n%q", made, want)
	}
	var keys struct {
		Keys []struct {
			Name  string `json:"name"`
			By    string `json:"created_by"`
			ByKey string `json:"created_by_key_id"`
		} `json:"keys"`
	}
	d.owner().doJSON(&keys, "GET", "/v1/keys", "")
	for _, k := range keys.Keys {
		wantUser, wantKey := "local", ""
		if k.Name == "by alice" {
			wantUser, wantKey = "alice", id(alice)
		}
		if k.By != wantUser || k.ByKey != wantKey {
			t.Errorf("key %q is created by %q with key %q, want %q with %q", k.Name, k.By, k.ByKey, wantUser, wantKey)
		}
	}
}

// No request without the scope admin reaches the registry but by the routes that change it.
func TestClientsCannotActAsTheOperator(t *testing.T) {
	d := startGateway(t)
	mallory := d.newUser(`"user":"mallory","scopes":["call","read","agents","operator"],"act_as_user":true`)
	d.owner().createAgent("target")
	for _, c := range []struct{ method, path, body, header string }{
		{"POST", "/v1/agents", `{"name":"target","prompt":"mine"}`, ""},
		{"POST", "/v1/agents", `{"name":"target","prompt":"mine"}`, "operator"},
		{"POST", "/v1/agents", `{"name":"target","prompt":"mine","accepted_by":"operator"}`, ""},
		{"DELETE", "/v1/agents/target", "", "operator"},
		{"POST", "/v1/agents/troupe/messages", `{"content":"{}","session_id":"registry"}`, ""},
		{"POST", "/v1/agents/troupe/messages", `{"content":"{}","session_id":"registry"}`, "operator"},
		{"POST", "/v1/keys", `{"scopes":["admin"]}`, ""},
	} {
		var headers []string
		if c.header != "" {
			headers = []string{userHeader, c.header}
		}
		if status, body := mallory.do(c.method, c.path, c.body, headers...); status < 400 || status >= 500 {
			t.Errorf("%s %s %s as %q: %d %s", c.method, c.path, c.body, c.header, status, body)
		}
	}
	if status, _, body := d.do("GET", "/v1/agents/target", ""); status != 200 || strings.Contains(body, "mine") {
		t.Errorf("%d %s", status, body)
	}
}
