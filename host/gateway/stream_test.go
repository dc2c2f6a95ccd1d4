// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

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

// Two agents have nothing but a name, and one calls the other.
func TestTreeStreamResumesAfterAnyEvent(t *testing.T) {
	d := startGateway(t)
	d.createAgent("second")
	d.createAgent("first")
	s := d.openStream("POST", "/v1/agents/first/messages", `{"content":"Ask the second agent: xyzzy"}`)
	s.readUntil("")
	if _, whole := s.answerTexts(); !strings.Contains(whole, "xyzzy") {
		t.Errorf("%s: %s", s.frameNames(), whole)
	}
	path := "/v1/runs/" + s.response.Header.Get("X-Run-Id") + "/events?tree=1"
	tree := d.openStream("GET", path, "")
	tree.readUntil("")
	ends := 0
	for _, f := range tree.frames {
		if f.Name == "run_done" {
			ends++
		}
	}
	if ends != 2 || len(tree.frames) <= len(s.frames) {
		t.Fatalf("%d run_done events, want 2: %s", ends, tree.frameNames())
	}
	for i, f := range tree.frames[:len(tree.frames)-1] {
		resumed := d.openStream("GET", path, "", "Last-Event-ID", f.ID)
		resumed.readUntil("")
		if got, want := resumed.frameNames(), strings.Join(strings.Split(tree.frameNames(), ", ")[i+1:], ", "); got != want {
			t.Errorf("after %s: %s, want %s", f.ID, got, want)
		}
	}
}

// A tree as JSON has the run, then each run below it, with their status and parent.
func TestTreeOfRunsAsJSON(t *testing.T) {
	d := startGateway(t)
	d.createAgent("second")
	d.createAgent("first")
	_, _, body := d.do("POST", "/v1/agents/first/messages", `{"content":"Ask the second agent: xyzzy"}`)
	var reply struct {
		Run string `json:"run_id"`
	}
	var tree struct {
		Runs []struct {
			Run    string `json:"run_id"`
			Parent string `json:"parent_run_id"`
			Actor  string `json:"actor"`
			Status string `json:"status"`
			Ended  string `json:"ended_at"`
		} `json:"runs"`
		Truncated bool `json:"truncated"`
	}
	if err := json.Unmarshal([]byte(body), &reply); err != nil {
		t.Fatal(err, body)
	}
	status, _, body := d.do("GET", "/v1/runs/"+reply.Run+"?tree=1", "")
	if err := json.Unmarshal([]byte(body), &tree); err != nil || status != 200 || len(tree.Runs) != 2 {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	top, below := tree.Runs[0], tree.Runs[1]
	if top.Run != reply.Run || below.Parent != top.Run || !strings.HasPrefix(below.Actor, "second/") || top.Status != "DONE" || below.Status != "DONE" || below.Ended == "" || tree.Truncated {
		t.Errorf("got %s", body)
	}
	if status, _, body := d.do("GET", "/v1/runs/"+reply.Run+"?tree=2", ""); status != 400 || !strings.Contains(body, `"field":"tree"`) {
		t.Errorf("%d %s", status, body)
	}
}

// endlessNode has runs with three calls each, of which the second never begins. The
// run of a call is numbered like its place in a tree without end.
type endlessNode struct {
	command.Node
	lookups int
}

func (n *endlessNode) Lookup(_ context.Context, l command.Lookup) (command.Result, error) {
	n.lookups++
	id := l.Query.(command.RunQuery).Run
	place := uint64(id[15])<<8 | uint64(id[14])
	if place%3 == 2 {
		return nil, actor.Refuse(actor.NotFound, "not begun")
	}
	run := command.Run{Owner: command.Owner{Run: id}, Record: runs.Record{Run: id, Seq: 1}}
	for i := range uint64(3) {
		next := place*3 + 1 + i
		child := actor.CallID{6: 0x70, 8: 0x80, 14: byte(next), 15: byte(next >> 8)}
		run.Record.Children = append(run.Record.Children, runs.Child{Run: child})
	}
	return run, nil
}

// The JSON form of a large tree is truncated, and reads no more runs than it lists.
func TestTreeOfRunsIsBounded(t *testing.T) {
	n := &endlessNode{}
	r := request(n, "/v1/runs/"+actor.CallID{6: 0x70, 8: 0x80}.String()+"?tree=1")
	var tree struct {
		Runs      []any `json:"runs"`
		Truncated bool  `json:"truncated"`
	}
	if err := json.Unmarshal(r.Body(), &tree); err != nil || len(tree.Runs) != 200 || !tree.Truncated || n.lookups > 400 {
		t.Errorf("%d: %d runs, truncated %v, %d lookups, %v", r.StatusCode(), len(tree.Runs), tree.Truncated, n.lookups, err)
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
	if n := d.server.streams.count(); n != 0 {
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
		if status != 503 || headers.Get("Retry-After") == "" || !strings.Contains(body, `"code":"agent_busy"`) {
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

// longAnswerAgent returns an agent whose answer exceeds all socket buffers.
func longAnswerAgent() actor.Definition {
	return agents.Define("long", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		return strings.Repeat("x", 1_000_000), nil
	})))
}

// dialSmallBuffer opens a connection with a small receive buffer.
func (d *testGateway) dialSmallBuffer() *net.TCPConn {
	d.Helper()
	dialer := net.Dialer{Timeout: 10 * time.Second}
	c, err := dialer.Dial("tcp", d.address)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = c.Close() })
	tcp := c.(*net.TCPConn)
	if err := errors.Join(tcp.SetReadBuffer(32<<10), tcp.SetDeadline(time.Now().Add(30*time.Second))); err != nil {
		d.Fatal(err)
	}
	return tcp
}

// slowReaders is a listener of a gateway whose clock advances only when a client
// has not read what fills its buffers.
type slowReaders struct {
	net.Listener
	elapsed *atomic.Int64
}

func (l slowReaders) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return slowReaderConn{c.(*net.TCPConn), l.elapsed}, nil
}

type slowReaderConn struct {
	*net.TCPConn
	elapsed *atomic.Int64
}

// Write writes what fits into the send buffer and ignores the deadline. If the
// buffer is full, the time of a slow reader passes at once.
func (c slowReaderConn) Write(b []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	_ = c.SetWriteDeadline(time.Time{})
	for n < len(b) && err == nil {
		written := 0
		writeErr := raw.Write(func(fd uintptr) bool {
			written, err = syscall.Write(int(fd), b[n:])
			return true
		})
		switch err = errors.Join(err, writeErr); {
		case errors.Is(err, syscall.EINTR):
			err = nil
		case errors.Is(err, syscall.EAGAIN):
			c.elapsed.Add(int64(slowReaderTimeout))
			return n, os.ErrDeadlineExceeded
		}
		n += max(written, 0)
	}
	return n, err
}

const slowReaderTimeout = time.Minute

// serveSlowReaders starts another gateway for the node, on the clock of
// slowReaders.
func (d *testGateway) serveSlowReaders() *testGateway {
	d.Helper()
	config := d.server.config
	config.StreamTimeout = slowReaderTimeout
	s := New(d.server.node, slog.New(slog.DiscardHandler), config)
	elapsed, start := new(atomic.Int64), time.Now()
	s.clock = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
	return d.serve(s, func(l net.Listener) net.Listener { return slowReaders{l, elapsed} })
}

func TestSlowReaderIsDisconnectedAndResumes(t *testing.T) {
	d := startGatewayWith(t, Config{StreamTimeout: time.Hour}, longAnswerAgent())
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/long/messages", `{"content":"x"}`)
	slow := d.serveSlowReaders()
	c := slow.dialSmallBuffer()
	fmt.Fprintf(c, "GET /v1/runs/%s/events HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\n", m.Run, slow.address)
	response, err := http.ReadResponse(bufio.NewReaderSize(c, 1024), nil)
	if err != nil || response.StatusCode != 200 {
		t.Fatalf("%v, %+v", err, response)
	}
	if err := slow.server.streams.waitIdle(slow.Context()); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadBuffer(1 << 20)
	b, _ := io.ReadAll(response.Body)
	frames, refusal := upstream.NewParser(upstream.StreamLimits{Line: 4 << 20, Event: 4 << 20, Total: 16 << 20}).Parse(b)
	if refusal != nil || len(frames) != 2 || frames[1].ID != "2" || len(b) > 900_000 {
		t.Fatalf("%d bytes, %d frames: %v", len(b), len(frames), refusal)
	}
	resumed := d.openStream("GET", "/v1/runs/"+m.Run+"/events", "", "Last-Event-ID", frames[1].ID)
	resumed.readUntil("")
	if resumed.frameNames() != "run_done 3" {
		t.Error(resumed.frameNames())
	}
}

// manyEventsAgent returns an agent with many large events.
func manyEventsAgent() actor.Definition {
	return agents.Define("talkative", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		for i := range 48 {
			if _, err := t.Do(fmt.Sprint("say-", i), func(context.Context) ([]byte, error) {
				return json.Marshal(strings.Repeat("x", runs.TextBytesMax))
			}); err != nil {
				return "", err
			}
		}
		return "done", nil
	})))
}

// A slow reader gets the reason in a final frame that follows a complete frame.
// The gateway enlarges the send buffer, so that it has room for the final
// frame.
func TestSlowReaderGetsCloseReason(t *testing.T) {
	d := startGatewayWith(t, Config{StreamTimeout: time.Hour}, manyEventsAgent())
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/talkative/messages", `{"content":"x"}`)
	slow := d.serveSlowReaders()
	c := slow.dialSmallBuffer()
	fmt.Fprintf(c, "GET /v1/runs/%s/events HTTP/1.0\r\nHost: %s\r\nAccept: text/event-stream\r\nAuthorization: Bearer %s\r\n\r\n", m.Run, slow.address, d.createKey("read"))
	head := make([]byte, 12)
	if _, err := io.ReadFull(c, head); err != nil || string(head) != "HTTP/1.0 200" {
		t.Fatalf("%s, %v", head, err)
	}
	if err := slow.server.streams.waitIdle(slow.Context()); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadBuffer(1 << 20)
	b, _ := io.ReadAll(c)
	_, b, _ = bytes.Cut(b, []byte("\r\n\r\n"))
	frames, refusal := upstream.NewParser(upstream.StreamLimits{}).Parse(b)
	if refusal != nil || len(frames) < 2 {
		t.Fatalf("%d bytes: %v", len(b), refusal)
	}
	last := frames[len(frames)-1]
	if last.Name != ingress.StreamClosed || last.ID != "" || !strings.Contains(last.Data, `"reason":"slow_reader"`) {
		t.Errorf("%+v", last)
	}
	resumed := d.openStream("GET", "/v1/runs/"+m.Run+"/events", "", "Last-Event-ID", frames[len(frames)-2].ID)
	resumed.readUntil("run_done")
	if got, want := resumed.frames[0].ID, len(frames); got != fmt.Sprint(want) {
		t.Errorf("resumed at %s, want %d", got, want)
	}
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
			_ = c.SetLinger(0)
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
	s := d.openStream("POST", "/v1/agents/coordinator/messages", `{"content":"x"}`)
	s.readUntil("wait_opened")
	d.server.Drain()
	second := d.openStream("GET", "/v1/runs/"+s.response.Header.Get("X-Run-Id")+"/events", "")
	second.readUntil("wait_opened")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	for _, s := range []*streamClient{s, second} {
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
	if n := d.server.streams.count(); n != clients {
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
