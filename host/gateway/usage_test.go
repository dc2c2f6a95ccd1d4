// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"
)

// A user sees what its own runs used, an operator that of all, and a customer nothing.
func TestUsageIsShownToItsUser(t *testing.T) {
	d := startGateway(t)
	if status, _, body := d.do("POST", "/v1/agents", `{"name":"asker","model":"scripted","prompt":"Answer."}`); status != 201 {
		t.Fatal(status, body)
	}
	anna, bob := d.newUser(`"user":"anna"`), d.newUser(`"user":"bob"`)
	operator := d.newUser(`"user":"olga","scopes":["read","operator"]`)
	customer := d.newUser(`"user":"carl","scopes":["chat"],"agents":["asker"]`)
	limited := d.newUser(`"user":"lena","scopes":["call","read"],"agents":["asker"]`)
	for _, u := range []user{anna, anna, bob} {
		if status, body := u.do("POST", "/v1/agents/asker/messages", `{"content":"hi"}`); status != 200 {
			t.Fatal(status, body)
		}
	}
	const row = `"answers":1,"unmeasured_answers":0,"input_tokens":3,"cached_tokens":0,"output_tokens":3,"total_tokens":6,"cost_micros":0,"unpriced_tokens":6}`
	for _, c := range []struct {
		by     user
		query  string
		status int
		want   string
	}{
		{anna, "?by=user,model", 200, `"rows":[{"user_id":"anna","model":"scripted","runs":2,"answers":2,`},
		{bob, "?by=user", 200, `"currency":"USD","by":["user"],"rows":[{"user_id":"bob","runs":1,` + row + `],"total":{"runs":1,` + row + `}`},
		{bob, "?by=", 200, `"by":[],"rows":[{"runs":1,`},
		{bob, "?by=user&user=anna", 403, "operator"},
		{bob, "?by=user&user=*", 403, "operator"},
		{operator, "?by=user", 200, `"rows":[],`},
		{operator, "?by=user&user=anna", 200, `"rows":[{"user_id":"anna","runs":2,`},
		{operator, "?by=user,agent&user=*", 200, `"rows":[{"user_id":"anna","agent_id":"asker","runs":2,`},
		{operator, "?by=user&user=*&from=1970-01-01&to=1970-12-31", 200, `"rows":[],"total":{"runs":0,`},
		{customer, "", 403, "read"},
		{limited, "", 403, "limited"},
		{anna, "?from=2026-13-01", 400, `"field":"from"`},
		{anna, "?to=yesterday", 400, `"field":"to"`},
		{anna, "?from=2001-01-01&to=2026-01-01", 400, "want at most 400"},
		{anna, "?by=user,user", 400, `"field":"by"`},
		{anna, "?limit=0", 400, "limit"},
		{anna, "?cursor=cAAAAAAAAAAAAAAAAAAAA", 400, `"field":"cursor"`},
		{anna, "?since=2026-01-01", 400, "since"},
	} {
		if status, body := c.by.do("GET", usageRoute+c.query, ""); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: want %d %s, got %d %s", c.query, c.status, c.want, status, body)
		}
	}
	_, body := operator.do("GET", usageRoute+"?by=user&user=*&limit=1", "")
	_, next, _ := strings.Cut(body, `"next_cursor":"`)
	next, _, _ = strings.Cut(next, `"`)
	for query, status := range map[string]int{"?by=user&user=*&limit=1&cursor=": 200, "?by=agent&user=*&cursor=": 400, "?by=user&user=anna&cursor=": 400} {
		if got, body := operator.do("GET", usageRoute+query+next, ""); got != status || status == 200 && (!strings.Contains(body, `"rows":[{"user_id":"bob"`) || strings.Contains(body, "next_cursor")) {
			t.Errorf("%s: got %d %s", query, got, body)
		}
	}
}
