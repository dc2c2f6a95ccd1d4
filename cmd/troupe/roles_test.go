// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fasthttp/websocket"
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/internal/link"
	"github.com/troupe-run/troupe/internal/servertest"
)

// roles is an orchestrator, to which ingress processes connect.
type roles struct {
	*testing.T
	*servertest.Process // the orchestrator
	data, files         string
	pace                string
}

// startRoles starts an orchestrator with an agent that uses tools of devices. A person must
// approve user.pay.
func startRoles(t *testing.T, pace string) *roles {
	t.Helper()
	r := &roles{T: t, data: filepath.Join(t.TempDir(), "data"), pace: pace, files: writeFiles(t, conciergeFiles)}
	r.start()
	return r
}

func (r *roles) start() {
	r.Helper()
	cmd := programCmd("serve", "--role", "orchestrator", "--data", r.data, "--agents", r.files, "--pace", r.pace, "--log-level", "warn")
	var log bytes.Buffer
	cmd.Stderr = &log
	p, err := servertest.Start(cmd)
	if err != nil {
		r.Fatal(err, log.String())
	}
	r.Process = p
	r.Cleanup(func() { _ = p.Stop(syscall.SIGKILL) })
	if want := filepath.Join(r.data, link.SocketName); p.Line != want {
		r.Fatalf("the orchestrator prints %q, want %q", p.Line, want)
	}
}

// crash kills the orchestrator and starts it again.
func (r *roles) crash() {
	r.Helper()
	_ = r.Stop(syscall.SIGKILL)
	r.start()
}

// ingress starts an ingress.
func (r *roles) ingress(args ...string) *server {
	r.Helper()
	cmd := programCmd(append([]string{"serve", "--role", "ingress", "--orchestrator", r.Line, "--listen", "127.0.0.1:0", "--log-level", "warn"}, args...)...)
	cmd.Dir = r.TempDir()
	var log bytes.Buffer
	cmd.Stderr = &log
	p, err := servertest.Start(cmd)
	if err != nil {
		r.Fatal(err, log.String())
	}
	s := &server{T: r.T, Process: p, url: p.Line, client: &http.Client{Timeout: 30 * time.Second}}
	r.Cleanup(func() {
		s.stop(syscall.SIGKILL)
		if files, _ := filepath.Glob(filepath.Join(cmd.Dir, "*")); len(files) > 0 {
			r.Errorf("the ingress has made %v", files)
		}
	})
	return s
}

// socket is a client of the channel on one connection.
type socket struct {
	*testing.T
	conn *websocket.Conn
	got  []channelMessage
}

func (s *server) socket(hello string) *socket {
	s.Helper()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.url, "http")+"/v1/ws", nil)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	c := &socket{T: s.T, conn: conn}
	c.send("%s", hello)
	c.until("the state READY", func(m *channelMessage) bool { return m.ready() })
	return c
}

func (c *socket) send(format string, args ...any) {
	c.Helper()
	if err := c.conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, format, args...)); err != nil {
		c.Fatal(err)
	}
}

// until reads messages up to the first that is wanted.
func (c *socket) until(what string, wanted func(*channelMessage) bool) *channelMessage {
	c.Helper()
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, raw, err := c.conn.ReadMessage()
		m := channelMessage{raw: raw}
		if err == nil {
			err = json.Unmarshal(raw, &m)
		}
		if err != nil {
			c.Fatalf("%s: %v after %s", what, err, c.raw())
		}
		if c.got = append(c.got, m); wanted(&m) {
			return &m
		}
	}
}

func (c *socket) untilType(kind string) *channelMessage {
	c.Helper()
	return c.until(kind, func(m *channelMessage) bool { return m.Type == kind })
}

func (c *socket) raw() (all string) {
	for i := range c.got {
		all += string(c.got[i].raw) + "\n"
	}
	return all
}

var sentAt = regexp.MustCompile(`"ts":\d+,?`)

// ofSession returns the messages with a cursor, without the times at which they were sent.
func (c *socket) ofSession() (all []string) {
	for i := range c.got {
		if m := &c.got[i]; m.Cursor != "" && m.Type != "tool_request" && !m.is("LIVE") {
			all = append(all, sentAt.ReplaceAllString(string(m.raw), ""))
		}
	}
	return all
}

// Calls, streams, approvals and calls of devices cross the link, from several ingress processes.
func TestRolesAsTwoProcesses(t *testing.T) {
	r := startRoles(t, "0s")
	a, b := r.ingress(), r.ingress()
	c := commandCheck{T: t, flags: []string{"--server", a.url}}
	c.run(0, []string{"hello"}, nil, "call", "concierge", "say hello", "--session", "s0")
	c.run(0, []string{"hello"}, nil, "call", "concierge", "say hello", "--stream")
	(&commandCheck{T: t, flags: []string{"--server", b.url}}).run(0, []string{"1. say hello"}, nil, "call", "concierge", "list my messages", "--session", "s0")
	device := a.socket(`{"type":"hello","device_id":"phone"}`)
	device.send(`{"type":"agent_invoke","request_id":"r1","session_id":"s1","agent_id":"concierge","message":{"role":"user","content":"use user.pay {\"amount\":20}"}}`)
	approval := device.untilType("approval_required").Approval
	(&commandCheck{T: t, flags: []string{"--server", b.url}}).run(0, []string{"approved user.pay"}, nil, "approvals", "approve", approval, "--no-wait")
	asked := device.untilType("tool_request")
	device.send(`{"type":"tool_result","request_id":"r2","tool_call_id":%q,"ok":true,"result":"paid"}`, asked.ToolCall)
	device.untilType("done")
	if text := textOf(device); text != `"paid"` && text != "paid" {
		t.Errorf("answer %q", text)
	}
	_, key, _ := runProgram(t, "keys", "create", "--data", r.data, "--scope", "admin")
	c.run(0, []string{"-backups/b1"}, nil, "backup", "b1", "--key", strings.TrimSpace(key))
	c.run(exitFailed, nil, []string{"b1 is in use"}, "backup", "b1", "--key", strings.TrimSpace(key))
	if code := a.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("an ingress ends with %d", code)
	}
	if err := r.Stop(syscall.SIGTERM); err != nil {
		t.Errorf("the orchestrator: %v", err)
	}
	var problem struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
	}
	for _, path := range []string{"/readyz", "/v1/agents"} {
		if status, err := b.request("GET", path, "", "", &problem); err != nil || status != 503 || problem.Code != "agent_unavailable" || !strings.Contains(problem.Detail, "the orchestrator is not connected") {
			t.Errorf("%s without an orchestrator: %d %+v %v", path, status, problem, err)
		}
	}
}

func textOf(c *socket) (text string) {
	for i := range c.got {
		if c.got[i].Type == "delta" {
			text += c.got[i].Text
		}
	}
	return text
}

// The orchestrator is killed several times during a run, under a WebSocket and an event stream. Both
// stay open and get everything once and in order: the same as later clients.
func TestOrchestratorRestartsUnderOpenConnections(t *testing.T) {
	r := startRoles(t, "20ms")
	s := r.ingress()
	live := s.socket(`{"type":"hello","device_id":"phone"}`)
	live.send(`{"type":"agent_invoke","request_id":"r1","session_id":"s1","agent_id":"concierge","message":{"role":"user","content":"say %send\nuse user.ask {\"question\":\"Which?\"}"}}`, strings.Repeat("word ", 60))
	run := live.untilType("run_started").Run
	events, session := s.events("/v1/runs/"+run+"/events"), s.events("/v1/sessions/s1/events")
	asked := live.untilType("tool_request")
	r.crash()
	for request := 2; ; request++ { // refused until the orchestrator is connected
		live.send(`{"type":"tool_result","request_id":"r%d","tool_call_id":%q,"ok":true,"result":"sea"}`, request, asked.ToolCall)
		m := live.until("an answer", func(m *channelMessage) bool { return m.Request == fmt.Sprint("r", request) && m.answers() })
		if m.Type == "state" {
			break
		}
		if m.Code != "agent_unavailable" {
			t.Fatalf("%s", m.raw)
		}
	}
	for range 3 {
		live.untilType("delta")
		r.crash()
	}
	live.untilType("done")
	later := s.socket(`{"type":"hello","device_id":"tablet","resume":{"session_id":"s1"}}`)
	later.untilType("done")
	got, want := live.ofSession(), later.ofSession()
	if len(want) < 12 || !strings.Contains(strings.Join(want, ""), "RETRYING") || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the open socket got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	requests := 0
	for i := range live.got {
		if live.got[i].Type == "tool_request" {
			requests++
		}
	}
	if requests != 1 {
		t.Errorf("%d requests to the device, want 1", requests)
	}
	all := events(1 << 20)
	for i, event := range all {
		if !strings.Contains(event, fmt.Sprintf(`"seq":%d,`, i+1)) {
			t.Fatalf("event %d of the stream is %s", i+1, event)
		}
	}
	if of := session(len(all)); len(all) < 12 || !slices.Equal(of, all) {
		t.Errorf("the stream of the session has %d events\n%s\nthat of its run %d\n%s", len(of), strings.Join(of, "\n"), len(all), strings.Join(all, "\n"))
	}
}

// events opens a stream and returns a function that reads events up to a number of them, or to
// the end of the stream.
func (s *server) events(path string) func(n int) []string {
	s.Helper()
	r, err := http.NewRequest("GET", s.url+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = answer.Body.Close() })
	return func(n int) (all []string) {
		for lines := bufio.NewScanner(answer.Body); len(all) < n && lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				all = append(all, data)
			}
		}
		return all
	}
}

// A revoked key is refused by every ingress, ends their sockets, and stays refused after a restart.
func TestRevokedKeyIsRefusedByEveryIngress(t *testing.T) {
	r := startRoles(t, "0s")
	key := func() string {
		code, out, err := runProgram(t, "keys", "create", "--data", r.data, "--scope", "admin")
		if code != 0 {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	kept, revoked := key(), key()
	a, b := r.ingress("--keyless", "off"), r.ingress("--keyless", "off")
	status := func(s *server, key string) int {
		s.apiKey = key
		var answer any
		status, err := s.request("GET", "/v1/agents", "", "", &answer)
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	open := b.socket(fmt.Sprintf(`{"type":"hello","api_key":%q}`, revoked))
	if status(a, kept) != 200 || status(a, revoked) != 200 || status(b, revoked) != 200 || status(a, "") != 401 {
		t.Fatal("the keys do not work before the revocation")
	}
	if code, _, err := runProgram(t, "keys", "revoke", strings.Split(revoked, "_")[1], "--data", r.data); code != 0 {
		t.Fatal(err)
	}
	_ = open.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		_, _, err := open.conn.ReadMessage()
		if websocket.IsCloseError(err, websocket.ClosePolicyViolation) {
			break
		} else if err != nil {
			t.Fatalf("the socket of a revoked key: %v", err)
		}
	}
	for _, s := range []*server{a, b} {
		for status(s, revoked) == 200 { // an ingress learns of it a moment later
		}
	}
	r.crash()
	for status(a, kept) != 200 {
		if got := status(a, revoked); got != 401 && got != 429 { // refused too often
			t.Fatalf("status %d for a revoked key while the orchestrator is away", got)
		}
	}
	if got := status(a, revoked); got != 401 && got != 429 {
		t.Errorf("status %d for a revoked key after a restart", got)
	}
}

// An ingress that starts before its orchestrator refuses requests, also over TLS, and serves once it is connected.
func TestIngressWaitsForItsOrchestrator(t *testing.T) {
	t.Parallel() // it waits for requests that are refused after seconds
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			testWaitingIngress(t, scheme)
		})
	}
}

func testWaitingIngress(t *testing.T, scheme string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, data := l.Addr().String(), filepath.Join(t.TempDir(), "data")
	if err := errors.Join(l.Close(), os.Mkdir(data, 0o700)); err != nil {
		t.Fatal(err)
	}
	args, client := []string{"serve", "--role", "ingress", "--orchestrator", filepath.Join(data, link.SocketName), "--listen", address}, &http.Client{}
	if scheme == "https" {
		certFile, keyFile := writeCertificate(t)
		args = append(args, "--tls-cert", certFile, "--tls-key", keyFile)
		pem, err := os.ReadFile(certFile)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	}
	// answer returns the status and the body of the answer to a request.
	answer := func(method, path string) (int, string) {
		t.Helper()
		var body io.Reader
		if method == "POST" {
			body = strings.NewReader(`{"content":"hello"}`)
		}
		request, err := http.NewRequest(method, scheme+"://"+address+path, body)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	cmd := programCmd(args...)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := servertest.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop(syscall.SIGKILL) })
	lines := bufio.NewScanner(log)
	if !lines.Scan() || !strings.Contains(lines.Text(), "orchestrator") {
		t.Fatalf("%s %v", lines.Text(), lines.Err())
	}
	idle, err := net.Dial("tcp", address) // does not delay the start
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	for path, want := range map[string]int{"GET /healthz": 200, "GET /readyz": 503, "GET /v1/agents": 503, "POST /v1/agents/helper/messages": 503, "GET /chat": 503} {
		method, path, _ := strings.Cut(path, " ")
		if status, body := answer(method, path); status != want || status == 503 && (!strings.Contains(body, `"code":"agent_unavailable"`) || !strings.Contains(body, "the orchestrator is not connected")) {
			t.Errorf("%s without an orchestrator: %d %s", path, status, body)
		}
	}
	startServerAt(t, data, "", "--role", "orchestrator", "--ready")
	for lines.Scan() && !strings.Contains(lines.Text(), `"serving"`) {
	}
	for path, want := range map[string]int{"GET /healthz": 200, "GET /readyz": 200, "GET /v1/agents": 200, "POST /v1/agents/helper/messages": 200, "GET /chat": 200} {
		method, path, _ := strings.Cut(path, " ")
		if status, body := answer(method, path); status != want {
			t.Errorf("%s with its orchestrator: %d %s", path, status, body)
		}
	}
}

// Flags of another role are refused, with the remedy.
func TestMistakesWithRoles(t *testing.T) {
	for want, args := range map[string][]string{
		"want --orchestrator with the address":           {"--role", "ingress"},
		"such as ./LINK, or host:port":                   {"--role", "ingress", "--orchestrator", "LINK"},
		"use a Unix socket, such as --orchestrator data": {"--role", "ingress", "--orchestrator", "127.0.0.1:1"},
		"--ready: belongs to the orchestrator":           {"--role", "ingress", "--orchestrator", "./LINK", "--ready"},
		"--origin: belongs to an ingress":                {"--role", "orchestrator", "--origin", "https://a.example"},
		"--listen: belongs to an ingress, which serves the clients; did you mean --listen-orchestrator?": {"--role", "orchestrator", "--listen", "127.0.0.1:8283"},
		"--advertise: is for orchestrators with --cluster":                                               {"--role", "orchestrator", "--advertise", "a:1"},
		"an orchestrator has --listen-orchestrator":                                                      {"--orchestrator", "./LINK"},
		"an ingress has --orchestrator":                                                                  {"--role", "ingress", "--orchestrator", "./LINK", "--listen-orchestrator", "./LINK"},
		"--listen-orchestrator 0.0.0.0:1: over TCP":                                                      {"--role", "orchestrator", "--listen-orchestrator", "0.0.0.0:1", "--data", filepath.Join(t.TempDir(), "d")},
	} {
		if code, _, err := runProgram(t, append([]string{"serve"}, args...)...); code == 0 || !strings.Contains(err, want) {
			t.Errorf("%v: exit code %d, %s, want %s", args, code, err, want)
		}
	}
}

// An orchestrator warns at each start about a model and a tool on loopback without --allow.
func TestOrchestratorWarnsAboutAddresses(t *testing.T) {
	dir, files := filepath.Join(t.TempDir(), "data"), writeFiles(t, localTool)
	config := filepath.Join(writeFiles(t, ">> troupe.toml\n[models.near]\nurl = \"http://127.0.0.1:1/v1\""), "troupe.toml")
	for _, allow := range []string{"192.0.2.1", "192.0.2.1", "127.0.0.1"} {
		cmd := programCmd("serve", "--role", "orchestrator", "--data", dir, "--agents", files, "--config", config, "--log-level", "warn", "--allow", allow)
		var log bytes.Buffer
		cmd.Stderr = &log
		p, err := servertest.Start(cmd)
		if err != nil {
			t.Fatal(err, log.String())
		}
		_ = p.Stop(syscall.SIGTERM)
		for _, what := range []string{"tool pay", "models.near.url"} {
			want := what + ": 127.0.0.1: its address is loopback, which is not allowed; to allow it: troupe serve --allow 127.0.0.1"
			if got := strings.Count(log.String(), want); got != 1 && allow != "127.0.0.1" || got != 0 && allow == "127.0.0.1" {
				t.Errorf("with --allow %s the log warns %d times:\n%s", allow, got, log.String())
			}
		}
	}
}
