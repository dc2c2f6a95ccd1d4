// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
)

// An external agent that is dead when the server starts again is not shown as healthy
// before the first contact.
func TestDeadAgentIsUnknownAfterRestart(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "http://" + closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	s.registerAgent(`{"agent_id":"ext","endpoint":"` + endpoint + `"}`)
	want := func(status string, heartbeat bool) {
		t.Helper()
		var a struct {
			Status   string `json:"status"`
			LastSeen string `json:"last_heartbeat_at"`
		}
		if code, err := s.request("GET", "/v1/agents/ext", "", "", &a); err != nil || code != 200 || a.Status != status || (a.LastSeen != "") != heartbeat {
			t.Errorf("%d %+v %v, want %s", code, a, err, status)
		}
	}
	want("healthy", true) // the registration was a sign of life
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir)
	want("unknown", false)
	if code, err := s.request("POST", "/v1/agents/ext:heartbeat", "", "", &struct{}{}); err != nil || code >= 300 {
		t.Fatal(code, err)
	}
	want("healthy", true)
}
