// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/tools"
)

// Who decides about a call is what the tool and the policy say: the user who began the tree, operators, or
// somebody else. A customer decides only as the requester. The agent between does not change who asked.
func TestApproversDecide(t *testing.T) {
	policy, err := tools.NewPolicy([]tools.Rule{
		{Tool: "by_rule", When: "args.cents > 100", Decision: "require_approval", Approver: "operator"},
		{Tool: "by_rule", Decision: "require_approval"},
	}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	front := agents.Define("front", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) { return turn.Call("buyer", turn.Message()) })))
	d, s := startGatewayWithPolicy(t, Config{}, policy, newBuyer(), front), newToolServer(t)
	const cents = `"input_schema":{"type":"object","properties":{"cents":{"type":"integer"}}}`
	for _, name := range []string{"requester", "operator", "other"} {
		d.declare(s, name, "/refund", `"policy":"require_approval","approver":"`+name+`",`+cents)
	}
	d.declare(s, "nobody", "/refund", `"policy":"require_approval",`+cents)
	d.declare(s, "by_rule", "/refund", `"approver":"requester",`+cents)

	operator := d.createLimitedKey(`{"scopes":["call","read","operator"]}`)
	self := d.createLimitedKey(`{"scopes":["call","read","operator"],"user":"alice"}`)
	bearer := map[string][]string{
		"operator":        {"Authorization", "Bearer " + operator},
		"local":           nil,
		"alice":           {"Authorization", "Bearer " + d.createLimitedKey(`{"user":"alice"}`)},
		"alice, operator": {"Authorization", "Bearer " + self},
		"alice's token":   {"Authorization", "Bearer " + d.issue(operator, `{"user":"alice","agents":["front","buyer"]}`)},
		"alice's agent":   {"Authorization", "Bearer " + d.createLimitedKey(`{"user":"alice"}`), "x-run-id", actor.NewCallID(1, 2, 3).String()},
	}
	for _, c := range []struct {
		call, decider string
		may           bool
	}{
		{`requester {"cents":1}`, "alice's token", true},
		{`requester {"cents":1}`, "alice", true},
		{`requester {"cents":1}`, "operator", true},
		{`requester {"cents":1}`, "local", true},
		{`requester {"cents":1}`, "alice's agent", false},
		{`operator {"cents":1}`, "alice's token", false},
		{`operator {"cents":1}`, "alice", false},
		{`operator {"cents":1}`, "operator", true},
		{`operator {"cents":1}`, "local", true},
		{`other {"cents":1}`, "alice's token", false},
		{`other {"cents":1}`, "alice", false},
		{`other {"cents":1}`, "alice, operator", false},
		{`other {"cents":1}`, "operator", true},
		{`nobody {"cents":1}`, "alice's token", false},
		{`nobody {"cents":1}`, "alice", true},
		{`nobody {"cents":1}`, "local", true},
		{`by_rule {"cents":1}`, "alice's token", true}, // the rule leaves it to the tool
		{`by_rule {"cents":101}`, "alice's token", false},
		{`by_rule {"cents":101}`, "operator", true},
	} {
		for _, agent := range []string{"buyer", "front"} {
			what := fmt.Sprintf("%s by %s, asked through %s", c.call, c.decider, agent)
			var run, waiting struct {
				ID        string             `json:"run_id"`
				Approvals []approvalResponse `json:"approvals"`
			}
			if status := d.doJSON(&run, "POST", "/v1/agents/"+agent+"/messages", `{"content":`+fmt.Sprintf("%q", c.call)+`}`, bearer["alice's token"]...); status != 202 || len(run.Approvals) > 0 {
				t.Fatalf("%s: %d %+v", what, status, run)
			}
			d.doJSON(&waiting, "GET", "/v1/approvals?user=alice", "", bearer["operator"]...)
			if len(waiting.Approvals) != 1 || waiting.Approvals[0].Principal != "alice" {
				t.Fatalf("%s: %+v", what, waiting)
			}
			id, query, body := waiting.Approvals[0].ID, "", `{"decision":"reject"}`
			if c.decider == "operator" || c.decider == "local" {
				query = "?user=alice"
			}
			var seen struct {
				May  *bool  `json:"may_decide"`
				Tool string `json:"tool_name"`
			}
			if c.decider != "alice's agent" {
				if status := d.doJSON(&seen, "GET", "/v1/approvals/"+id+query, "", bearer[c.decider]...); status != 200 || seen.May == nil || *seen.May != c.may || strings.Contains(c.decider, "token") && (seen.Tool != "") != c.may {
					t.Errorf("%s: %d %+v", what, status, seen)
				}
			}
			status, _, answer := d.do("POST", "/v1/approvals/"+id+":decide"+query, body, bearer[c.decider]...)
			if c.may && status != 200 || !c.may && (status != 403 || !strings.Contains(answer, `"code":"forbidden`)) {
				t.Errorf("%s: %d %s", what, status, answer)
			}
			if !c.may {
				if status, _, answer := d.do("POST", "/v1/approvals/"+id+":decide?user=alice", body, bearer["operator"]...); status != 200 {
					t.Fatalf("%s: %d %s", what, status, answer)
				}
			}
		}
	}
	if n := s.count("/refund"); n != 0 {
		t.Errorf("%d effects of rejected calls", n)
	}
}

// The channel has the same rule, and a customer sees what it decides about only if it is the requester.
func TestCustomerDecidesOverTheChannel(t *testing.T) {
	d, s := startBuyer(t, Config{}, `"approver":"requester"`)
	token := d.issue(d.createLimitedKey(`{"scopes":["call","read","operator"]}`), `{"user":"alice","agents":["buyer"]}`)
	d.declare(s, "pay", "/pay", `"policy":"require_approval"`)
	c := d.channel(`{"type":"hello"}`, http.Header{"Authorization": {"Bearer " + token}})
	c.until("state", ingress.StateReady)
	for tool, code := range map[string]string{"refund": "", "pay": "forbidden"} {
		c.send(`{"type":"agent_invoke","request_id":"i-` + tool + `","agent_id":"buyer","session_id":"s-` + tool + `","message":{"role":"user","content":"` + tool + ` {}"}}`)
		m := c.until("approval_required", "")
		if m.Tool != "" || m.Approval == "" {
			t.Errorf("%+v", m)
		}
		c.send(`{"type":"approval_decision","request_id":"d-` + tool + `","run_id":"` + m.Run + `","approval_id":"` + m.Approval + `","decision":"approve"}`)
		for {
			if m, _ := c.next(); m.Request == "d-"+tool {
				if m.Code != code {
					t.Errorf("%s: %+v, want %q", tool, m, code)
				}
				break
			}
		}
	}
}
