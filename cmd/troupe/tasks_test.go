// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// program runs a command against the server, and returns its output. Its exit code MUST be the wanted one.
func (s *server) program(want int, args ...string) string {
	s.Helper()
	code, out, stderr := runProgram(s.T, append(args, "--server", s.url)...)
	if code != want {
		s.Fatalf("%v: exit code %d, %s%s", args, code, out, stderr)
	}
	return out + stderr
}

// A reminder is shown and cancelled, also twice. A call whose outcome is not delivered is not late.
func TestRemindersAndSilentCallsAreTasks(t *testing.T) {
	s := startServerWithBuiltins(t, filepath.Join(t.TempDir(), "data"))
	s.putAgent(`{"name":"asker","tools":["agent_call","remind","agent_poll"]}`)
	row := func(skill string) []string {
		for line := range strings.Lines(s.program(0, "tasks", "list")) {
			if f := strings.Fields(line); len(f) > 4 && f[4] == skill {
				return f
			}
		}
		t.Fatalf("no task has the skill %s: %s", skill, s.program(0, "tasks", "list"))
		return nil
	}
	s.program(0, "call", "asker", "use remind {\"text\":\"Look.\",\"after\":3600000}\nsay done", "--session", "s-1")
	task := row("remind")[0]
	if out := s.program(0, "tasks", "show", task); !strings.Contains(out, `"status": "pending"`) || !strings.Contains(out, `"session_id": "s-1"`) {
		t.Errorf("tasks show: %s", out)
	}
	const come = "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55" // nothing is kept of it
	for _, command := range []string{"show", "cancel"} {
		if out := s.program(1, "tasks", command, come); !strings.Contains(out, "no task "+come+": ") || !strings.Contains(out, "troupe tasks list --server "+s.url) || strings.Contains(out, "runs list") {
			t.Errorf("tasks %s of a reminder that has come: %s", command, out)
		}
	}
	for range 2 {
		if out := s.program(0, "tasks", "cancel", task[:9]); !strings.Contains(out, "task "+task+" is cancelled") {
			t.Errorf("tasks cancel: %s", out)
		}
	}
	if out := s.program(0, "tasks", "show", task); !strings.Contains(out, `"status": "cancelled"`) {
		t.Errorf("tasks show of a cancelled reminder: %s", out)
	}
	if f := row("remind"); f[1] != "cancelled" {
		t.Errorf("tasks list: %q", f)
	}
	if out := s.program(0, "call", "asker", "use agent_poll {\"taskId\":\""+task+"\"}", "--session", "s-1"); !strings.Contains(out, `"status":"cancelled","text":"Look."`) {
		t.Errorf("agent_poll: %s", out)
	}
	s.program(0, "call", "asker", "use agent_call {\"agent\":\"coordinator\",\"skill\":\"look\",\"timeoutSeconds\":0}\nsay done", "--session", "s-2")
	if f := row("look"); f[1] != "working" || f[len(f)-1] != "-" {
		t.Errorf("a call whose outcome is not delivered: %q", f)
	}
}

// A task is shown and cancelled by the beginning of its ID.
func TestTasksAreNamedByTheirBeginning(t *testing.T) {
	s := startServerWithBuiltins(t, filepath.Join(t.TempDir(), "data"))
	s.putAgent(`{"name":"asker","tools":["agent_call"]}`)
	asked := s.program(0, "call", "asker", "use agent_call {\"agent\":\"coordinator\",\"skill\":\"look\"}\nsay done", "--async")
	var task string
	waitUntil(t, "the task", func() bool {
		fields := strings.Fields(strings.TrimPrefix(s.program(0, "tasks", "list"), "TASK"))
		for _, f := range fields {
			if len(f) == 36 && task == "" {
				task = f
			}
		}
		return task != ""
	})
	asking := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).FindString(asked)
	if out := s.program(0, "runs", "show", asking, "--tree"); !strings.Contains(out, "└─ coordinator/") || !strings.Contains(out, "run "+task) {
		t.Errorf("runs show --tree of %s: %s", asking, out)
	}
	if out := s.program(0, "tasks", "show", task[:30]); !strings.Contains(out, `"taskId": "`+task+`"`) {
		t.Errorf("tasks show: %s", out)
	}
	if out := s.program(1, "tasks", "show", "ffff"); !strings.Contains(out, "tasks list") {
		t.Errorf("tasks show of no task: %s", out)
	}
	s.program(0, "tasks", "cancel", strings.ToUpper(task[:30]))
	waitUntil(t, "the end", func() bool { return strings.Contains(s.program(0, "tasks", "show", task), `"status": "error"`) })
}
