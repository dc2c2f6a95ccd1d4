// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A token from the command line talks to its agent, and to no other.
func TestTokensCreate(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := startServer(t, data, "--agents", "../../examples/team")
	if code, _, stderr := runProgram(t, "tokens", "create", "--server", s.url, "--user", "alice", "--agent", "helper"); code == 0 || !strings.Contains(stderr, "a token ends with the key that issued it") {
		t.Errorf("without a key: %d %s", code, stderr)
	}
	code, key, stderr := runProgram(t, "keys", "create", "--data", data, "--scope", "operator")
	if code != 0 {
		t.Fatal(stderr)
	}
	key = strings.TrimSpace(key)
	for _, c := range []struct{ flag, value, want string }{{"--agent", "absent", "no agent has the ID absent"}, {"--expires", "90s", "want whole minutes"}, {"--origin", "shop.example", "want the origin of a page"}} {
		if code, _, stderr := runProgram(t, "tokens", "create", "--server", s.url, "--key", key, "--user", "alice", "--agent", "helper", c.flag, c.value); code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s %s: %d %s", c.flag, c.value, code, stderr)
		}
	}
	code, token, stderr := runProgram(t, "tokens", "create", "--server", s.url, "--key", key, "--user", "alice", "--agent", "helper", "--expires", "30m")
	if code != 0 || !strings.Contains(stderr, "token of alice for helper until ") || strings.Contains(stderr, strings.TrimSpace(token)) {
		t.Fatal(code, stderr)
	}
	token = strings.TrimSpace(token)
	if code, out, stderr := runProgram(t, "call", "--server", s.url, "--key", token, "helper", "hello"); code != 0 || out == "" {
		t.Errorf("%d %s %s", code, out, stderr)
	}
	if code, _, stderr := runProgram(t, "call", "--server", s.url, "--key", token, "planner", "hello"); code == 0 || !strings.Contains(stderr, "agent_not_found") {
		t.Errorf("%d %s", code, stderr)
	}
	if code, _, stderr := runProgram(t, "runs", "list", "--server", s.url, "--key", token); code == 0 || !strings.Contains(stderr, "forbidden_scope") {
		t.Errorf("%d %s", code, stderr)
	}
}
