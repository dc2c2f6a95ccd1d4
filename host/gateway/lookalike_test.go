// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"
)

// Names that look alike are refused with the name that they resemble. A server with such names,
// which its operator or an earlier version has accepted, starts and serves all of them.
func TestLookAlikesAreRefused(t *testing.T) {
	dir := t.TempDir()
	t.Run("refused", func(t *testing.T) {
		d := startGatewayOn(t, dir, Config{})
		ann := d.newUser(`"user":"ann","scopes":["agents","operator","read"]`)
		for body, status := range map[string]int{`{"agent_id":"fancy-1","name":"Fancy","endpoint":"http://127.0.0.1:1"}`: 201} {
			if got, answer := ann.do("POST", "/v1/agents/register", body); got != status {
				t.Fatalf("%s: %d %s", body, got, answer)
			}
		}
		bob := d.newUser(`"user":"bob","scopes":["agents","operator","read"]`)
		for body, want := range map[string]string{
			`{"agent_id":"x","name":"fancy","endpoint":"http://127.0.0.1:2"}`:       `looks like \"Fancy\", which is that of agent fancy-1 and belongs to ann; choose another name`,
			`{"agent_id":"x","name":" Fancy","endpoint":"http://127.0.0.1:2"}`:      `looks like \"Fancy\"`,
			`{"agent_id":"x","name":"Ｆancy","endpoint":"http://127.0.0.1:2"}`:       `looks like \"Fancy\"`,
			`{"agent_id":"x","name":"Fаncy","endpoint":"http://127.0.0.1:2"}`:       "scripts Latin and Cyrillic",
			`{"agent_id":"Fancy-1","endpoint":"http://127.0.0.1:2"}`:                `looks like \"fancy-1\"`,
			`{"agent_id":"Helper","endpoint":"http://127.0.0.1:2"}`:                 "looks like helper, an agent of this program",
			`{"agent_id":"helper","endpoint":"http://127.0.0.1:2"}`:                 "helper is part of this program",
			`{"agent_id":"x","name":"Coordinator","endpoint":"http://127.0.0.1:2"}`: "looks like coordinator, an agent of this program",
			`{"agent_id":"x","name":"coordinator","endpoint":"http://127.0.0.1:2"}`: "coordinator is part of this program",
		} {
			for _, u := range []user{ann, bob} {
				if status, answer := u.do("POST", "/v1/agents/register", body); status != 403 && status != 400 || !strings.Contains(answer, want) {
					t.Errorf("%s: %d %s, want %s", body, status, answer, want)
				}
			}
		}
		for user, want := range map[string]string{"Ann": `looks like \"ann\"`, "ａnn": `looks like \"ann\"`, "аnn": "scripts Cyrillic and Latin",
			"local": "is reserved", "Default": "is reserved", "ｌocal": "is reserved"} {
			if status, _, answer := d.owner().do("POST", "/v1/keys", `{"user":"`+user+`"}`); status != 403 && status != 400 || !strings.Contains(answer, want) || !strings.Contains(answer, `"field":"user"`) {
				t.Errorf("key of %s: %d %s, want %s", user, status, answer, want)
			}
		}
		d.newUser(`"user":"ann","scopes":["read"]`)
		if status, answer := ann.do("POST", "/v1/tools", `{"tool_name":"a.b","url":"http://127.0.0.1:1/"}`); status != 201 {
			t.Fatalf("%d %s", status, answer)
		}
		if status, answer := bob.do("POST", "/v1/tools", `{"tool_name":"A.b","url":"http://127.0.0.1:1/"}`); status != 403 || !strings.Contains(answer, "looks like the tool a.b") {
			t.Errorf("tool: %d %s", status, answer)
		}
		if status, _, answer := d.owner().do("POST", "/v1/agents", `{"agent_id":"FANCY-1","name":"FANCY"}`); status != 201 {
			t.Errorf("the operator: %d %s", status, answer)
		}
	})
	t.Run("restarted", func(t *testing.T) {
		d := startGatewayOn(t, dir, Config{})
		for _, id := range []string{"fancy-1", "FANCY-1"} {
			if status, _, answer := d.owner().do("GET", "/v1/agents/"+id, ""); status != 200 {
				t.Errorf("%s after a restart: %d %s", id, status, answer)
			}
		}
	})
}
