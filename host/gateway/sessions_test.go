// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/agents"
)

// transcriptResponse is a page of a transcript.
type transcriptResponse struct {
	Session  string `json:"session_id"`
	Agent    string `json:"agent_id"`
	Messages []struct {
		ID      string `json:"message_id"`
		Role    string `json:"role"`
		Content string `json:"content"`
		Origin  string `json:"origin"`
		Run     string `json:"run_id"`
	} `json:"messages"`
	Open   []struct{ Content string } `json:"open"`
	Total  int                        `json:"total"`
	Before string                     `json:"next_before"`
	Code   string                     `json:"code"`
	Field  string                     `json:"field"`
	Detail string                     `json:"detail"`
}

func (r *transcriptResponse) text() string {
	var all []string
	for _, m := range r.Messages {
		all = append(all, m.Role+": "+m.Content)
	}
	return strings.Join(all, "\n")
}

// sessionList is a page of sessions.
type sessionList struct {
	Sessions []struct {
		Session string `json:"session_id"`
		Title   string `json:"title"`
		Agents  []struct {
			Agent    string `json:"agent_id"`
			Messages int    `json:"messages"`
		} `json:"agents"`
	} `json:"sessions"`
	Next string `json:"next_cursor"`
}

// historian is an agent that answers with the earlier messages of its conversation.
func historian() agents.Func {
	return func(t *agents.Turn) (string, error) {
		var heard []string
		for _, m := range t.Transcript() {
			heard = append(heard, m.Role.String()+" "+string(m.Parts[0].Bytes))
		}
		return fmt.Sprintf("heard %d: %s", len(heard), strings.Join(heard, ", ")), nil
	}
}

func TestSessionHoldsConversation(t *testing.T) {
	def := agents.Define("historian", "1", "", agents.Blocking(historian()))
	def.Transcript = 3
	d := startGateway(t, def)
	var m messageResponse
	say := func(text, session string) {
		t.Helper()
		m = messageResponse{}
		if status := d.doJSON(&m, "POST", "/v1/agents/historian/messages", `{"content":"`+text+`","session_id":"`+session+`"}`); status != 200 {
			t.Fatalf("%d %+v", status, m)
		}
	}
	for i, want := range []string{"heard 0: ", "heard 2: user m0, assistant heard 0: ", "heard 3: assistant heard 0: , user m1, assistant heard 2: user m0, assistant heard 0: "} {
		if say(fmt.Sprint("m", i), "s1"); m.Content != want {
			t.Errorf("message %d: %q, want %q", i, m.Content, want)
		}
	}
	if say("other", "s2"); m.Content != "heard 0: " {
		t.Errorf("another session was given %q", m.Content)
	}
	var r transcriptResponse
	if d.doJSON(&r, "GET", "/v1/sessions/s1/messages?limit=4", ""); r.Total != 6 || len(r.Messages) != 4 || r.Messages[0].Content != "m1" || r.Before != r.Messages[0].ID || r.Agent != "historian" {
		t.Errorf("%+v", r)
	}
	before := r.Before
	if d.doJSON(&r, "GET", "/v1/sessions/s1/messages?before="+before, ""); len(r.Messages) != 2 || r.Messages[0].Content != "m0" {
		t.Errorf("%+v", r)
	}
	for path, field := range map[string]string{"s2/messages?before=" + before: "before", "s1/messages?before=x": "before", "s1/messages?limit=0": "limit", "s1/messages?limit=1000": "limit",
		"s1/messages?agent=a/b": "", "s1/messages?limits=1": "limits"} {
		if r = (transcriptResponse{}); d.doJSON(&r, "GET", "/v1/sessions/"+path, "") != 400 || r.Field != field {
			t.Errorf("%s: %+v, want 400 for %s", path, r, field)
		}
	}
	for _, path := range []string{"/v1/sessions/none/messages", "/v1/sessions/none"} {
		if r = (transcriptResponse{}); d.doJSON(&r, "GET", path, "") != 404 || r.Code != "session_not_found" {
			t.Errorf("%s: %+v", path, r)
		}
	}
}

func TestMessageWithoutSessionBeginsOne(t *testing.T) {
	shared := agents.Define("shared", "1", "", agents.Blocking(historian()))
	shared.OneSession = true
	d := startGateway(t, shared)
	sessions := map[string]bool{}
	var m messageResponse
	for _, key := range []string{"", "", "a", "a", "b"} {
		var headers []string
		if key != "" {
			headers = []string{"Idempotency-Key", key}
		}
		if status := d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x"}`, headers...); status != 200 {
			t.Fatalf("%d %+v", status, m)
		}
		sessions[m.Session] = true
	}
	if len(sessions) != 4 || sessions["main"] {
		t.Errorf("got the sessions %v, want 4, none of them main", sessions)
	}
	if d.doJSON(&m, "POST", "/v1/agents/shared/messages", `{"content":"x"}`); m.Session != "main" {
		t.Errorf("session %q of an agent with one session", m.Session)
	}
	var list sessionList
	found := map[string]bool{}
	for cursor := ""; ; {
		path := "/v1/sessions?limit=3"
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		list = sessionList{}
		if status := d.doJSON(&list, "GET", path, ""); status != 200 || len(list.Sessions) > 3 {
			t.Fatalf("%d %+v", status, list)
		}
		for _, s := range list.Sessions {
			found[s.Session] = true
		}
		if cursor = list.Next; cursor == "" {
			break
		}
	}
	if len(found) != 4 {
		t.Errorf("listed %v, want %v", found, sessions)
	}
	if status, _, answer := d.do("GET", "/v1/sessions?cursor=cAAAA", ""); status != 400 {
		t.Errorf("foreign cursor: %d %s", status, answer)
	}
}

func TestSessionIsDescribedAndDeleted(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x","session_id":"trip"}`)
	run := m.Run
	if status, _, answer := d.do("POST", "/v1/sessions", `{"session_id":"trip","title":"Trip to Rome","metadata":{"a":1}}`); status != 201 || !strings.Contains(answer, `"metadata":{"a":1}`) {
		t.Errorf("%d %s", status, answer)
	}
	var list sessionList
	if d.doJSON(&list, "GET", "/v1/sessions", ""); len(list.Sessions) != 1 || list.Sessions[0].Title != "Trip to Rome" || len(list.Sessions[0].Agents) != 1 || list.Sessions[0].Agents[0].Messages != 2 {
		t.Errorf("%+v", list)
	}
	for body, field := range map[string]string{`{"session_id":"main"}`: "session_id", `{"session_id":"a b"}`: "session_id", `{"title":"` + strings.Repeat("x", 300) + `"}`: "title",
		`{"title":"pay\u202eecila"}`: "title", `{"title":"a\u200bb"}`: "title", `{"metadata":[]}`: "metadata", `{"metadata":{"a":"` + strings.Repeat("x", 17<<10) + `"}}`: "metadata", `{"session_id":"` + strings.Repeat("x", 10_000) + `"}`: "session_id"} {
		var c contextResponse
		if status := d.doJSON(&c, "POST", "/v1/sessions", body); status != 400 || c.Field != field {
			t.Errorf("%.60s: %d %+v, want 400 for %s", body, status, c, field)
		}
	}
	if status, _, answer := d.do("DELETE", "/v1/sessions/trip", ""); status != 204 {
		t.Errorf("%d %s", status, answer)
	}
	for _, path := range []string{"/v1/sessions/trip", "/v1/sessions/trip/messages", "/v1/runs/" + run, "/v1/runs/" + run + "/events"} {
		if status, _, answer := d.do("GET", path, ""); status != 404 {
			t.Errorf("%s after the deletion: %d %s", path, status, answer)
		}
	}
	var r transcriptResponse
	for path, body := range map[string]string{"/v1/agents/helper/messages": `{"content":"x","session_id":"trip"}`, "/v1/sessions": `{"session_id":"trip"}`,
		"/v1/context": `{"session_id":"trip","data":1}`, "/v1/sessions/trip/messages": `{"role":"user","content":"x","agent_id":"helper"}`} {
		r = transcriptResponse{}
		if status := d.doJSON(&r, "POST", path, body); status != 410 || r.Code != "session_deleted" || r.Field != "session_id" || !strings.Contains(r.Detail, "another name") || !strings.Contains(r.Detail, "log was cut") {
			t.Errorf("POST %s for a deleted session: %d %+v, want 410", path, status, r)
		}
	}
	if status := d.doJSON(&r, "DELETE", "/v1/sessions/trip", ""); status != 404 || r.Code != "session_not_found" {
		t.Errorf("second deletion: %d %+v", status, r)
	}
}

func TestBusySessionRejectsOrInterrupts(t *testing.T) {
	d := startGateway(t, agents.Define("sleeper", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		if t.Message() == "sleep" {
			return "slept", t.Sleep(time.Hour)
		}
		return "awake", nil
	}))))
	d.openStream("POST", "/v1/agents/sleeper/messages", `{"content":"sleep","session_id":"s1"}`)
	var r transcriptResponse
	for d.doJSON(&r, "GET", "/v1/sessions/s1/messages", ""); len(r.Open) == 0; {
		d.doJSON(&r, "GET", "/v1/sessions/s1/messages", "")
	}
	for path, method := range map[string]string{"/v1/agents/sleeper/messages": "POST", "/v1/sessions/s1": "DELETE"} {
		body := ""
		if method == "POST" {
			body = `{"content":"x","session_id":"s1","if_busy":"reject"}`
		}
		field := map[string]string{"POST": "if_busy"}[method] // a deletion has no such field
		if r = (transcriptResponse{}); d.doJSON(&r, method, path, body) != 409 || r.Code != "session_busy" || r.Field != field {
			t.Errorf("%s %s: %+v, want session_busy for %q", method, path, r, field)
		}
	}
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/sleeper/messages", `{"content":"x","session_id":"s1","if_busy":"interrupt"}`); status != 200 || m.Content != "awake" {
		t.Errorf("%d %+v", status, m)
	}
	if d.doJSON(&r, "GET", "/v1/sessions/s1/messages", ""); r.text() != "user: sleep\nuser: x\nassistant: awake" {
		t.Errorf("%s", r.text())
	}
	if status, _, answer := d.do("POST", "/v1/agents/sleeper/messages", `{"content":"x","if_busy":"maybe"}`); status != 400 || !strings.Contains(answer, "if_busy") {
		t.Errorf("%d %s", status, answer)
	}
	d.openStream("POST", "/v1/agents/sleeper/messages", `{"content":"sleep","session_id":"s1"}`)
	if status, _, answer := d.do("DELETE", "/v1/sessions/s1?cancel=1", ""); status != 204 {
		t.Errorf("%d %s", status, answer)
	}
}

// A message is appended as text or as parts. Its agent is named as in the list of messages.
func TestMessageIsAppended(t *testing.T) {
	d := startGateway(t)
	const path = "/v1/sessions/s1/messages"
	for body, field := range map[string]string{
		`{"role":"user","content":[{"type":"text","text":"m"},{"type":"text","text":"0"}],"agent_id":"helper"}`: "",
		`{"role":"user","content":"m0","agent":"helper"}`:                                                       "",
		`{"role":"user","content":"m0","agent":"helper","agent_id":"helper"}`:                                   "",
		`{"role":"user","content":"m0","agent":"helper","agent_id":"coordinator"}`:                              "agent",
		`{"role":"user","content":"m0","agent":"a b"}`:                                                          "agent",
		`{"role":"user","content":[{"type":"image","url":"x"}],"agent_id":"helper"}`:                            "content",
		`{"role":"user","content":[],"agent_id":"helper"}`:                                                      "content",
		`{"role":"user","content":"","agent_id":"helper"}`:                                                      "content",
		`{"role":"user","agent_id":"helper"}`:                                                                   "content",
	} {
		var r transcriptResponse
		if status := d.doJSON(&r, "POST", path, body); (status == 201) != (field == "") || r.Field != field {
			t.Errorf("%s: %d %+v, want field %q", body, status, r, field)
		}
	}
	const all = "user: m0\nuser: m0\nuser: m0"
	for query, want := range map[string]string{"": all, "?agent=helper": all, "?agent_id=helper": all, "?agent=helper&agent_id=helper": all, "?agent=coordinator": ""} {
		var r transcriptResponse
		if status := d.doJSON(&r, "GET", path+query, ""); status != 200 || r.text() != want {
			t.Errorf("%s: %d %+v, want %q", query, status, r, want)
		}
	}
	var r transcriptResponse
	for _, query := range []string{"?agent=nope", "?agent_id=nope"} {
		if status := d.doJSON(&r, "GET", path+query, ""); status != 404 || r.Code != "agent_not_found" {
			t.Errorf("%s: %d %+v, want 404", query, status, r)
		}
	}
	if status := d.doJSON(&r, "GET", path+"?agent=helper&agent_id=coordinator", ""); status != 400 || r.Field != "agent" {
		t.Errorf("two agents: %d %+v, want 400", status, r)
	}
	d.do("POST", "/v1/agents", `{"name":"brief"}`)
	d.do("POST", path, `{"role":"user","content":"m1","agent":"brief"}`)
	d.do("DELETE", "/v1/agents/brief", "")
	if status := d.doJSON(&r, "GET", path+"?agent=brief", ""); status != 200 || r.text() != "user: m1" {
		t.Errorf("conversation of a deleted agent: %d %+v", status, r)
	}
}

func TestSignalsOfClientsHaveNoReservedNames(t *testing.T) {
	d := startGateway(t)
	if status, _, answer := d.do("POST", "/v1/runs/0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55:signal", `{"name":"troupe.append"}`); status != 400 || !strings.Contains(answer, "reserved") {
		t.Errorf("%d %s", status, answer)
	}
}
