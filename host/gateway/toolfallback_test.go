// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/ingress"
)

// TestToolInPlaceOfAnother follows calls of tools that are not available: the other one is performed under its own
// policy, once, and not at all if the first one may have been performed.
func TestToolInPlaceOfAnother(t *testing.T) {
	d := startGatewayWith(t, Config{}, newBuyer())
	s := newToolServer(t)
	d.declare(s, "spare", "/spare", "")
	d.declare(s, "asked", "/asked", `"policy":"require_approval"`)
	d.declare(s, "blocked", "/blocked", `"policy":"block"`)
	d.declare(s, "a.spare", "/away", `"fallback":"spare"`)
	d.declare(s, "a.asked", "/away", `"fallback":"asked"`)
	d.declare(s, "a.blocked", "/away", `"fallback":"blocked"`)
	d.declare(s, "a.failing", "/failing", `"fallback":"spare"`)
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"a.device","kind":"client_tool","fallback":"spare"}`); status != 201 {
		t.Fatal(status, body)
	}
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"a.fatal","url":"`+s.URL+`/away","fallback":"spare","on_failure":"fail_run"}`); status != 201 {
		t.Fatal(status, body)
	}
	send := func(tool string) (int, string) {
		status, _, body := d.do("POST", "/v1/agents/buyer/messages", `{"content":"`+tool+` {\"n\":1}"}`)
		return status, body
	}
	for _, tool := range []string{"a.spare", "a.device", "a.fatal"} {
		before := s.count("/spare")
		if status, body := send(tool); status != 200 || !strings.Contains(body, `{\"did\":{\"n\":1}}`) || s.count("/spare") != before+1 {
			t.Errorf("%s: %d %s, %d calls", tool, status, body, s.count("/spare")-before)
		}
	}
	before := s.count("/spare")
	if status, body := send("a.failing"); status != 503 || !strings.Contains(body, "it may have been performed") || s.count("/spare") != before {
		t.Errorf("a.failing: %d %s", status, body)
	}
	if status, body := send("a.blocked"); status != 403 || !strings.Contains(body, "answers 503; then the policy blocks this call of blocked") || s.count("/blocked") != 0 {
		t.Errorf("a.blocked: %d %s", status, body)
	}
	var held heldResponse
	if status := d.doJSON(&held, "POST", "/v1/agents/buyer/messages", `{"content":"a.asked {\"n\":1}"}`); status != 202 || len(held.Approvals) != 1 || held.Approvals[0].Tool != "asked" || s.count("/asked") != 0 {
		t.Fatalf("a.asked: %d %+v", status, held)
	}
	if status, a := d.decide(held.Approvals[0].ID, approve); status != 200 {
		t.Errorf("%d %+v", status, a)
	}
	stream := d.openStream("GET", "/v1/runs/"+held.Run+"/events", "", "Accept", ingress.EventStream)
	stream.readUntil("run_done")
	var events []string
	for _, f := range stream.frames {
		if strings.Contains(f.Data, `"field":"fallback/asked"`) {
			events = append(events, f.Name)
		}
	}
	if s.count("/asked") != 1 || strings.Join(events, " ") != "tool_result" || strings.Count(stream.frameNames(), "tool_call_created") != 2 {
		t.Errorf("%d calls, %v, %s", s.count("/asked"), events, stream.frameNames())
	}
	// A definition that would refuse the arguments is refused, in each order.
	d.declare(s, "strict", "/spare", `"input_schema":{"type":"object","required":["m"]}`)
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"a.strict","kind":"server_tool","via":"http","url":"`+s.URL+`/away","fallback":"strict"}`); status != 400 || !strings.Contains(body, `strict requires the argument \"m\", which this tool does not`) || !strings.Contains(body, `"field":"fallback"`) {
		t.Errorf("%d %s", status, body)
	}
}
