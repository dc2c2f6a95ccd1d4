// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// A detached call is shown while it is pending, and its response afterwards, to its user.
func TestDetachedCallIsShown(t *testing.T) {
	a := startAnalyst(t)
	if status, _, body := a.do("POST", "/v1/agents", `{"name":"asker","tools":["agent_call"]}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	const ask = `use agent_call {"agent":"analyst","skill":"look","input":{"at":"prices"},"timeout":60000}`
	status, _, body := a.do("POST", "/v1/agents/asker/messages", fmt.Sprintf(`{"content":%q,"session_id":"s-7"}`, ask), userHeader, "alice")
	if status != 200 || !strings.Contains(body, `\"status\":\"pending\"`) {
		t.Fatalf("%d %s", status, body)
	}
	message := <-a.got
	var sent struct {
		Correlation string `json:"correlationId"`
	}
	if err := json.Unmarshal([]byte(message), &sent); err != nil || sent.Correlation == "" {
		t.Fatalf("%v: the agent gets %s", err, message)
	}

	// The state of a session has its own calls only.
	other := strings.Replace(fmt.Sprintf(`{"content":%q,"session_id":"s-8"}`, ask), "prices", "costs", 1)
	if status, _, body := a.do("POST", "/v1/agents/asker/messages", other, userHeader, "alice"); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	<-a.got
	if _, _, body := a.do("GET", "/v1/sessions/s-7/state", "", userHeader, "alice"); strings.Count(body, `"taskId"`) != 1 {
		t.Errorf("%s", body)
	}

	// The tree of the asking run has its own call.
	var asked messageResponse
	_ = json.Unmarshal([]byte(body), &asked)
	if _, _, tree := a.do("GET", "/v1/runs/"+asked.Run+"?tree=1", "", userHeader, "alice"); strings.Count(tree, `"actor":`) != 2 || !strings.Contains(tree, `{"run_id":"`+sent.Correlation+`"`) {
		t.Errorf("%s", tree)
	}

	path, user := "/v1/tasks/"+sent.Correlation, []string{userHeader, "alice"}
	pending := fmt.Sprintf(`"agent":"analyst","skill":"look","taskId":%q,"asker":"asker","session_id":"s-7","startTime":`, sent.Correlation)
	for from, want := range map[string]string{
		"/v1/sessions/s-7/state": fmt.Sprintf(`"pendingRequests":{%q:{%s`, sent.Correlation, pending),
		"/v1/tasks":              `{"tasks":[{` + pending,
		path:                     `"status":"pending"`,
	} {
		if status, _, body := a.do("GET", from, "", user...); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %s", from, status, body, want)
		}
	}
	for _, from := range []string{path, "/v1/sessions/s-7/state"} { // of another user
		if status, _, body := a.do("GET", from, "", userHeader, "bob"); status != 404 {
			t.Errorf("%s: %d %s, want 404", from, status, body)
		}
	}
	if _, _, body := a.do("GET", "/v1/tasks", "", userHeader, "bob"); body != `{"tasks":[]}` {
		t.Errorf("%s", body)
	}

	news := a.openStream("GET", "/v1/sessions/s-7/events", "", user...)
	for range 2 {
		a.answers <- `{"output":{"price":7},"confidence":0.9}`
	}
	for delivered := ""; !strings.Contains(delivered, "skill_response"); { // the turn for the outcome
		delivered = news.readUntil("user_input").Data
		news.frames = nil
	}
	if status, _, body := a.do("GET", path, "", user...); status != 200 || !strings.Contains(body, `"status":"completed"`) || !strings.Contains(body, `"output":{"price":7}`) {
		t.Errorf("%d %s", status, body)
	}
	if _, _, body := a.do("GET", "/v1/sessions/s-7/state", "", user...); !strings.Contains(body, `"pendingRequests":{}`) {
		t.Errorf("%s", body)
	}
}

// The session of the asker is deleted before its callee answers, in a session of its own: the response is read in the
// task, and nobody else has it.
func TestResponseIsDiscardedWithSession(t *testing.T) {
	a := startAnalyst(t)
	if status, _, body := a.do("POST", "/v1/agents", `{"name":"asker","tools":["agent_call"]}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	const ask = `use agent_call {"agent":"analyst/s-8","skill":"look","correlationId":"mine"}`
	if status, _, body := a.do("POST", "/v1/agents/asker/messages", fmt.Sprintf(`{"content":%q,"session_id":"s-7"}`, ask)); status != 200 || !strings.Contains(body, `\"clientCorrelationId\":\"mine\"`) {
		t.Fatalf("%d %s", status, body)
	}
	var sent struct {
		Correlation string `json:"correlationId"`
	}
	if err := json.Unmarshal([]byte(<-a.got), &sent); err != nil {
		t.Fatal(err)
	}
	path := "/v1/tasks/" + sent.Correlation
	if _, _, body := a.do("GET", path, ""); !strings.Contains(body, `"clientCorrelationId":"mine"`) || strings.Contains(body, "response_discarded") {
		t.Errorf("before: %s", body)
	}
	if status, _, body := a.do("DELETE", "/v1/sessions/s-7", ""); status != 204 {
		t.Fatalf("%d %s", status, body)
	}
	a.answers <- `{"output":{"price":7}}`
	for ended := ""; !strings.Contains(ended, "run_done"); {
		_, _, ended = a.do("GET", "/v1/runs/"+sent.Correlation+"/events?wait_ms=1000&after=1", "")
	}
	if _, _, body := a.do("GET", path, ""); !strings.Contains(body, `"status":"completed"`) || !strings.Contains(body, `"output":{"price":7}`) || !strings.Contains(body, `"response_discarded":true`) {
		t.Errorf("after: %s", body)
	}
}

// The session of a callee is deleted. While its run is open it is kept; later its asker has the response in its own session
// all the same, and a call into a deleted session fails at once.
func TestSessionOfCalleeIsDeleted(t *testing.T) {
	a := startAnalyst(t)
	if status, _, body := a.do("POST", "/v1/agents", `{"name":"asker","tools":["agent_call","agent_poll"]}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	ask := func() {
		t.Helper()
		const ask = `use agent_call {"agent":"analyst/s-8","skill":"look"}`
		if status, _, body := a.do("POST", "/v1/agents/asker/messages", fmt.Sprintf(`{"content":%q,"session_id":"s-7"}`, ask)); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	messages := func(want string) (all string) {
		t.Helper()
		for !strings.Contains(all, want) {
			_, _, all = a.do("GET", "/v1/sessions/s-7/messages", "")
		}
		return all
	}
	ask()
	var sent struct {
		Correlation string `json:"correlationId"`
	}
	if err := json.Unmarshal([]byte(<-a.got), &sent); err != nil {
		t.Fatal(err)
	}
	if status, _, body := a.do("DELETE", "/v1/sessions/s-8", ""); status != 409 {
		t.Errorf("with an open run: %d %s", status, body)
	}
	a.answers <- `{"output":{"price":7}}`
	messages(`\"price\":7`)
	if status, _, body := a.do("DELETE", "/v1/sessions/s-8", ""); status != 204 {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body := a.do("GET", "/v1/tasks/"+sent.Correlation, ""); status != 404 { // its run was in the session
		t.Errorf("after the deletion: %d %s", status, body)
	}
	poll := `use agent_poll {"taskId":"` + sent.Correlation + `"}`
	if status, _, body := a.do("POST", "/v1/agents/asker/messages", fmt.Sprintf(`{"content":%q,"session_id":"s-7"}`, poll)); status != 200 || !strings.Contains(body, `\"price\":7`) {
		t.Errorf("its asker polls: %d %s", status, body)
	}
	ask()
	if all := messages(`\"code\":\"session_deleted\"`); strings.Count(all, `"origin":"delivered"`) != 2 {
		t.Error(all)
	}
}

// An agent is asked for a skill from outside as by another agent, and the response is that of the task.
func TestSkillIsInvokedFromOutside(t *testing.T) {
	a := startAnalyst(t)
	a.register("skilled", "http://127.0.0.1:9", `,"skills":["look","listen"]`)
	const path = "/v1/agents/analyst/skills/look:invoke"
	user := []string{userHeader, "alice", "Idempotency-Key", "one"}
	body := `{"kind":"skill_invocation","skill":"look","mode":"critique","input":{"at":"prices"},"timeoutSeconds":30,"timeout":30000,"correlationId":"mine","session_id":"s-1"}`
	status, header, answer := a.do("POST", path, body, user...)
	var made struct {
		Status, TaskID, CorrelationID, ClientCorrelationID, ReturnTo string
	}
	if err := json.Unmarshal([]byte(answer), &made); err != nil || status != 202 || made.Status != "pending" || made.TaskID == "" || made.CorrelationID != made.TaskID ||
		made.ClientCorrelationID != "mine" || made.ReturnTo != "agent:analyst:s-1" || header.Get("Location") != "/v1/tasks/"+made.TaskID {
		t.Fatalf("%v: %d %s", err, status, answer)
	}
	want := fmt.Sprintf(`{"kind":"skill_invocation","skill":"look","mode":"critique","input":{"at":"prices"},"correlationId":%q,"returnTo":"agent:analyst:s-1","timeout":30000}`, made.TaskID)
	if got := <-a.got; got != want {
		t.Errorf("the agent gets\n%s want\n%s", got, want)
	}
	if status, _, again := a.do("POST", path, body, user...); status != 202 || again != answer {
		t.Errorf("a repeat: %d %s, want %s", status, again, answer)
	}
	a.answers <- `{"output":{"price":7},"confidence":0.9}`
	for read := ""; !strings.Contains(read, `"status":"completed"`); {
		_, _, read = a.do("GET", "/v1/tasks/"+made.TaskID, "", user[:2]...)
		if strings.Contains(read, `"error"`) {
			t.Fatal(read)
		}
	}
	if status, _, body := a.do("GET", "/v1/tasks/"+made.TaskID, "", userHeader, "bob"); status != 404 {
		t.Errorf("another user reads the task: %d %s", status, body)
	}
	for _, c := range []struct{ path, body, want string }{
		{path, `{"returnTo":"agent:other:main"}`, `"field":"returnTo"`},
		{path, `{"timeout":5000,"timeoutSeconds":6}`, `"field":"timeoutSeconds"`},
		{path, `{"timeoutSeconds":0}`, `"field":"timeoutSeconds"`},
		{path, `{"input":[1]}`, `"field":"input"`},
		{path, `{"skill":"listen"}`, `"field":"skill"`},
		{path, `{"mode":"x"}`, `"field":"mode"`},
		{path, `{"kind":"x"}`, `"field":"kind"`},
		{path, `{"depth":1}`, `"field":"depth"`},
		{"/v1/agents/skilled/skills/sing:invoke", `{}`, `it has look, listen`},
		{path, `{"input":{"x":"` + strings.Repeat("x", 256<<10) + `"}}`, `input: 262152 bytes exceed the maximum of 262144`},
		{"/v1/agents/analyst/skills/" + strings.Repeat("x", 65) + ":invoke", `{}`, `"field":"skill"`},
	} {
		if status, _, body := a.do("POST", c.path, c.body); status != 400 || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s, want %s", c.path, c.body, status, body, c.want)
		}
	}
	if status, _, body := a.do("POST", "/v1/agents/nobody/skills/look:invoke", "{}"); status != 404 || !strings.Contains(body, "agent_not_found") {
		t.Errorf("%d %s", status, body)
	}
}

// The answer of an agent that was asked without waiting is on the channel of the user too, if the operator or the
// definition of the asker wants that.
func TestAnswerOnChannelToo(t *testing.T) {
	for _, c := range []struct {
		server bool
		agent  string
		on     bool
	}{
		{false, "", false},
		{true, "", true},
		{true, `,"agent_call":{"channel":false}`, false},
		{false, `,"agent_call":{"channel":true,"return_to":false}`, true},
	} {
		on := c.on
		d := startGatewayWith(t, Config{DetachedOnChannel: c.server}, echoAgent("echo", actor.Journaled))
		if status, _, body := d.do("POST", "/v1/agents", `{"name":"asker","tools":["agent_call"]`+c.agent+`}`); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
		asked := c.agent
		c := d.channel(`{"type":"hello"}`, nil)
		c.send(`{"type":"agent_invoke","session_id":"s1","agent_id":"asker","message":{"role":"user","content":"use agent_call {\"agent\":\"echo\",\"skill\":\"look\"}"}}`)
		seen, agents := map[string]int{}, map[string]string{} // agents of runs
		for seen["asker done"] < 2 {                          // its first turn, and that for the outcome
			m, code := c.next()
			if code != 0 {
				t.Fatalf("closed with %d after %+v", code, c.got)
			}
			if m.Type == "run_started" {
				agents[m.Run] = m.Agent
				seen[m.Agent+" began"]++
			}
			if m.Type == "done" {
				seen[agents[m.Run]+" done"]++
			}
		}
		if (seen["echo began"] == 1 && seen["echo done"] == 1) != on || !on && seen["echo began"]+seen["echo done"] > 0 {
			t.Errorf("with %v%s the channel has %v", on, asked, c.got)
		}
	}
}
