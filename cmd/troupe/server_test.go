// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/internal/servertest"
)

// asProgram makes the test binary behave as the program, so that tests run the real
// command in a separate process.
const asProgram = "TROUPE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" || len(os.Args) == 2 && os.Args[1] == "wasm-worker" { // a worker has no environment
		os.Exit(run(os.Args[1:], streams{os.Stdout, os.Stderr}))
	}
	os.Exit(m.Run())
}

func programCmd(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1", "TROUPE_SERVER=", "NO_COLOR=1", "TROUPE_BALLAST_MIB=0")
	return c
}

// server is a real server in a separate process.
type server struct {
	*testing.T
	*servertest.Process
	log    string // path of the file with standard error
	url    string
	apiKey string // sent with every request, if not empty
	client *http.Client
}

// startServerWithBuiltins starts a server with the agents coordinator and helper.
func startServerWithBuiltins(t *testing.T, dir string, args ...string) *server {
	t.Helper()
	return startServer(t, dir, append([]string{"--ready"}, args...)...)
}

// startServer starts a server without built-in agents.
func startServer(t *testing.T, dir string, args ...string) *server {
	t.Helper()
	return startServerAt(t, dir, "127.0.0.1:0", args...)
}

// startServerAt starts a server at an address; "" is for an orchestrator.
func startServerAt(t *testing.T, dir, address string, args ...string) *server {
	t.Helper()
	if address != "" {
		args = append([]string{"--listen", address}, args...)
	}
	cmd := programCmd(append([]string{"serve", "--data", dir, "--log-level", "warn"}, args...)...)
	log, err := os.OpenFile(filepath.Join(filepath.Dir(dir), "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	p, err := servertest.Start(cmd)
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\n%s", err, text)
	}
	return newServer(t, p, log.Name())
}

// newServer returns a server that has started. It is killed at the end of the test.
func newServer(t *testing.T, p *servertest.Process, log string) *server {
	s := &server{T: t, Process: p, log: log, url: p.Line,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 30 * time.Second}}
	t.Cleanup(func() { s.stop(syscall.SIGKILL) })
	return s
}

// stop sends a signal, waits for the process and returns its exit code.
func (s *server) stop(signal syscall.Signal) int {
	s.Signal(signal)
	return s.wait()
}

func (s *server) wait() int {
	_ = s.Wait()
	s.client.CloseIdleConnections()
	return s.State().ExitCode()
}

// useAdminKey makes later requests carry a new key with the scope admin.
func (s *server) useAdminKey(dir string) {
	s.Helper()
	code, out, stderr := runProgram(s.T, "keys", "create", "--data", dir, "--scope", "admin")
	if s.apiKey = strings.TrimSpace(out); code != 0 {
		s.Fatal(code, stderr)
	}
}

// request sends one request and decodes the response. It returns an error if the
// response is incomplete.
func (s *server) request(method, path, body, key string, into any) (int, error) {
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	if s.apiKey != "" {
		r.Header.Set("Authorization", "Bearer "+s.apiKey)
	}
	response, err := s.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, json.Unmarshal(b, into)
}

// runProgram runs the program until it exits.
func runProgram(t *testing.T, args ...string) (code int, out, err string) {
	t.Helper()
	c := programCmd(args...)
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	if c.Run() != nil && c.ProcessState == nil {
		t.Fatalf("%v did not start", args)
	}
	return c.ProcessState.ExitCode(), o.String(), e.String()
}

func TestCommandsAgainstServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServerWithBuiltins(t, dir)
	at := []string{"--server", s.url}
	check := func(wantCode int, wantOut, wantErr string, args ...string) string {
		t.Helper()
		code, out, err := runProgram(t, args...)
		if code != wantCode || !strings.Contains(out, wantOut) || !strings.Contains(err, wantErr) || wantOut == "" && out != "" || wantErr == "" && err != "" {
			t.Errorf("troupe %s: exit code %d\nstdout: %s\nstderr: %s\nwant %d, %q, %q", strings.Join(args, " "), code, out, err, wantCode, wantOut, wantErr)
		}
		return out
	}
	with := func(args ...string) []string { return append(args, at...) }

	check(0, "response from helper: hello\n", "", with("call", "helper", "hello")...)
	check(0, "helper/main  DONE  depth 0  time left 10m0s", "", with("call", "helper", "hello", "--tree", "--session", "main")...)
	check(0, `"content": "response from helper: hello"`, "", with("call", "helper", "hello", "--json")...)
	check(0, "helper ", "", with("agents", "list")...)
	check(0, `"agent_id": "coordinator"`, "", with("agents", "list", "--json")...)
	check(3, "", "waits for the signal go", with("call", "coordinator", "xyzzy", "--session", "s-1")...)
	run, _, _ := strings.Cut(check(0, "  -  PAUSED_WAITING_APPROVAL, waits for the signal go", "next: troupe runs list --limit 1 --cursor ", with("runs", "list", "--limit", "1")...), " ")
	check(1, "", "call_rejected: run "+run+" does not wait for \"stop\"", with("runs", "signal", run, "stop")...)
	check(0, "", "has the signal go", with("runs", "signal", run, "go")...)
	check(0, "└─ helper/s-1  DONE  depth 1  time left 30s", "", with("runs", "show", run, "--tree")...)
	check(0, "run_done             succeeded", "", with("runs", "events", run)...)
	fromServer := check(0, `"type":"wait_opened"`, "", with("runs", "events", run, "--json", "--after", "1")...)

	check(1, "", "agent_not_found", with("call", "nobody", "hello")...)
	check(1, "", "no agent is named helpr; did you mean helper (see: troupe agents list", with("call", "helpr", "hello")...)
	check(1, `"code": "agent_not_found"`, "", with("call", "nobody", "hello", "--json")...)
	check(1, "", "want a UUID", with("runs", "show", "7")...)
	check(1, "", "it serves at "+s.url, "runs", "list", "--data", dir)
	check(1, "", "is in use by process", "serve", "--data", dir, "--listen", "127.0.0.1:0")
	check(1, "", "off loopback every client needs an API key", "serve", "--data", filepath.Join(t.TempDir(), "other"), "--listen", "0.0.0.0:0")
	check(2, "", "Try: troupe runs show --help", "runs", "show")
	check(2, "", "unexpected argument frob", "frob")
	check(0, "Examples:", "", "call", "--help")
	check(0, "Usage: troupe", "")

	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM: want 0, got %d", code)
	}
	check(0, "└─ helper/s-1  DONE  depth 1  time left 30s", "", "runs", "show", run, "--tree", "--data", dir)
	if fromFolder := check(0, `"type":"wait_opened"`, "", "runs", "events", run, "--json", "--after", "1", "--data", dir); fromFolder != fromServer {
		t.Errorf("events from the data folder\n%s\nwant those from the server\n%s", fromFolder, fromServer)
	}
	check(1, "", "no server answers at "+s.url, with("runs", "list")...)
	check(1, "", "holds no store", "runs", "list", "--data", t.TempDir())
}

// A stopping server accepts no new runs, and a waiting client still receives its
// answer.
func TestDrainAnswersWaitingClients(t *testing.T) {
	s := startServerWithBuiltins(t, filepath.Join(t.TempDir(), "data"), "--grace", "20s")
	type answer struct {
		Run    string `json:"run_id"`
		Detail string `json:"detail"`
	}
	var held answer
	if status, err := s.request("POST", "/v1/agents/coordinator/messages", `{"content":"one","session_id":"s-1"}`, "", &held); status != 202 || err != nil {
		t.Fatal(status, err)
	}
	// The second message queues behind the first turn, which waits for a signal.
	queued := make(chan string, 1)
	go func() {
		var a answer
		status, err := s.request("POST", "/v1/agents/coordinator/messages", `{"content":"two","session_id":"s-1"}`, "", &a)
		if err != nil {
			t.Error(err)
		}
		queued <- fmt.Sprint(status, " ", a.Detail)
	}()
	var list struct {
		Runs []answer `json:"runs"`
	}
	waitUntil(t, "second run admitted", func() bool {
		_, err := s.request("GET", "/v1/runs", "", "", &list)
		return err == nil && len(list.Runs) == 2
	})
	s.Signal(syscall.SIGTERM)
	waitUntil(t, "503 from /readyz", func() bool {
		var a answer
		status, err := s.request("GET", "/readyz", "", "", &a)
		return err == nil && status == 503
	})
	var a answer
	waitUntil(t, "503 for new runs", func() bool {
		status, err := s.request("POST", "/v1/agents/helper/messages", `{"content":"three"}`, "", &a)
		return err == nil && status == 503
	})
	if status, err := s.request("POST", "/v1/runs/"+held.Run+":signal", `{"name":"go"}`, "", &a); status != 200 || err != nil {
		t.Errorf("signal during drain: status %d, error %v", status, err)
	}
	if got := <-queued; got != "202 the run waits for the signal go" {
		t.Errorf("answer of the waiting client: got %s", got)
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code: want 0, got %d", code)
	}
}

// waitUntil polls cond until it holds, for at most a minute.
func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("timeout waiting for: %s", what)
		}
	}
}

// A client that does not finish its request is disconnected. Apart from that, the
// shutdown is clean.
func TestShutdownCutsOffSlowClient(t *testing.T) {
	t.Parallel() // it waits for the end of the time to shut down
	s := startServerWithBuiltins(t, filepath.Join(t.TempDir(), "data"))
	slow, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := io.WriteString(slow, "POST /v1/agents/helper/messages HTTP/1.1\r\nHost: "+slow.RemoteAddr().String()+"\r\nContent-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(slow).ReadString('\n'); err != nil || !strings.Contains(line, "100") { // the server waits for the body
		t.Fatalf("%q %v", line, err)
	}
	code := s.stop(syscall.SIGTERM)
	log, err := os.ReadFile(s.log)
	if code != 0 || err != nil || strings.Contains(string(log), "does not") || !strings.Contains(string(log), "clients disconnected") {
		t.Errorf("exit code %d, log\n%s, error %v", code, log, err)
	}
}

// Before a server is up, a signal ends the process at once.
func TestSignalDuringStartup(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	if err := syscall.Mkfifo(config, 0o600); err != nil {
		t.Fatal(err)
	}
	c := programCmd("serve", "--data", filepath.Join(dir, "data"), "--config", config)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var writer *os.File
	waitUntil(t, "read of the configuration", func() (ok bool) {
		fd, err := syscall.Open(config, syscall.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			writer = os.NewFile(uintptr(fd), config)
		}
		return err == nil
	})
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "exit by the signal", func() bool {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(c.Process.Pid, &status, syscall.WNOHANG, nil)
		return err == nil && pid == c.Process.Pid && status.Signaled()
	})
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
}

// lines is a buffer that a test may read while a process writes.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
