// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"
)

// A session names its user, and each run of a tree the agent of its root.
func TestSessionsNameTheirUserAndRunsTheirRootAgent(t *testing.T) {
	d := startGateway(t)
	status, _, body := d.do("POST", "/v1/agents/coordinator/messages", `{"content":"ask helper: hi","session_id":"s-1"}`, userHeader, "alice")
	if status != 202 { // it waits for a signal, after the answer of the helper
		t.Fatalf("%d %s", status, body)
	}
	for path, want := range map[string]string{
		"/v1/sessions":                  `"session_id":"s-1","user_id":"alice"`,
		"/v1/sessions/s-1":              `"session_id":"s-1","user_id":"alice"`,
		"/v1/runs?agent_id=coordinator": `"root_agent_id":"coordinator"`,
	} {
		if status, _, body := d.do("GET", path, "", userHeader, "alice"); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	if status, _, body := d.do("GET", "/v1/sessions/s-1?user=alice", ""); status != 200 || !strings.Contains(body, `"user_id":"alice"`) {
		t.Errorf("as an operator: %d %s", status, body)
	}
	_, _, list := d.do("GET", "/v1/runs?agent_id=helper", "", userHeader, "alice")
	_, after, _ := strings.Cut(list, `"run_id":"`)
	if len(after) < 36 {
		t.Fatal(list)
	}
	if _, _, body := d.do("GET", "/v1/runs/"+after[:36], "", userHeader, "alice"); !strings.Contains(body, `"root_agent_id":"coordinator"`) || !strings.Contains(body, `"agent_id":"helper"`) {
		t.Errorf("the run of the helper: %s", body)
	}
	if status, _, body := d.do("POST", "/v1/sessions", `{"session_id":"s-2","title":"x"}`, userHeader, "bob"); status != 201 || !strings.Contains(body, `"user_id":"bob"`) {
		t.Errorf("a new session: %d %s", status, body)
	}
}
