// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// The replay of an open run names its waits. The end of an expired approval has no author.
func TestReplayNamesWaits(t *testing.T) {
	message := func(text string) *channelMessage {
		var m channelMessage
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		return &m
	}
	const started, approval = `{"type":"run_started","message":{"content":"x"}}`, `{"type":"approval_required","approval_id":"ap_1","tool_name":"pay","args_summary":"pays 20"}`
	for want, all := range map[string][]string{
		"· the run has not ended":                                              {started},
		"· the run waits for the approval of pay, ap_1":                        {started, approval},
		"· expired: too late\n· the run has not ended":                         {started, approval, `{"type":"state","state":"RUNNING","detail":{"approval_id":"ap_1","decision":"EXPIRED","reason":"too late"}}`},
		"· approved by bob":                                                    {started, approval, `{"type":"state","state":"RUNNING","detail":{"approval_id":"ap_1","decision":"APPROVED","by":"bob"}}`, `{"type":"done"}`},
		"· the run waits for the approval of budget for big, ap_2":             {started, `{"type":"approval_required","approval_id":"ap_2","kind":"budget","tool_name":"big","args_summary":"up to 50 tokens"}`},
		"· the run waits for the signal go":                                    {started, `{"type":"state","state":"WAITING_SIGNAL","detail":{"name":"go"}}`},
		"· waits for the signal go\n· the run has not ended":                   {started, `{"type":"state","state":"WAITING_SIGNAL","detail":{"name":"go"}}`, `{"type":"state","state":"RUNNING","detail":{"name":"go"}}`},
		"· the run waits for a device that performs ask":                       {started, `{"type":"tool_request","tool_call_id":"c1","tool_name":"ask","args":{}}`},
		"· ask: client_offline\n· the run has not ended":                       {started, `{"type":"tool_request","tool_call_id":"c1","tool_name":"ask","args":{}}`, `{"type":"state","state":"RUNNING","detail":{"tool_call_id":"c1","tool_name":"ask","status":"FAILED","code":"client_offline"}}`},
		"· the run waits for the approval of pay, ap_1; and for the signal go": {started, approval, `{"type":"state","state":"WAITING_SIGNAL","detail":{"name":"go"}}`},
		"· cancelled: by its caller":                                           {started, approval, `{"type":"error","run_id":"1","code":"cancelled","message":"by its caller"}`},
	} {
		var out, notes bytes.Buffer
		r := replayed{streams: streams{&out, &notes}}
		for _, text := range all {
			if err := r.show(message(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.finish(); err != nil || !strings.HasSuffix(notes.String(), want+"\n") {
			t.Errorf("error %v, notes\n%s\nwant\n%s", err, notes.String(), want)
		}
	}
}

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
	if strings.Contains(notes, "the run ") {
		t.Errorf("the notes are about a wait that has ended: %q", notes)
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
	if code, _, err := runChat(t, "use user.pay {\"amount\":7}\n", append([]string{"concierge", "--session", "s2"}, at...)...); code != exitWaiting {
		t.Fatal(code, err)
	}
	_, waiting, _ := runProgram(t, append([]string{"runs", "list", "--json", "--limit", "1"}, at...)...)
	var newest struct {
		Runs []struct {
			ID string `json:"run_id"`
		} `json:"runs"`
	}
	if err := json.Unmarshal([]byte(waiting), &newest); err != nil || len(newest.Runs) != 1 {
		t.Fatal(err, waiting)
	}
	if code, _, notes := replay(newest.Runs[0].ID, "--speed", "0"); code != 0 || !strings.Contains(notes, "· the run waits for the approval of user.pay, ap_") {
		t.Errorf("%d %s", code, notes)
	}
	_, again, _ := runProgram(t, append([]string{"runs", "list", "--json"}, at...)...)
	if err := json.Unmarshal([]byte(again), &list); err != nil || len(list.Runs) != 2 {
		t.Errorf("the replays began runs: %s", again)
	}
}
