// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strings"
	"testing"
)

// The error of a field has the name that was sent and the values that are allowed.
func TestFieldErrors(t *testing.T) {
	d := startGateway(t)
	const m = "/v1/agents/helper/messages"
	for _, c := range []struct{ method, path, body, field, want string }{
		{"POST", m, `{"content":"x","timeout_ms":0}`, "timeout_ms", "whole number of milliseconds from 1"},
		{"POST", m, `{"content":"x","timeout_ms":-1}`, "timeout_ms", "from 1"},
		{"POST", m, `{"content":"x","timeout_ms":1.5}`, "timeout_ms", "from 1"},
		{"POST", m, `{"content":"x","timeout_ms":1e3}`, "timeout_ms", "from 1"},
		{"POST", m, `{"content":"x","timeout_ms":"5"}`, "timeout_ms", "from 1"},
		{"POST", m, `{"content":"x","timeout_ms":{}}`, "timeout_ms", "from 1"},
		{"POST", m, `{"content":"x","timeout_ms":86400001}`, "timeout_ms", "to 86400000"},
		{"POST", m, `{"content":""}`, "content", "is empty"},
		{"POST", m, `{"message":""}`, "message", "is empty"},
		{"POST", m, `{}`, "content", "is missing"},
		{"POST", m, `{"content":"x","message":"y"}`, "message", "differs from content"},
		{"POST", m, `{"content":"x","session_id":"a","session":"b"}`, "session", "differs from session_id"},
		{"POST", m, `{"content":"x","session_id":"a b"}`, "session_id", "only letters"},
		{"POST", m, `{"content":"x","session":"a b"}`, "session", "only letters"},
		{"POST", m, `{"content":"x","sesion_id":"a"}`, "sesion_id", "did you mean session_id? want content, session_id, timeout_ms, priority, project_id"},
		{"POST", m, `{"content":"x","frob":"a"}`, "frob", "is unknown; want content, session_id, timeout_ms, priority, project_id"},
		{"POST", "/v1/runs/0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55:signal", `{"name":"a","paylod":1}`, "paylod", "did you mean payload?"},
		{"POST", "/v1/runs/0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55:cancel", `{"why":1}`, "why", "is unknown: want none"},
		{"GET", "/v1/runs?limt=3", "", "limt", "did you mean limit?"},
		{"GET", "/v1/runs?agent_d=a", "", "agent_d", "did you mean agent_id?"},
		{"GET", "/v1/runs?name=a", "", "name", "is unknown; want limit, cursor, user, agent_id, session_id, status, since, until, root_run_id, parent_run_id, correlation_id, system"},
		{"GET", "/v1/runs?limit=201", "", "limit", "at most 200, got 201"},
		{"GET", "/v1/runs?limit=1&limit=2", "", "limit", "is a duplicate"},
		{"GET", "/v1/runs?limit=x", "", "limit", "non-negative"},
		{"GET", "/v1/agents?name=a", "", "name", "want limit, cursor"},
		{"GET", "/v1/runs/0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55/events?wait=1", "", "wait", "want after, limit, wait_ms, tree"},
		{"POST", m + "?stream=1", `{"content":"x"}`, "stream", "want none"},
		{"POST", m, `{"content":"x","priority":"urgent"}`, "priority", "want high, normal or low"},
		{"POST", m, `{"content":"x","prority":"low"}`, "prority", "did you mean priority?"},
		{"GET", "/metrics?name=a", "", "name", "want none"},
	} {
		status, header, body := d.do(c.method, c.path, c.body)
		if status != http.StatusBadRequest || !strings.Contains(header.Get("Content-Type"), "problem") || !strings.Contains(body, `"field":"`+c.field+`"`) || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s: %d %s, want field %s, %s", c.method, c.path, c.body, status, body, c.field, c.want)
		}
	}
}

// Both spellings of a field mean the same.
func TestMessageFieldAliases(t *testing.T) {
	d := startGateway(t)
	for _, body := range []string{
		`{"content":"hello","session_id":"s-1"}`, `{"message":"hello","session":"s-1"}`, `{"content":"hello","message":"hello","session":"s-1","session_id":"s-1"}`,
		`{"session":"s-1","content":"hello","timeout_ms":5000}`, `{"mess\u0061ge":"hello","session_id":"s-1","timeout_ms":null}`,
	} {
		status, _, answer := d.do("POST", "/v1/agents/helper/messages", body)
		if status != http.StatusOK || !strings.Contains(answer, `"session_id":"s-1"`) || !strings.Contains(answer, "hello") {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
}
