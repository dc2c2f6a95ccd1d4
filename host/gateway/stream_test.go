// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// streamClient reads a stream of events.
type streamClient struct {
	*testing.T
	response *http.Response
	parser   *upstream.Parser
	frames   []runs.Frame
}

// openStream opens a stream; headers are name-value pairs.
func (d *testGateway) openStream(method, path, body string, headers ...string) *streamClient {
	d.Helper()
	r, err := http.NewRequest(method, "http://"+d.address+path, strings.NewReader(body))
	if err != nil {
		d.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Accept", ingress.EventStream)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := d.client.Do(r)
	if err != nil {
		d.Fatal(err)
	}
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		b, _ := io.ReadAll(response.Body)
		response.Body.Close()
		d.Fatalf("%s %s: %d %v %s", method, path, response.StatusCode, response.Header, b)
	}
	return &streamClient{d.T, response, upstream.NewParser(upstream.StreamLimits{Line: 4 << 20, Event: 4 << 20}), nil}
}

// readUntil reads until the first frame with that name; "" reads to the end of
// the stream.
func (s *streamClient) readUntil(name string) runs.Frame {
	s.Helper()
	for b := make([]byte, 4096); ; {
		for i, f := range s.frames {
			if f.Name == name {
				return s.frames[i]
			}
		}
		n, err := s.response.Body.Read(b)
		frames, refusal := s.parser.Parse(b[:n])
		if refusal != nil {
			s.Fatal(refusal)
		}
		s.frames = append(s.frames, frames...)
		if err != nil {
			s.response.Body.Close()
			if name != "" || !errors.Is(err, io.EOF) {
				s.Fatalf("the stream ended before %s: %v, %s", name, err, s.frameNames())
			}
			return runs.Frame{}
		}
	}
}

func (s *streamClient) frameNames() string {
	var all []string
	for _, f := range s.frames {
		all = append(all, strings.TrimSpace(f.Name+" "+f.ID))
	}
	return strings.Join(all, ", ")
}

// answerTexts returns the concatenated deltas of the last step and the text of
// the final event.
func (s *streamClient) answerTexts() (deltas, whole string) {
	s.Helper()
	byStep := map[uint32][]runs.Event{}
	last := uint32(0)
	for _, f := range s.frames {
		e, err := runs.Decode([]byte(f.Data))
		if err != nil {
			s.Fatal(err)
		}
		switch e.Type {
		case runs.AgentStreamDelta:
			byStep[e.Step], last = append(byStep[e.Step], e), e.Step
		case runs.RunDone:
			whole = e.Text
		}
	}
	for _, e := range byStep[last] {
		deltas += e.Text
	}
	return deltas, whole
}

// createAgent creates an agent with nothing but a name, on the scripted model.
func (d *testGateway) createAgent(name string) {
	d.Helper()
	if status, _, body := d.do("POST", "/v1/agents", `{"name":"`+name+`"}`); status != 201 {
		d.Fatalf("%d %s", status, body)
	}
}

func TestStreamResumesAfterAnyEvent(t *testing.T) {
	d := startGateway(t)
	d.createAgent("teller")
	s := d.openStream("POST", "/v1/agents/teller/messages", `{"content":"say something that is long enough to come in pieces"}`)
	s.readUntil("")
	if s.parser.Retry() < time.Second || s.parser.Retry() >= 3*time.Second {
		t.Errorf("retry is %v, want 1s to 3s", s.parser.Retry())
	}
	for i, f := range s.frames {
		if f.ID != fmt.Sprint(i+1) {
			t.Fatalf("event %d has the id %s: %s", i+1, f.ID, s.frameNames())
		}
	}
	names := s.frameNames()
	if !strings.HasPrefix(names, "user_input 1, run_started 2, llm_call_started 3, agent_stream_delta 4, ") || s.frames[len(s.frames)-1].Name != "run_done" {
		t.Error(names)
	}
	if deltas, whole := s.answerTexts(); deltas != whole || whole == "" {
		t.Errorf("deltas are %q, the final text is %q", deltas, whole)
	}
	run := s.response.Header.Get("X-Run-Id")
	for i := range s.frames {
		for _, how := range [][]string{{"", "Last-Event-ID", fmt.Sprint(i)}, {fmt.Sprintf("?after=%d", i)}, {"?after=1", "Last-Event-ID", fmt.Sprint(i)}} {
			resumed := d.openStream("GET", "/v1/runs/"+run+"/events"+how[0], "", how[1:]...)
			resumed.readUntil("")
			if got, want := resumed.frameNames(), strings.Join(strings.Split(names, ", ")[i:], ", "); got != want {
				t.Errorf("after %d, by %q: %s, want %s", i, how, got, want)
			}
		}
	}
	status, _, body := d.do("GET", "/v1/runs/"+run+"/events", "", "Accept", ingress.EventStream, "Last-Event-ID", fmt.Sprint(len(s.frames)))
	if status != 204 || body != "" {
		t.Errorf("after the last event: %d %s", status, body)
	}
}

func TestStreamFollowsLiveRun(t *testing.T) {
	d := startGateway(t)
	for _, tree := range []string{"", "?tree=1"} {
		s := d.openStream("POST", "/v1/agents/coordinator/messages", `{"content":"xyzzy","session":"s`+strings.TrimPrefix(tree, "?tree=")+`"}`)
		s.readUntil("wait_opened")
		run := s.response.Header.Get("X-Run-Id")
		second := d.openStream("GET", "/v1/runs/"+run+"/events"+tree, "")
		second.readUntil("wait_opened")
		if status, _, body := d.do("POST", "/v1/runs/"+run+":signal", `{"name":"go"}`); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		s.readUntil("")
		second.readUntil("")
		if last := second.frames[len(second.frames)-1]; last.Name != "run_done" || last.Data != s.frames[len(s.frames)-1].Data {
			t.Errorf("%s; %s", s.frameNames(), second.frameNames())
		}
	}
}

func TestRepeatedMessageStreamsSameRun(t *testing.T) {
	d := startGateway(t)
	const path, body = "/v1/agents/coordinator/messages", `{"content":"xyzzy"}`
	one := d.openStream("POST", path, body, "Idempotency-Key", "k-1")
	one.readUntil("wait_opened")
	run := one.response.Header.Get("X-Run-Id")
	two := d.openStream("POST", path, body, "Idempotency-Key", "k-1", "Last-Event-ID", "2")
	two.readUntil("wait_opened")
	if two.response.Header.Get("X-Run-Id") != run || two.frames[0].ID != "3" {
		t.Errorf("the repeat streams another run or position: %s", two.frameNames())
	}
	if status, _, body := d.do("POST", path, `{"content":"other"}`, "Idempotency-Key", "k-1", "Accept", ingress.EventStream); status != 422 || !strings.Contains(body, `"field":"Idempotency-Key"`) {
		t.Errorf("same key with another body: %d %s", status, body)
	}
	d.do("POST", "/v1/runs/"+run+":signal", `{"name":"go"}`)
	one.readUntil("")
	two.readUntil("")
	three := d.openStream("POST", path, body, "Idempotency-Key", "k-1")
	three.readUntil("")
	if three.frameNames() != one.frameNames() || three.response.Header.Get("X-Run-Id") != run {
		t.Errorf("%s, want %s", three.frameNames(), one.frameNames())
	}
}

// A repeated request joins its open run at once, even if the run has no new
// event.
func TestRepeatedMessageJoinsActiveRun(t *testing.T) {
	d := startGateway(t, sleepingAgent())
	const path, body = "/v1/agents/slow/messages", `{"content":"x"}`
	one := d.openStream("POST", path, body, "Idempotency-Key", "k-1")
	one.readUntil("run_started")
	two := d.openStream("POST", path, body, "Idempotency-Key", "k-1")
	two.readUntil("run_started")
	if one.response.Header.Get("X-Run-Id") != two.response.Header.Get("X-Run-Id") || one.frames[0] != two.frames[0] {
		t.Errorf("%s, %s", one.frameNames(), two.frameNames())
	}
	one.response.Body.Close()
	two.response.Body.Close()
}

func sleepingAgent() actor.Definition {
	return agents.Define("slow", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		return "", t.Sleep(time.Hour)
	})))
}

// An error before the run exists is answered with problem+json, even if a
// stream was requested.
func TestStreamRequestErrors(t *testing.T) {
	d := startGateway(t)
	s := d.openStream("POST", "/v1/agents/helper/messages", `{"content":"x"}`)
	s.readUntil("")
	events := "/v1/runs/" + s.response.Header.Get("X-Run-Id") + "/events"
	unknownRun := "/v1/runs/" + d.server.node.NewCallID().String() + "/events"
	for name, c := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		want               string
	}{
		"unknown agent":        {"POST", "/v1/agents/nobody/messages", `{"content":"x"}`, nil, 404, "agent_not_found"},
		"the registry":         {"POST", "/v1/agents/troupe/messages", `{"content":"x"}`, nil, 404, "agent_not_found"},
		"no content":           {"POST", "/v1/agents/helper/messages", `{}`, nil, 400, `"field":"content"`},
		"unknown run":          {"GET", unknownRun, "", nil, 404, "not found"},
		"beyond the end":       {"GET", events, "", []string{"Last-Event-ID", "99"}, 400, "has no event 99 yet"},
		"beyond the end, tree": {"GET", events + "?tree=1", "", []string{"Last-Event-ID", "99"}, 400, "has no event 99 yet"},
		"outside the tree":     {"GET", events + "?tree=1", "", []string{"Last-Event-ID", "1.1"}, 400, "does not belong to the tree"},
		"cursor of a tree":     {"GET", events, "", []string{"Last-Event-ID", "1.1"}, 400, "add ?tree=1"},
		"malformed id":         {"GET", events, "", []string{"Last-Event-ID", "x"}, 400, `"field":"Last-Event-ID"`},
		"negative number":      {"GET", events + "?after=-1", "", nil, 400, `"field":"after"`},
		"malformed flag":       {"GET", events + "?tree=yes", "", nil, 400, `"field":"tree"`},
		"a tree as JSON":       {"GET", events + "?tree=1", "", []string{"Accept", "application/json"}, 400, "Accept: text/event-stream"},
		"message with bad id":  {"POST", "/v1/agents/helper/messages", `{"content":"x"}`, []string{"Last-Event-ID", "x"}, 400, `"field":"Last-Event-ID"`},
	} {
		status, headers, body := d.do(c.method, c.path, c.body, append([]string{"Accept", ingress.EventStream}, c.headers...)...)
		if status != c.status || !strings.Contains(body, c.want) || headers.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if n := d.server.streams.Taken(); n != 0 {
		t.Errorf("%d streams are still open", n)
	}
}

func TestStreamLimit(t *testing.T) {
	d := startGatewayWith(t, Config{Streams: 1})
	s := d.openStream("POST", "/v1/agents/coordinator/messages", `{"content":"x"}`)
	s.readUntil("wait_opened")
	run := s.response.Header.Get("X-Run-Id")
	for _, c := range [][3]string{{"GET", "/v1/runs/" + run + "/events", ""}, {"POST", "/v1/agents/helper/messages", `{"content":"x"}`}} {
		status, headers, body := d.do(c[0], c[1], c[2], "Accept", ingress.EventStream)
		if status != 429 || headers.Get("Retry-After") == "" || !strings.Contains(body, `"code":"agent_busy"`) {
			t.Errorf("%s %s: %d %s", c[0], c[1], status, body)
		}
	}
	d.do("POST", "/v1/runs/"+run+":signal", `{"name":"go"}`)
	s.readUntil("")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := d.server.streams.waitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	d.openStream("GET", "/v1/runs/"+run+"/events", "").readUntil("")
}

// exitReportingNode reports the end of each Invoke and each Follow on channels.
type exitReportingNode struct {
	command.Node
	askReturned, watchEnded chan error
}

func (n *exitReportingNode) Invoke(ctx context.Context, c command.Invoke, joined func(actor.CallID)) (command.Answer, error) {
	a, err := n.Node.Invoke(ctx, c, joined)
	n.askReturned <- err
	return a, err
}

func (n *exitReportingNode) Follow(ctx context.Context, c command.Follow) (<-chan struct{}, func(), error) {
	updates, stop, err := n.Node.Follow(ctx, c)
	return updates, func() {
		stop()
		n.watchEnded <- nil
	}, err
}

// A client that disconnects frees its resources, whatever it waits for. Its run
// continues.
func TestClientDisconnectKeepsRun(t *testing.T) {
	d := startGateway(t, sleepingAgent())
	n := &exitReportingNode{d.server.node, make(chan error, 8), make(chan error, 8)}
	d.server.node = n
	s := d.openStream("POST", "/v1/agents/slow/messages", `{"content":"x"}`)
	run := s.response.Header.Get("X-Run-Id")
	<-n.watchEnded // the Watch before the first event
	timeout := time.After(20 * time.Second)
	await := func(what string, on chan error) {
		t.Helper()
		select {
		case <-on:
		case <-timeout:
			t.Fatalf("%s: the disconnect was not detected", what)
		}
	}
	s.response.Body.Close()
	await("a streamed message's stream", n.watchEnded)
	await("a streamed message", n.askReturned)
	var all struct {
		Next int `json:"next_after"`
	}
	d.doJSON(&all, "GET", "/v1/runs/"+run+"/events", "")
	for what, request := range map[string]string{
		"events":  "GET /v1/runs/" + run + "/events HTTP/1.1\r\nHost: " + d.address + "\r\nAccept: text/event-stream\r\n\r\n",
		"tree":    "GET /v1/runs/" + run + "/events?tree=1 HTTP/1.1\r\nHost: " + d.address + "\r\nAccept: text/event-stream\r\n\r\n",
		"news":    "GET /v1/runs/" + run + "/events?after=" + strconv.Itoa(all.Next) + "&wait_ms=60000 HTTP/1.1\r\nHost: " + d.address + "\r\n\r\n",
		"message": "POST /v1/agents/slow/messages HTTP/1.1\r\nHost: " + d.address + "\r\nContent-Type: application/json\r\nContent-Length: 31\r\n\r\n" + `{"content":"x","session":"s-2"}`,
	} {
		c := d.dialSmallBuffer()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(request, "event-stream") {
			if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
				t.Fatal(err)
			}
		}
		if what == "news" { // with a reset instead of a regular close
			_ = c.tcp.SetLinger(0)
		}
		c.Close()
		if what == "message" {
			await(what, n.askReturned)
		} else {
			await(what, n.watchEnded)
		}
	}
	var record struct {
		Status string `json:"status"`
	}
	if d.doJSON(&record, "GET", "/v1/runs/"+run, ""); record.Status != "RUNNING" && record.Status != "PAUSED_WAITING_TOOL" {
		t.Errorf("the run is %s", record.Status)
	}
	if d.doJSON(&record, "POST", "/v1/runs/"+run+":cancel", ""); record.Status != "CANCELLED" {
		t.Errorf("after cancel, the run is %s", record.Status)
	}
	if status := d.doJSON(&record, "POST", "/v1/runs/"+run+":cancel", "{}"); record.Status != "CANCELLED" || status != 200 {
		t.Errorf("after a second cancel, the run is %s", record.Status)
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	d := startGateway(t)
	s := d.openStream("POST", "/v1/agents/coordinator/messages", `{"content":"x","session_id":"ends"}`)
	s.readUntil("wait_opened")
	d.server.Drain()
	second := d.openStream("GET", "/v1/runs/"+s.response.Header.Get("X-Run-Id")+"/events", "")
	second.readUntil("wait_opened")
	session := d.openStream("GET", "/v1/sessions/ends/events", "", "Accept", ingress.EventStream)
	session.readUntil("wait_opened")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	for _, s := range []*streamClient{s, second, session} {
		if s.readUntil(""); s.frames[len(s.frames)-1].Name != ingress.StreamClosed || !strings.Contains(s.frames[len(s.frames)-1].Data, `"reason":"draining"`) {
			t.Error(s.frameNames())
		}
	}
}

// invokeReportingNode reports the start of each Invoke without a stream on a
// channel.
type invokeReportingNode struct {
	command.Node
	invoked chan struct{}
}

func (n *invokeReportingNode) Invoke(ctx context.Context, c command.Invoke, joined func(actor.CallID)) (command.Answer, error) {
	if joined == nil {
		n.invoked <- struct{}{}
	}
	return n.Node.Invoke(ctx, c, joined)
}

func TestKeyRevocationEndsPendingRequests(t *testing.T) {
	keys := new(Keys)
	mine, text := newTestKey(t, 1, 0, ingress.ScopeCall)
	other, _ := newTestKey(t, 2, 0, ingress.ScopeCall)
	keys.Set([]ingress.Key{mine, other})
	d := startGatewayWith(t, Config{Keys: keys}, sleepingAgent())
	n := &invokeReportingNode{d.server.node, make(chan struct{}, 1)}
	d.server.node = n
	s := d.openStream("POST", "/v1/agents/coordinator/messages", `{"content":"x"}`, "Authorization", "Bearer "+text)
	s.readUntil("wait_opened")
	asked := make(chan string, 1)
	go func() {
		status, _, body := d.do("POST", "/v1/agents/slow/messages", `{"content":"x"}`, "Authorization", "Bearer "+text)
		asked <- fmt.Sprint(status, body)
	}()
	<-n.invoked
	keys.Set([]ingress.Key{other})
	if got := <-asked; !strings.HasPrefix(got, "401") || !strings.Contains(got, "while the answer was pending") {
		t.Error(got)
	}
	s.readUntil("")
	if last := s.frames[len(s.frames)-1]; last.Name != ingress.StreamClosed || !strings.Contains(last.Data, `"reason":"revoked"`) {
		t.Error(s.frameNames())
	}
}

// Pipelined requests before a stream are answered first. Requests after the
// stream are not answered.
func TestPipelinedStream(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x"}`)
	c := d.dialSmallBuffer()
	fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/runs/%s/events HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", m.Run, d.address)
	r := bufio.NewReader(c)
	first, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(first.Body)
	second, err := http.ReadResponse(r, nil)
	if err != nil || string(body) != `{"status":"ok"}` {
		t.Fatalf("%s, %v", body, err)
	}
	rest, _ := io.ReadAll(second.Body)
	if !second.Close || !strings.Contains(string(rest), "event: run_done\n") || strings.Contains(string(rest), "HTTP/1.1") {
		t.Errorf("%+v %s", second.Header, rest)
	}
}

// The Python standard library reads a stream and resumes it.
func TestPythonClientReadsStream(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	d := startGateway(t)
	const script = `
import http.client, json, sys
host, port = sys.argv[1].split(":")
def stream(method, path, body=None, **headers):
    c = http.client.HTTPConnection(host, int(port), timeout=20)
    c.request(method, path, body, {"Accept": "text/event-stream", "Content-Type": "application/json", **headers})
    r = c.getresponse()
    assert r.status == 200, r.read()
    name = event_id = data = None
    for line in r:
        line = line.decode().rstrip("\n")
        field, _, value = line.partition(": ")
        if field == "event": name = value
        elif field == "id": event_id = value
        elif field == "data": data = json.loads(value)
        elif not line and name:
            yield r.headers["X-Run-Id"], name, event_id, data
            name = event_id = data = None
first = list(stream("POST", "/v1/agents/helper/messages", json.dumps({"content": "grüße"})))
run, name, last, data = first[-1]
assert name == "run_done" and data["payload"]["text"] == "response from helper: grüße", first[-1]
again = list(stream("GET", f"/v1/runs/{run}/events", **{"Last-Event-ID": "1"}))
assert again == first[1:], again
print(len(first))
`
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, python, "-c", script, d.address).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "3" {
		t.Errorf("%v: %s", err, out)
	}
}

// Many clients resume at once with different cursors, and each gets the remaining
// events.
func TestManyStreamsResumeAtOnce(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"x"}`)
	const clients = 200
	finished, waiting := make(chan string, clients), make(chan struct{}, clients)
	for i := range clients {
		go func() {
			after := i % 4
			s := d.openStream("GET", "/v1/runs/"+m.Run+"/events", "", "Last-Event-ID", fmt.Sprint(after))
			s.readUntil("wait_opened")
			waiting <- struct{}{}
			s.readUntil("")
			got := ""
			for _, f := range s.frames {
				got += f.ID + " "
			}
			finished <- strings.TrimPrefix("1 2 3 4 5 6 7 ", "1 2 3 4 "[:2*after]) + "| " + got
		}()
	}
	timeout := time.After(30 * time.Second)
	for range clients {
		select {
		case <-waiting:
		case <-timeout:
			t.Fatal("not all streams started")
		}
	}
	if n := d.server.streams.Taken(); n != clients {
		t.Errorf("%d streams open", n)
	}
	d.do("POST", m.Signal.Path, m.Signal.Body)
	for range clients {
		select {
		case all := <-finished:
			if want, got, _ := strings.Cut(all, "| "); got != want {
				t.Fatalf("%s, want %s", got, want)
			}
		case <-timeout:
			t.Fatal("not all streams ended")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := d.server.streams.waitIdle(ctx); err != nil {
		t.Error(err)
	}
}
