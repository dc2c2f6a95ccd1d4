// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// The identity of a call is escaped for its place in the request, and no argument replaces it.
func TestIdentityInRequests(t *testing.T) {
	who := func(user string) *upstream.Identity {
		return &upstream.Identity{User: user, Session: "s-1", Agent: "front", Run: "r-1"}
	}
	for _, c := range []struct {
		url, body, arguments string
		who                  *upstream.Identity
		want                 string // URL and body, or part of the refusal
	}{
		{"http://h/users/{{user}}/cart", "", `{"n":1}`, who("alice@example.com"), `http://h/users/alice@example.com/cart {"n":1}`},
		{"http://h/u?of={{user}}&in={{session}}", "", `{}`, who("a&b=c#d ?é"), `http://h/u?of=a%26b%3Dc%23d+%3F%C3%A9&in=s-1 {}`},
		{"http://h/{{user}}", "", `{}`, who("a/../b"), "must not contain the path segments"},
		{"http://h/{{user}}", "", `{}`, who(".."), "must not contain the path segments"},
		{"http://h/{{user}}", "", `{}`, who(""), "must not be empty"},
		{"http://h/x/{{user}}", "", `{}`, who("a/b"), `http://h/x/a%2Fb {}`},
		{"http://h/x/{{user}}", "", `{}`, who("@evil.example:1/?#"), `http://h/x/@evil.example:1%2F%3F%23 {}`},
		{"http://h/w", `{"for":"{{user}}","by":"{{agent}}","run":"{{run}}","n":"{n}"}`, `{"n":1}`, who(`"},"admin":true`), `http://h/w {"for":"\"},\"admin\":true","by":"front","run":"r-1","n":1}`},
		{"http://h/w", `{"{{user}}":"x {{user}}"}`, `{}`, who("alice"), `http://h/w {"{{user}}":"x {{user}}"}`}, // as for arguments: whole texts only
		// What a model says of the user is an argument like any other.
		{"http://h/{{user}}", "", `{"user":"bob","{{user}}":"bob","x-troupe-user":"bob"}`, who("alice"), `http://h/alice {"user":"bob","{{user}}":"bob","x-troupe-user":"bob"}`},
		{"http://h/{{user}}", `{"for":"{user}"}`, `{"user":"{{user}}"}`, who("alice"), `http://h/alice {"for":"{{user}}"}`},
		{"http://h/{user}/{{user}}", "", `{"user":"bob"}`, who("alice"), `http://h/bob/alice {}`},
		{"http://h/{{user}}", "", `{}`, nil, "the path of the URL needs it"},
		{"http://{{user}}/x", "", `{}`, who("evil.example"), "no argument may choose them"},
		{"http://h:{{user}}/x", "", `{}`, who("1"), "no argument may choose them"},
		{"{{user}}://h/x", "", `{}`, who("http"), "no argument may choose them"},
		{"http://h/{{password}}", "", `{}`, who("alice"), "{{ without user"},
		{"http://h/{{user}", "", `{}`, who("alice"), "{{ without user"},
	} {
		tool := upstream.HTTPTool{Name: "t", URL: c.url}
		if c.body != "" {
			tool.Body = []byte(c.body)
		}
		r, refusal := tool.Request(upstream.ToolInput{Arguments: []byte(c.arguments), Identity: c.who})
		got := r.URL + " " + string(r.Body)
		if refusal != nil {
			got = refusal.Detail
		}
		if got != c.want && (refusal == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s %s with %s of %+v: %s, want %s", c.url, c.body, c.arguments, c.who, got, c.want)
		}
	}
}

// The headers of an identity are the server's alone, and hold no line end whatever the user is called.
func TestIdentityInHeaders(t *testing.T) {
	for user, want := range map[string]string{
		"alice@example.com":      "alice@example.com",
		"Zoë <z@example.com>":    "Zo%C3%AB%20<z@example.com>",
		"a\r\nX-Admin: yes":      "a%0D%0AX-Admin:%20yes",
		"100%":                   "100%25",
		"100%25":                 "100%2525",
		"{{run}}":                "{{run}}",
		" alice":                 "%20alice",
		"\u0430lice":             "%D0%B0lice",
		"a\x00b\x7f":             "a%00b%7F",
		strings.Repeat("u", 256): strings.Repeat("u", 256),
	} {
		tool := upstream.HTTPTool{Name: "t", URL: "http://h/w", Headers: []upstream.Header{{Name: "x-for", Value: "user={{user}}; run={{run}}; {{other}}"}, {Name: "x-key", Value: "{{user}}", Secret: true}}}
		r, refusal := tool.Request(upstream.ToolInput{Arguments: []byte(`{}`), Identity: &upstream.Identity{User: user, Session: "s", Agent: "front", Run: "r"}})
		if refusal != nil {
			t.Errorf("%q: %v", user, refusal)
			continue
		}
		got := map[string]string{}
		for _, h := range r.Headers {
			if _, twice := got[h.Name]; twice {
				t.Errorf("%q: header %s occurs twice", user, h.Name)
			}
			got[h.Name] = h.Value
		}
		if got["x-troupe-user"] != want || got["x-troupe-session"] != "s" || got["x-troupe-agent"] != "front" || got["x-troupe-run"] != "r" ||
			got["x-for"] != "user="+want+"; run=r; {{other}}" || got["x-key"] != "{{user}}" {
			t.Errorf("%q: %v, want %s", user, got, want)
		}
	}
	for _, name := range []string{"X-Troupe-User", "x-troupe-anything", "X_Troupe_User", "x-troupe-egress"} {
		tool := upstream.HTTPTool{Name: "t", URL: "http://h/w", Headers: []upstream.Header{{Name: name, Value: "bob"}}}
		if _, refusal := tool.Request(upstream.ToolInput{Arguments: []byte(`{}`)}); refusal == nil || !strings.Contains(refusal.Detail, "reserved") {
			t.Errorf("declared header %s: %v", name, refusal)
		}
	}
	r, refusal := upstream.HTTPTool{Name: "t", URL: "http://h/w"}.Request(upstream.ToolInput{Arguments: []byte(`{}`)})
	for _, h := range r.Headers {
		if strings.HasPrefix(strings.ToLower(h.Name), "x-troupe-") {
			t.Errorf("without an identity: %s, refusal %v", h.Name, refusal)
		}
	}
}

func TestIdentityOf(t *testing.T) {
	run := actor.NewCallID(1, 2, 3)
	got := upstream.IdentityOf(&actor.Call{ID: run, Principal: "alice", To: actor.NewID("front", "s-1")})
	if got != (upstream.Identity{User: "alice", Session: "s-1", Agent: "front", Run: run.String()}) {
		t.Errorf("%+v", got)
	}
}
