// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"
)

// Who takes an agent over clears its former registrar of nothing: the calls that wait were made by its
// definition. Neither does who registers the name again.
func TestFormerRegistrarDoesNotDecide(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	d.declare(s, "pay", "/pay", `"policy":"require_approval"`)
	service := newExternalService(d, "outside")
	const scopes = `"scopes":["call","read","agents"`
	bot, alice := d.newUser(`"user":"bot","act_as_user":true,`+scopes+`]`), d.newUser(`"user":"alice",`+scopes+`]`)
	carol := d.newUser(`"user":"carol",` + scopes + `]`)
	admin := d.newUser(`"user":"root","scopes":["admin"]`)
	_, _, registered := d.do("GET", "/v1/agents/outside", "")
	_, endpoint, _ := strings.Cut(registered, `"endpoint":"`)
	endpoint, _, _ = strings.Cut(endpoint, `"`)
	register := func(by user, id, more string) {
		t.Helper()
		if status, body := by.do("POST", "/v1/agents/register", `{"agent_id":"`+id+`","endpoint":"`+endpoint+`"`+more+`}`); status != 200 && status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	for id, takeOver := range map[string]func(id string){
		"same":    func(id string) { register(admin, id, "") },
		"changed": func(id string) { register(admin, id, `,"name":"other-`+id+`"`) },
		"anew": func(id string) {
			if status, body := bot.do("DELETE", "/v1/agents/"+id, ""); status != 200 {
				t.Fatal(status, body)
			}
			register(carol, id, `,"name":"new-`+id+`"`)
		},
		"twice": func(id string) {
			register(admin, id, `,"name":"other-`+id+`"`)
			register(admin, id, `,"name":"third-`+id+`"`)
		},
	} {
		register(bot, id, "")
		in := service.begin(id, `{"content":"x","session_id":"`+id+`"}`, userHeader, "alice")
		_, out := d.invokeTool(in, "pay", `{"args":{}}`)
		takeOver(id)
		if status, body := bot.do("POST", "/v1/approvals/"+out.Approval+":decide", approve, userHeader, "alice"); status != 403 || !strings.Contains(body, "registered the agent") {
			t.Errorf("%s: the former registrar: %d %s", id, status, body)
		}
		if status, body := alice.do("POST", "/v1/approvals/"+out.Approval+":decide", reject); status != 200 {
			t.Errorf("%s: another principal: %d %s", id, status, body)
		}
	}
	if n := s.count("/pay"); n != 0 {
		t.Errorf("%d effects", n)
	}
}
