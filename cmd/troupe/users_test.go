// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/ingress"
)

// Commands act for a user and read the runs of one, at a server and in a data folder. A user
// is found by its name and by its namespace.
func TestCommandsNameUsers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	const mail, namespace = "alice@example.com", "u-ff8d9819fc0e12bf"
	check := func(wantCode int, want []string, without string, args ...string) (out, err string) {
		t.Helper()
		code, out, err := runProgram(t, args...)
		for _, text := range want {
			if code != wantCode || !strings.Contains(out+err, text) || without != "" && strings.Contains(out+err, without) {
				t.Errorf("troupe %s: exit code %d\nstdout: %s\nstderr: %s\nwant %d, %q, without %q", strings.Join(args, " "), code, out, err, wantCode, want, without)
			}
		}
		return out, err
	}
	operator, _ := check(0, []string{"for read, operator"}, "", "keys", "create", "--data", dir, "--scope", "read", "--scope", "operator")
	bob, _ := check(0, []string{"for call, read"}, "", "keys", "create", "--data", dir, "--user", "bob")
	bob, operator = strings.TrimSpace(bob), strings.TrimSpace(operator)
	s := startServerWithBuiltins(t, dir, "--ready")
	with := func(args ...string) []string { return append(args, "--server", s.url) }

	check(0, []string{"response from helper: secret"}, "", with("call", "helper", "secret", "--user", mail, "--session", "s-1")...)
	check(0, []string{"response from helper: again"}, "", with("call", "helper", "again", "--user", mail, "--continue", "--stream")...)
	check(0, []string{"response from helper: of bob"}, "", with("call", "helper", "of bob", "--key", bob)...)
	check(1, []string{"forbidden_user", "bob"}, "", with("call", "helper", "x", "--key", bob, "--user", mail)...)
	check(0, []string{"response from helper: x", "helper/main"}, "", with("call", "helper", "x", "--session", "main", "--tree", "--user", "carol")...)
	_, hint := check(3, []string{"waits for the signal go", "--user carol"}, "", with("call", "coordinator", "xyzzy", "--user", "carol", "--session", "s-9")...)
	signal := strings.Fields(hint[strings.Index(hint, "troupe runs signal"):])
	run := signal[3]
	check(1, []string{"run_not_found"}, "", with("runs", "signal", run, "go")...)
	check(1, []string{"run_not_found", "needs --user NAME and the scope operator", "troupe runs list --user '*' --server "}, "", with("runs", "show", run, "--key", operator)...)
	check(1, []string{"run_not_found"}, "--user NAME", with("runs", "show", run, "--key", operator, "--user", "nobody")...)
	check(0, []string{run}, "", with("runs", "list", "--key", operator, "--user", "*")...)
	check(0, []string{"has the signal go"}, "", with("runs", "signal", run[len(run)-36:], "go", "--user", "carol")...)

	// A key that does not send for others is told which one does.
	check(3, []string{"waits for the signal go"}, "", with("call", "coordinator", "xyzzy", "--user", "carol", "--session", "s-10")...)
	list, _ := check(0, []string{"coordinator/s-10"}, "", with("runs", "list", "--user", "carol", "--limit", "1")...)
	again := strings.Fields(list)[0]
	check(0, []string{"is cancelled"}, "", with("runs", "cancel", again, "--user", "carol")...)
	_, refused := check(1, []string{"is sent as carol", "  troupe keys create --act-as-user --data DIR\n", "  TROUPE_KEY=KEY troupe runs repeat " + again[:36], "--user carol"}, "", with("runs", "repeat", again, "--user", "carol", "--key", operator)...)
	sender, _ := check(0, []string{"for call, read"}, "", "keys", "create", "--data", dir, "--act-as-user")
	typed := strings.Fields(refused[strings.Index(refused, "troupe runs repeat"):])[1:]
	check(0, []string{"-"}, "", append(typed, "--async", "--key", strings.TrimSpace(sender))...)

	for _, user := range []string{mail, namespace} {
		list, _ := check(0, []string{mail + "/helper/s-1"}, "bob", with("runs", "list", "--user", user)...)
		run := strings.Fields(list)[0]
		check(0, []string{"status   DONE", "user     " + mail}, "", with("runs", "show", run, "--user", user)...)
		check(0, []string{"run_done"}, "", with("runs", "events", run[:36], "--user", user)...)
		check(0, []string{"s-1"}, "s-9", with("sessions", "list", "--user", user)...)
		check(0, []string{"user: secret", "user: again"}, "", with("sessions", "show", "s-1", "--user", user)...)
	}
	check(0, []string{"next: troupe runs list", "--user " + mail}, "", with("runs", "list", "--user", mail, "--limit", "1")...)
	check(1, []string{"run_not_found", "--user bob"}, "", with("runs", "show", run, "--user", "bob")...)
	check(0, []string{"  helper/s-1 ", "  bob  ", "  " + mail + "  ", "  coordinator/s-9 ", "  carol  "}, namespace, with("runs", "list", "--user", ingress.EveryUser, "--key", operator)...)
	check(1, []string{"forbidden_scope", "operator"}, "", with("runs", "list", "--user", ingress.EveryUser, "--key", bob)...)
	check(0, []string{"helper/"}, namespace, with("runs", "list", "--key", bob, "--user", "bob")...)
	if out, _ := check(0, []string{""}, "helper", with("runs", "list")...); out != "" {
		t.Errorf("runs of nobody: %s", out)
	}
	check(1, []string{"want one user"}, "", with("runs", "show", run, "--user", ingress.EveryUser)...)
	check(1, []string{"session_not_found"}, "", with("sessions", "delete", "s-1")...)
	check(0, []string{"session s-1 is deleted"}, "", with("sessions", "delete", "s-1", "--user", mail)...)
	for _, args := range [][]string{{"runs", "list", "--user", "troupe.x"}, {"call", "helper", "x", "--user", "local"}, {"sessions", "list", "--user", strings.Repeat("u", 10<<10)}} {
		if code, _, err := runProgram(t, with(args...)...); code != 2 || !strings.Contains(err, "--user: ") || len(err) > 2<<10 {
			t.Errorf("troupe %.80q: exit code %d, %.2000s", args, code, err)
		}
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM: want 0, got %d", code)
	}

	check(0, []string{"carol/coordinator/s-9"}, "bob/", "runs", "list", "--data", dir, "--user", "carol")
	check(0, []string{"  bob  ", "  coordinator/s-9 ", "  carol  "}, "", "runs", "list", "--data", dir, "--user", ingress.EveryUser)
	check(0, []string{"status   DONE"}, "", "runs", "show", run, "--data", dir, "--user", "carol", "--tree")
	check(0, []string{"signal_received"}, "", "runs", "events", run, "--data", dir, "--user", "carol")
	check(1, []string{"not found", "--user bob"}, "", "runs", "show", run, "--data", dir, "--user", "bob")
	check(1, []string{"not found"}, "", "runs", "show", run, "--data", dir)
}
