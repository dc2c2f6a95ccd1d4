// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// approvalResponse is an approval, or a problem.
type approvalResponse struct {
	ID        string `json:"approval_id"`
	Status    any    `json:"status"` // a number in a problem
	Call      string `json:"tool_call_id"`
	Tool      string `json:"tool_name"`
	Args      any    `json:"args"`
	Summary   string `json:"args_summary"`
	Run       string `json:"run_id"`
	Root      string `json:"root_run_id"`
	Agent     string `json:"agent_id"`
	Session   string `json:"session_id"`
	Principal string `json:"principal"`
	Created   string `json:"created_at"`
	Expires   string `json:"expires_at"`
	Decided   string `json:"decided_at"`
	By        string `json:"decided_by"`
	Reason    string `json:"reason"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
}

// heldResponse is the answer to a message whose run waits for a person.
type heldResponse struct {
	messageResponse
	Detail    string             `json:"detail"`
	Approvals []approvalResponse `json:"approvals"`
}

// startBuyer starts a gateway with an agent whose tool refund waits for approval.
func startBuyer(t *testing.T, config Config, fields string) (*testGateway, *toolServer) {
	t.Helper()
	d, s := startGatewayWith(t, config, newBuyer()), newToolServer(t)
	if fields != "" {
		fields = "," + fields
	}
	d.declare(s, "refund", "/refund", `"policy":"require_approval","args_summary":"refund of {{cents}}","input_schema":{"type":"object","properties":{"cents":{"type":"integer"}}}`+fields)
	return d, s
}

// buy sends a message whose run waits for an approval, and returns it.
func (d *testGateway) buy(headers ...string) approvalResponse {
	d.Helper()
	var m heldResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/buyer/messages", `{"content":"refund {\"cents\":5}"}`, headers...); status != 202 || len(m.Approvals) != 1 || m.Session == "" {
		d.Fatalf("%d %+v", status, m)
	}
	return m.Approvals[0]
}

func (d *testGateway) decide(id, body string, headers ...string) (int, approvalResponse) {
	d.Helper()
	var a approvalResponse
	status := d.doJSON(&a, "POST", "/v1/approvals/"+id+":decide", body, headers...)
	return status, a
}

const (
	approve = `{"decision":"approve"}`
	reject  = `{"decision":"reject","reason":"too much"}`
)

// The answer to a message whose run waits for a person names the approval, which is listed,
// read and decided about once.
func TestApprovalIsListedAndDecided(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	for decision, want := range map[string]struct{ status, run, code string }{
		approve: {"APPROVED", "run_done", ""},
		reject:  {"REJECTED", "run_failed", "approval_rejected"},
	} {
		var held heldResponse
		if status := d.doJSON(&held, "POST", "/v1/agents/buyer/messages", `{"content":"refund {\"cents\":5}","session_id":"s-7"}`); status != 202 || held.Session != "s-7" || held.Status != "PAUSED_WAITING_APPROVAL" || len(held.Approvals) != 1 {
			t.Fatalf("%d %+v", status, held)
		}
		a := held.Approvals[0]
		if a.Tool != "refund" || a.Summary != "refund of 5" || a.Expires == "" || !strings.Contains(held.Detail, "/v1/approvals/"+a.ID+":decide") {
			t.Errorf("held: %+v", held)
		}
		var list struct {
			Approvals []approvalResponse `json:"approvals"`
		}
		for _, query := range []string{"", "?status=PENDING"} {
			if status := d.doJSON(&list, "GET", "/v1/approvals"+query, ""); status != 200 || len(list.Approvals) != 1 {
				t.Fatalf("%d %+v", status, list)
			}
		}
		got, run := list.Approvals[0], held.Run
		if got.ID != a.ID || got.Status != "PENDING" || got.Run != run || got.Root != run || got.Agent != "buyer" || got.Session != "s-7" || got.Principal != "local" || got.Call != strings.Replace(a.ID, "ap_", "tc_", 1) ||
			got.Tool != "refund" || got.Summary != a.Summary || fmt.Sprint(got.Args) != "map[cents:5]" || got.Created == "" || got.Expires != a.Expires || got.Decided != "" {
			t.Errorf("listed %+v", got)
		}
		var read approvalResponse
		if status := d.doJSON(&read, "GET", "/v1/approvals/"+a.ID, ""); status != 200 || fmt.Sprint(read) != fmt.Sprint(got) {
			t.Errorf("read %d %+v, listed %+v", status, read, got)
		}
		before := s.count("/refund")
		status, decided := d.decide(a.ID, decision)
		if status != 200 || decided.Status != want.status || decided.By != "local" || decided.Decided == "" || (decided.Reason == "too much") != (decision == reject) {
			t.Errorf("%s: %d %+v", decision, status, decided)
		}
		d.openStream("GET", "/v1/runs/"+run+"/events", "", "Accept", ingress.EventStream).readUntil(want.run)
		effects := map[string]int{approve: 1, reject: 0}[decision]
		if n := s.count("/refund") - before; n != effects {
			t.Errorf("%s: %d effects, want %d", decision, n, effects)
		}
		if _, _, body := d.do("GET", "/v1/runs/"+run, ""); want.code != "" && !strings.Contains(body, want.code) {
			t.Errorf("%s: %s", decision, body)
		}
		for _, again := range []string{approve, reject} { // the run has ended by now
			if status, late := d.decide(a.ID, again); status != 409 || late.Code != "approval_decided" || !strings.Contains(late.Detail, want.status) || !strings.Contains(late.Detail, "by local") || !strings.Contains(late.Detail, decided.Decided) {
				t.Errorf("%s after %s: %d %+v", again, decision, status, late)
			}
		}
		if status := d.doJSON(&read, "GET", "/v1/approvals/"+a.ID, ""); status != 200 || read.Status != want.status || read.By != "local" || fmt.Sprint(read.Args) != "map[cents:5]" || read.Principal != "local" {
			t.Errorf("read %d %+v", status, read)
		}
		if d.doJSON(&list, "GET", "/v1/approvals", ""); len(list.Approvals) != 0 {
			t.Errorf("still listed: %+v", list)
		}
	}
	for query, want := range map[string]string{"APPROVED": "read a decided one by its ID", "pending": "want one of"} {
		if status, _, body := d.do("GET", "/v1/approvals?status="+query, ""); status != 400 || !strings.Contains(body, want) || !strings.Contains(body, `"field":"status"`) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

// An approval of a call below is named by the answer to the message, and by the tree.
func TestApprovalBelowIsNamedAtTheRoot(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	service := newExternalService(d, "outside")
	held := make(chan heldResponse, 1)
	go func() {
		var m heldResponse
		d.doJSON(&m, "POST", "/v1/agents/outside/messages", `{"content":"x"}`)
		held <- m
	}()
	in := <-service.invoked
	called := make(chan struct{})
	go func() {
		defer close(called)
		d.do("POST", "/v1/agents/buyer:invoke", `{"message":"refund {\"cents\":5}"}`, RunToken, in.token)
	}()
	m := <-held
	if m.Run != in.run || len(m.Approvals) != 1 || m.Approvals[0].Tool != "refund" {
		t.Fatalf("%+v", m)
	}
	var a approvalResponse
	if status := d.doJSON(&a, "GET", "/v1/approvals/"+m.Approvals[0].ID, ""); status != 200 || a.Root != in.run || a.Run == in.run || a.Agent != "buyer" {
		t.Errorf("%d %+v", status, a)
	}
	if _, _, tree := d.do("GET", "/v1/runs/"+in.run+"?tree=1", ""); !strings.Contains(tree, `"approvals":[{"approval_id":"`+a.ID) {
		t.Errorf("tree: %s", tree)
	}
	if status, decided := d.decide(a.ID, approve); status != 200 || decided.Status != "APPROVED" {
		t.Errorf("%d %+v", status, decided)
	}
	<-called
	service.answers <- "done"
	d.openStream("GET", "/v1/runs/"+in.run+"/events", "", "Accept", ingress.EventStream).readUntil("run_done")
	if n := s.count("/refund"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// An approval without a decision expires, and the tool is not called.
func TestApprovalExpires(t *testing.T) {
	d, s := startBuyer(t, Config{}, `"approval_timeout_ms":30`)
	stream := d.openStream("POST", "/v1/agents/buyer/messages", `{"content":"refund {\"cents\":5}"}`)
	created := stream.readUntil("approval_created")
	stream.readUntil("approval_expired")
	stream.readUntil("run_failed")
	id := created.Data[strings.Index(created.Data, "ap_"):]
	id, _, _ = strings.Cut(id, `"`)
	var a approvalResponse
	if status := d.doJSON(&a, "GET", "/v1/approvals/"+id, ""); status != 200 || a.Status != "EXPIRED" || a.Reason == "" || a.By != "" {
		t.Errorf("%d %+v", status, a)
	}
	if status, late := d.decide(id, approve); status != 409 || late.Code != "approval_decided" || !strings.Contains(late.Detail, "EXPIRED") || !strings.Contains(late.Detail, a.Decided) {
		t.Errorf("%d %+v", status, late)
	}
	var call toolCallResponse
	if d.doJSON(&call, "GET", "/v1/tool_calls/"+strings.Replace(id, "ap_", "tc_", 1), ""); call.State != "TIMEOUT" || call.Status != "failed" || call.Error.Code != "timeout" {
		t.Errorf("%+v", call)
	}
	if n := s.count("/refund"); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// Only a person of the namespace decides: neither another user, nor the agent itself.
func TestWhoDecides(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	service := newExternalService(d, "outside")
	d.declare(s, "pay", "/pay", `"policy":"require_approval"`)
	in := service.begin("outside", `{"content":"x"}`, userHeader, "alice")
	status, out := d.invokeTool(in, "pay", `{"args":{"n":1}}`)
	if status != 202 || out.Status != "pending" || out.Approval == "" {
		t.Fatalf("%d %+v", status, out)
	}
	alice, mallory := d.newUser(`"user":"alice","scopes":["call","read"]`), d.newUser(`"user":"mallory","scopes":["call","read"]`)
	reader, operator := d.newUser(`"user":"alice","scopes":["read"]`), d.newUser(`"user":"olga","scopes":["call","operator"]`)
	bearer := func(u user) []string { return []string{"Authorization", "Bearer " + u.key} }
	path := "/v1/approvals/" + out.Approval
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		status     int
		want       string
	}{
		"run token":              {path, approve, []string{RunToken, in.token}, 403, "an agent cannot approve its own calls"},
		"run token as bearer":    {path, approve, []string{"Authorization", "Bearer " + in.token}, 403, `"code":"forbidden"`},
		"damaged run token":      {path, approve, []string{RunToken, "x"}, 401, `"unauthorized"`},
		"key and run token":      {path, approve, append(bearer(alice), RunToken, in.token), 403, `"code":"forbidden"`},
		"key and run":            {path, approve, append(bearer(alice), runHeader, in.run), 403, `"code":"forbidden"`},
		"key, by this server":    {path, approve, append(bearer(alice), "X-Troupe-Egress", "1"), 403, `"code":"forbidden"`},
		"empty egress header":    {path, approve, []string{"X-Troupe-Egress", ""}, 403, `"code":"forbidden"`},
		"key and run in body":    {path, `{"decision":"approve","run_id":"` + in.run + `"}`, bearer(alice), 403, `"code":"forbidden"`},
		"another user":           {path, approve, bearer(mallory), 404, `"approval_not_found"`},
		"local, other namespace": {path, approve, nil, 404, `"approval_not_found"`},
		"scope read":             {path, approve, bearer(reader), 403, `"forbidden_scope"`},
		"operator, own":          {path, approve, bearer(operator), 404, `"approval_not_found"`},
		"unknown approval":       {path + "9", approve, bearer(alice), 404, `"approval_not_found"`},
		"no approval":            {"/v1/approvals/x", approve, bearer(alice), 404, `"approval_not_found"`},
		"tool call":              {"/v1/approvals/" + out.ID, approve, bearer(alice), 404, `"approval_not_found"`},
		"no decision":            {path, `{}`, bearer(alice), 400, `"field":"decision"`},
		"unknown decision":       {path, `{"decision":"maybe"}`, bearer(alice), 400, `"field":"decision"`},
		"unknown field":          {path, `{"decision":"approve","args":{}}`, bearer(alice), 400, `"field":"args"`},
		"long reason":            {path, `{"decision":"approve","reason":"` + strings.Repeat("x", 2000) + `"}`, bearer(alice), 400, `"field":"reason"`},
		"no body":                {path, ``, bearer(alice), 400, `"invalid_request"`},
	} {
		status, _, body := d.do("POST", c.path+":decide", c.body, c.headers...)
		if status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d with %s", name, status, body, c.status, c.want)
		}
	}
	for _, u := range []user{mallory, operator} {
		if status, body := u.do("GET", path, ""); status != 404 && status != 403 {
			t.Errorf("another user reads: %d %s", status, body)
		}
		if _, body := u.do("GET", "/v1/approvals", ""); strings.Contains(body, out.Approval) {
			t.Errorf("another user lists %s", body)
		}
	}
	if status, _, body := d.do("POST", "/v1/runs/"+in.run+":signal", `{"name":"troupe.decide","payload":{"approval_id":"`+out.Approval+`","approve":true}}`, bearer(alice)...); status != 400 || !strings.Contains(body, "reserved") {
		t.Errorf("signal: %d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/runs/"+in.run+":signal", `{"name":"troupe.tool","payload":{"tool_name":"pay","args":{}}}`, bearer(alice)...); status != 400 || !strings.Contains(body, "reserved") {
		t.Errorf("signal: %d %s", status, body)
	}
	if n := s.count("/pay"); n != 0 {
		t.Fatalf("%d effects before the decision", n)
	}
	var a approvalResponse
	if status := d.doJSON(&a, "POST", path+":decide?user=alice", approve, bearer(operator)...); status != 200 || a.Status != "APPROVED" || a.By != "olga" {
		t.Errorf("operator: %d %+v", status, a)
	}
	var done toolCallResponse
	if d.doJSON(&done, "POST", "/v1/tool_calls/"+out.ID+":wait", "", RunToken, in.token); done.Status != "succeeded" || done.Approval != out.Approval {
		t.Errorf("%+v", done)
	}
	if n := s.count("/pay"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// A server may leave decisions to operators.
func TestOperatorsDecide(t *testing.T) {
	d, _ := startBuyer(t, Config{ApprovalScope: ingress.ScopeOperator}, "")
	a := d.buy(userHeader, "alice")
	alice, operator := d.newUser(`"user":"alice","scopes":["call","read"]`), d.newUser(`"user":"olga","scopes":["call","operator"]`)
	if status, out := d.decide(a.ID, approve, "Authorization", "Bearer "+alice.key); status != 403 || out.Code != "forbidden_scope" || !strings.Contains(out.Detail, "operator") {
		t.Errorf("user: %d %+v", status, out)
	}
	if status, body := operator.do("POST", "/v1/approvals/"+a.ID+":decide?user=alice", reject); status != 200 {
		t.Errorf("operator: %d %s", status, body)
	}
}

// Of many decisions at once one counts, and the tool is called once.
func TestOneOfManyDecisionsCounts(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	a := d.buy()
	const deciders = 16
	var decisions sync.WaitGroup
	answers := make(chan approvalResponse, deciders)
	for range deciders {
		decisions.Go(func() {
			_, out := d.decide(a.ID, approve)
			answers <- out
		})
	}
	decisions.Wait()
	close(answers)
	first, late := 0, 0
	for out := range answers {
		switch {
		case out.Status == "APPROVED":
			first++
		case out.Code == "approval_decided":
			late++
		default:
			t.Errorf("%+v", out)
		}
	}
	if first != 1 || late != deciders-1 {
		t.Errorf("%d decisions counted, %d came late", first, late)
	}
	run, _, _ := strings.Cut(strings.TrimPrefix(a.ID, "ap_"), ".")
	d.openStream("GET", "/v1/runs/"+run+"/events", "", "Accept", ingress.EventStream).readUntil("run_done")
	if n := s.count("/refund"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// A repeated decision with its key is answered like the first one.
func TestDecisionIsRepeatedSafely(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	a := d.buy()
	for i := range 3 {
		if status, out := d.decide(a.ID, approve, ingress.IdempotencyKey, "k"); status != 200 || out.Status != "APPROVED" {
			t.Errorf("attempt %d: %d %+v", i+1, status, out)
		}
	}
	if status, out := d.decide(a.ID, reject, ingress.IdempotencyKey, "k"); status != 422 {
		t.Errorf("another body: %d %+v", status, out)
	}
	run, _, _ := strings.Cut(strings.TrimPrefix(a.ID, "ap_"), ".")
	d.openStream("GET", "/v1/runs/"+run+"/events", "", "Accept", ingress.EventStream).readUntil("run_done")
	if n := s.count("/refund"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// A call whose tool has changed since a person was asked is not performed.
func TestApprovalOfAChangedToolExpires(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	a := d.buy()
	if status, _, body := d.do("PUT", "/v1/tools/refund", `{"tool_name":"refund","url":"`+s.URL+`/other","policy":"require_approval"}`); status != 200 {
		t.Fatal(status, body)
	}
	if status, out := d.decide(a.ID, approve); status != 409 || !strings.Contains(out.Detail, "EXPIRED") || !strings.Contains(out.Detail, "changed") {
		t.Errorf("%d %+v", status, out)
	}
	if s.count("/refund")+s.count("/other") != 0 {
		t.Errorf("the server has done %q", s.done)
	}
}

// A run that ends takes its approvals with it.
func TestApprovalEndsWithItsRun(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	a := d.buy()
	run, _, _ := strings.Cut(strings.TrimPrefix(a.ID, "ap_"), ".")
	if status, _, body := d.do("POST", "/v1/runs/"+run+":cancel", ""); status != 200 {
		t.Fatal(status, body)
	}
	if status, out := d.decide(a.ID, approve); status != 409 || out.Code != "approval_decided" || !strings.Contains(out.Detail, "EXPIRED") {
		t.Errorf("%d %+v", status, out)
	}
	if n := s.count("/refund"); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// A tool whose URL is that of the server decides about no approval: its request is the
// server's own.
func TestToolCannotApprove(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	service := newExternalService(d, "outside")
	a := d.buy()
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"approver","on_failure":"return_error","url":"http://`+d.address+`/v1/approvals/`+a.ID+`:decide"}`); status != 201 {
		t.Fatal(status, body)
	}
	in := service.begin("outside", `{"content":"x"}`)
	status, out := d.invokeTool(in, "approver", `{"args":{"decision":"approve"}}`)
	if out.Status != "failed" || !strings.Contains(out.Error.Message, "an agent cannot approve its own calls") {
		t.Errorf("%d %+v", status, out)
	}
	var now approvalResponse
	if d.doJSON(&now, "GET", "/v1/approvals/"+a.ID, ""); now.Status != "PENDING" || s.count("/refund") != 0 {
		t.Errorf("%+v, the server has done %q", now, s.done)
	}
}

// The principal that registered an external agent does not decide about the calls of its
// runs, for itself or for a user that it names. Other principals and operators do.
func TestRegistrarDoesNotDecide(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	d.declare(s, "pay", "/pay", `"policy":"require_approval"`)
	service := newExternalService(d, "outside")
	const scopes = `"scopes":["call","read","agents"`
	bot, alice := d.newUser(`"user":"bot","act_as_user":true,`+scopes+`]`), d.newUser(`"user":"alice",`+scopes+`]`)
	operator := d.newUser(`"user":"bot",` + scopes + `,"operator"]`)
	_, _, registered := d.do("GET", "/v1/agents/outside", "")
	_, endpoint, _ := strings.Cut(registered, `"endpoint":"`)
	endpoint, _, _ = strings.Cut(endpoint, `"`)
	if status, body := bot.do("POST", "/v1/agents/register", `{"agent_id":"bots","endpoint":"`+endpoint+`"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	for query, decider := range map[string]user{"": alice, "?user=alice": operator} {
		in := service.begin("bots", `{"content":"x"}`, userHeader, "alice")
		_, out := d.invokeTool(in, "pay", `{"args":{}}`)
		path := "/v1/approvals/" + out.Approval + ":decide"
		if status, body := bot.do("POST", path, approve, userHeader, "alice"); status != 403 || !strings.Contains(body, "registered the agent") {
			t.Errorf("registrar: %d %s", status, body)
		}
		if status, body := decider.do("POST", path+query, reject); status != 200 {
			t.Errorf("%d %s", status, body)
		}
	}
	if n := s.count("/pay"); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// Nor does it decide about calls that its agents cause through agents of others, whether they are
// external or declared, for itself or for a user that it names, or after it has deleted them.
func TestRegistrarDoesNotDecideBelow(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	d.declare(s, "pay", "/pay", `"policy":"require_approval"`)
	service := newExternalService(d, "outside")
	const scopes = `"scopes":["call","read","agents"]`
	bot, alice := d.newUser(`"user":"bot","act_as_user":true,`+scopes), d.newUser(`"user":"alice",`+scopes)
	_, _, registered := d.do("GET", "/v1/agents/outside", "")
	_, endpoint, _ := strings.Cut(registered, `"endpoint":"`)
	endpoint, _, _ = strings.Cut(endpoint, `"`)
	if status, body := bot.do("POST", "/v1/agents/register", `{"agent_id":"bots","endpoint":"`+endpoint+`"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := bot.do("POST", "/v1/agents", `{"agent_id":"botd","tools":["call_agent"]}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	held := func(session string) string {
		for range 2000 {
			var list struct {
				Approvals []approvalResponse `json:"approvals"`
			}
			if d.doJSON(&list, "GET", "/v1/approvals", "", userHeader, "alice"); len(list.Approvals) > 0 && list.Approvals[0].Session == session {
				return "/v1/approvals/" + list.Approvals[0].ID + ":decide"
			}
		}
		t.Fatalf("%s: no approval waits", session)
		return ""
	}
	for session, begin := range map[string]func(){
		"external": func() {
			in := service.begin("bots", `{"content":"x","session_id":"external"}`, userHeader, "alice")
			wait.Go(func() {
				d.do("POST", "/v1/agents/buyer:invoke", `{"message":{"content":"pay {}"}}`, RunToken, in.token)
			})
		},
		"declared": func() {
			wait.Go(func() {
				d.do("POST", "/v1/agents/botd/messages", `{"content":"ask buyer: pay {}","session_id":"declared"}`, userHeader, "alice")
			})
		},
	} {
		begin()
		path := held(session)
		if status, body := bot.do("POST", path, approve, userHeader, "alice"); status != 403 || !strings.Contains(body, "nor those of agents that it calls") {
			t.Errorf("%s: %d %s", session, status, body)
		}
		if session == "external" {
			if status, body := bot.do("DELETE", "/v1/agents/bots", ""); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			if status, body := bot.do("POST", path, approve, userHeader, "alice"); status != 403 || !strings.Contains(body, "was deleted") {
				t.Errorf("deleted: %d %s", status, body)
			}
			if status, _, body := d.do("POST", path+"?user=alice", reject); status != 200 {
				t.Errorf("without a key: %d %s", status, body)
			}
			continue
		}
		if status, body := alice.do("POST", path, reject); status != 200 {
			t.Errorf("%s, another principal: %d %s", session, status, body)
		}
	}
	if n := s.count("/pay"); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// An operator lists the approvals of all users, the oldest first, and decides with the
// namespace that each names. Other keys cannot, also those that may act for users.
func TestOperatorsListEveryApproval(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	operator, channel := d.newUser(`"user":"olga","scopes":["call","read","operator"]`), d.newUser(`"act_as_user":true,"scopes":["call","read"]`)
	var want, got []string
	for _, name := range []string{"bob", "alice@example.com", "bob"} {
		want = append(want, d.buy(userHeader, name).ID)
	}
	want = append(want, d.buy().ID)
	for cursor := ""; ; {
		var list struct {
			Approvals []struct {
				ID    string `json:"approval_id"`
				Actor string `json:"actor"`
				User  string `json:"principal"`
			} `json:"approvals"`
			Next string `json:"next_cursor"`
		}
		if status, body := operator.do("GET", "/v1/approvals?user=*&limit=1"+cursor, ""); status != 200 || json.Unmarshal([]byte(body), &list) != nil {
			t.Fatalf("%d %s", status, body)
		}
		for _, a := range list.Approvals {
			got = append(got, a.ID)
			namespace := map[string]string{"bob": "bob", "alice@example.com": "u-ff8d9819fc0e12bf"}[a.User]
			if !strings.HasPrefix(a.Actor, strings.TrimPrefix(namespace+"/buyer/", "/")) {
				t.Errorf("got %s of %q", a.Actor, a.User)
			}
			if status, body := operator.do("POST", "/v1/approvals/"+a.ID+":decide?user="+cmp.Or(namespace, "default"), reject); status != 200 {
				t.Errorf("%d %s", status, body)
			}
		}
		if list.Next == "" {
			break
		}
		cursor = "&cursor=" + list.Next
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := s.count("/refund"); n != 0 {
		t.Errorf("%d effects of rejected calls", n)
	}
	for _, u := range []user{channel, d.newUser(`"user":"bob","scopes":["read"]`)} {
		if status, body := u.do("GET", "/v1/approvals?user=*", ""); status != 403 || !strings.Contains(body, "forbidden_scope") {
			t.Errorf("%d %s", status, body)
		}
	}
}

// The list of approvals is read in pages, the oldest first.
func TestApprovalsArePaged(t *testing.T) {
	d, _ := startBuyer(t, Config{}, "")
	var want, got []string
	for range 5 {
		want = append(want, d.buy().ID)
	}
	query, pages := "?limit=2", 0
	for cursor := ""; cursor != "" || pages == 0; pages++ {
		var list struct {
			Approvals []approvalResponse `json:"approvals"`
			Next      string             `json:"next_cursor"`
		}
		if status := d.doJSON(&list, "GET", "/v1/approvals"+query, ""); status != 200 || len(list.Approvals) == 0 {
			t.Fatalf("%d %+v", status, list)
		}
		for _, a := range list.Approvals {
			got = append(got, a.ID)
		}
		cursor = list.Next
		query = "?limit=2&cursor=" + cursor
	}
	if pages != 3 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d pages with %q, want %q", pages, got, want)
	}
	for query, field := range map[string]string{"?limit=0": "limit", "?limit=1001": "limit", "?cursor=x": "cursor", "?cursor=" + ingress.CursorKey(d.server.config.Secret).PageCursor("approvals default", "x y"): "cursor"} {
		if status, _, body := d.do("GET", "/v1/approvals"+query, ""); status != 400 || !strings.Contains(body, `"field":"`+field+`"`) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

// A tool call that waits is read from its cell, without its events, and is the same as by its events.
func TestWaitingToolCallIsThatOfItsEvents(t *testing.T) {
	d, _ := startBuyer(t, Config{}, "")
	id, err := runs.ParseApprovalID(d.buy().ID)
	if err != nil {
		t.Fatal(err)
	}
	by := localCaller
	found, err := lookup(d.server, by, command.ToolCallQuery{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	page, err := lookup(d.server, by, command.EventsQuery{Run: id.Run, Limit: command.EventsMax})
	if err != nil {
		t.Fatal(err)
	}
	var events []runs.Event
	for _, raw := range page.All {
		e, err := runs.Decode(raw.Body)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	want, ok, err := runs.FoldToolCall(events, id)
	if !ok || err != nil || !reflect.DeepEqual(found.Call, want) {
		t.Errorf("got %+v with %+v\nwant %+v with %+v, %v", found.Call, found.Call.Approval, want, want.Approval, err)
	}
	record, err := runs.Fold(events)
	if err != nil || found.Principal != record.User || !slices.Equal(found.Chain, record.Chain) || found.Owner.Actor != record.Actor {
		t.Errorf("got %q %v %s, want %q %v %s", found.Principal, found.Chain, found.Owner.Actor, record.User, record.Chain, record.Actor)
	}
}
