// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

func TestMessageFromInputAndFile(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	s.putAgent(`{"name":"helper"}`)
	file := filepath.Join(t.TempDir(), "question")
	if err := os.WriteFile(file, []byte("say from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, bytes.Repeat([]byte("x"), 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		message, input string
		code           int
		want           string
	}{
		{"-", "say from input", 0, "from input\n"},
		{"@" + file, "", 0, "from a file\n"},
		{"@@home", "", 0, "You said: @home\n"},
		{"say a - b", "unread", 0, "a - b\n"},
		{"@" + file + "x", "", 1, "no such file or directory; to send a text that begins with @, write @@"},
		{"@" + large, "", 1, "more than 1048576 bytes"},
		{"-", strings.Repeat("x", 1<<20+1), 1, "standard input has more than 1048576 bytes"},
	} {
		cmd := programCmd("call", "helper", c.message, "--server", s.url, "--session-id", "s-1")
		cmd.Stdin = strings.NewReader(c.input)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(out), c.want) || c.code == 0 && string(out) != c.want {
			t.Errorf("%.20q: exit code %d, %.200s", c.message, cmd.ProcessState.ExitCode(), out)
		}
	}
	if _, out, _ := runProgram(t, "runs", "list", "--server", s.url); !strings.Contains(out, "helper/s-1") {
		t.Errorf("--session-id: %s", out)
	}
}

func TestRunIDPrefix(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServerWithBuiltins(t, dir)
	var held, done messageReply
	if status, err := s.request("POST", "/v1/agents/coordinator/messages", `{"content":"x"}`, "", &held); status != 202 {
		t.Fatal(status, err)
	}
	if status, err := s.request("POST", "/v1/agents/helper/messages", `{"content":"y"}`, "", &done); status != 200 {
		t.Fatal(status, err)
	}
	unique := func(id, other string) string {
		for n := 4; ; n++ {
			if !strings.HasPrefix(other, id[:n]) {
				return id[:n]
			}
		}
	}
	a, b := unique(held.Run, done.Run), unique(done.Run, held.Run)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"runs", "show", strings.ToUpper(b)}, 0, "run      " + done.Run},
		{[]string{"runs", "show", b, "--tree"}, 0, "run " + done.Run},
		{[]string{"runs", "events", b}, 0, "run_done"},
		{[]string{"runs", "signal", a, "go"}, 0, "run " + held.Run + " has the signal go"},
		{[]string{"runs", "cancel", b}, 1, "run " + done.Run + " is DONE"},
		{[]string{"runs", "show", b[:4]}, 1, "several runs; write more of the ID:\n  " + done.Run},
		{[]string{"runs", "show", "ffffff"}, 1, "none of the newest 200 runs begins with ffffff"},
		{[]string{"runs", "show", "01a"}, 1, "at least its first four characters"},
		{[]string{"runs", "show", "zebra"}, 1, "want a UUID"},
	} {
		code, out, stderr := runProgram(t, append(c.args, "--server", s.url)...)
		if code != c.code || !strings.Contains(out+stderr, c.want) || code != 0 && !strings.Contains(stderr, "troupe runs ") && !strings.Contains(stderr, "several") {
			t.Errorf("%q: exit code %d\n%s%s", c.args, code, out, stderr)
		}
	}
	s.stop(9)
	if code, out, stderr := runProgram(t, "runs", "show", b, "--data", dir); code != 0 || !strings.Contains(out, done.Run) {
		t.Errorf("in a data folder: exit code %d\n%s%s", code, out, stderr)
	}
}

func TestAgentsCanBeChanged(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	file := filepath.Join(t.TempDir(), "scout.json")
	if err := os.WriteFile(file, []byte(`{"description": "Looks around."}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"agents", "create", "scout"}, 0, "agent scout is created; to call it:\n  troupe call scout hello --server " + s.url},
		{[]string{"agents", "create", "scout"}, 0, "agent scout is unchanged"},
		{[]string{"agents", "create", "scout", "@" + file}, 0, "agent scout is changed"},
		{[]string{"agents", "create", "scout", `{"model": "big"}`, "--json"}, 0, `"changed": true`},
		{[]string{"agents", "create", "scout", `{"promt": "x"}`}, 1, "did you mean prompt?"},
		{[]string{"agents", "create", "scout", `{"name": "other"}`}, 1, "name is other, but the argument is scout"},
		{[]string{"agents", "create", "scout", "prompt"}, 1, "want a JSON object"},
		{[]string{"agents", "register", "scribe", "http://127.0.0.1:1", `{"retry": "safe"}`}, 0, "agent scribe is created"},
		{[]string{"agents", "delete", "scribe"}, 0, "agent scribe is deleted"},
		{[]string{"agents", "delete", "scribe"}, 1, "agent_not_found"},
	} {
		if code, out, stderr := runProgram(t, append(c.args, "--server", s.url)...); code != c.code || !strings.Contains(out+stderr, c.want) {
			t.Errorf("%q: exit code %d\n%s%s", c.args, code, out, stderr)
		}
	}
	_, out, _ := runProgram(t, "agents", "list", "--json", "--server", s.url)
	var list struct {
		Agents []agentView `json:"agents"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Agents) != 1 || list.Agents[0].ID != "scout" {
		t.Errorf("%v\n%s", err, out)
	}
}

// The shell completes names of agents and IDs of runs. Without a server, and if it
// does not answer, the completion has no words and no message.
func TestCompletionOfNames(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed: apt-get install bash")
	}
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	s.putAgent(`{"name":"helper"}`)
	_, reply := s.call("helper", "say hi")
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "troupe"), []byte("#!/bin/sh\nexec env "+asProgram+"=1 '"+os.Args[0]+"' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct{ server, typed, want string }{
		{s.url, "call h", "helper"},
		{s.url, "agents show h", "helper"},
		{s.url, "runs show " + reply.Run[:4], reply.Run},
		{"http://127.0.0.1:1", "call h", ""},
		{"http://" + l.Addr().String(), "runs show 0", ""},
		{hostileServer(t).URL, "call ", "--json"},
	} {
		cmd := exec.Command(bash, "--norc", "-c", completion(t, "bash")+"\nCOMP_WORDS=(troupe "+c.typed+")\n[ '"+c.typed+"' != 'call ' ] || COMP_WORDS+=('')\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n_troupe\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TROUPE_SERVER="+c.server)
		out, err := cmd.CombinedOutput()
		if words := strings.Fields(string(out)); err != nil || c.want == "" && len(words) > 0 || c.want != "" && !slices.Contains(words, c.want) || strings.ContainsAny(string(out), "\x1b:") {
			t.Errorf("%q at %s completes to %q, %v; want %q", c.typed, c.server, out, err, c.want)
		}
	}
}
