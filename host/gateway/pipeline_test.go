// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/ingress"
)

// TestPipelineOfTools follows a pipeline, whose second step waits for a person: each step is a call of its own.
func TestPipelineOfTools(t *testing.T) {
	d := startGatewayWith(t, Config{}, newBuyer())
	s := newToolServer(t)
	d.declare(s, "geo.find", "/find", "")
	d.declare(s, "book", "/book", `"policy":"require_approval","input_schema":{"type":"object","required":["place"]}`)
	const pipeline = `{"tool_name":"trip","via":"pipeline","steps":[{"tool":"geo.find","from":{"city":"/input/to"}},{"tool":"book","args":{"n":2},"from":{"place":"/1/did/city"}}]}`
	if status, _, body := d.do("POST", "/v1/tools", pipeline); status != 201 {
		t.Fatal(status, body)
	}
	var held heldResponse
	if status := d.doJSON(&held, "POST", "/v1/agents/buyer/messages", `{"content":"trip {\"to\":\"Graz\"}"}`); status != 202 || len(held.Approvals) != 1 || held.Approvals[0].Tool != "book" || s.count("/book") != 0 {
		t.Fatalf("%d %+v", status, held)
	}
	if status, a := d.decide(held.Approvals[0].ID, approve); status != 200 {
		t.Errorf("%d %+v", status, a)
	}
	stream := d.openStream("GET", "/v1/runs/"+held.Run+"/events", "", "Accept", ingress.EventStream)
	stream.readUntil("run_done")
	names := stream.frameNames()
	if last := stream.frames[len(stream.frames)-1].Data; !strings.Contains(last, `{\"did\":{\"n\":2,\"place\":\"Graz\"}}`) || strings.Count(names, "tool_call_created") != 3 || strings.Count(names, "policy_decision") != 3 {
		t.Errorf("%s %s", names, last)
	}
	if s.count("/find") != 1 || s.count("/book") != 1 {
		t.Errorf("the server has done %q", s.done)
	}
	for body, want := range map[string]string{
		`{"tool_name":"other","via":"pipeline","steps":[{"tool":"trip"}]}`: "steps: step 1: trip is a pipeline itself; call its tools",
		`{"tool_name":"other","via":"pipeline","steps":[{"tool":"book"}]}`: `steps: step 1: book requires the argument \"place\": add it to args or from`,
	} {
		if status, _, got := d.do("POST", "/v1/tools", body); status != 400 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s", body, status, got)
		}
	}
	// An external agent calls the tools itself.
	in := newExternalService(d, "outside").begin("outside", `{"content":"x"}`)
	if status, out := d.invokeTool(in, "trip", `{"args":{"to":"Graz"}}`); status != 403 || !strings.Contains(out.Detail, "trip is a pipeline") {
		t.Errorf("%d %+v", status, out)
	}
}
