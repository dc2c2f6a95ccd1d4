// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// A request of a socket is checked when it is performed, by the key and by the head of the handshake.
func TestSocketChecksItsRequests(t *testing.T) {
	s := New(silentNode{}, slog.New(slog.DiscardHandler), Config{Keys: new(Keys)})
	own := forbiddenUser("", "sent by this server")
	for _, c := range []struct {
		name   string
		by     caller
		head   socketHead
		kind   string
		status int
	}{
		{"allowed", localCaller, socketHead{}, ingress.SocketDecision, 0},
		{"an unknown key", caller{Principal: actor.NewPrincipal("alice", "k1", "call")}, socketHead{}, ingress.SocketCancel, http.StatusUnauthorized},
		{"without the scope", newCaller("alice", ingress.ScopeRead), socketHead{}, ingress.SocketInvoke, http.StatusForbidden},
		{"an agent decides", localCaller, socketHead{agent: true}, ingress.SocketDecision, http.StatusForbidden},
		{"an agent gives a result", localCaller, socketHead{agent: true}, ingress.SocketToolResult, http.StatusForbidden},
		{"an agent cancels", localCaller, socketHead{agent: true}, ingress.SocketCancel, 0},
		{"the server begins a run", localCaller, socketHead{own: own}, ingress.SocketInvoke, http.StatusForbidden},
		{"the server cancels", localCaller, socketHead{own: own}, ingress.SocketCancel, 0},
	} {
		d := &socketDriver{server: s, by: c.by, shook: c.head}
		status := 0
		if p := d.checkRequest(&ingress.SocketRequest{Type: c.kind}); p != nil {
			status = p.Status
		}
		if status != c.status {
			t.Errorf("%s: got %d, want %d", c.name, status, c.status)
		}
	}
}

// Decisions over the channel have the rules of those over HTTP.
func TestChannelDecidesAsHTTP(t *testing.T) {
	d, s := startBuyer(t, Config{ApprovalScope: ingress.ScopeOperator}, "")
	a := d.buy(userHeader, "alice")
	alice := d.newUser(`"user":"alice","scopes":["call","read"]`)
	decide := func(c *channelClient) channelMessage {
		t.Helper()
		c.until("state", "READY")
		c.send(fmt.Sprintf(`{"type":"approval_decision","request_id":"r1","approval_id":%q,"decision":"approve"}`, a.ID))
		return c.until("error", "")
	}
	if m := decide(d.channel(fmt.Sprintf(`{"type":"hello","api_key":%q}`, alice.key), nil)); m.Code != "forbidden_scope" || m.Request != "r1" {
		t.Errorf("without the scope of decisions: %+v", m)
	}
	for _, mark := range []string{runHeader, egressHeader} {
		m := decide(d.channel(`{"type":"hello","user_id":"alice"}`, http.Header{http.CanonicalHeaderKey(mark): {a.Run}}))
		if m.Code != "forbidden" || !strings.Contains(fmt.Sprint(m.Message), "an agent cannot approve its own calls") {
			t.Errorf("%s in the handshake: %+v", mark, m)
		}
	}
	var now approvalResponse
	if d.doJSON(&now, "GET", "/v1/approvals/"+a.ID+"?user=alice", ""); now.Status != "PENDING" || s.count("/refund") != 0 {
		t.Errorf("%+v, the server has done %q", now, s.done)
	}
}

// A message over the channel begins no run for a request of the server itself, and none that has no
// events.
func TestChannelRefusesMessages(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled), echoAgent("quick", actor.Volatile))
	for agent, mark := range map[string]http.Header{
		"echo":  {http.CanonicalHeaderKey(egressHeader): {ingress.ServerMark(d.server.config.Secret)}},
		"quick": nil,
	} {
		c := d.channel(`{"type":"hello"}`, mark)
		c.until("state", "READY")
		c.send(fmt.Sprintf(`{"type":"agent_invoke","request_id":"r1","agent_id":%q,"message":{"role":"user","content":"hi"}}`, agent))
		if m := c.until("error", ""); m.Request != "r1" || m.Run != "" || m.Code != map[string]string{"echo": "forbidden", "quick": "invalid_request"}[agent] {
			t.Errorf("%s: %+v", agent, m)
		}
	}
}

// A tool call that needed no approval has none.
func TestToolCallWithoutApproval(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	d.declare(s, "note", "/note", "")
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/buyer/messages", `{"content":"note {}"}`); status != 200 {
		t.Fatal(status, m)
	}
	for path, want := range map[string]string{"/v1/tool_calls/tc_" + m.Run + ".1.0": `"state":"SUCCEEDED"`, "/v1/approvals/ap_" + m.Run + ".1.0": `"code":"approval_not_found"`} {
		if _, _, body := d.do("GET", path, ""); !strings.Contains(body, want) {
			t.Errorf("%s: got %s, want %s", path, body, want)
		}
	}
}
