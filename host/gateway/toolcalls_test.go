// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/ingress"
)

// toolCallResponse is an answer about a tool call.
type toolCallResponse struct {
	ID     string `json:"tool_call_id"`
	Status any    `json:"status"` // a number in a problem
	State  string `json:"state"`
	Result any    `json:"result"`
	Error  struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Approval   string            `json:"approval_id"`
	Args       any               `json:"args"`
	Truncated  bool              `json:"truncated"`
	Timestamps map[string]string `json:"timestamps"`
	Policy     struct {
		Decision string `json:"decision"`
		Rule     string `json:"rule"`
	} `json:"policy"`
	Code   string `json:"code"`
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// invokeTool uses a tool with the token of a run.
func (d *testGateway) invokeTool(in invocation, tool, body string, headers ...string) (int, toolCallResponse) {
	d.Helper()
	var out toolCallResponse
	status := d.doJSON(&out, "POST", "/v1/tools/"+tool+":invoke", body, append(headers, RunToken, in.token)...)
	return status, out
}

// The answers of the tool proxy have the members and the status words of the printed
// protocol, in testdata/toolproxy.json.
func TestToolProxyAnswersAsPrinted(t *testing.T) {
	d := startGateway(t)
	s := newToolServer(t)
	outcomes := map[string]string{"allowed": "succeeded", "asked": "pending", "blocked": "failed", "broken": "failed"}
	d.declare(s, "allowed", "/pay", "")
	d.declare(s, "asked", "/pay", `"policy":"require_approval"`)
	d.declare(s, "blocked", "/pay", `"policy":"block"`)
	d.declare(s, "broken", "/broken", "")
	var printed map[string]map[string]any
	b, err := os.ReadFile("testdata/toolproxy.json")
	if err == nil {
		err = json.Unmarshal(b, &printed)
	}
	if err != nil {
		t.Fatal(err)
	}
	check := func(tool, route, body string, in invocation, id string) (answer map[string]any) {
		method, path, _ := strings.Cut(strings.NewReplacer("{tool_name}", tool, "{tool_call_id}", id).Replace(route), " ")
		status := d.doJSON(&answer, method, path, body, RunToken, in.token)
		want := outcomes[tool]
		if answer["status"] != want || status != 200 && (status != 202 || want != "pending") {
			t.Errorf("%s with %s: %d %v, want status %s", route, tool, status, answer, want)
		}
		for _, member := range printed[route][want].([]any) {
			if _, ok := answer[member.(string)]; !ok {
				t.Errorf("%s with %s: %v lacks %s", route, tool, answer, member)
			}
		}
		if _, has := answer["result"]; has != (want == "succeeded") {
			t.Errorf("%s with %s: %v", route, tool, answer)
		}
		if _, has := answer["error"]; has != (want == "failed") {
			t.Errorf("%s with %s: %v", route, tool, answer)
		}
		return answer
	}
	service := newExternalService(d, "outside")
	const invoke = "POST /v1/tools/{tool_name}:invoke"
	for tool := range outcomes {
		in := service.begin("outside", `{"content":"x","session_id":"`+tool+`"}`)
		request, err := json.Marshal(printed[invoke]["request"])
		if err != nil {
			t.Fatal(err)
		}
		body := strings.NewReplacer("{run_id}", in.run, "{tool_name}", tool).Replace(string(request))
		id, _ := check(tool, invoke, body, in, "")["tool_call_id"].(string)
		for route := range printed {
			if route != invoke {
				check(tool, route, "", in, id)
			}
		}
	}
	if s.count("/pay") != 1 || s.count("/broken") != 1 {
		t.Errorf("the server has done %q", s.done)
	}
}

// A tool call by an external agent has the state, the times and the codes of its outcome.
func TestToolCallByExternalAgent(t *testing.T) {
	d := startGateway(t)
	s := newToolServer(t)
	service := newExternalService(d, "outside")
	d.declare(s, "json", "/pay", `"input_schema":{"type":"object","properties":{"n":{"type":"integer"}}}`)
	d.declare(s, "text", "/text", "")
	d.declare(s, "large", "/large", "")
	d.declare(s, "broken", "/broken", "")
	d.declare(s, "slow", "/slow", `"timeout_ms":50`)
	d.declare(s, "blocked", "/pay", `"policy":"block"`)
	defer close(s.hold)
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"device","kind":"client_tool","on_failure":"return_error"}`); status != 201 {
		t.Fatal(status, body)
	}
	in, ids := service.begin("outside", `{"content":"x","session_id":"s-7"}`), map[string]string{}
	large := `{"text":"` + strings.Repeat("x", 30_000) + `"}`
	for _, c := range []struct{ tool, args, state, result, code string }{
		{"json", `{"n":1}`, "SUCCEEDED", `{"did":{"n":1}}`, ""},
		{"json", `{"n":"one"}`, "FAILED", "", "invalid_request"},
		{"text", large, "SUCCEEDED", `"done"`, ""},
		{"large", `{}`, "SUCCEEDED", large, ""},
		{"broken", `{}`, "FAILED", "", "call_rejected"},
		{"slow", `{}`, "TIMEOUT", "", "timeout"},
		{"blocked", `{}`, "BLOCKED", "", "policy_blocked"},
		{"device", `{}`, "FAILED", "", "client_offline"},
	} {
		status, out := d.invokeTool(in, c.tool, `{"args":`+c.args+`}`)
		result, _ := json.Marshal(out.Result)
		if status != 200 || out.Error.Code != c.code || c.result != "" && string(result) != c.result || (out.Error.Message == "") != (c.code == "") {
			t.Errorf("%s %s: %d %+v, want %s %s", c.tool, c.args, status, out, c.result, c.code)
		}
		var read toolCallResponse
		ids[c.tool] = out.ID
		d.doJSON(&read, "GET", "/v1/tool_calls/"+out.ID, "")
		args, _ := json.Marshal(read.Args)
		result, _ = json.Marshal(read.Result)
		if read.ID != out.ID || read.State != c.state || read.Status != out.Status || read.Error != out.Error || string(args) != c.args || c.result != "" && string(result) != c.result || read.Truncated {
			t.Errorf("%s %s: read %+v, want %s", c.tool, c.args, read, c.state)
		}
		if read.Timestamps["created_at"] == "" || read.Timestamps["ended_at"] == "" || (read.Timestamps["dispatched_at"] == "") != (c.state == "BLOCKED" || c.code == "invalid_request") {
			t.Errorf("%s: timestamps %v", c.tool, read.Timestamps)
		}
		if decided := read.Policy.Decision + read.Policy.Rule; c.state == "BLOCKED" && decided != "blockpolicy of the tool" || c.state == "SUCCEEDED" && read.Policy.Decision != "allow" {
			t.Errorf("%s: policy %+v", c.tool, read.Policy)
		}
	}
	service.answers <- "done"
	d.openStream("GET", "/v1/runs/"+in.run+"/events", "", "Accept", ingress.EventStream).readUntil("run_done")
	var read toolCallResponse
	if status := d.doJSON(&read, "GET", "/v1/tool_calls/"+ids["large"], ""); status != 200 || read.State != "SUCCEEDED" || read.Truncated || fmt.Sprint(read.Result) != "map[text:"+strings.Repeat("x", 30_000)+"]" {
		t.Errorf("result after the end of the run: %d %+v", status, read)
	}
	read = toolCallResponse{}
	if d.doJSON(&read, "GET", "/v1/tool_calls/"+ids["text"], ""); read.Result != "done" || !read.Truncated || !strings.HasPrefix(fmt.Sprint(read.Args), large[:1000]) {
		t.Errorf("arguments after the end of the run: %+v", read)
	}
	read = toolCallResponse{}
	if d.doJSON(&read, "GET", "/v1/tool_calls/"+ids["device"], ""); read.State != "FAILED" || read.Error.Code != "client_offline" {
		t.Errorf("after the end of the run: %+v", read)
	}
	var list struct {
		Events []struct {
			Type    string         `json:"type"`
			Payload map[string]any `json:"payload"`
		} `json:"events"`
	}
	d.doJSON(&list, "GET", "/v1/runs/"+in.run+"/events?limit=1000", "")
	var decided []string
	for _, e := range list.Events {
		if e.Type == "policy_decision" {
			decided = append(decided, fmt.Sprint(e.Payload["kind"]))
		}
	}
	if got := strings.Join(decided, " "); strings.Count(got, "allow") != 6 || strings.Count(got, "block") != 1 {
		t.Errorf("policy decisions %s: %+v", got, list)
	}
}

// A request that cannot be recorded is a problem, and calls no tool.
func TestToolCallIsRefused(t *testing.T) {
	d := startGateway(t)
	s := newToolServer(t)
	service := newExternalService(d, "outside")
	d.declare(s, "pay", "/pay", "")
	in := service.begin("outside", `{"content":"x","session_id":"s-7"}`)
	other := service.begin("outside", `{"content":"x","session_id":"s-8"}`)
	const path = "/v1/tools/pay:invoke"
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		status     int
		want       string
	}{
		"list of arguments":      {path, `{"args":[1]}`, []string{RunToken, in.token}, 400, `"field":"args"`},
		"unknown field":          {path, `{"arguments":{}}`, []string{RunToken, in.token}, 400, `want run_id, args`},
		"duplicate argument":     {path, `{"args":{"a":1,"a":2}}`, []string{RunToken, in.token}, 400, `"field":"args"`},
		"negative time":          {path, `{"timeout_ms":-1}`, []string{RunToken, in.token}, 400, `"field":"timeout_ms"`},
		"long time":              {path, `{"timeout_ms":300001}`, []string{RunToken, in.token}, 400, `"field":"timeout_ms"`},
		"empty key":              {path, `{"idempotency_key":""}`, []string{RunToken, in.token}, 400, `Idempotency-Key`},
		"two keys":               {path, `{"idempotency_key":"a"}`, []string{RunToken, in.token, ingress.IdempotencyKey, "b"}, 400, `idempotency_key`},
		"run of another token":   {path, `{"run_id":"` + other.run + `"}`, []string{RunToken, in.token}, 400, `"field":"run_id"`},
		"unknown tool":           {"/v1/tools/sell:invoke", `{}`, []string{RunToken, in.token}, 404, `"tool_not_found"`},
		"no token":               {path, `{}`, nil, 401, `"unauthorized"`},
		"bad token":              {path, `{}`, []string{RunToken, in.token[1:]}, 401, `"unauthorized"`},
		"run of another agent":   {path, `{"run_id":"` + in.run + `"}`, []string{"Authorization", "Bearer " + d.newUser(`"user":"mallory","scopes":["call"]`).key}, 404, `"run_not_found"`},
		"unknown action":         {"/v1/tools/pay:try", `{}`, []string{RunToken, in.token}, 404, `"not_found"`},
		"call of a built-in one": {"/v1/tools/call_agent:invoke", `{}`, []string{RunToken, in.token}, 404, `"tool_not_found"`},
	} {
		if status, _, body := d.do("POST", c.path, c.body, c.headers...); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d with %s", name, status, body, c.status, c.want)
		}
	}
	service.answers <- "done"
	d.openStream("GET", "/v1/runs/"+in.run+"/events", "", "Accept", ingress.EventStream).readUntil("run_done")
	if status, out := d.invokeTool(in, "pay", `{}`); status != 404 || out.Code != "run_not_found" {
		t.Errorf("ended run: %d %+v", status, out)
	}
	if n := s.count("/pay"); n != 0 {
		t.Errorf("%d calls were performed", n)
	}
}

// External agents note facts of their session and read those of others, and a repeat notes nothing again. Each
// note is an event of the session, after which its state has it.
func TestExternalAgentsNoteInTheirSession(t *testing.T) {
	d := startGateway(t)
	newExternalService(d, "other").begin("other", `{"content":"x","session_id":"s-8"}`)
	in := newExternalService(d, "outside").begin("outside", `{"content":"x","session_id":"s-7"}`)
	peer := newExternalService(d, "peer").begin("peer", `{"content":"x","session_id":"s-7"}`)
	events := d.openStream("GET", "/v1/sessions/s-7/events", "", "Accept", ingress.EventStream)
	state := func(session string) string {
		_, _, body := d.do("GET", "/v1/sessions/"+session+"/state", "")
		return body
	}
	const budget = `{"args":{"kind":"constraint","name":"budget","value":[1,2]},"idempotency_key":"k-1"}`
	var first string
	for i, c := range []struct{ body, result, state string }{
		{budget, `{"status":"noted","version":1}`, `"name":"budget","value":[1,2],"version":1,"agent_id":"outside","run_id":"` + in.run},
		{`{"args":{"kind":"state","value":{"pages":3}}}`, `{"status":"noted","version":1}`, `"outside":{"state":{"pages":3},"version":1,"run_id":"` + in.run},
		{`{"args":{"kind":"constraint","name":"budget","value":[1,3]}}`, `{"status":"replaced","version":2}`, `"value":[1,3],"version":2`},
		{budget, `{"status":"noted","version":1}`, `"value":[1,3],"version":2`}, // the answer of the first time
	} {
		status, out := d.invokeTool(in, "note_session", c.body)
		if result, _ := json.Marshal(out.Result, json.Deterministic(true)); status != 200 || out.Status != "succeeded" || string(result) != c.result {
			t.Errorf("%s: %d %+v, want %s", c.body, status, out, c.result)
		}
		if i == 0 {
			first = out.ID
		}
		if i < 3 {
			events.readUntil("tool_result")
		} else if out.ID != first {
			t.Errorf("the repeat is the call %s, want %s", out.ID, first)
		}
		if got := state("s-7"); !strings.Contains(got, c.state) {
			t.Errorf("after %s: %s, want %s", c.body, got, c.state)
		}
	}
	if _, out := d.invokeTool(peer, "read_session", `{}`); !strings.Contains(fmt.Sprint(out.Result), "agent_id:outside") || !strings.Contains(fmt.Sprint(out.Result), "name:budget") {
		t.Errorf("the other agent reads %v", out.Result)
	}
	if _, out := d.invokeTool(in, "note_session", `{"args":{"kind":"secret","value":1}}`); out.Error.Code != "invalid_request" || !strings.Contains(out.Error.Message, "kind") {
		t.Errorf("an unknown kind: %+v", out)
	}
	if got := state("s-8"); strings.Contains(got, "budget") {
		t.Errorf("another session has %s", got)
	}
}

// The principal that registered the agent of a run needs no token, and a tool call belongs to
// the namespace of the run.
func TestToolCallInNamespaceOfRun(t *testing.T) {
	d := startGateway(t)
	s := newToolServer(t)
	service := newExternalService(d, "outside") // of the local client
	d.declare(s, "pay", "/pay", "")
	in := service.begin("outside", `{"content":"x","session_id":"s-7"}`, userHeader, "alice")
	sibling := service.begin("outside", `{"content":"x","session_id":"s-8"}`, userHeader, "alice")
	var out toolCallResponse
	if status := d.doJSON(&out, "POST", "/v1/tools/pay:invoke", `{"run_id":"`+in.run+`","args":{"n":1}}`); status != 200 || out.Status != "succeeded" {
		t.Fatalf("%d %+v", status, out)
	}
	const scopes = `"scopes":["call","read"]`
	alice, mallory := d.newUser(`"user":"alice",`+scopes), d.newUser(`"user":"mallory",`+scopes)
	operator := d.newUser(`"user":"olga","scopes":["read","call","operator"]`)
	for name, c := range map[string]struct {
		query   string
		headers []string
		status  int
	}{
		"user of the run":                  {"", []string{"Authorization", "Bearer " + alice.key}, 200},
		"owner of the agent":               {"", nil, 200},
		"run token":                        {"", []string{RunToken, in.token}, 200},
		"token of another run of the user": {"", []string{RunToken, sibling.token}, 404},
		"another user":                     {"", []string{"Authorization", "Bearer " + mallory.key}, 404},
		"operator, own namespace":          {"", []string{"Authorization", "Bearer " + operator.key}, 404},
		"operator":                         {"?user=alice", []string{"Authorization", "Bearer " + operator.key}, 200},
	} {
		for _, r := range []string{"GET /v1/tool_calls/" + out.ID, "POST /v1/tool_calls/" + out.ID + ":wait"} {
			method, path, _ := strings.Cut(r, " ")
			status, _, body := d.do(method, path+c.query, "", c.headers...)
			if status != c.status || !strings.Contains(body, map[int]string{200: `"succeeded"`, 404: `"tool_call_not_found"`}[c.status]) {
				t.Errorf("%s by %s: %d %s, want %d", r, name, status, body, c.status)
			}
		}
	}
	for _, id := range []string{"tc_" + in.run + ".1.99", "tc_" + in.run, "tc_0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55.1.0", strings.Replace(out.ID, "tc_", "ap_", 1), "x"} {
		if status, _, body := d.do("GET", "/v1/tool_calls/"+id, "", "Authorization", "Bearer "+alice.key); status != 404 || !strings.Contains(body, `"tool_call_not_found"`) {
			t.Errorf("%s: %d %s", id, status, body)
		}
	}
}

// A repeated request of one run has one effect, and answers with the same call.
func TestToolCallIsRepeatedSafely(t *testing.T) {
	d := startGateway(t)
	s := newToolServer(t)
	service := newExternalService(d, "outside")
	d.declare(s, "pay", "/pay", "")
	in := service.begin("outside", `{"content":"x","session_id":"s-7"}`)
	const body = `{"args":{"n":1},"idempotency_key":"k"}`
	_, first := d.invokeTool(in, "pay", body)
	status, again := d.invokeTool(in, "pay", body, ingress.IdempotencyKey, "k")
	if status != 200 || first.ID != again.ID || fmt.Sprint(first.Result) != fmt.Sprint(again.Result) || first.Status != "succeeded" {
		t.Errorf("got %+v, then %d %+v", first, status, again)
	}
	if status, out := d.invokeTool(in, "pay", `{"args":{"n":2},"idempotency_key":"k"}`); status != 422 || out.Field != ingress.IdempotencyKey {
		t.Errorf("another body: %d %+v", status, out)
	}
	if n := s.count("/pay"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
	if _, other := d.invokeTool(in, "pay", `{"args":{"n":1}}`); other.ID == first.ID || other.Status != "succeeded" {
		t.Errorf("without key: %+v", other)
	}
	second := service.begin("outside", `{"content":"x","session_id":"s-8"}`)
	if _, other := d.invokeTool(second, "pay", body); other.ID == first.ID || other.Status != "succeeded" {
		t.Errorf("key in another run: %+v", other)
	}
	if n := s.count("/pay"); n != 3 {
		t.Errorf("%d effects, want 3", n)
	}
}

// A request ends after its time, and the call continues.
func TestToolCallOutlastsItsRequest(t *testing.T) {
	d := startGateway(t)
	s := newToolServer(t)
	service := newExternalService(d, "outside")
	d.declare(s, "slow", "/slow", "")
	in := service.begin("outside", `{"content":"x","session_id":"s-7"}`)
	status, out := d.invokeTool(in, "slow", `{"args":{"n":1},"timeout_ms":0}`)
	if status != 202 || out.Status != "pending" || out.ID == "" {
		t.Fatalf("%d %+v", status, out)
	}
	var read toolCallResponse
	path := "/v1/tool_calls/" + out.ID
	if status := d.doJSON(&read, "POST", path+":wait?timeout_ms=1", ""); status != 200 || read.Status != "pending" {
		t.Errorf("%d %+v", status, read)
	}
	if status, _, body := d.do("POST", path+":wait?timeout_ms=300001", ""); status != 400 || !strings.Contains(body, "timeout_ms") {
		t.Errorf("long wait: %d %s", status, body)
	}
	waited := make(chan toolCallResponse, 1)
	go func() {
		var w toolCallResponse
		d.doJSON(&w, "POST", path+":wait?timeout_ms=300000", "", RunToken, in.token)
		waited <- w
	}()
	close(s.hold)
	if w := <-waited; w.Status != "succeeded" || w.State != "SUCCEEDED" || w.Result == nil {
		t.Errorf("%+v", w)
	}
	if n := s.count("/slow"); n != 1 {
		t.Errorf("%d effects", n)
	}
}
