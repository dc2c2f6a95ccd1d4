// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
)

// For a key or a token that is limited to agents, what belongs to the runs of other agents does not exist,
// although it is of the same user. A request about it has no effect.
func TestLimitedKeysAreApart(t *testing.T) {
	m := newAuthorization(t)
	d := m.serveAgain(offLoopback)
	const limits = `{"user":"alice","agents":["front"]`
	m.prepare("POST", "/v1/agents", `{"name":"front"}`)
	all := credential{name: "alice", headers: []string{"Authorization", "Bearer " + m.createLimitedKey(`{"user":"alice"}`)}, scopes: []string{"call", "read"}}
	seen := func() string {
		_, _, runs := d.do("GET", "/v1/runs?limit=200", "", all.headers...)
		_, _, sessions := d.do("GET", "/v1/sessions?limit=200", "", all.headers...)
		_, _, approvals := d.do("GET", "/v1/approvals", "", all.headers...)
		return runs + sessions + approvals
	}
	for _, key := range []string{"key", "chat key", "token"} {
		text := map[string]string{"key": m.createLimitedKey(limits + `}`), "chat key": m.createLimitedKey(limits + `,"scopes":["chat"]}`), "token": m.issue(m.createKey("operator"), limits+`}`)}[key]
		bearer := []string{"Authorization", "Bearer " + text}
		for _, r := range routeRights {
			if scope := strings.TrimSuffix(strings.TrimSuffix(rights[r.right], " or run token"), ", no run"); scope != "call" && scope != "read" || strings.Contains(r.path, "{context}") || strings.HasPrefix(r.path, "/v1/schemas/") {
				continue
			}
			what := r.route + " with the " + key
			method, path, body := m.request(d, r, all, "alice")
			before := seen()
			status, _, answer := d.do(method, path, body, bearer...)
			want := map[ownership]int{noRun: 404, noSession: 404, noApproval: 404, noToolCall: 404}[r.ownership]
			if refused := status == 403 && key != "key" && !slices.Contains(customersMay, r.route); want != 0 && !refused && (status != want || !strings.Contains(answer, string(r.ownership))) {
				t.Errorf("%s: %d %s, want %s", what, status, answer, r.ownership)
			}
			for _, other := range []string{`"coordinator"`, `"buyer"`, `"writer"`, "DOC_GENERATE"} {
				if strings.Contains(answer, other) && !strings.Contains(path, strings.Trim(other, `"`)) {
					t.Errorf("%s names %s: %s", what, other, answer)
				}
			}
			if strings.Contains(path, m.run) || r.ownership != own || strings.Contains(r.path, "messages") {
				continue
			}
			if after := seen(); method != "POST" && after != before || strings.Contains(answer, m.run) {
				t.Errorf("%s changed %s to %s, or shows the run: %s", what, before, after, answer)
			}
		}
		for _, r := range routeRights { // again, for their effects
			if r.ownership == noRun || r.ownership == noSession || r.ownership == noApproval || r.ownership == noToolCall {
				method, path, body := m.request(d, r, all, "alice")
				before := seen()
				d.do(method, path, body, bearer...)
				if after := seen(); after != before {
					t.Errorf("%s with the %s changed %s to %s", r.route, key, before, after)
				}
			}
		}
	}
}

// The channel shows a customer the conversations with its agents, and those only.
func TestChannelShowsOwnTrees(t *testing.T) {
	d, operator := tokenGateway(t, newBuyer())
	d.declare(newToolServer(t), "refund", "/refund", `"policy":"require_approval","approver":"requester"`)
	of := map[string][]string{"all": {"Authorization", "Bearer " + d.createLimitedKey(`{"user":"alice"}`)}, "front": {"Authorization", "Bearer " + d.issue(operator, `{"user":"alice","agents":["front"]}`)}}
	var held heldResponse
	if status := d.doJSON(&held, "POST", "/v1/agents/buyer/messages", `{"content":"refund {\"cents\":5}","session_id":"mixed"}`, of["all"]...); status != 202 || len(held.Approvals) != 0 && len(held.Approvals) != 1 {
		t.Fatalf("%d %+v", status, held)
	}
	var list struct {
		Approvals []approvalResponse `json:"approvals"`
	}
	d.doJSON(&list, "GET", "/v1/approvals", "", of["all"]...)
	if len(list.Approvals) != 1 {
		t.Fatalf("%+v", list)
	}
	var own messageResponse
	if status := d.doJSON(&own, "POST", "/v1/agents/front/messages", `{"content":"mine","session_id":"mixed"}`, of["front"]...); status != 200 {
		t.Fatalf("%d %+v", status, own)
	}
	c := d.channel(`{"type":"hello","resume":[{"session_id":"mixed"}]}`, http.Header{"Authorization": {of["front"][1]}})
	shown := false
	for {
		m, code := c.next()
		if code != 0 {
			t.Fatal(code)
		}
		if m.Run == held.Run || m.Approval != "" {
			t.Errorf("the channel shows %+v", m)
		}
		if shown = shown || m.Run == own.Run; m.State == ingress.StateLive {
			break
		}
	}
	if !shown {
		t.Error("the channel does not show the own run")
	}
	for request, code := range map[string]string{
		`{"type":"replay","request_id":"a","run_id":"` + held.Run + `"}`:                                                                                                        "run_not_found",
		`{"type":"cancel_run","request_id":"a","run_id":"` + held.Run + `"}`:                                                                                                    "run_not_found",
		`{"type":"approval_decision","request_id":"a","approval_id":"` + list.Approvals[0].ID + `","decision":"approve"}`:                                                       "approval_not_found",
		`{"type":"tool_result","request_id":"a","tool_call_id":"tc_` + strings.TrimPrefix(list.Approvals[0].ID, "ap_") + `","ok":true,"result":{},"run_id":"` + held.Run + `"}`: "tool_call_not_found",
	} {
		c.send(request)
		if m := c.until("error", ""); m.Code != code {
			t.Errorf("%s: %+v, want %s", request, m, code)
		}
		c.got = nil
	}
	if status, _, answer := d.do("DELETE", "/v1/sessions/mixed?cancel=1", "", of["front"]...); status != 403 {
		t.Errorf("the deletion of a session with another conversation: %d %s", status, answer)
	}
	var run runResponse
	if d.doJSON(&run, "GET", "/v1/runs/"+held.Run, "", of["all"]...); run.Status != "PAUSED_WAITING_APPROVAL" {
		t.Errorf("the run of the other agent: %+v", run)
	}
	d.doJSON(&own, "POST", "/v1/agents/front/messages", `{"content":"mine","session_id":"alone"}`, of["front"]...)
	if status, _, answer := d.do("DELETE", "/v1/sessions/alone", "", of["front"]...); status != 204 { // with the conversation of its agent with helper
		t.Errorf("the deletion of an own session: %d %s", status, answer)
	}
}

const decidesElsewhere = "a colleague of those who serve the chat decides about this, not its user"

// The tree of a run is of the agent at its root: a customer decides below its own run, whatever agent has
// made the call.
func TestCustomerDecidesBelowItsRun(t *testing.T) {
	front := agents.Define("desk", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) { return turn.Call("buyer", turn.Message()) })))
	d, s := startGatewayWith(t, Config{}, newBuyer(), front), newToolServer(t)
	for _, name := range []string{"requester", "operator"} {
		d.declare(s, name, "/refund", `"policy":"require_approval","approver":"`+name+`","args_summary":"refund"`)
	}
	operator := d.createLimitedKey(`{"scopes":["call","read","operator"]}`)
	for name, text := range map[string]string{"token": d.issue(operator, `{"user":"alice","agents":["desk"]}`), "key": d.createLimitedKey(`{"user":"alice","agents":["desk"]}`)} {
		bearer := []string{"Authorization", "Bearer " + text}
		for _, face := range []string{"HTTP", "channel"} {
			for _, approver := range []string{"requester", "operator"} {
				what := approver + " by the " + name + " over " + face
				var run struct {
					ID string `json:"run_id"`
				}
				if status := d.doJSON(&run, "POST", "/v1/agents/desk/messages", `{"content":"`+approver+` {\"cents\":5}","session_id":"`+name+face+approver+`"}`, bearer...); status != 202 {
					t.Fatalf("%s: %d", what, status)
				}
				var list struct {
					Approvals []approvalResponse `json:"approvals"`
				}
				d.doJSON(&list, "GET", "/v1/approvals?user=alice", "", "Authorization", "Bearer "+operator)
				if len(list.Approvals) != 1 {
					t.Fatalf("%s: %+v", what, list)
				}
				id, may := list.Approvals[0].ID, approver == "requester"
				var shown struct {
					Run  string         `json:"run_id"`
					May  bool           `json:"may_decide"`
					Tool string         `json:"tool_name"`
					Args map[string]any `json:"args"`
				}
				if status := d.doJSON(&shown, "GET", "/v1/approvals/"+id, "", bearer...); status != 200 || name == "token" && shown.Run != run.ID || shown.May != may || may && (shown.Tool != approver || shown.Args["cents"] != 5.0) || name == "token" && !may && shown.Tool != "" {
					t.Errorf("%s: %d %+v", what, status, shown)
				}
				if face == "HTTP" {
					status, _, answer := d.do("POST", "/v1/approvals/"+id+":decide", approve, bearer...)
					if (status == 200) != may || status != 200 && status != 403 || may && !strings.Contains(answer, "APPROVED") {
						t.Errorf("%s: %d %s", what, status, answer)
					}
					if !may && name == "token" && (!strings.Contains(answer, decidesElsewhere) || !strings.Contains(answer, `"code":"forbidden"`)) {
						t.Errorf("%s: %s", what, answer)
					}
				} else {
					c := d.channel(`{"type":"hello","resume":[{"session_id":"`+name+face+approver+`"}]}`, http.Header{"Authorization": {bearer[1]}})
					if m := c.until("approval_required", ""); m.Approval != id {
						t.Errorf("%s: %+v", what, m)
					}
					c.send(`{"type":"approval_decision","request_id":"d","approval_id":"` + id + `","decision":"approve"}`)
					for {
						if m, _ := c.next(); m.Request == "d" {
							if text, _ := m.Message.(string); (m.Code == "") != may || !may && name == "token" && text != decidesElsewhere {
								t.Errorf("%s: %+v", what, m)
							}
							break
						}
					}
				}
				var after approvalResponse
				d.doJSON(&after, "GET", "/v1/approvals/"+id+"?user=alice", "", "Authorization", "Bearer "+operator)
				if want := map[bool]string{true: "APPROVED", false: "PENDING"}[may]; after.Status != want {
					t.Errorf("%s: %+v, want %s", what, after, want)
				}
				if !may {
					d.do("POST", "/v1/approvals/"+id+":decide?user=alice", reject, "Authorization", "Bearer "+operator)
				}
			}
		}
	}
}

// The token of a run reads the conversation that the run is part of, and no other of its session.
func TestRunTokenReadsItsConversation(t *testing.T) {
	m := newAuthorization(t)
	m.prepare("POST", "/v1/agents/helper/messages", `{"content":"secret","session_id":"`+m.session+`"}`)
	for query, want := range map[string]int{"": 200, "?agent=outside": 200, "?agent=helper": 404} {
		if status, _, answer := m.do("GET", "/v1/sessions/"+m.session+"/messages"+query, "", "x-run-token", m.token); status != want || strings.Contains(answer, "secret") {
			t.Errorf("%s: %d %s, want %d", query, status, answer, want)
		}
	}
}

// A key that names users asks as one of them; it is not somebody else who decides.
func TestKeyThatNamesUsersIsNobodyElse(t *testing.T) {
	d, _ := startBuyer(t, Config{}, `"approver":"other"`)
	site := []string{"Authorization", "Bearer " + d.createLimitedKey(`{"act_as_user":true,"scopes":["call","read"]}`)}
	a := d.buy(append(site, userHeader, "carol")...)
	for _, query := range []string{"?user=carol", ""} {
		headers := site
		if query == "" {
			headers = append(site[:2:2], userHeader, "carol")
		}
		if status, _, answer := d.do("POST", "/v1/approvals/"+a.ID+":decide"+query, approve, headers...); status != 403 {
			t.Errorf("%s: %d %s", query, status, answer)
		}
	}
}
