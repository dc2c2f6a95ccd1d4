// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strings"
	"testing"
)

// A run that does not exist has a code of its own in every route.
func TestMissingRunHasItsOwnCode(t *testing.T) {
	d := startGateway(t)
	const path = "/v1/runs/0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
	for _, c := range []struct{ method, path, body string }{
		{"GET", path, ""}, {"GET", path + "/events", ""}, {"GET", path + "/events?after=3", ""}, {"POST", path + ":signal", `{"name":"go"}`}, {"POST", path + ":cancel", ""},
	} {
		for _, accept := range []string{"application/json", "text/event-stream"} {
			status, _, body := d.do(c.method, c.path, c.body, "Accept", accept)
			if status != http.StatusNotFound || !strings.Contains(body, `"code":"run_not_found"`) || !strings.Contains(body, "GET /v1/runs lists") {
				t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
			}
		}
	}
	if status, _, body := d.do("GET", "/v1/agents/none", ""); status != http.StatusNotFound || !strings.Contains(body, `"code":"agent_not_found"`) {
		t.Errorf("missing agent: %d %s", status, body)
	}
}

// A signal to a run that has ended gets the status of the run.
func TestSignalToEndedRunNamesItsStatus(t *testing.T) {
	d := startGateway(t)
	var out struct {
		Run string `json:"run_id"`
	}
	if status := d.doJSON(&out, "POST", "/v1/agents/helper/messages", `{"content":"hello"}`); status != http.StatusOK {
		t.Fatal(status)
	}
	status, _, body := d.do("POST", "/v1/runs/"+out.Run+":signal", `{"name":"go"}`)
	if status != http.StatusForbidden || !strings.Contains(body, "has ended with status DONE") || !strings.Contains(body, `"run_id":"`+out.Run) {
		t.Errorf("%d %s", status, body)
	}
}
