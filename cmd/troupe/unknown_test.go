// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// closedEndpoint returns the URL of an address that accepts no connection until the test ends: its
// port is taken, and nothing listens.
func closedEndpoint(t *testing.T) string {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(socket)
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

// An external agent that is dead when the server starts again is not shown as healthy
// before the first contact.
func TestDeadAgentIsUnknownAfterRestart(t *testing.T) {
	endpoint := closedEndpoint(t)
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

// The circuit breaker of an agent that cannot be reached refuses its calls, is shown, and is closed
// after a restart.
func TestCircuitOfUnreachableAgentIsShown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	s.registerAgent(`{"agent_id":"ext","endpoint":"` + closedEndpoint(t) + `","limits":{"retry_attempts":1}}`)
	circuit := func() string {
		t.Helper()
		var a struct {
			Status  string `json:"status"`
			Circuit string `json:"circuit"`
		}
		if code, err := s.request("GET", "/v1/agents/ext", "", "", &a); err != nil || code != 200 || a.Circuit != "closed" && a.Status != "unhealthy" {
			t.Fatalf("%d %+v %v", code, a, err)
		}
		return a.Circuit
	}
	if got := circuit(); got != "closed" {
		t.Errorf("the circuit is %s before the first call", got)
	}
	for refused := false; !refused; { // for a second after a failed connection, calls are refused without another one
		var p struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
		}
		if code, err := s.request("POST", "/v1/agents/ext/messages", `{"content":"hi"}`, "", &p); err != nil || code != 503 || p.Code != "agent_unavailable" {
			t.Fatalf("%d %+v %v", code, p, err)
		}
		refused = strings.Contains(p.Detail, "circuit open after ")
	}
	if got := circuit(); got != "open" && got != "half_open" {
		t.Errorf("the circuit is %s after a call that it refused", got)
	}
	response, err := s.client.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if text := string(body); err != nil || !strings.Contains(text, `troupe_agent_circuit_open{agent="ext"} 1`) || !strings.Contains(text, `troupe_agent_circuit_opened_total{agent="ext"} 1`) {
		t.Errorf("the metrics do not show the circuit: %s", text)
	}
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir)
	if got := circuit(); got != "closed" {
		t.Errorf("the circuit is %s after a restart", got)
	}
}
