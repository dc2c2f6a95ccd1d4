// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/ingress"
)

// hintedCommands returns the command lines that a message prints on lines of their
// own, as words after troupe.
func hintedCommands(t *testing.T, text string) (all [][]string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "  troupe "); ok {
			all = append(all, shellWords(t, strings.TrimSpace(command)))
		}
	}
	return all
}

// shellWords splits a command line as a POSIX shell does.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("sh is not installed")
	}
	out, err := exec.Command(sh, "-c", `set -- `+line+`; printf '%s\0' "$@"`).Output()
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// An interrupted call prints commands that follow, show and cancel its run.
func TestInterruptedCallNamesItsRun(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--pace", "1m")
	s.putAgent(`{"name":"slow"}`)
	for i, mode := range []string{"--stream", "--no-stream", "--json"} {
		c := programCmd("call", "slow", "say something", mode, "--session", "s"+mode, "--server", s.url)
		var stdout, stderr bytes.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		var slow []runView // newest first
		listSlow := func() bool {
			var list struct {
				Runs []runView `json:"runs"`
			}
			_, err := s.request("GET", "/v1/runs", "", "", &list)
			slow = slices.DeleteFunc(list.Runs, func(r runView) bool { return !strings.HasPrefix(r.Actor, "slow/") })
			return err == nil && len(slow) == i+1
		}
		waitUntil(t, "run started", listSlow)
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if code := c.ProcessState.ExitCode(); code != 130 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "interrupted; run "+slow[0].Run+" continues") {
			t.Fatalf("%s: exit code %d, stdout %q, stderr %q", mode, code, stdout.String(), stderr.String())
		}
		hints := hintedCommands(t, stderr.String())
		if len(hints) != 3 {
			t.Fatalf("%s: want commands to follow, show and cancel, got %q", mode, hints)
		}
		if code, out, stderr := runProgram(t, hints[1]...); code != 0 || !strings.Contains(out, "RUNNING") {
			t.Errorf("%q: exit code %d, %s%s", hints[1], code, out, stderr)
		}
		if code, out, stderr := runProgram(t, hints[2]...); code != 0 {
			t.Errorf("%q: exit code %d, %s%s", hints[2], code, out, stderr)
		}
		if code, out, stderr := runProgram(t, hints[0]...); code != 0 || !strings.Contains(out, "run_cancelled") {
			t.Errorf("%q: exit code %d, %s%s", hints[0], code, out, stderr)
		}
		if !listSlow() || slow[0].Status != "CANCELLED" {
			t.Errorf("%s: want no further run, got %+v", mode, slow)
		}
	}
}

// A call whose server is killed before the answer prints how to find its run.
func TestCallToKilledServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for _, mode := range []string{"--no-stream", "--json"} {
		s := startServer(t, dir, "--pace", "1m")
		s.putAgent(`{"name":"slow"}`)
		c := programCmd("call", "slow", "say something", mode, "--session", "s"+mode, "--server", s.url)
		var stdout, stderr bytes.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "run started", func() bool {
			_, out, _ := runProgram(t, "runs", "list", "--server", s.url)
			return strings.Contains(out, "slow/s"+mode)
		})
		s.stop(syscall.SIGKILL)
		_ = c.Wait()
		if code := c.ProcessState.ExitCode(); code != exitFailed || stdout.Len() > 0 || !strings.Contains(stderr.String(), "the run may have begun. To find it:\n") {
			t.Fatalf("%s: exit code %d, stdout %q, stderr %q", mode, code, stdout.String(), stderr.String())
		}
		again := startServerAt(t, dir, strings.TrimPrefix(s.url, "http://"))
		hint := hintedCommands(t, stderr.String())[0]
		if code, out, stderr := runProgram(t, hint...); code != 0 || !strings.Contains(out, "slow/s"+mode) {
			t.Errorf("%q: exit code %d, %s%s", hint, code, out, stderr)
		}
		again.stop(syscall.SIGKILL)
	}
}

// A call whose server fails after the run is known names the run, and the commands that show it.
func TestBrokenCallNamesItsRun(t *testing.T) {
	const run = "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
	for _, mode := range []string{"--no-stream", "--stream"} {
		broken := make(chan struct{})
		known := sync.OnceFunc(func() { close(broken) })
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stream := r.Header.Get("Accept") == ingress.EventStream
			switch {
			case r.Method == http.MethodPost && !stream: // until the call has found its run by another request
				_, _ = io.Copy(io.Discard, r.Body)
				<-broken
				panic(http.ErrAbortHandler)
			case mode == "--no-stream" && r.Method == http.MethodGet:
				known()
			}
			w.Header().Set("Content-Type", ingress.EventStream)
			w.Header().Set("X-Run-Id", run)
			_, _ = io.WriteString(w, "retry: 1\n\n") // no event
		}))
		code, out, stderr := runProgram(t, "call", "slow", "hi", mode, "--server", s.URL)
		s.Close()
		if code != exitFailed || out != "" || !strings.Contains(stderr, run+" ") || !strings.Contains(stderr, "troupe runs events "+run+" --follow") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", mode, code, out, stderr)
		}
		if show := "troupe runs show " + run; mode == "--no-stream" && !strings.Contains(stderr, show) {
			t.Errorf("%s: want %q, got %q", mode, show, stderr)
		}
	}
}

// An interrupt before the message is sent starts no run.
func TestInterruptBeforeMessageIsSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := programCmd("call", "slow", "hi", "--server", "https://"+l.Addr().String()) // the handshake is not answered
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _ = c.Wait(); c.ProcessState.ExitCode() != exitInterrupted || stderr.String() != "interrupted before the message was sent\n" {
		t.Errorf("exit code %d, stderr %q", c.ProcessState.ExitCode(), stderr.String())
	}
}

func TestCancelOfEndedRunFails(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	s.putAgent(`{"name":"helper"}`)
	_, reply := s.call("helper", "say hi")
	code, out, stderr := runProgram(t, "runs", "cancel", reply.Run, "--server", s.url)
	if code != exitFailed || out != "" || !strings.Contains(stderr, "run "+reply.Run+" is DONE and cannot be cancelled") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, stderr)
	}
	for _, hint := range hintedCommands(t, stderr) {
		if code, out, _ := runProgram(t, hint...); code != 0 || !strings.Contains(out, "DONE") {
			t.Errorf("%q: exit code %d, %s", hint, code, out)
		}
	}
	if code, out, stderr := runProgram(t, "runs", "cancel", reply.Run, "--json", "--server", s.url); code != exitFailed || !strings.Contains(out, `"status": "DONE"`) || stderr != "" {
		t.Errorf("--json: exit code %d, stdout %q, stderr %q", code, out, stderr)
	}
}

func TestHintsAreQuotedForShell(t *testing.T) {
	const run = "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
	for _, c := range []struct {
		name string
		got  string
		want []string
	}{
		{"default server", ServerFlags{}.hint("runs show", []string{run}, "--tree"), []string{"runs", "show", run, "--tree"}},
		{"other server", ServerFlags{Server: "http://h:1/"}.hint("runs show", []string{run}), []string{"runs", "show", run, "--server", "http://h:1"}},
		{"words of an agent", ServerFlags{}.hint("runs signal", []string{run, "go; rm -rf 'x' $(y) `z`\n"}), []string{"runs", "signal", run, "go; rm -rf 'x' $(y) `z`\n"}},
		{"a name like a flag", ServerFlags{Server: "http://h:1"}.hint("runs signal", []string{run, "--json"}), []string{"runs", "signal", "--server", "http://h:1", "--", run, "--json"}},
		{"database", SourceFlags{Store: "postgres://me:secret@db/x"}.hint("runs list", nil), []string{"runs", "list", "--store", "postgres://me@db/x"}},
		{"data folder", SourceFlags{Data: "/a b", Damaged: true}.hint("runs list", nil), []string{"runs", "list", "--data", "/a b", "--damaged"}},
		{"empty word", ServerFlags{}.hint("call", []string{"x", ""}), []string{"call", "x", ""}},
	} {
		command, _ := strings.CutPrefix(c.got, "troupe ")
		if words := shellWords(t, command); !slices.Equal(words, c.want) {
			t.Errorf("%s: %s is read as %q, want %q", c.name, c.got, words, c.want)
		}
	}
	t.Setenv("TROUPE_SERVER", "http://h:1/")
	if got := (ServerFlags{Server: "http://h:1"}).hint("agents list", nil); got != "troupe agents list" {
		t.Errorf("server of the environment: got %s", got)
	}
}

// Errors name commands and variables of this program, not requests and headers.
func TestErrorsNameCommands(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	s.putAgent(`{"name":"helper"}`)
	_, a := s.call("helper", "say hi")
	at := " --server " + s.url
	const absent = "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"call", "nobody", "hi", "--server", s.url}, "no agent is named nobody (see: troupe agents list" + at + ")"},
		{[]string{"agents", "show", "nobody", "--server", s.url}, "(see: troupe agents list" + at + ")"},
		{[]string{"runs", "show", absent, "--server", s.url}, "not found (see: troupe runs list" + at + ")"},
		{[]string{"runs", "show", a.Run, "--server", s.url, "--key", "troupe_wrong"}, "set the variable TROUPE_KEY to a valid key"},
		{[]string{"runs", "list", "--server", "here:80"}, "--server here:80: want an address like http://127.0.0.1:8283"},
		{[]string{"runs", "list", "--server", "http://127.0.0.1:1"}, "or read a data folder with --data"},
		{[]string{"call", "helper", "hi", "--server", "http://127.0.0.1:1"}, "start one with `troupe serve`, or choose another with --server"},
		{[]string{"doctor", t.TempDir()}, "holds no store; want the folder that `troupe serve --data` uses"},
		{[]string{"runs", "list", "--data", t.TempDir()}, "holds no store; want the folder that `troupe serve --data` uses"},
	} {
		if code, out, stderr := runProgram(t, c.args...); code != exitFailed || out != "" || !strings.Contains(stderr, c.want) ||
			strings.Contains(stderr, "GET /") || strings.Contains(stderr, "Authorization") || strings.Contains(stderr, "--data") && !strings.Contains(c.want, "--data") && !strings.Contains(stderr, "keys create --data") {
			t.Errorf("troupe %s: exit code %d, stdout %q, stderr %q; want %q", strings.Join(c.args, " "), code, out, stderr, c.want)
		}
	}
	c := programCmd("doctor")
	c.Dir = t.TempDir()
	if out, _ := c.CombinedOutput(); !strings.Contains(string(out), "store data: does not exist") {
		t.Errorf("doctor without a folder: %s", out)
	}
	s.stop(syscall.SIGTERM)
	if code, _, stderr := runProgram(t, "runs", "show", absent, "--data", dir); code != exitFailed || !strings.Contains(stderr, "(see: troupe runs list --data "+dir+")") {
		t.Errorf("run absent from a folder: exit code %d, stderr %s", code, stderr)
	}
}

// Every hint of a call names the server of the call.
func TestCallHintsNameServer(t *testing.T) {
	s := startServerWithBuiltins(t, filepath.Join(t.TempDir(), "data"))
	for _, mode := range []string{"--no-stream", "--stream"} {
		c := programCmd("call", "coordinator", "xyzzy", mode, "--session", "s"+mode, "--server", s.url)
		var stderr lines
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "the hint", func() bool {
			return strings.Contains(stderr.String(), "troupe runs signal") && strings.HasSuffix(stderr.String(), "\n")
		})
		hint := hintedCommands(t, stderr.String())[0]
		if code, out, stderr := runProgram(t, hint...); code != 0 || !strings.Contains(stderr, "has the signal go") {
			t.Errorf("%q: exit code %d, %s%s", hint, code, out, stderr)
			_ = c.Process.Kill()
		}
		want := 0
		if mode == "--no-stream" {
			want = exitWaiting
		}
		if _ = c.Wait(); c.ProcessState.ExitCode() != want {
			t.Errorf("%s: exit code %d, want %d", mode, c.ProcessState.ExitCode(), want)
		}
	}
}

// With --async a call ends while its run works. It prints the ID of the run alone, or the
// response as JSON, and the commands that follow it.
func TestAsyncCall(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--pace", "1m")
	s.putAgent(`{"name":"slow"}`)
	code, out, stderr := runProgram(t, "call", "slow", "say something", "--async", "--session", "one", "--server", s.url)
	run, rest, _ := strings.Cut(out, "\n")
	if code != 0 || rest != "" || len(run) != len(exampleRun) {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, out, stderr)
	}
	hints := hintedCommands(t, stderr)
	if len(hints) != 3 {
		t.Fatalf("want commands to follow, show and cancel, got %q", stderr)
	}
	if code, out, stderr := runProgram(t, hints[1]...); code != 0 || !strings.Contains(out, "status   RUNNING") || !strings.Contains(out, run) {
		t.Errorf("%q: exit code %d, %s%s", hints[1], code, out, stderr)
	}
	if code, out, stderr := runProgram(t, hints[2]...); code != 0 {
		t.Errorf("%q: exit code %d, %s%s", hints[2], code, out, stderr)
	}
	if code, out, stderr := runProgram(t, hints[0]...); code != 0 || !strings.Contains(out, "run_cancelled") {
		t.Errorf("%q: exit code %d, %s%s", hints[0], code, out, stderr)
	}
	code, out, stderr = runProgram(t, "call", "slow", "say more", "--async", "--json", "--session", "two", "--server", s.url)
	_, id, _ := strings.Cut(out, `"run_id": "`)
	if code != 0 || !strings.Contains(out, `"session_id": "two"`) || !strings.Contains(out, `"path": "/v1/runs/`+id[:min(len(exampleRun), len(id))]+`"`) || len(hintedCommands(t, stderr)) != 3 {
		t.Errorf("--json: exit code %d, %s%s", code, out, stderr)
	}
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitFailed, "agent_not_found", []string{"call", "nobody", "hi", "--async"}},
		{exitUsage, "omit --stream", []string{"call", "slow", "hi", "--async", "--stream"}},
		{exitUsage, "omit --tree", []string{"call", "slow", "hi", "--async", "--tree"}},
	} {
		if code, out, stderr := runProgram(t, append(c.args, "--server", s.url)...); code != c.code || !strings.Contains(stderr, c.want) || out != "" {
			t.Errorf("%q: exit code %d, %s%s", c.args, code, out, stderr)
		}
	}
}
