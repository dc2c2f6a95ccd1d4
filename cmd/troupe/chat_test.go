// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/ingress"
)

// runChat runs troupe chat with an input.
func runChat(t *testing.T, input string, args ...string) (code int, out, err string) {
	t.Helper()
	c := programCmd(append([]string{"chat"}, args...)...)
	c.Stdin = strings.NewReader(input)
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	if c.Run() != nil && c.ProcessState == nil {
		t.Fatalf("%v did not start", args)
	}
	return c.ProcessState.ExitCode(), o.String(), e.String()
}

// conciergeFiles are an agent that asks its user, and the client tools that it uses.
const conciergeFiles = `>> concierge.toml
name = "concierge"
tools = ["user.ask", "user.pay"]
>> ask.toml
[tool]
tool_name = "user.ask"
kind = "client_tool"
>> pay.toml
[tool]
tool_name = "user.pay"
kind = "client_tool"
policy = "require_approval"
args_summary = "pays {{amount}}"
input_schema = '{"type": "object", "properties": {"amount": {"type": "number"}}}'
`

// startConcierge starts a server with an agent that asks its user, which needs an approval for payments.
func startConcierge(t *testing.T, dir, address string, args ...string) *server {
	t.Helper()
	return startServerAt(t, dir, address, append([]string{"--agents", writeFiles(t, conciergeFiles)}, args...)...)
}

// Lines of a pipe are messages, and answers to the questions of agents and approvals. The exit code shows
// failed runs and runs that wait.
func TestChatReadsPipe(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	for name, c := range map[string]struct {
		input, args string
		code        int
		out, err    string
	}{
		"messages":          {"say hello\nlist my messages\n", "", 0, "hello\n1. say hello\n", ""},
		"choice":            {"use user.ask {\"question\":\"which?\",\"choices\":[\"sea\",\"garden\"]}\n2\n", "", 0, "garden\n", "which?\n  1  sea\n  2  garden\n"},
		"text":              {"use user.ask {\"question\":\"who?\"}\n17\n", "", 0, "17\n", "who?\n"},
		"JSON":              {"use user.ask {\"x\":1}\n{\"y\": [2]}\n", "", 0, "{\"y\":[2]}\n", "user.ask needs a result"},
		"declined":          {"use user.ask {\"question\":\"who?\"}\n/decline\n", "", 0, "declined", "who?\n"},
		"approved":          {"use user.pay {\"amount\":20}\nmaybe\ny asked Anna\n\"paid\"\n", "", 0, "paid\n", "approved by local: asked Anna"},
		"rejected":          {"use user.pay {\"amount\":20}\nn too late\n", "", 0, "too late", "rejected by local: too late"},
		"waits":             {"use user.pay {\"amount\":20}\n", "", exitWaiting, "", "troupe approvals approve ap_"},
		"commands":          {"/help\n/frob\n/sessions\n/cancel\n//slash\n", "", 0, "/slash", "/frob is no command"},
		"two sessions":      {"say a\n/new\nlist my messages\n", "", 0, "a\nThis is your first message", ""},
		"unknown agent":     {"say a\n", "nobody", 1, "", "agent_not_found"},
		"session with a /":  {"say a\n", "concierge --session a/b", exitUsage, "", "--session: "},
		"messages as JSON":  {"say a\n", "concierge --json", 0, `"type":"done"`, ""},
		"a wrong key":       {"say a\n", "concierge --key troupe_wrong", 1, "", "invalid API key"},
		"no server":         {"say a\n", "concierge --server http://127.0.0.1:1", 1, "", "no server answers"},
		"a session by name": {"say a\n/session s-9\nsay b\n/sessions\n", "", 0, "a\nb\n", "s-9 "},
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(c.args)
			if len(args) == 0 {
				args = []string{"concierge"}
			}
			if !strings.Contains(c.args, "--server") {
				args = append(args, "--server", s.url)
			}
			code, out, err := runChat(t, c.input, args...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(err, c.err) || c.out == "" && out != "" {
				t.Errorf("exit code %d\nstdout: %s\nstderr: %s\nwant %d, %q, %q", code, out, err, c.code, c.out, c.err)
			}
		})
	}
}

// A call about which somebody else decides is no question to this person, whose next lines are messages.
func TestChatAsksAColleague(t *testing.T) {
	files := strings.Replace(strings.Replace(conciergeFiles, "policy = ", "approver = \"operator\"\npolicy = ", 1), `tools = ["user.ask", "user.pay"]`, "tools = [\"user.ask\", \"user.pay\"]\nturns = \"interleaved\"", 1)
	data := filepath.Join(t.TempDir(), "data")
	s := startServer(t, data, "--agents", writeFiles(t, files))
	code, key, stderr := runProgram(t, "keys", "create", "--data", data, "--user", "alice")
	if code != 0 {
		t.Fatal(stderr)
	}
	code, out, stderr := runChat(t, "use user.pay {\"amount\":20}\nsay y\n", "concierge", "--server", s.url, "--key", strings.TrimSpace(key))
	if code != exitWaiting || !strings.Contains(out, "y\n") || !strings.Contains(stderr, "[a colleague has been asked]") || strings.Contains(stderr, "approvals approve") || !strings.Contains(stderr, " waits for a colleague") {
		t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, out, stderr)
	}
}

// A long line reaches the agent as a whole. One that no server accepts is an error, not the end of the input.
func TestChatReadsLongLines(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	for _, c := range []struct {
		bytes, code int
		out, err    string
	}{
		{100 << 10, 0, strings.Repeat("x", 100<<10) + "\nb\n", ""},
		{lineBytesMax, exitFailed, "a\n", "standard input: a line has more than 1048576 bytes"},
	} {
		code, out, err := runChat(t, "say a\nsay "+strings.Repeat("x", c.bytes)+"\nsay b\n", "concierge", "--server", s.url)
		if code != c.code || !strings.HasSuffix(out, c.out) || !strings.Contains(err, c.err) {
			t.Errorf("%d bytes: exit code %d, %d bytes of output, error %.200s", c.bytes, code, len(out), err)
		}
	}
}

// A conversation continues an approval that another one left, and the earlier messages are not repeated.
func TestChatContinuesSession(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	at := []string{"concierge", "--server", s.url, "--session", "s1"}
	if code, out, err := runChat(t, "use user.pay {\"amount\":20}\n", at...); code != exitWaiting || out != "" {
		t.Fatal(code, out, err)
	}
	code, out, err := runChat(t, "y\n\"paid\"\n", at...)
	if code != 0 || out != "paid\n" || !strings.Contains(err, "approved by local") {
		t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, out, err)
	}
	if code, out, err := runChat(t, "list my messages\n", at...); code != 0 || out != "1. use user.pay {\"amount\":20}\n" {
		t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, out, err)
	}
}

// A conversation ends when its session is deleted elsewhere, and one that was deleted does not begin.
func TestChatEndsWithDeletedSession(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	at := []string{"chat", "concierge", "--server", s.url, "--session", "s1"}
	c := programCmd(at...)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var notes bytes.Buffer
	c.Stderr = &notes
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	if _, err := io.WriteString(in, "say hello\n"); err != nil { // and the input does not end
		t.Fatal(err)
	}
	first := make([]byte, len("hello\n"))
	if _, err := io.ReadFull(out, first); err != nil || string(first) != "hello\n" {
		t.Fatalf("%q %v %s", first, err, notes.String())
	}
	if code, _, err := runProgram(t, "sessions", "delete", "s1", "--server", s.url); code != 0 {
		t.Fatal(err)
	}
	const want = "troupe: session s1 was deleted; to begin another:\n  troupe chat concierge"
	rest, _ := io.ReadAll(out)
	if _ = c.Wait(); c.ProcessState.ExitCode() != exitFailed || len(rest) > 0 || !strings.Contains(notes.String(), want) || strings.Contains(notes.String(), "to continue") {
		t.Errorf("exit code %d\nstdout: %s\nstderr: %s", c.ProcessState.ExitCode(), rest, notes.String())
	}
	if code, out, err := runChat(t, "say hello\n", at[1:]...); code != exitFailed || out != "" || !strings.Contains(err, want) {
		t.Errorf("again: exit code %d\nstdout: %s\nstderr: %s", code, out, err)
	}
}

// A server that is killed in the middle of an answer, and started again, delivers the rest of it once.
func TestChatResumesAfterCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startConcierge(t, dir, "127.0.0.1:0", "--pace", "30ms")
	words := strings.Repeat("word ", 20) + "end"
	c := programCmd("chat", "concierge", "--server", s.url, "--stream")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var notes bytes.Buffer
	c.Stderr = &notes
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	if _, err := io.WriteString(in, "say "+words+"\nsay more\n"); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 10)
	if _, err := io.ReadFull(out, first); err != nil {
		t.Fatal(err, notes.String())
	}
	s.stop(syscall.SIGKILL)
	startConcierge(t, dir, strings.TrimPrefix(s.url, "http://"), "--pace", "1ms")
	_ = in.Close()
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Wait()
	got := string(first) + string(rest)
	if _, after, again := strings.Cut(got, "\n"); again && strings.Contains(notes.String(), "generated again") {
		got = after // the model began from nothing
	}
	if err != nil || got != words+"\nmore\n" || !strings.Contains(notes.String(), "connected again") {
		t.Errorf("%v\nstdout: %s\nstderr: %s", err, string(first)+string(rest), notes.String())
	}
}

// An interruption ends a request whose answer does not come.
func TestInterruptEndsRequest(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 8)
	pass := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/approvals" || r.URL.Path == "/v1/sessions" {
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		pass.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	for _, c := range []struct {
		input string
		args  []string
	}{{"/sessions\n", []string{"chat", "concierge"}}, {"", []string{"approvals", "watch"}}} {
		cmd := programCmd(append(c.args, "--server", proxy.URL)...)
		cmd.Stdin = strings.NewReader(c.input)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-asked
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != exitInterrupted {
			t.Errorf("%v: exit code %d", c.args, cmd.ProcessState.ExitCode())
		}
	}
}

// Between the arrival of an answer and its end, a message is open: no line is read before the run has ended.
func TestChatWaitsUntilAnswersAreTaken(t *testing.T) {
	c := &chat{streams: streams{new(bytes.Buffer), new(bytes.Buffer)}, command: &ChatCmd{Agent: "concierge"}, channel: newChannel(client{}, "d", "s"), live: true,
		runs: map[string]*chatRun{}, answered: map[string]bool{}, sent: map[string]*question{}}
	c.send(channelRequest{Type: "agent_invoke", ID: "1"}, nil)
	answer := channelMessage{}
	if err := json.Unmarshal([]byte(`{"type":"state","state":"ACCEPTED","request_id":"1","run_id":"r","session_id":"s"}`), &answer); err != nil || !answer.answers() {
		t.Fatal(err, answer)
	}
	c.channel.take(&answer) // it has arrived, and waits behind other messages
	if !c.busy() || c.idle() {
		t.Error("the next line is read before the answer is taken")
	}
	c.takeAnswer(&answer)
	if !c.busy() {
		t.Error("the run is not open")
	}
	c.endRun(&channelMessage{Type: ingress.ChannelDone, Run: "r"}, c.runs["r"])
	if c.busy() || !c.idle() {
		t.Error("something is open after the end of the run")
	}
}
