// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The commands speak of a budget where one is asked for, and of a tool call elsewhere.
func TestApprovalsOfBudget(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[budget]\ntree_tokens = 10\nat_limit = \"ask\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config, "--agents", writeFiles(t, ">> thinker.toml\nname = \"thinker\"\nmodel = \"scripted\"\nprompt = \"x\"\n"))
	program := func(wantCode int, wants []string, args ...string) string {
		t.Helper()
		code, out, errs := runProgram(t, append(args, "--server", s.url)...)
		for _, want := range wants {
			if !strings.Contains(out+errs, want) {
				t.Errorf("%v: no %q in\n%s%s", args, want, out, errs)
			}
		}
		if code != wantCode || strings.Contains(out+errs, "tool call") || strings.Contains(out+errs, "arguments") {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
		return out + errs
	}
	program(0, []string{"nothing waits for a person", `a budget with at_limit = "ask"`}, "approvals", "list")
	said := program(exitWaiting, []string{"the approval of a larger budget for requests to scripted (", "to see it, to approve"}, "call", "thinker", "say more")
	_, id, _ := strings.Cut(said, "approvals show ")
	id, _, _ = strings.Cut(id, " ")
	program(0, []string{"budget for scripted", "thinker"}, "approvals", "list")
	_, run, _ := strings.Cut(said, "run ")
	run, _, _ = strings.Cut(run, " ")
	program(0, []string{"approval " + id + "  budget for scripted  until"}, "runs", "show", run)
	program(0, []string{"scripted budget " + id}, "runs", "events", run)
	program(0, []string{"model      scripted", "approved   the budget of the run grows by ", " tokens; --raise-money"}, "approvals", "show", id)
	program(exitFailed, []string{"raise.tokens: got -5"}, "approvals", "approve", id, "--raise-tokens=-5")
	program(0, []string{"approved budget for scripted", `budget for scripted SUCCEEDED: {"tokens":54321}`}, "approvals", "approve", id, "--raise-tokens", "54321")
	program(0, []string{"status     APPROVED by local", "approved   the budget of the run grew by 54321 tokens\n"}, "approvals", "show", id)
	program(exitFailed, []string{"approval_decided", `the budget was raised by {"tokens":54321}`}, "approvals", "approve", id, "--raise-tokens", "7")
	said = program(exitWaiting, nil, "call", "thinker", "say more")
	_, id, _ = strings.Cut(said, "approvals show ")
	id, _, _ = strings.Cut(id, " ")
	program(0, []string{`"status": "APPROVED"`, `"tokens": 65432`}, "approvals", "approve", id, "--raise-tokens", "65432", "--json")
	said = program(exitWaiting, nil, "call", "thinker", "say more")
	_, id, _ = strings.Cut(said, "approvals show ")
	id, _, _ = strings.Cut(id, " ")
	program(0, []string{"rejected budget for scripted", "the budget was not raised"}, "approvals", "reject", id)
	program(0, []string{"status     REJECTED"}, "approvals", "show", id)
	code, out, errs := runChat(t, "say more\nn too much\n", "thinker", "--session", "s2", "--server", s.url)
	if want := "a larger budget for requests to scripted, to which a yes adds "; code != exitFailed || !strings.Contains(errs, want) || !strings.Contains(errs, " tokens: the request to model scripted may take up to ") {
		t.Errorf("exit code %d\n%s%s, want %q", code, out, errs, want)
	}
}
