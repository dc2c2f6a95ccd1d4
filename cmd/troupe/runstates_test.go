// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
)

// A message behind another one of its session is shown as queued, with its place, and has no time
// left yet.
func TestQueuedRunShowsItsPlace(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--pace", "1m")
	s.putAgent(`{"name":"slow"}`)
	var ids []string
	for _, priority := range []string{"normal", "low", "normal", "normal"} {
		code, out, stderr := runProgram(t, "call", "slow", "say something", "--async", "--session", "one", "--priority", priority, "--server", s.url)
		if code != 0 {
			t.Fatal(stderr)
		}
		ids = append(ids, strings.TrimSpace(out))
	}
	waitUntil(t, "the first turn", func() bool {
		_, out, _ := runProgram(t, "runs", "show", ids[0], "--server", s.url)
		return strings.Contains(out, "status   RUNNING\n")
	})
	if code, out, stderr := runProgram(t, "runs", "list", "--status", "queued", "--server", s.url); code != 0 || strings.Count(out, "\n") != 3 || strings.Count(out, "QUEUED") != 3 {
		t.Errorf("runs list --status queued: exit code %d, %s%s", code, out, stderr)
	}
	if code, out, stderr := runProgram(t, "runs", "list", "--status", "FAILED", "--server", s.url); code != 0 || out != "" || !strings.HasPrefix(stderr, "no runs of clients; --agent NAME lists also") {
		t.Errorf("an empty list: exit code %d, %s%s", code, out, stderr)
	}
	for _, flags := range [][]string{{"--agent", "other"}, {"--status", "FAILED", "--agent", "slow"}, {"--user", "nobody"}} {
		if code, out, stderr := runProgram(t, append([]string{"runs", "list", "--server", s.url}, flags...)...); code != 0 || out != "" || stderr != "no runs\n" {
			t.Errorf("%v: exit code %d, %s%s", flags, code, out, stderr)
		}
	}
	for i, want := range map[int]string{1: "QUEUED, place 3 in the mailbox", 2: "QUEUED, place 1 in the mailbox", 3: "QUEUED, place 2 in the mailbox"} {
		if code, out, stderr := runProgram(t, "runs", "show", ids[i], "--server", s.url); code != 0 || !strings.Contains(out, "status   "+want+"\n") {
			t.Errorf("run %d: exit code %d, %s%s", i, code, out, stderr)
		}
		var run map[string]any
		if status, err := s.request("GET", "/v1/runs/"+ids[i], "", "", &run); err != nil || status != 200 || run["status"] != "RUNNING" || run["agent_state"] != "Queued" || run["time_left_ms"] != nil {
			t.Errorf("run %d: %d %v %v", i, status, run, err)
		}
	}
	if code, out, _ := runProgram(t, "runs", "list", "--server", s.url); code != 0 || strings.Count(out, "QUEUED") != 3 {
		t.Errorf("runs list: exit code %d, %s", code, out)
	}
}

// runs show names a partial answer and its warnings.
func TestShownRunHasWarnings(t *testing.T) {
	agent := http.NewServeMux()
	agent.HandleFunc("POST /invoke", func(w http.ResponseWriter, _ *http.Request) {
		writeEvents(w, "event: token\ndata: {\"text\":\"hello\"}", "event: done\ndata: {}")
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := &http.Server{Handler: agent}
	go func() { _ = service.Serve(l) }()
	defer service.Close()
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	s.registerAgent(`{"agent_id":"ext","endpoint":"http://` + l.Addr().String() + `"}`)
	_, reply := s.call("ext", "hello")
	if code, out, stderr := runProgram(t, "runs", "show", reply.Run, "--server", s.url); code != 0 || !strings.Contains(out, "status   DONE, partial\n") || !strings.Contains(out, "warning  ") || !strings.Contains(out, `"token"`) {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
}

// runs show warns of a wait, and of a call, that got less time than requested.
func TestShownRunHasClampedTimes(t *testing.T) {
	const longest = actor.WaitTimeoutMax
	def := func(name string, a agents.Func) actor.Definition {
		return agents.Define(name, "1", "", agents.Blocking(a))
	}
	wait := func(d time.Duration) agents.Func {
		return func(t *agents.Turn) (string, error) {
			_, err := t.Wait("approved", d)
			return "", err
		}
	}
	n, err := service.Open(service.Config{Node: node.Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", WriteBuffer: 1 << 20, Limits: dispatcher.DefaultLimits(), FreeFloor: 1,
		Native: []actor.Definition{def("longest", wait(longest)), def("longer", wait(longest+time.Hour)), def("caller", func(t *agents.Turn) (string, error) {
			return t.Call("echo", "hi", agents.Within(time.Hour))
		}), def("echo", func(t *agents.Turn) (string, error) { return t.Message(), nil })}}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Stop(t.Context()) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = n.Gateway.Serve(l) }()
	url := "http://" + l.Addr().String()
	for name, want := range map[string]string{
		"longest": "", "caller": "warning  echo/", "longer": "warning  approved has 2160h0m0s, less than the 2161h0m0s requested\n"} {
		_, out, stderr := runProgram(t, "call", name, "x", "--json", "--server", url)
		var reply messageReply
		if err := json.Unmarshal([]byte(out), &reply); err != nil {
			t.Fatal(err, out, stderr)
		}
		code, out, stderr := runProgram(t, "runs", "show", reply.Run, "--server", url)
		if code != 0 || !strings.Contains(out, want) || strings.Contains(out, "warning") != (want != "") {
			t.Errorf("%s: exit code %d, %s%s\nwant %q", name, code, out, stderr, want)
		}
		code, out, stderr = runProgram(t, "runs", "show", reply.Run, "--tree", "--server", url)
		line := strings.Replace(want, "warning  ", " warning: ", 1)
		if code != 0 || !strings.Contains(out, line) || strings.Contains(out, "warning") != (want != "") {
			t.Errorf("%s: exit code %d, %s%s\nwant %q", name, code, out, stderr, line)
		}
		if _, out, _ := runProgram(t, "runs", "show", reply.Run, "--tree", "--server", url); name == "caller" && !strings.Contains(out, "\n│  warning: echo/") {
			t.Errorf("want the warning above the branch of the call, got\n%s", out)
		}
	}
}

// A parked run is shown as parked in every view, and continues by the command that its view prints.
func TestParkedRunIsShownAndRetried(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	serve := func(a agents.Agent) (*service.Service, string) {
		t.Helper()
		n, err := service.Open(service.Config{Node: node.Config{Data: dir, Name: "n1", WriteBuffer: 1 << 20, Limits: dispatcher.DefaultLimits(), FreeFloor: 1,
			Native: []actor.Definition{agents.Define("a", "1", "Waits.", agents.Blocking(a))}}}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = n.Gateway.Serve(l) }()
		return n, "http://" + l.Addr().String()
	}
	stop := func(n *service.Service) {
		t.Helper()
		if err := n.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	n, url := serve(waiter{})
	code, out, stderr := runProgram(t, "call", "a", "x", "--json", "--server", url)
	var reply messageReply
	if err := json.Unmarshal([]byte(out), &reply); code != exitWaiting || err != nil {
		t.Fatalf("exit code %d, %v, %s%s", code, err, out, stderr)
	}
	stop(n)
	n, url = serve(sleeper{})
	if code, _, stderr := runProgram(t, "runs", "signal", reply.Run, "go", "--server", url); code != 0 {
		t.Fatal(stderr)
	}
	if code, out, _ := runProgram(t, "runs", "show", reply.Run, "--server", url); code != 0 || !strings.Contains(out, "status   PARKED: ") || !strings.Contains(out, "step 1: replay diverged: ask 0 was wait go") {
		t.Errorf("exit code %d, %s", code, out)
	}
	if code, out, _ := runProgram(t, "runs", "list", "--server", url); code != 0 || !strings.Contains(out, "PARKED: ") || !strings.Contains(out, "step 1") {
		t.Errorf("runs list: exit code %d, %s", code, out)
	}
	if code, _, stderr := runProgram(t, "runs", "retry", reply.Run, "--server", url); code != exitFailed || !strings.Contains(stderr, "stays parked: step 1: replay diverged") {
		t.Errorf("retry with other code: exit code %d, %s", code, stderr)
	}
	stop(n)
	n, url = serve(waiter{})
	defer stop(n)
	_, _, stderr = runProgram(t, "runs", "show", reply.Run, "--server", url)
	hints := hintedCommands(t, stderr)
	if len(hints) != 2 || hints[0][1] != "retry" {
		t.Fatalf("want commands to retry and to cancel, got %q", stderr)
	}
	if code, _, stderr := runProgram(t, hints[0]...); code != 0 || !strings.Contains(stderr, "was parked and continues: it is ") {
		t.Errorf("%q: exit code %d, %s", hints[0], code, stderr)
	}
	if code, out, stderr := runProgram(t, "runs", "events", reply.Run, "--follow", "--server", url); code != 0 || !strings.Contains(out, "run_done") {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	_, out, stderr = runProgram(t, "call", "a", "x", "--json", "--server", url)
	var waiting messageReply
	if err := json.Unmarshal([]byte(out), &waiting); err != nil {
		t.Fatal(err, out, stderr)
	}
	if code, _, stderr := runProgram(t, "runs", "retry", waiting.Run, "--server", url); code != 0 || !strings.Contains(stderr, "is not parked: it is PAUSED_WAITING_APPROVAL") {
		t.Errorf("retry of a run that waits for a signal: exit code %d, %s", code, stderr)
	}
	if code, _, stderr := runProgram(t, "runs", "retry", reply.Run, "--server", url); code != exitFailed || !strings.Contains(stderr, "has the status DONE") {
		t.Errorf("retry of an ended run: exit code %d, %s", code, stderr)
	}
}

// waiter waits for a signal.
type waiter struct{}

func (waiter) Turn(t *agents.Turn) (string, error) {
	_, err := t.Wait("go", time.Minute)
	return "went", err
}

// sleeper is another implementation of waiter.
type sleeper struct{}

func (sleeper) Turn(t *agents.Turn) (string, error) { return "", t.Sleep(time.Hour) }
