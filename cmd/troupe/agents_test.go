// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The output of agents show includes the mailbox, the turns and the open waits of
// each actor.
func TestAgentsListAndShow(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/agents" {
			fmt.Fprint(w, `{"agents":[{"agent_id":"planner","kind":"declared","status":"healthy","doc":"Plans."},{"agent_id":"pythia","code":"ORA","kind":"external","status":"unhealthy","last_heartbeat_at":"2026-11-21T09:00:00.000000000Z","served_runs":12,"doc":""}]}`)
			return
		}
		fmt.Fprint(w, `{"agent_id":"planner","name":"The Planner","kind":"external","status":"healthy","last_heartbeat_at":"2026-11-21T09:00:00.000000000Z","served_runs":0,"doc":"Plans.","definition":"4a47","spec":{"agent_id":"planner"},"actors":[
			{"session_id":"s-1","mailbox":["01a20010-0000-7000-8000-000000000003"],"turns":[{"run_id":"01a20010-0000-7000-8000-000000000001","status":"RUNNING",
			"started_at":"2026-11-21T10:00:00.000000000Z","time_left_ms":600000,"deadline_at":"2026-11-21T10:20:00.000000000Z","waits_for":[{"run_id":"01a20010-0000-7000-8000-000000000002","target":"research/s-1","since":"2026-11-21T10:00:01.500000000Z","time_left_ms":30000,"deadline_at":"2026-11-21T10:15:00.000000000Z"}]}]},
			{"session_id":"s-2","mailbox":[],"turns":[]}]}`)
	}))
	defer s.Close()
	seen := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC).Local().Format("2006-01-02 15:04:05")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"agents", "list"}, `AGENT    CODE  KIND      STATUS     LAST HEARTBEAT       SERVED  DESCRIPTION
planner  -     declared  healthy    -                    -       Plans.
pythia   ORA   external  unhealthy  ` + seen + `  12      
`},
		{[]string{"agents", "show", "planner"}, `agent       planner
kind        external
status      healthy
heartbeat   2026-11-21T09:00:00.000000000Z
name        The Planner
doc         Plans.
served      0
definition  4a47
spec        {
	"agent_id": "planner"
}
planner/s-1  mailbox 1
  run 01a20010-0000-7000-8000-000000000001  RUNNING  since 2026-11-21T10:00:00.000000000Z  until 2026-11-21T10:20:00.000000000Z
    waits for research/s-1  since 2026-11-21T10:00:01.500000000Z  until 2026-11-21T10:15:00.000000000Z  run 01a20010-0000-7000-8000-000000000002
  run 01a20010-0000-7000-8000-000000000003  in the mailbox
planner/s-2  mailbox 0
`},
	} {
		var out, stderr bytes.Buffer
		if code := run(append(c.args, "--server", s.URL), streams{&out, &stderr}); code != 0 || out.String() != c.want {
			t.Errorf("%v: exit code %d, stderr %s\ngot\n%s\nwant\n%s", c.args, code, stderr.String(), out.String(), c.want)
		}
	}
}

const localTool = ">> pay.toml\n[tool]\ntool_name = \"pay\"\nurl = \"http://127.0.0.1:9/pay\"\n[tool.input_schema]\ntype = \"object\"\n"

// A check with the configuration of a server warns about addresses that it may not reach.
func TestCheckWarnsAboutAddresses(t *testing.T) {
	files := writeFiles(t, localTool+">> lab.toml\nname = \"lab\"\nendpoint = \"http://10.1.2.3:9\"\n")
	loopback := "pay.toml: warning: url: 127.0.0.1: its address is loopback, which is not allowed; to allow it: troupe serve --allow 127.0.0.1\n"
	private := "lab.toml: warning: endpoint: 10.1.2.3: its address is private, which is not allowed; to allow it: troupe serve --allow 10.1.2.3\n"
	for config, want := range map[string][2]bool{
		"":                         {false, true},
		"allow = [\"10.0.0.0/8\"]": {false, false},
		"allow = \"10.1.2.3\"\nrole = \"orchestrator\"": {true, false},
		"listen = \"0.0.0.0:8283\"":                     {true, true},
		"keyless = \"off\"":                             {true, true},
		"keyless = \"off\"\nallow = [\"127.0.0.1\"]":    {false, true},
	} {
		path := filepath.Join(writeFiles(t, ">> troupe.toml\n"+config), "troupe.toml")
		code, out, stderr := runProgram(t, "check", files, "--config", path)
		if code != 0 || strings.Contains(out, loopback) != want[0] || strings.Contains(out, private) != want[1] {
			t.Errorf("%s: exit code %d, %s%s", config, code, out, stderr)
		}
	}
	servers := writeFiles(t, ">> servers.toml\n[mcp.maps]\nurl = \"http://192.168.7.8/mcp\"\n")
	models := filepath.Join(writeFiles(t, ">> troupe.toml\nallow = [\"10.0.0.0/8\"]\nlisten = \"0.0.0.0:8283\"\n[models.far]\nurl = \"https://models.example/v1\"\n"+
		"[models.here]\nurl = \"http://localhost:1/v1\"\n[models.lab]\nurl = \"http://10.1.2.3/v1\"\n[models.near]\nurl = \"http://[::1]:1/v1\"\n"), "troupe.toml")
	want := models + ": warning: models.here.url: localhost: its address is loopback, which is not allowed; to allow it: troupe serve --allow localhost\n" +
		models + ": warning: models.near.url: ::1: its address is loopback, which is not allowed; to allow it: troupe serve --allow ::1\n" +
		"servers.toml: warning: mcp.maps.url: 192.168.7.8: its address is private, which is not allowed; to allow it: troupe serve --allow 192.168.7.8\n"
	for flag, exits := range map[string]int{"": 0, "--strict": exitFailed} {
		if code, out, stderr := runProgram(t, strings.Fields("check "+servers+" --config "+models+" "+flag)...); code != exits || strings.ReplaceAll(out, servers+"/", "") != want {
			t.Errorf("exit code %d, got\n%s%s\nwant\n%s", code, out, stderr, want)
		}
	}
	path := filepath.Join(writeFiles(t, ">> troupe.toml\nallow = [\"a b\"]"), "troupe.toml")
	if code, out, _ := runProgram(t, "check", files, "--config", path); code != exitFailed || !strings.Contains(out, path+": allow: \"a b\"") {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// A mistake in a file of MCP servers has its place, and a missing command is a warning.
func TestCheckOfMCPServers(t *testing.T) {
	for text, want := range map[string]string{
		"[mcp.a]\ncommand = \"sh\"\n\n[mcp.b]\ncommand = \"sh\"\n  comand = \"x\"\n": "servers.toml:6:3: mcp.b.comand: is unknown; did you mean command?",
		"[mcp.a]\ncommand = \"sh\"\nfoo = 1\n[mcp.b]\ncommand = \"sh\"\n":            "servers.toml:3:1: mcp.a.foo: is unknown; known fields: command, args",
		"[mcp.a]\ncommand = \"sh\"\n[other]\nx = 1\n":                                "servers.toml:3:1: other: is unknown in a file of MCP servers",
		"[mcp.a]\ncommand = \"no-such-command\"\n":                                   "servers.toml: warning: mcp.a.command: exec: \"no-such-command\": executable file not found in $PATH; its tools are missing",
		"[mcp.a]\ncommand = \"sh\"\n":                                                "",
	} {
		code, out, stderr := runProgram(t, "check", writeFiles(t, ">> servers.toml\n"+text))
		if !strings.Contains(out, want) || want == "" && out != "" || (code != 0) == (want == "" || strings.Contains(want, "warning")) {
			t.Errorf("%s\nexit code %d, %s%s\nwant %s", text, code, out, stderr, want)
		}
	}
}

// One check reports all errors: those of the configuration and of each file.
func TestCheckReportsErrorsOfAllFiles(t *testing.T) {
	files := writeFiles(t, ">> a.toml\nname = \"a\"\npromt = \"x\"\nlimits.steps = 0")
	config := filepath.Join(writeFiles(t, ">> troupe.toml\n[models.big]\nurl = \"http://a\"\nkey = \"x\"\nfoo = 1"), "troupe.toml")
	code, out, stderr := runProgram(t, "check", files, "--config", config)
	for _, want := range []string{config + ": models.big.key is unknown", config + ": models.big.foo is unknown", "a.toml:2:1: promt: is unknown", "a.toml:3:8: limits.steps: 0"} {
		if !strings.Contains(out, want) {
			t.Errorf("exit code %d, want %q in\n%s%s", code, want, out, stderr)
		}
	}
	if code != exitFailed || !strings.Contains(stderr, "mistakes=4") {
		t.Errorf("exit code %d, stderr %s", code, stderr)
	}
}
