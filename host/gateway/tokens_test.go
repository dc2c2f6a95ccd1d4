// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
)

// customersMay are the routes that the section Customers of docs/api.md permits, and those without
// credentials.
var customersMay = []string{
	"GET /v1/agents", "GET /v1/agents/{id}", "POST /v1/agents/{id}/messages",
	"GET /v1/sessions", "POST /v1/sessions", "GET /v1/sessions/{id}", "DELETE /v1/sessions/{id}", "GET /v1/sessions/{id}/messages",
	"GET /v1/runs/{id}", "POST /v1/runs/{id}:cancel", "POST /v1/tool_calls/{id}:result",
	"GET /v1/approvals/{id}", "POST /v1/approvals/{id}:decide",
	"GET /", "GET /docs", "GET /docs/{id}", "GET /.well-known/jwks.json", "GET /chat", "GET /console", "GET /assets/{id}", "GET /healthz", "GET /readyz", "GET /v1/ws",
}

// A customer uses the routes of the list and no other: a route that is added is closed to it.
func TestCustomersUseTheirRoutesOnly(t *testing.T) {
	m := newAuthorization(t)
	text := m.createLimitedKey(`{"user":"carol","agents":["helper","coordinator","buyer"],"scopes":["chat"]}`)
	d := m.serveAgain(offLoopback)
	c := credential{name: "carol", headers: []string{"Authorization", "Bearer " + text}}
	for _, r := range routeRights {
		method, path, body := m.request(d, r, c, "carol")
		status, _, answer := d.do(method, path, body, c.headers...)
		switch may := slices.Contains(customersMay, r.route); {
		case may && status != r.status && !(r.ownership == noApproval && status == 403):
			t.Errorf("%s: %d %s, want %d", r.route, status, answer, r.status)
		case !may && (status != 403 && status != 401 || strings.Contains(answer, m.run) && m.run != ""):
			t.Errorf("%s: %d %s, want 403", r.route, status, answer)
		}
		if !strings.HasPrefix(r.path, "/docs") && strings.Contains(answer, "token") && strings.Contains(answer, "usage") {
			t.Errorf("%s shows counts of tokens: %s", r.route, answer)
		}
		if status, _, answer := d.do(method, path, body, append(c.headers, "x-run-id", m.run)...); !slices.Contains(customersMay, r.route) && status < 400 {
			t.Errorf("%s for a run: %d %s", r.route, status, answer)
		}
	}
}

// tokenGateway is a gateway with agents and an operator's key.
func tokenGateway(t *testing.T, more ...actor.Definition) (d *testGateway, operator string) {
	return tokenGatewayWith(t, Config{}, more...)
}

func tokenGatewayWith(t *testing.T, config Config, more ...actor.Definition) (d *testGateway, operator string) {
	d = startGatewayWith(t, config, append(more, agents.Define("front", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		return turn.Call("helper", turn.Message())
	}))))...)
	return d, d.createKey("operator")
}

// issue returns a token.
func (d *testGateway) issue(key, fields string) string {
	d.Helper()
	status, answer := d.doAs(key, "POST", "/v1/tokens", fields)
	var out struct {
		Token string `json:"token"`
	}
	if json.Unmarshal([]byte(answer), &out); status != 201 || !strings.HasPrefix(out.Token, "troupe_") {
		d.Fatalf("%s: %d %s", fields, status, answer)
	}
	return out.Token
}

func TestTokens(t *testing.T) {
	d, operator := tokenGateway(t)
	const body = `{"content":"x"}`
	foreign := []string{"Authorization", "Bearer undefined"}
	if status, _, answer := d.do("POST", "/v1/agents/front/messages", body, foreign...); status != 200 {
		t.Errorf("a foreign bearer before any token: %d %s", status, answer)
	}
	token := d.issue(operator, `{"user":"alice","agents":["front"],"origin":"https://shop.example","minutes":5}`)
	if status, answer := d.doAs(token, "POST", "/v1/agents/front/messages", body); status != 200 || !strings.Contains(answer, `"content":"response from helper: x"`) {
		t.Errorf("%d %s", status, answer)
	}
	for name, c := range map[string]struct {
		status        int
		code          string
		method, path  string
		body, headers string
	}{
		"a foreign bearer":          {401, "unauthorized", "POST", "/v1/agents/front/messages", body, "Authorization: Bearer undefined"},
		"a token without its end":   {401, "unauthorized", "GET", "/v1/sessions", "", "Authorization: Bearer " + token[:len(token)-1]},
		"a token without prefix":    {401, "unauthorized", "GET", "/v1/sessions", "", "Authorization: Bearer " + strings.TrimPrefix(token, "troupe_")},
		"another user":              {403, "forbidden_user", "POST", "/v1/agents/front/messages", body, "Authorization: Bearer " + token + "\nX-User-Id: bob"},
		"another user in the body":  {403, "forbidden_user", "POST", "/v1/agents/front/messages", `{"content":"x","user_id":"bob"}`, "Authorization: Bearer " + token},
		"another agent":             {404, "agent_not_found", "POST", "/v1/agents/helper/messages", body, "Authorization: Bearer " + token},
		"another user's runs":       {403, "forbidden_scope", "GET", "/v1/runs?user=bob", "", "Authorization: Bearer " + token},
		"another user's sessions":   {403, "forbidden_user", "GET", "/v1/sessions?user=bob", "", "Authorization: Bearer " + token},
		"a token in a URL":          {401, "unauthorized", "GET", "/v1/sessions?token=" + token, "", "Authorization: Bearer x"},
		"a token as a basic secret": {401, "unauthorized", "GET", "/v1/sessions", "", "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+token))},
		"a token from a token":      {403, "forbidden_scope", "POST", "/v1/tokens", `{"user":"bob","agents":["front"]}`, "Authorization: Bearer " + token},
	} {
		headers := []string{}
		for _, line := range strings.Split(c.headers, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			headers = append(headers, name, value)
		}
		if status, _, answer := d.do(c.method, c.path, c.body, headers...); status != c.status || !strings.Contains(answer, `"code":"`+c.code+`"`) {
			t.Errorf("%s: %d %s, want %d %s", name, status, answer, c.status, c.code)
		} else if c.code == "forbidden_user" && (!strings.Contains(answer, ": omit ") || strings.Contains(answer, "key")) {
			t.Errorf("%s: %s, want what a customer can do", name, answer)
		}
	}
	if status, _, answer := d.do("POST", "/v1/agents/front/messages", body); status != 200 { // the local user sends none
		t.Errorf("no bearer: %d %s", status, answer)
	}
}

// A token is bound to what it was issued for: each claim that is changed makes it invalid, as does another
// secret.
func TestForgedTokens(t *testing.T) {
	d, operator := tokenGateway(t)
	token := d.issue(operator, `{"user":"alice","agents":["front"],"minutes":5}`)
	prefix, rest, _ := strings.Cut(token, ".")
	claim, mac, _ := strings.Cut(rest, ".")
	raw, err := base64.RawURLEncoding.DecodeString(claim)
	if err != nil {
		t.Fatal(err)
	}
	var forged []string
	for _, change := range [][2]string{{"alice", "bob"}, {"front", "helper"}, {`"a":["front"]`, `"a":[]`}, {`"e":1`, `"e":9`}, {`}`, `,"o":""}`}} {
		other := strings.Replace(string(raw), change[0], change[1], 1)
		if other == string(raw) {
			t.Fatalf("%s has no %s", raw, change[0])
		}
		forged = append(forged, prefix+"."+base64.RawURLEncoding.EncodeToString([]byte(other))+"."+mac, prefix+"."+base64.RawURLEncoding.EncodeToString([]byte(other))+".")
	}
	known, _ := ingress.ReadClientToken(d.server.config.Secret, token)
	forged = append(forged, known.Mint([]byte(strings.Repeat("x", ingress.SecretBytes))), token+"=", token+".", prefix+".."+mac, prefix+"."+claim, "troupe_token.", token+"\r\n")
	past := known
	past.Expires = 1
	for _, text := range append(forged, past.Mint(d.server.config.Secret)) {
		status, _, answer := d.do("GET", "/v1/sessions", "", "Authorization", "Bearer "+strings.TrimSpace(text))
		if strings.TrimSpace(text) != token && status != 401 {
			t.Errorf("%q: %d %s", text, status, answer)
		}
		if strings.Contains(answer, mac) {
			t.Errorf("the answer repeats the token: %s", answer)
		}
	}
}

// A token ends with the key that issued it, also on an open channel.
func TestTokenEndsWithItsKey(t *testing.T) {
	d, _ := tokenGateway(t)
	var key struct {
		ID   string `json:"key_id"`
		Text string `json:"key"`
	}
	d.owner().doJSON(&key, "POST", "/v1/keys", `{"scopes":["operator"]}`)
	token := d.issue(key.Text, `{"user":"alice","agents":["front"]}`)
	c := d.channel(`{"type":"hello","api_key":"`+token+`"}`, nil)
	c.until("state", "READY")
	if status, _, answer := d.owner().do("DELETE", "/v1/keys/"+key.ID, ""); status != 200 {
		t.Fatal(answer)
	}
	if status, answer := d.doAs(token, "GET", "/v1/sessions", ""); status != 401 {
		t.Errorf("%d %s", status, answer)
	}
	for {
		if _, code := c.next(); code != 0 {
			if code != ingress.ClosePolicy {
				t.Errorf("closed with %d", code)
			}
			break
		}
	}
}

// The origin of a token is that of the page, wherever its requests carry one.
func TestTokenOfAnotherOrigin(t *testing.T) {
	d, operator := tokenGatewayWith(t, Config{Origins: []string{"https://shop.example", "https://evil.example"}})
	token := d.issue(operator, `{"user":"alice","agents":["front"],"origin":"https://shop.example"}`)
	for origin, want := range map[string]int{"https://shop.example": 200, "https://evil.example": 403, "": 200} {
		headers := []string{"Authorization", "Bearer " + token}
		if origin != "" {
			headers = append(headers, "Origin", origin)
		}
		if status, _, answer := d.do("GET", "/v1/sessions", "", headers...); status != want || want == 403 && !strings.Contains(answer, "forbidden_origin") {
			t.Errorf("%s: %d %s, want %d", origin, status, answer, want)
		}
	}
	for body, field := range map[string]string{
		`{"agents":["front"]}`:                                                    "user",
		`{"user":"alice"}`:                                                        "agents",
		`{"user":"alice","agents":[]}`:                                            "agents",
		`{"user":"alice","agents":["absent"]}`:                                    "agents",
		`{"user":"default","agents":["front"]}`:                                   "user",
		`{"user":"a\nb","agents":["front"]}`:                                      "user",
		`{"user":"key:0102030405060708","agents":["front"]}`:                      "user",
		`{"user":"alice","agents":["front"],"minutes":0}`:                         "minutes",
		`{"user":"alice","agents":["front"],"minutes":-1}`:                        "minutes",
		`{"user":"alice","agents":["front"],"minutes":1441}`:                      "minutes",
		`{"user":"alice","agents":["front"],"minutes":9223372036854775807}`:       "minutes",
		`{"user":"alice","agents":["front"],"origin":"*"}`:                        "origin",
		`{"user":"alice","agents":["front"],"origin":"null"}`:                     "origin",
		`{"user":"alice","agents":["front"],"origin":"https://shop.example/"}`:    "origin",
		`{"user":"alice","agents":["front"],"origin":"https://shop.example:443"}`: "origin",
		`{"user":"alice","agents":["front"],"origin":"https://SHOP.example"}`:     "origin",
		`{"user":"alice","agents":["front"],"origin":"https://*.example"}`:        "origin",
		`{"user":"alice","agents":["front"],"origin":"https://a@shop.example"}`:   "origin",
		`{"user":"alice","agents":["front"],"origin":"https://shop.example?x"}`:   "origin",
		`{"user":"alice","agents":["front"],"origin":"javascript:alert(1)//x"}`:   "origin",
		`{"user":"alice","agents":["front"],"scopes":["admin"]}`:                  "scopes",
		`{"user":"alice","agents":["troupe.registry"]}`:                           "agents",
		`{"user":"alice","agents":["front"],"agents":["helper"]}`:                 "agents",
	} {
		if status, answer := d.doAs(operator, "POST", "/v1/tokens", body); status != 400 || !strings.Contains(answer, `"field":"`+field) {
			t.Errorf("%s: %d %s, want 400 with field %s", body, status, answer, field)
		}
	}
	for name, headers := range map[string][]string{"local": nil, "reader": {"Authorization", "Bearer " + d.createKey("read")}} {
		if status, _, answer := d.do("POST", "/v1/tokens", `{"user":"alice","agents":["front"]}`, headers...); status != 403 || !strings.Contains(answer, "forbidden_scope") {
			t.Errorf("issued by %s: %d %s", name, status, answer)
		}
	}
}

// A key with the scope chat is that of one customer.
func TestChatKeyIsNarrow(t *testing.T) {
	d := startGateway(t)
	for body, field := range map[string]string{
		`{"scopes":["chat"],"user":"alice"}`:                                        "agents",
		`{"scopes":["chat"],"agents":["helper"]}`:                                   "user",
		`{"scopes":["chat","read"],"agents":["helper"],"user":"alice"}`:             "scopes",
		`{"scopes":["chat","admin"],"agents":["helper"],"user":"alice"}`:            "scopes",
		`{"scopes":["chat"],"agents":["helper"],"user":"alice","act_as_user":true}`: "act_as_user",
	} {
		if status, _, answer := d.owner().do("POST", "/v1/keys", body); status != 400 || !strings.Contains(answer, `"field":"`+field+`"`) {
			t.Errorf("%s: %d %s, want field %s", body, status, answer, field)
		}
	}
}

// No answer to a customer has a word of what is not its own: the agents and tools behind, their prompts
// and arguments, counts of tokens, or the words of a failure.
func TestCustomerSeesNoMechanism(t *testing.T) {
	const secret = "SECRET"
	d, operator := tokenGateway(t, newBuyer(), agents.Define("fails", "1", secret, agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		return "", fmt.Errorf("model %s refused", secret)
	}))))
	if status, _, answer := d.do("POST", "/v1/agents", `{"name":"declared","prompt":"`+secret+`","model":"scripted","agents":["helper"]}`); status != 201 {
		t.Fatal(answer)
	}
	if status, _, answer := d.do("POST", "/v1/tools", `{"tool_name":"asked","description":"`+secret+`","url":"http://127.0.0.1:1/","policy":"require_approval"}`); status != 201 {
		t.Fatal(answer)
	}
	token := d.issue(operator, `{"user":"alice","agents":["front","fails","declared","buyer"]}`)
	bearer := []string{"Authorization", "Bearer " + token}
	hidden := regexp.MustCompile(`(?i)"usage"|total_tokens|"agent_id":"helper"|"asked"|call_chain|definition|` + secret)
	see := func(what, text string) {
		t.Helper()
		if found := hidden.FindString(text); found != "" {
			t.Errorf("%s shows %s: %s", what, found, text)
		}
	}
	for _, agent := range []string{"front", "fails", "declared", "buyer"} {
		content := map[string]string{"buyer": `asked {\"secret\":\"` + secret + `\"}`}[agent]
		if content == "" {
			content = "x"
		}
		_, _, answer := d.do("POST", "/v1/agents/"+agent+"/messages", `{"content":"`+content+`","session_id":"s-`+agent+`"}`, bearer...)
		see("message to "+agent, answer)
		var run struct {
			ID string `json:"run_id"`
		}
		_ = json.Unmarshal([]byte(answer), &run)
		for _, path := range []string{"/v1/runs/" + run.ID, "/v1/agents", "/v1/agents/" + agent, "/v1/sessions", "/v1/sessions/s-" + agent} {
			if agent == "fails" && strings.HasPrefix(path, "/v1/agents") {
				continue // its description is public
			}
			_, _, answer := d.do("GET", path, "", bearer...)
			if strings.Contains(path, "agents") {
				answer = strings.ReplaceAll(answer, `"doc":"`+secret+`"`, "")
			}
			see(path, answer)
		}
		if agent == "buyer" {
			continue // its stream ends with the approval
		}
		status, _, stream := d.do("POST", "/v1/agents/"+agent+"/messages", `{"content":"y","session_id":"s-`+agent+`"}`, append(bearer, "Accept", "text/event-stream")...)
		if see("stream of "+agent, stream); status != 200 || agent == "front" && !strings.Contains(stream, "response from helper: y") {
			t.Errorf("stream of %s: %d %s", agent, status, stream)
		}
	}
	c := d.channel(`{"type":"hello","resume":[{"session_id":"s-front"},{"session_id":"s-fails"},{"session_id":"s-buyer"}]}`, http.Header{"Authorization": {"Bearer " + token}})
	for live := 0; live < 3; {
		m, _ := c.next()
		if m.State == "LIVE" {
			live++
		}
		if m.Usage != nil || m.Tool != "" || m.Summary != "" || m.Child != "" || m.State == "CALLING_AGENT" || m.State == "CALLING_TOOL" {
			t.Errorf("the channel shows %+v", m)
		}
		if text, _ := m.Message.(string); m.Type == "error" {
			see("the channel", text)
		}
		for name := range m.Detail {
			if slices.Contains([]string{"tool_name", "tool_call_id", "status", "agent_id", "child_run_id", "by"}, name) {
				t.Errorf("the channel shows the detail %s: %+v", name, m)
			}
		}
	}
}

// The tree of a run is to a customer the run alone: what it may not read alone it does not find in a tree.
func TestCustomerSeesNoTree(t *testing.T) {
	d, operator := tokenGateway(t)
	begin := func(agent string, headers ...string) string {
		var run messageResponse
		if status := d.doJSON(&run, "POST", "/v1/agents/"+agent+"/messages", `{"content":"x","session_id":"s-`+agent+`"}`, headers...); status != 200 {
			t.Fatalf("%s: %d", agent, status)
		}
		return run.Run
	}
	bearer := []string{"Authorization", "Bearer " + d.issue(operator, `{"user":"alice","agents":["front"]}`)}
	own, foreign := begin("front", bearer...), begin("helper", "Authorization", "Bearer "+d.createLimitedKey(`{"user":"alice"}`))
	var all struct {
		Runs []struct {
			Run string `json:"run_id"`
		} `json:"runs"`
	}
	if d.doJSON(&all, "GET", "/v1/runs/"+own+"?tree=1&user=alice", "", "Authorization", "Bearer "+d.createLimitedKey(`{"scopes":["read","operator"]}`)); len(all.Runs) != 2 {
		t.Fatalf("%+v", all)
	}
	for run, want := range map[string]int{own: 200, all.Runs[1].Run: 404, foreign: 404, "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55": 404, "x": 400} {
		status, _, alone := d.do("GET", "/v1/runs/"+run, "", bearer...)
		inTree, _, answer := d.do("GET", "/v1/runs/"+run+"?tree=1", "", bearer...)
		if status != want || inTree != want || alone != answer || !strings.Contains(answer, run) {
			t.Errorf("%s: %d %s, and with tree=1 %d %s; want %d", run, status, alone, inTree, answer, want)
		}
	}
}

// A user whose budget of messages is used up learns when it is filled again, over HTTP, from a stream and on the channel.
func TestCustomerSeesWhenToWriteAgain(t *testing.T) {
	until := time.Now().UTC().Add(3 * time.Hour).Truncate(time.Hour)
	busy := agents.Define("busy", "1", "test agent", agents.Pure(agents.Config{Name: "busy", Version: "1"}, func(_ agents.Config, state agents.State) (agents.Action, error) {
		r := actor.Refuse(actor.Budget, "SECRET")
		r.RetryAfter = actor.Time(until.UnixNano()).Sub(state.Request.At)
		return agents.EndRefused(r), nil
	}))
	d, operator := tokenGateway(t, busy)
	bearer := []string{"Authorization", "Bearer " + d.issue(operator, `{"user":"alice","agents":["busy"]}`)}
	want := "no further messages are accepted before " + until.Format("2006-01-02 15:04 UTC")
	const body = `{"content":"x","session_id":"s"}`
	var p struct {
		Code       string `json:"code"`
		Detail     string `json:"detail"`
		RetryAfter int64  `json:"retry_after"`
	}
	if status := d.doJSON(&p, "POST", "/v1/agents/busy/messages", body, bearer...); status != 402 || p.Code != "budget_exceeded" || p.Detail != want || p.RetryAfter < 7000 {
		t.Errorf("%d %+v, want %s", status, p, want)
	}
	if _, _, stream := d.do("POST", "/v1/agents/busy/messages", body, append(bearer, "Accept", "text/event-stream")...); !strings.Contains(stream, `"retry_after_ms"`) || strings.Contains(stream, "SECRET") {
		t.Error(stream)
	}
	for _, customer := range []bool{true, false} {
		header, hello, message := http.Header{"Authorization": {bearer[1]}}, `{"type":"hello","resume":[{"session_id":"s"}]}`, want
		if !customer {
			header, hello, message = nil, `{"type":"hello","user_id":"alice","resume":[{"session_id":"s"}]}`, "SECRET"
		}
		m := d.channel(hello, header).until("error", "")
		after, _ := m.Detail["retry_after"].(float64)
		if m.Code != "budget_exceeded" || fmt.Sprint(m.Message) != message || after < 7000 || after > 3*3600 {
			t.Errorf("%+v, want %s", m, message)
		}
	}
}

// A customer sees that a turn begins for the outcome of a call to another agent, and not the outcome.
func TestCustomerSeesNoOutcomeOfOthers(t *testing.T) {
	d, operator := tokenGateway(t)
	if status, _, answer := d.do("POST", "/v1/agents", `{"name":"asks","model":"scripted","agents":["helper"],"tools":["agent_call"]}`); status != 201 {
		t.Fatal(answer)
	}
	token := d.issue(operator, `{"user":"alice","agents":["asks"]}`)
	const ask = `use agent_call {\"agent\":\"helper\",\"skill\":\"look\",\"input\":{\"at\":1}}`
	if status, _, answer := d.do("POST", "/v1/agents/asks/messages", `{"content":"`+ask+`","session_id":"s-1"}`, "Authorization", "Bearer "+token); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	for _, sees := range []bool{false, true} {
		header, hello := http.Header{"Authorization": {"Bearer " + token}}, `{"type":"hello","resume":[{"session_id":"s-1"}]}`
		if sees { // a client that is no customer
			header, hello = nil, `{"type":"hello","user_id":"alice","resume":[{"session_id":"s-1"}]}`
		}
		c := d.channel(hello, header)
		for started := 0; started < 2; {
			m, code := c.next()
			if code != 0 {
				t.Fatalf("closed with %d", code)
			}
			if m.Type != "run_started" {
				continue
			}
			if started++; started == 2 && (strings.Contains(fmt.Sprint(m.Message), "skill_response") != sees || (m.Origin == "agent") != sees) {
				t.Errorf("the channel shows %+v", m)
			}
		}
	}
}

// Ways around limits that other systems had: the same name in the query, in another face, as another kind of
// credential, or in a URL.
func TestWaysAroundTokens(t *testing.T) {
	m := newAuthorization(t)
	operator := m.createLimitedKey(`{"scopes":["operator"]}`)
	token := m.issue(operator, `{"user":"alice","agents":["helper"]}`)
	bearer := []string{"Authorization", "Bearer " + token}
	const body = `{"content":"x"}`
	for name, c := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
	}{
		"the agent in the query":          {"POST", "/v1/agents/helper/messages?agent=coordinator", body, bearer, 400},
		"the agent in the query twice":    {"POST", "/v1/agents/helper/messages?agent_id=coordinator&agent=coordinator", body, bearer, 400},
		"the agent in the body":           {"POST", "/v1/agents/helper/messages", `{"content":"x","agent_id":"coordinator"}`, bearer, 400},
		"the agent as a model":            {"POST", "/v1/openai/chat/completions?model=coordinator", `{"model":"helper","messages":[{"role":"user","content":"x"}]}`, bearer, 403},
		"a model of the server":           {"POST", "/v1/chat/completions", `{"model":"scripted","messages":[{"role":"user","content":"x"}]}`, bearer, 403},
		"the agent by the contract":       {"POST", "/v1/agents/coordinator:invoke", `{"message":"x"}`, bearer, 401},
		"an escaped agent":                {"POST", "/v1/agents/coordinato%72/messages", body, bearer, 400},
		"the transcript of another agent": {"GET", "/v1/sessions/s-1/messages?agent=coordinator", "", bearer, 404},
		"the token as a run token":        {"POST", "/v1/agents/helper/messages", body, []string{"x-run-token", token}, 401},
		"the token and a run token":       {"GET", "/v1/sessions", "", append(bearer, "x-run-token", m.token), 403},
		"a run token as a token":          {"GET", "/v1/sessions", "", []string{"Authorization", "Bearer " + m.token}, 403},
		"the token and a run":             {"POST", "/v1/tools/blocked:invoke", `{"args":{}}`, append(bearer, "x-run-id", m.run), 403},
		"the token and a run in the body": {"POST", "/v1/tools/blocked:invoke", `{"args":{},"run_id":"` + m.run + `"}`, bearer, 401},
		"two users":                       {"GET", "/v1/sessions?user=bob", "", append(bearer, "X-User-Id", "alice"), 403},
		"two origins":                     {"GET", "/v1/sessions", "", append(bearer, "Origin", "https://evil.example"), 403},
	} {
		if status, _, answer := m.do(c.method, c.path, c.body, c.headers...); status != c.status && !(c.status == 401 && status == 403 || c.status == 403 && status == 400) {
			t.Errorf("%s: %d %s, want %d", name, status, answer, c.status)
		}
	}
	c := m.channel("", http.Header{"Origin": {"http://" + m.address}, "Sec-Websocket-Protocol": {"troupe.v1+json", token}}) // as a page sends it
	c.send(`{"type":"hello"}`)
	c.until("state", "READY")
	c.send(`{"type":"hello","user_id":"bob"}`)
	if _, code := c.next(); code != ingress.CloseProtocol {
		t.Errorf("a second hello: %d", code)
	}
	c = m.channel(`{"type":"hello","user_id":"bob","api_key":"`+token+`"}`, nil)
	if m := c.until("error", ""); m.Code != "forbidden_user" {
		t.Errorf("another user: %+v", m)
	}
	c = m.channel(`{"type":"hello","api_key":"`+token[:len(token)-2]+`"}`, nil)
	if m := c.until("error", ""); m.Code != "unauthorized" {
		t.Errorf("a damaged token: %+v", m)
	}
}

// A token is for one user, whose name looks like that of no key's user; a key for agents that do not exist names them.
func TestNamesOfTokensAndKeys(t *testing.T) {
	d := startGateway(t)
	operator := d.newUser(`"scopes":["operator","admin"]`)
	d.newUser(`"user":"alice","scopes":["call"]`)
	for user, want := range map[string]int{"*": 400, "Alice": 400, "ALICE": 400, "alice": 201, "alicia": 201} {
		if status, body := operator.do("POST", "/v1/tokens", `{"user":"`+user+`","agents":["helper"]}`); status != want || want == 400 && !strings.Contains(body, `"field":"user"`) {
			t.Errorf("%s: %d %s, want %d", user, status, body, want)
		}
	}
	var key struct {
		Warnings []string `json:"warnings"`
	}
	if status := d.owner().doJSON(&key, "POST", "/v1/keys", `{"scopes":["call"],"agents":["helper","nope"]}`); status != 201 || len(key.Warnings) != 1 || !strings.Contains(key.Warnings[0], "nope") {
		t.Errorf("%d %q, want a warning about nope", status, key.Warnings)
	}
	chat := d.newUser(`"user":"bob","agents":["helper"],"scopes":["chat"]`)
	for path, want := range map[string]string{"/v1/approvals": "lists no approvals", "/v1/tool_calls/x:wait": "needs the scope read"} {
		method := "GET"
		if strings.HasSuffix(path, ":wait") {
			method = "POST"
		}
		if status, body := chat.do(method, path, ""); status != 403 || !strings.Contains(body, want) || strings.Contains(body, "run token") {
			t.Errorf("%s: %d %s, want %q", path, status, body, want)
		}
	}
}
