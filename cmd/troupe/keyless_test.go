// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// A server on loopback needs no key and warns of proxies. With --keyless=off, or
// keyless in its configuration, it asks for keys and does not warn.
func TestKeylessFlag(t *testing.T) {
	config := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(config, []byte("keyless = \"off\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want int
	}{{nil, 200}, {[]string{"--keyless=on"}, 200}, {[]string{"--keyless=off"}, 401}, {[]string{"--config", config}, 401}, {[]string{"--config", config, "--keyless=on"}, 200}} {
		s := startServer(t, filepath.Join(t.TempDir(), "data"), c.args...)
		response, err := http.Get(s.url + "/v1/agents")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		s.stop(syscall.SIGTERM)
		log, err := os.ReadFile(s.log)
		warns := strings.Count(string(log), "a proxy on this machine that adds no header lets everyone in") == 1
		if err != nil || response.StatusCode != c.want || warns != (c.want == 200) {
			t.Errorf("%v: %d, want %d; log %s, %v", c.args, response.StatusCode, c.want, log, err)
		}
	}
	if code, _, message := runProgram(t, "serve", "--keyless=maybe"); code != 2 || !strings.Contains(message, "must be one of") {
		t.Errorf("exit code %d: %s", code, message)
	}
}

// Who gives users keys learns that a client on the machine needs none: with the key, and at each start
// of the server that admits such clients.
func TestKeylessClientsOfUsersAreNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	const warning = "a client on this machine without a key may act as any of them"
	for i, c := range []struct {
		create, serve []string
		hint          string
		warns         bool
	}{
		{nil, nil, "", false},
		{[]string{"--user", "alice"}, nil, "that send no key act as any user, alice too; troupe serve --keyless=off ends that", true},
		{[]string{"--user", "bob"}, nil, "", true}, // the hint is given once
		{nil, []string{"--keyless=off"}, "", false},
	} {
		code, out, stderr := runProgram(t, append([]string{"keys", "create", "--data", dir}, c.create...)...)
		if code != 0 || strings.Count(out, "\n") != 1 || !strings.Contains(stderr, c.hint) || c.hint == "" && strings.Contains(stderr, "--keyless") {
			t.Errorf("%d: exit code %d, %s%s", i, code, out, stderr)
		}
		s := startServer(t, dir, c.serve...)
		s.stop(syscall.SIGTERM)
		log, err := os.ReadFile(s.log)
		if err != nil || strings.Contains(string(log), warning) != c.warns {
			t.Errorf("%d: %s %v", i, log, err)
		}
		if err := os.Remove(s.log); err != nil {
			t.Fatal(err)
		}
	}
}

// A running server is asked whether the hint is true.
func TestKeylessHintOfRunningServer(t *testing.T) {
	for flag, want := range map[string]bool{"on": true, "off": false} {
		dir := filepath.Join(t.TempDir(), "data")
		startServer(t, dir, "--keyless="+flag)
		if code, _, stderr := runProgram(t, "keys", "create", "--data", dir); code != 0 {
			t.Fatal(stderr)
		}
		code, _, stderr := runProgram(t, "keys", "create", "--data", dir, "--user", "alice")
		if code != 0 || strings.Contains(stderr, "that send no key act as any user") != want {
			t.Errorf("--keyless=%s: exit code %d, %s", flag, code, stderr)
		}
	}
}

// With --keyless=off, clients come through a proxy: agents that their keys register do not reach the
// services of the machine, under any spelling of its addresses, unless --allow names them.
func TestKeylessOffReachesNoLoopback(t *testing.T) {
	var reached atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(service.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(service.URL, "http://"), ":")
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir, "--keyless=off")
	code, key, stderr := runProgram(t, "keys", "create", "--user", "alice", "--scope", "call,read,agents", "--data", dir)
	if code != 0 {
		t.Fatal(stderr)
	}
	for i, host := range []string{"127.0.0.1", "localhost", "LOCALHOST.", "127.1", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "[64:ff9b::7f00:1]"} {
		for _, call := range [][2]string{
			{"/v1/agents/register", fmt.Sprintf(`{"agent_id":"a%d","endpoint":"http://%s:%s"}`, i, host, port)},
			{fmt.Sprintf("/v1/agents/a%d/messages", i), `{"content":"x","timeout_ms":2000}`},
		} {
			request, err := http.NewRequest("POST", s.url+call[0], strings.NewReader(call[1]))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(key))
			request.Header.Set("Content-Type", "application/json")
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("a service on loopback got %d requests", n)
	}
}
