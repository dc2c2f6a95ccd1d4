// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// protocolService is an external agent written from the examples of the protocol alone.
type protocolService struct {
	*testGateway
	received http.Header
	body     string
	answer   func(run string) string
}

// startProtocolService starts the service and registers it as agentA.
func startProtocolService(d *testGateway) *protocolService {
	s := &protocolService{testGateway: d}
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" || r.URL.Path != "/invoke" {
			return // GET /health
		}
		b, _ := io.ReadAll(r.Body)
		s.received, s.body = r.Header, string(b)
		w.Header().Set("Content-Type", ingress.EventStream)
		_, _ = io.WriteString(w, s.answer(r.Header.Get("x-run-id")))
	}))
	d.Cleanup(served.Close)
	status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"agentA","name":"Agent A","endpoint":"`+served.URL+`","capabilities":["talk"]}`)
	if status != 201 || !strings.HasPrefix(body, `{"ok":true,`) {
		d.Fatalf("%d %s", status, body)
	}
	return s
}

// exampleEvent returns the example of an event with values in the place of its dots, in
// order.
func exampleEvent(t *testing.T, name string, values ...string) string {
	t.Helper()
	m := regexp.MustCompile("(?m)^- `(event: " + name + ")` (data: )`(.+)`$").FindStringSubmatch(upstream.EventExamples())
	if m == nil {
		t.Fatalf("no example of the event %s", name)
	}
	data := m[3]
	for _, v := range values {
		open := "..."
		if strings.HasPrefix(v, "{") {
			open = "{...}"
		}
		data = strings.Replace(data, open, v, 1)
	}
	return m[1] + "\n" + m[2] + data + "\n\n"
}

// The service receives the example of an invocation with the values of the call, and its
// answer in the form of the examples arrives at the client.
func TestExternalAgentProtocol(t *testing.T) {
	d := startGateway(t)
	s := startProtocolService(d)
	s.answer = func(run string) string {
		return exampleEvent(t, "state", "thinking", `{"step":1}`) + exampleEvent(t, "delta", "hel", run) + exampleEvent(t, "delta", "lo", run) + exampleEvent(t, "done", `{"tokens":123}`)
	}
	stream := d.openStream("POST", "/v1/agents/agentA/messages", `{"session_id":"s1","message":{"role":"user","content":"hi"}}`)
	stream.readUntil("")
	if deltas, whole := stream.answerTexts(); deltas != "hello" || whole != "hello" || !strings.Contains(stream.frameNames(), "agent_state") {
		t.Errorf("got %q, %q: %s", deltas, whole, stream.frameNames())
	}
	run := stream.response.Header.Get("X-Run-Id")
	var record struct {
		Usage struct {
			Total int `json:"total_tokens"`
		} `json:"usage"`
	}
	if d.doJSON(&record, "GET", "/v1/runs/"+run, ""); record.Usage.Total != 123 {
		t.Errorf("got usage %+v", record.Usage)
	}
	for _, f := range stream.frames {
		if claimed := strings.Contains(f.Data, `"claimed":true`); claimed != (f.Name == "agent_invoke_done") {
			t.Errorf("%s: usage is marked as claimed: %t: %s", f.Name, claimed, f.Data)
		}
		if _, err := runs.Decode([]byte(f.Data)); f.Name == "agent_invoke_done" && err != nil {
			t.Error(err)
		}
	}
	var got, want map[string]any
	if err := json.Unmarshal([]byte(s.body), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(strings.NewReplacer("run1", run, "u1", "local").Replace(upstream.InvokeExample())), &want); err != nil {
		t.Fatal(err)
	}
	if _, ok := got["messages"].([]any); !ok {
		t.Errorf("got messages %v, want a list", got["messages"])
	}
	delete(got, "messages")
	delete(want, "messages")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	if h := s.received; h.Get("x-run-id") != run || h.Get("x-session-id") != "s1" || !regexp.MustCompile("^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$").MatchString(h.Get("traceparent")) {
		t.Errorf("got headers %v", h)
	}

	s.answer = func(string) string { return exampleEvent(t, "error", "agent_busy", "come back later") }
	if status, _, body := d.do("POST", "/v1/agents/agentA/messages", `{"content":"hi"}`); status != 429 || !strings.Contains(body, "come back later") || !strings.Contains(body, `"code":"agent_busy"`) {
		t.Errorf("error: got %d %s", status, body)
	}
}

// An answer whose text is in unknown events only is partial, with a warning that names
// them.
func TestUnknownEventsMakeAnAnswerPartial(t *testing.T) {
	d := startGateway(t)
	s := startProtocolService(d)
	s.answer = func(string) string {
		return strings.ReplaceAll(exampleEvent(t, "delta", "hello", "x"), "delta", "token") + exampleEvent(t, "done", "{}")
	}
	var m struct {
		Status   string   `json:"status"`
		Content  string   `json:"content"`
		Warnings []string `json:"warnings"`
	}
	if status := d.doJSON(&m, "POST", "/v1/agents/agentA/messages", `{"content":"hi"}`); status != 200 || m.Status != "partial" || m.Content != "" || len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], `"token"`) {
		t.Errorf("got %d %+v", status, m)
	}
}

// An agent calls another one with the body that it has received, and with the headers of
// its run.
func TestAgentForwardsItsInvocation(t *testing.T) {
	d := startGateway(t)
	s := startProtocolService(d)
	var calls []string
	s.answer = func(run string) string {
		headers := []string{"x-run-id", run, "x-session-id", "s1"}
		withToken := append(slices.Clone(headers), RunToken, s.received.Get(RunToken))
		body := strings.Replace(s.body, `"agentA"`, `"helper"`, 1)
		filled := strings.NewReplacer("agentA", "helper", "run1", run).Replace(upstream.InvokeExample())
		for _, c := range []struct {
			body    string
			headers []string
		}{{body, withToken}, {filled, withToken}, {s.body, withToken}, {upstream.InvokeExample(), withToken}, {body, headers}} {
			status, _, answer := d.do("POST", "/v1/agents/helper:invoke", c.body, c.headers...)
			calls = append(calls, fmt.Sprint(status, " ", answer))
		}
		return exampleEvent(t, "delta", "done", run) + exampleEvent(t, "done", "{}")
	}
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/agentA/messages", `{"session_id":"s1","content":"hi"}`); status != 200 || m.Content != "done" {
		t.Fatalf("%d %+v", status, m)
	}
	for i, want := range []string{
		`200 .*"agent_id":"helper","session_id":"s1","status":"succeeded","content":"response from helper: hi"`,
		`200 .*"session_id":"s1".*"content":"response from helper: hi"`,
		`400 .*"field":"agent_id"`, `400 .*"field":"agent_id"`,
		`200 .*"session_id":"s1".*"content":"response from helper: hi"`, // without the token: the service registered without a key
	} {
		if !regexp.MustCompile("^" + want).MatchString(calls[i]) {
			t.Errorf("call %d: got %s, want %s", i, calls[i], want)
		}
	}
	var record struct {
		Children []struct {
			Run string `json:"child_run_id"`
		} `json:"children"`
	}
	if d.doJSON(&record, "GET", "/v1/runs/"+m.Run, ""); len(record.Children) != 3 {
		t.Errorf("got children %+v, want 3", record.Children)
	}
}

// The list of agents has the fields of the registry.
func TestAgentListHasTheFieldsOfTheRegistry(t *testing.T) {
	d := startGateway(t)
	startProtocolService(d)
	var list struct {
		Agents []map[string]any `json:"agents"`
	}
	d.doJSON(&list, "GET", "/v1/agents", "")
	i := slices.IndexFunc(list.Agents, func(a map[string]any) bool { return a["agent_id"] == "agentA" })
	if i < 0 {
		t.Fatalf("got %v", list.Agents)
	}
	a := list.Agents[i]
	if endpoint, ok := a["endpoint"].(string); !ok || !strings.HasPrefix(endpoint, "http://127.0.0.1:") || a["name"] != "Agent A" || a["status"] != "healthy" || !reflect.DeepEqual(a["capabilities"], []any{"talk"}) {
		t.Errorf("got %v", a)
	}
	if at, ok := a["last_heartbeat_at"].(string); !ok || !strings.HasSuffix(at, "Z") {
		t.Errorf("got %v", a)
	}
	for _, a := range list.Agents {
		if a["capabilities"] == nil || a["status"] != "healthy" {
			t.Errorf("got %v", a)
		}
	}
}

// The content of a message is a text or a list of text parts, on each route.
func TestContentParts(t *testing.T) {
	d := startGateway(t)
	for _, c := range []struct {
		body, want string
		status     int
	}{
		{`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, `"content":"response from helper: ab"`, 200},
		{`{"message":{"role":"user","content":[{"type":"text","text":"ab"}]}}`, `"content":"response from helper: ab"`, 200},
		{`{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}`, `part 0 has the type \"image_url\": want \"text\"`, 400},
		{`{"message":{"role":"assistant","content":"ab"}}`, `the role is \"assistant\": want \"user\"`, 400},
	} {
		if status, _, body := d.do("POST", "/v1/agents/helper/messages", c.body); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: got %d %s", c.body, status, body)
		}
	}
}
