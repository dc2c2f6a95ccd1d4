// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the server does not show a customer is no blank in what the commands print.
func TestCommandsOfCustomers(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := startServer(t, data, "--agents", writeFiles(t, strings.Replace(conciergeFiles, "policy = ", "approver = \"operator\"\npolicy = ", 1)+">> broken.toml\nname = \"broken\"\ntools = [\"user.ask\"]\n[limits]\nsteps = 1\n"))
	code, key, stderr := runProgram(t, "keys", "create", "--data", data, "--user", "alice", "--agent", "concierge", "--agent", "broken", "--scope", "chat")
	if code != 0 {
		t.Fatal(stderr)
	}
	id, blank := "", regexp.MustCompile(`(?m): +\(see|^:$|^actor +$|: $|is it a troupe server|forbidden_scope| 0 tokens`)
	program := func(want int, parts []string, args ...string) {
		t.Helper()
		code, out, stderr := runProgram(t, append(args, "--server", s.url, "--key", strings.TrimSpace(key))...)
		if code != want || blank.MatchString(out+stderr) {
			t.Errorf("%q: exit code %d, want %d\nstdout: %s\nstderr: %s", args, code, want, out, stderr)
		}
		for _, part := range parts {
			if !strings.Contains(out+stderr, part) {
				t.Errorf("%q lacks %q\nstdout: %s\nstderr: %s", args, part, out, stderr)
			}
		}
		if found := regexp.MustCompile(`troupe runs show ([0-9a-f-]{36})`).FindStringSubmatch(out + stderr); found != nil {
			id = found[1]
		}
	}
	program(exitWaiting, []string{"a colleague has been asked"}, "call", "concierge", `use user.pay {"amount":20}`)
	program(0, []string{"PAUSED_WAITING_APPROVAL", "a colleague has been asked"}, "runs", "show", id)
	program(0, []string{"hello\n", "the tree of calls is not printed"}, "call", "concierge", "say hello", "--tree")
	program(exitFailed, []string{": " + notAnswered}, "call", "broken", `use user.ask {"question":"x"}`)
	program(0, []string{"FAILED: " + notAnswered}, "runs", "show", id)
	program(exitFailed, []string{"budget_exceeded: " + notAnswered + " (see: "}, "call", "broken", `use user.ask {"question":"x"}`, "--stream")
	program(exitFailed, []string{`"type":"run_failed"`, `"error":{"code":"budget_exceeded"`, "budget_exceeded: " + notAnswered}, "call", "broken", `use user.ask {"question":"x"}`, "--stream", "--json")
	program(0, []string{`"seq":1,`, `"type":"user_input"`, `"type":"run_started"`, `"type":"run_done"`}, "call", "concierge", "say hello", "--stream", "--json")
	program(0, []string{"hello\n"}, "call", "concierge", "say hello", "--stream")
	program(exitFailed, []string{"forbidden: a repeat needs", "troupe call AGENT TEXT"}, "runs", "repeat", id)
	program(0, []string{"concierge 2 messages"}, "sessions", "list")
}
