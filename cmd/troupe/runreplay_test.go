// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// A replay shows what a client was shown, and repeats no tool call.
func TestRunsReplay(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	at := []string{"--server", s.url}
	if code, out, err := runChat(t, "use user.pay {\"amount\":20}\ny asked Anna\n\"paid\"\n", append([]string{"concierge", "--session", "s1"}, at...)...); code != 0 {
		t.Fatal(code, out, err)
	}
	var list struct {
		Runs []struct {
			ID string `json:"run_id"`
		} `json:"runs"`
	}
	_, out, _ := runProgram(t, append([]string{"runs", "list", "--json"}, at...)...)
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Runs) != 1 {
		t.Fatal(err, out)
	}
	run := list.Runs[0].ID
	replay := func(args ...string) (int, string, string) {
		return runProgram(t, append(append([]string{"runs", "replay"}, args...), at...)...)
	}
	code, out, notes := replay(run, "--speed", "0")
	if code != 0 || out != "> use user.pay {\"amount\":20}\npaid\n" {
		t.Errorf("%d %s", code, out)
	}
	for _, want := range []string{"user.pay waits for a person: pays 20", "approved by local", `a device performs user.pay {"amount":20}`} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q lacks %q", notes, want)
		}
	}
	code, out, _ = replay(run, "--speed", "0", "--to-channel")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, line := range lines {
		var m channelMessage
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Run != run || !strings.Contains(line, `"replay":true`) || m.Cursor != "" ||
			i == 0 && m.Type != "run_started" || i == len(lines)-1 && m.Type != "done" {
			t.Errorf("line %d: %v %s", i, err, line)
		}
	}
	if code != 0 || len(lines) < 6 {
		t.Errorf("%d %s", code, out)
	}
	if code, _, notes := replay("01a20f00-1aeb-7791-84a0-d6b7700bd6ef"); code != exitFailed || !strings.Contains(notes, "run_not_found") {
		t.Errorf("%d %s", code, notes)
	}
	if code, _, notes := replay(run, "--speed", "-1"); code != exitUsage || !strings.Contains(notes, "--speed") {
		t.Errorf("%d %s", code, notes)
	}
	_, again, _ := runProgram(t, append([]string{"runs", "list", "--json"}, at...)...)
	if err := json.Unmarshal([]byte(again), &list); err != nil || len(list.Runs) != 1 {
		t.Errorf("the replays began runs: %s", again)
	}
}
