// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"regexp"
	"strings"
	"testing"
)

func TestMemoryOverHTTP(t *testing.T) {
	d := startGateway(t)
	do := func(what, method, path, body string, status int, want ...string) string {
		t.Helper()
		got, _, answer := d.do(method, path, body)
		for _, w := range want {
			if !strings.Contains(answer, w) {
				t.Errorf("%s: %s, want %s in it", what, answer, w)
			}
		}
		if got != status {
			t.Errorf("%s: %d %s, want %d", what, got, answer, status)
		}
		return answer
	}
	do("create", "POST", "/v1/memory", `{"entity":"Ada","content":"Ada drinks oolong tea","relations":[{"relation":"works_at","to":"Mill"}]}`, 200, `"status":"created"`, `"scope":"workspace"`, `"position":1`)
	do("the same", "POST", "/v1/memory", `{"entity":"ada","content":"Ada  drinks OOLONG tea"}`, 200, `"status":"unchanged"`)
	do("a near one", "POST", "/v1/memory", `{"entity":"ada","content":"Ada drinks green oolong tea"}`, 200, `"status":"added"`, `"similar":[{"entity":"Ada"`, `"share":0.8`)
	do("search", "POST", "/v1/memory/search", `{"query":"what does ada drink"}`, 200, `"content":"Ada drinks oolong tea"`, `"valid_from":"20`, `"user":`, `"position":2`)
	do("operators of a search language", "POST", "/v1/memory/search", `{"query":"NEAR(\"oolong\" OR *) -^:{} '; DROP"}`, 200, `"entity":"Ada"`)
	do("entity", "POST", "/v1/memory/entity", `{"entity":"ADA"}`, 200, `"relation":"works_at"`, `"entity":"Mill"`)
	do("traverse", "POST", "/v1/memory/traverse", `{"from":"Ada","depth":3}`, 200, `"reached":[{"from":"Ada","relation":"works_at","entity":"Mill","depth":1`)
	cursor := regexp.MustCompile(`"next_cursor":"([^"]+)"`).FindStringSubmatch(do("list", "GET", "/v1/memory?limit=1", "", 200, `"entity":"Ada"`))
	if cursor == nil {
		t.Fatal("the first of two pages has no cursor")
	}
	do("next page", "GET", "/v1/memory?limit=1&cursor="+cursor[1], "", 200, `"entity":"Mill"`)
	do("its cursor in another scope", "GET", "/v1/memory?session_id=s-1&cursor="+cursor[1], "", 400, "cursor")
	do("another scope", "POST", "/v1/memory/search", `{"query":"ada","session_id":"s-1"}`, 200, `"hits":[]`, `"scope":"session"`)
	do("in a session", "POST", "/v1/memory", `{"session_id":"s-1","entity":"Ada","content":"is here"}`, 200, `"scope":"session"`)
	do("forget", "POST", "/v1/memory/forget", `{"entity":"Ada","reason":"asked"}`, 200, `"status":"forgotten"`)
	do("search after it", "POST", "/v1/memory/search", `{"query":"oolong","superseded":true}`, 200, `"hits":[]`)
	do("what is forgotten", "POST", "/v1/memory/entity", `{"entity":"Ada"}`, 404, `"code":"entity_not_found"`)
	for _, bad := range []struct{ method, path, body, field string }{
		{"POST", "/v1/memory/search", `{}`, "query"},
		{"POST", "/v1/memory/search", `{"query":"x","limit":51}`, "limit"},
		{"POST", "/v1/memory/search", `{"query":"x","limit":1.5}`, "limit"},
		{"POST", "/v1/memory/search", `{"query":"x","depth":1}`, "depth"},
		{"POST", "/v1/memory/search", `{"query":"` + strings.Repeat("x", 1025) + `"}`, "query"},
		{"POST", "/v1/memory/traverse", `{"from":"Mill","depth":9}`, "depth"},
		{"POST", "/v1/memory/traverse", `{"from":"Mill","depth":0}`, "depth"},
		{"GET", "/v1/memory?scope=all", "", "scope"},
		{"GET", "/v1/memory?scope=session", "", "session_id"},
		{"GET", "/v1/memory?scope=workspace&agent_id=a", "", "agent_id"},
		{"POST", "/v1/memory/search", `{"query":"x","agent_id":"a/b"}`, "agent_id"},
		{"POST", "/v1/memory", `{"entity":"` + strings.Repeat("x", 1<<20) + `","content":"x"}`, ""},
		{"POST", "/v1/memory", `{"entity":"` + strings.Repeat("x", 300) + `","content":"x"}`, "entity"},
		{"POST", "/v1/memory", `{"entity":"x"}`, "content"},
		{"POST", "/v1/memory", `{"entity":"x","content":"y","supersedes":"z","reason":"r"}`, "supersedes"},
		{"POST", "/v1/memory/forget", `{"entity":"Mill"}`, "reason"},
		{"POST", "/v1/memory/forget", `{"entity":"Mill","reason":"r","content":"x"}`, "content"},
	} {
		status, _, answer := d.do(bad.method, bad.path, bad.body)
		if status/100 != 4 || !strings.Contains(answer, `"field":"`+bad.field+`"`) && bad.field != "" {
			t.Errorf("%s %.80s %.80s: %d %.300s, want a refusal of %s", bad.method, bad.path, bad.body, status, answer, bad.field)
		}
	}
}
