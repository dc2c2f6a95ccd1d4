// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fasthttp/router"
	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// testGateway is a gateway for a node with a store.
type testGateway struct {
	*testing.T
	server  *Server
	address string
	client  *http.Client
	dir     string // data folder
}

// patientClock returns a clock that advances by a minute with each reading, so that
// no wrong key is throttled.
func patientClock() func() time.Time {
	var minutes atomic.Int64
	return func() time.Time { return time.Unix(60*minutes.Add(1), 0) }
}

// owner returns a client on the socket of the data folder.
func (d *testGateway) owner() *testGateway {
	return &testGateway{d.T, d.server, d.address, OwnerClient(d.dir), d.dir}
}

func startGateway(t *testing.T, definitions ...actor.Definition) *testGateway {
	t.Helper()
	return startGatewayWith(t, Config{}, definitions...)
}

func startGatewayWith(t *testing.T, config Config, definitions ...actor.Definition) *testGateway {
	t.Helper()
	return startGatewayOn(t, t.TempDir(), config, definitions...)
}

// addedKeys are keys of a test, to which the registry adds its own whenever it announces a
// change. Set again by the test, they would be missing in between.
type addedKeys struct {
	to    *Keys
	added []ingress.Key
}

func (k addedKeys) Set(all []ingress.Key) { k.to.Set(slices.Concat(k.added, all)) }

// startGatewayOn starts a gateway for the node of a data folder. Its keys are those of the
// configuration and of the registry.
func startGatewayOn(t *testing.T, dir string, config Config, definitions ...actor.Definition) *testGateway {
	t.Helper()
	return startGatewayNode(t, dir, config, nil, definitions...)
}

// startGatewayWithPolicy is startGatewayWith for a node with a policy.
func startGatewayWithPolicy(t *testing.T, config Config, policy *tools.Policy, definitions ...actor.Definition) *testGateway {
	t.Helper()
	return startGatewayNode(t, t.TempDir(), config, policy, definitions...)
}

func startGatewayNode(t *testing.T, dir string, config Config, policy *tools.Policy, definitions ...actor.Definition) *testGateway {
	t.Helper()
	return startGatewayPrepared(t, dir, config, policy, func(*Server) {}, definitions...)
}

// startGatewayPrepared calls prepare before the server listens.
func startGatewayPrepared(t *testing.T, dir string, config Config, policy *tools.Policy, prepare func(*Server), definitions ...actor.Definition) *testGateway {
	t.Helper()
	if config.Keys == nil {
		config.Keys = new(Keys)
	}
	quietly := slog.New(slog.DiscardHandler)
	n, err := node.Open(node.Config{Data: dir, Name: "n1", Memory: true, WriteBuffer: 1 << 20, Limits: dispatcher.DefaultLimits(), Outbound: outbound.Config{Allow: upstream.AllowLoopback()},
		Native: append(agents.Builtin(), definitions...), Keys: addedKeys{config.Keys, config.Keys.All()}, Policy: policy, FreeFloor: 1, DiskLagMax: time.Hour}, quietly)
	if err != nil {
		t.Fatal(err)
	}
	config.External, config.Secret, config.Certificate = n.External(), n.Secret(), testCertificate
	served, disconnect := command.Node(n), func() error { return nil }
	if behindPipe {
		served, disconnect = connect(n)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(served, quietly, config)
	s.wrongKeys.now = patientClock()
	prepare(s)
	socket, err := ListenOwner(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- s.Serve(listener) }()
	go func() { ended <- s.ServeOwner(socket) }()
	// Well before the server does, a connection is no longer used, which could fail a request.
	client := &http.Client{Transport: &http.Transport{DialContext: dialMaybeTLS, IdleConnTimeout: 30 * time.Second}, Timeout: 30 * time.Second}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		client.CloseIdleConnections()
		s.Drain()
		if err := errors.Join(s.Shutdown(ctx), <-ended, <-ended, disconnect(), n.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return &testGateway{t, s, listener.Addr().String(), client, dir}
}

// serve serves another gateway of the node until the test ends.
func (d *testGateway) serve(s *Server, wrap func(net.Listener) net.Listener) *testGateway {
	d.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(wrap(l)) }()
	d.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		d.client.CloseIdleConnections()
		if err := errors.Join(s.Shutdown(ctx), <-ended); err != nil {
			d.Error(err)
		}
	})
	return &testGateway{d.T, s, l.Addr().String(), d.client, d.dir}
}

// behindPipe makes gateways reach their node over a connection.
var behindPipe bool

// connect serves a node over a pipe and returns the node at its other end.
func connect(n command.Node) (_ command.Node, disconnect func() error) {
	a, b := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- command.Serve(b, n) }()
	c := command.Dial(a)
	return c, func() error {
		c.Close()
		return <-served
	}
}

// A gateway that reaches its node over a connection behaves like a gateway in
// the process of its node.
func TestNodeBehindPipe(t *testing.T) {
	behindPipe = true
	defer func() { behindPipe = false }()
	for name, test := range map[string]func(*testing.T){
		"AgentLifecycle":                     TestAgentLifecycle,
		"AgentShowsActiveTurns":              TestAgentShowsActiveTurns,
		"AgentShowsDeadlines":                TestAgentShowsDeadlines,
		"AgentsShowServedRuns":               TestAgentsShowServedRuns,
		"ExternalAgentCallback":              TestExternalAgentCallback,
		"MessageWithoutRunTokenShowsClaim":   TestMessageWithoutRunTokenShowsClaim,
		"KeyLifecycle":                       TestKeyLifecycle,
		"Metrics":                            TestMetrics,
		"MetricsByAgentToolAndModel":         TestMetricsByAgentToolAndModel,
		"AgentCallsAgentByName":              TestAgentCallsAgentByName,
		"KeyRevocation":                      TestKeyRevocation,
		"KeyRevokedDuringLongPoll":           TestKeyRevokedDuringLongPoll,
		"BusyRefusalDoesNotReadStore":        TestBusyRefusalDoesNotReadStore,
		"MessageReturnsAnswer":               TestMessageReturnsAnswer,
		"SignalResumesWaitingRun":            TestSignalResumesWaitingRun,
		"WaitingChildRunIsReported":          TestWaitingChildRunIsReported,
		"IdempotencyKeyDeduplicatesMessages": TestIdempotencyKeyDeduplicatesMessages,
		"SlowRunIsAcceptedAfterTimeout":      TestSlowRunIsAcceptedAfterTimeout,
		"InvalidRequestsGetProblems":         TestInvalidRequestsGetProblems,
		"ReadinessWhileDraining":             TestReadinessWhileDraining,
		"EventsReportEndedRun":               TestEventsReportEndedRun,
		"DroppedEventsHaveTheirOwnCode":      TestDroppedEventsHaveTheirOwnCode,
		"RunListTruncatesText":               TestRunListTruncatesText,
		"VolatileAgentHasNoStream":           TestVolatileAgentHasNoStream,
		"RegistryRunsCannotBeChanged":        TestRegistryRunsCannotBeChanged,
		"StreamResumesAfterAnyEvent":         TestStreamResumesAfterAnyEvent,
		"TreeStreamResumesAfterAnyEvent":     TestTreeStreamResumesAfterAnyEvent,
		"StreamFollowsLiveRun":               TestStreamFollowsLiveRun,
		"RepeatedMessageStreamsSameRun":      TestRepeatedMessageStreamsSameRun,
		"RepeatedMessageJoinsActiveRun":      TestRepeatedMessageJoinsActiveRun,
		"StreamRequestErrors":                TestStreamRequestErrors,
		"ClientDisconnectKeepsRun":           TestClientDisconnectKeepsRun,
		"ShutdownEndsStreams":                TestShutdownEndsStreams,
		"KeyRevocationEndsPendingRequests":   TestKeyRevocationEndsPendingRequests,
		"MutualCallsBreakWaitCycle":          TestMutualCallsBreakWaitCycle,
		"WaitCycleHasRetryAfter":             TestWaitCycleHasRetryAfter,
		"ToolIsDeclared":                     TestToolIsDeclared,
		"ToolCallByExternalAgent":            TestToolCallByExternalAgent,
		"ToolCallOutlastsItsRequest":         TestToolCallOutlastsItsRequest,
		"ApprovalIsListedAndDecided":         TestApprovalIsListedAndDecided,
		"CompletionIsRecordedInRun":          TestCompletionIsRecordedInRun,
		"AgentChatKeepsConversation":         TestAgentChatKeepsConversation,
		"AgentChatStreams":                   TestAgentChatStreams,
		"AgentChatWaitsForPerson":            TestAgentChatWaitsForPerson,
	} {
		t.Run(name, test)
	}
}

// do sends a request; headers are name-value pairs.
func (d *testGateway) do(method, path, body string, headers ...string) (int, http.Header, string) {
	d.Helper()
	r, err := http.NewRequest(method, "http://"+d.address+path, strings.NewReader(body))
	if err != nil {
		d.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := d.client.Do(r)
	if err != nil {
		d.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		d.Fatal(err)
	}
	if h := response.Header; strings.HasSuffix(h.Get("Content-Type"), "json") && (h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff") {
		d.Errorf("%s %s: JSON that caches may keep, or a browser takes for another type: %v", method, path, h)
	}
	return response.StatusCode, response.Header, string(b)
}

func (d *testGateway) doJSON(v any, method, path, body string, headers ...string) int {
	d.Helper()
	status, _, answer := d.do(method, path, body, headers...)
	if err := json.Unmarshal([]byte(answer), v); err != nil {
		d.Fatalf("%s %s: %d %s: %v", method, path, status, answer, err)
	}
	return status
}

type messageResponse struct {
	Run     string `json:"run_id"`
	Agent   string `json:"agent_id"`
	Session string `json:"session_id"`
	Status  string `json:"status"`
	Content string `json:"content"`
	Signal  struct {
		Run  string `json:"run_id"`
		Name string `json:"name"`
		Path string `json:"path"`
		Body string `json:"body"`
	} `json:"signal"`
}

func TestMessageReturnsAnswer(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"grüße","session":"s-1"}`); status != 200 ||
		m.Status != "succeeded" || m.Content != "response from helper: grüße" || m.Agent != "helper" || m.Session != "s-1" {
		t.Fatalf("%d %+v", status, m)
	}
	var run struct {
		Status string `json:"status"`
		Text   string `json:"text"`
	}
	if status := d.doJSON(&run, "GET", "/v1/runs/"+m.Run, ""); status != 200 || run.Status != "DONE" || run.Text != m.Content {
		t.Errorf("%d %+v", status, run)
	}
	var list struct {
		Runs []struct {
			Run string `json:"run_id"`
		} `json:"runs"`
	}
	if d.doJSON(&list, "GET", "/v1/runs?limit=5", ""); len(list.Runs) != 1 || list.Runs[0].Run != m.Run {
		t.Errorf("%+v", list)
	}
	if status, _, body := d.do("GET", "/v1/agents", ""); status != 200 || !strings.Contains(body, `"agent_id":"coordinator"`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestSignalResumesWaitingRun(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	status, headers, _ := d.do("POST", "/v1/agents/coordinator/messages", `{"content":"first"}`)
	if status != 202 || !strings.HasPrefix(headers.Get("Location"), "/v1/runs/") {
		t.Errorf("%d %v", status, headers)
	}
	if status := d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"xyzzy","session":"s-2"}`); status != 202 ||
		m.Status != "PAUSED_WAITING_APPROVAL" || m.Signal.Name != "go" || m.Signal.Run != m.Run {
		t.Fatalf("%d %+v", status, m)
	}
	// A long poll returns as soon as the run is signalled.
	type page struct {
		Events []struct {
			Seq  int    `json:"seq"`
			Type string `json:"type"`
		} `json:"events"`
		Next  int  `json:"next_after"`
		Ended bool `json:"ended"`
	}
	var first page
	d.doJSON(&first, "GET", "/v1/runs/"+m.Run+"/events", "")
	polled := make(chan page, 1)
	go func() {
		var p page
		d.doJSON(&p, "GET", fmt.Sprintf("/v1/runs/%s/events?after=%d&wait_ms=30000", m.Run, first.Next), "")
		polled <- p
	}()
	if status, _, body := d.do("POST", m.Signal.Path, `{"name":"stop"}`); status != 403 || !strings.Contains(body, "call_rejected") {
		t.Errorf("unexpected signal: %d %s", status, body)
	}
	if status, _, body := d.do("POST", m.Signal.Path, m.Signal.Body); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if p := <-polled; len(p.Events) == 0 || p.Events[0].Type != "signal_received" || p.Events[0].Seq != first.Next+1 {
		t.Errorf("%+v", p)
	}
	var all page
	if d.doJSON(&all, "GET", "/v1/runs/"+m.Run+"/events", ""); !all.Ended || all.Events[len(all.Events)-1].Type != "run_done" {
		t.Errorf("%+v", all)
	}
	for i, e := range all.Events {
		if e.Seq != i+1 {
			t.Errorf("event %d has sequence number %d", i+1, e.Seq)
		}
	}
	if status, _, body := d.do("POST", m.Signal.Path, m.Signal.Body); status != 403 {
		t.Errorf("signal to an ended run: %d %s", status, body)
	}
}

func TestWaitingChildRunIsReported(t *testing.T) {
	d := startGateway(t, agents.Define("above", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		return turn.Call("coordinator", turn.Message())
	}))))
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/above/messages", `{"content":"xyzzy"}`); status != 202 || m.Signal.Name != "go" || m.Signal.Run == m.Run {
		t.Fatalf("%d %+v", status, m)
	}
	if status, _, body := d.do("POST", m.Signal.Path, m.Signal.Body); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

func TestIdempotencyKeyDeduplicatesMessages(t *testing.T) {
	d := startGateway(t)
	var one, two messageResponse
	d.doJSON(&one, "POST", "/v1/agents/helper/messages", `{"content":"x"}`, "Idempotency-Key", "k-1")
	d.doJSON(&two, "POST", "/v1/agents/helper/messages", `{"content":"x"}`, "Idempotency-Key", "k-1")
	if one.Run == "" || one != two {
		t.Errorf("%+v, %+v", one, two)
	}
	if status, _, body := d.do("POST", "/v1/agents/helper/messages", `{"content":"y"}`, "Idempotency-Key", "k-1"); status != 422 || !strings.Contains(body, `"field":"Idempotency-Key"`) {
		t.Errorf("same key with another body: %d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/helper/messages", `{"content":"x"}`, "Idempotency-Key", strings.Repeat("k", 256)); status != 400 {
		t.Errorf("oversized key: %d %s", status, body)
	}
}

// shortTimeoutNode limits each Invoke to one second.
type shortTimeoutNode struct{ command.Node }

func (n shortTimeoutNode) Invoke(ctx context.Context, c command.Invoke, joined func(actor.CallID)) (command.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return n.Node.Invoke(ctx, c, joined)
}

// If a run lasts longer than its client waits, the answer is the id of the run.
// A repeated message has no id of its own: its answer shows the client to retry
// later.
func TestSlowRunIsAcceptedAfterTimeout(t *testing.T) {
	d := startGateway(t, agents.Define("slow", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		return "", t.Sleep(time.Hour)
	}))))
	d.server.node = shortTimeoutNode{d.server.node}
	var one messageResponse
	if status := d.doJSON(&one, "POST", "/v1/agents/slow/messages", `{"content":"x"}`, "Idempotency-Key", "k-1"); status != 202 || one.Run == "" {
		t.Errorf("%d %+v", status, one)
	}
	if status, _, body := d.do("GET", "/v1/runs/"+one.Run, ""); status != 200 {
		t.Errorf("run of the slow agent: %d %s", status, body)
	}
	status, headers, body := d.do("POST", "/v1/agents/slow/messages", `{"content":"x"}`, "Idempotency-Key", "k-1")
	if status != 503 || headers.Get("Retry-After") != "10" || !strings.Contains(body, "same Idempotency-Key") {
		t.Errorf("repeated message: %d %v %s", status, headers, body)
	}
}

// Every invalid request gets problem+json that identifies the fault.
func TestInvalidRequestsGetProblems(t *testing.T) {
	d := startGateway(t)
	const messages = "/v1/agents/helper/messages"
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	run := d.server.node.NewCallID().String()
	long := strings.Repeat("x", HeaderBytesMax) // too long with its name, and short enough to be written before the server hangs up
	for name, c := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		want               string
	}{
		"no body":              {"POST", messages, "", nil, 400, "got nothing"},
		"not JSON":             {"POST", messages, "{", nil, 400, "not JSON"},
		"not an object":        {"POST", messages, `["x"]`, nil, 400, "want a JSON object"},
		"no content":           {"POST", messages, `{}`, nil, 400, `"field":"content"`},
		"null content":         {"POST", messages, `{"content":null}`, nil, 400, `"field":"content"`},
		"wrong type":           {"POST", messages, `{"content":7}`, nil, 400, `"field":"content"`},
		"unknown member":       {"POST", messages, `{"content":"x","Content":"y"}`, nil, 400, `"field":"Content"`},
		"duplicate member":     {"POST", messages, `{"content":"x","content":"y"}`, nil, 400, "content: is a duplicate"},
		"trailing data":        {"POST", messages, `{"content":"x"} {}`, nil, 400, "unexpected data after"},
		"not UTF-8":            {"POST", messages, "{\"content\":\"\xff\"}", nil, 400, `"field":"content"`},
		"too deep":             {"POST", messages, `{"content":` + deep + `}`, nil, 400, "deeper than 64"},
		"session":              {"POST", messages, `{"content":"x","session":"a b"}`, nil, 400, `"field":"session"`},
		"negative timeout":     {"POST", messages, `{"content":"x","timeout_ms":-1}`, nil, 400, `"field":"timeout_ms"`},
		"media type":           {"POST", messages, `{"content":"x"}`, []string{"Content-Type", "text/plain"}, 415, "want application/json"},
		"encoding":             {"POST", messages, `{"content":"x"}`, []string{"Content-Encoding", "gzip"}, 415, "unencoded"},
		"long header":          {"GET", "/v1/agents", "", []string{"X-Long", long}, 431, "exceed 16384 bytes"},
		"unknown agent":        {"POST", "/v1/agents/nobody/messages", `{"content":"x"}`, nil, 404, "agent_not_found"},
		"agent name":           {"POST", "/v1/agents/a:b/messages", `{"content":"x"}`, nil, 400, "only letters"},
		"unknown path":         {"GET", "/v2", "", nil, 404, "not_found"},
		"other method":         {"DELETE", "/v1/agents", "", nil, 405, "method_not_allowed"},
		"unknown run":          {"GET", "/v1/runs/" + run, "", nil, 404, "not found"},
		"unknown run's events": {"GET", "/v1/runs/" + run + "/events", "", nil, 404, "not found"},
		"malformed run id":     {"GET", "/v1/runs/7", "", nil, 400, "want a UUID"},
		"after":                {"GET", "/v1/runs/" + run + "/events?after=-1", "", nil, 400, `"field":"after"`},
		"limit":                {"GET", "/v1/runs?limit=x", "", nil, 400, `"field":"limit"`},
		"signal's name":        {"POST", "/v1/runs/" + run + ":signal", `{"name":""}`, nil, 400, `"field":"name"`},
		"signal, unknown run":  {"POST", "/v1/runs/" + run + ":signal", `{"name":"go"}`, nil, 404, "not found"},
		"escape":               {"GET", "/v1/%61gents", "", nil, 400, "no escapes"},
		"dots":                 {"GET", "/v1/runs/../agents", "", nil, 400, "empty segments"},
		"empty segment":        {"GET", "/v1//agents", "", nil, 400, "empty segments"},
		"final slash":          {"GET", "/v1/agents/?limit=1", "", nil, 400, "the path must not end with /: want /v1/agents\""},
		"query":                {"GET", "/v1/runs?limit=%31", "", nil, 400, "no escapes"},
		"foreign host":         {"GET", "/v1/agents", "", []string{"Host", "evil.example"}, 403, "forbidden_host"},
		"foreign host port":    {"GET", "/v1/agents", "", []string{"Host", "127.0.0.1.evil.example:80"}, 403, "forbidden_host"},
		"foreign origin":       {"POST", messages, `{"content":"x"}`, []string{"Origin", "http://evil.example"}, 403, "forbidden_origin"},
		"null origin":          {"POST", messages, `{"content":"x"}`, []string{"Origin", "null"}, 403, "forbidden_origin"},
	} {
		t.Run(name, func(t *testing.T) {
			status, headers, body := d.do(c.method, c.path, c.body, c.headers...)
			if status != c.status || !strings.Contains(body, c.want) {
				t.Errorf("%d %s, want %d %s", status, body, c.status, c.want)
			}
			if got := headers.Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type %s", got)
			}
			var p problem
			if err := json.Unmarshal([]byte(body), &p, json.RejectUnknownMembers(true)); err != nil || p.Status != status || p.Code == "" || p.Detail == "" {
				t.Errorf("%s: %v", body, err)
			}
		})
	}
	if status, _, body := d.do("GET", "/v1/agents", "", "Origin", "http://"+d.address); status != 200 {
		t.Errorf("own origin: %d %s", status, body)
	}
}

// An ambiguously framed request is refused. The bytes that follow it on the
// connection are not interpreted.
func TestAmbiguousFramingClosesConnection(t *testing.T) {
	d := startGateway(t)
	const second = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	for name, first := range map[string]string{
		"both lengths":   "POST /v1/agents/helper/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":    "POST /v1/agents/helper/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
		"folded":         "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\r\n c\r\n\r\n",
		"other protocol": "GET /healthz HTTP/3.7\r\nHost: 127.0.0.1\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", d.address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, first+second); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(c)
			response, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			if response.StatusCode != 400 || !response.Close {
				t.Errorf("%d %s, closes: %v", response.StatusCode, body, response.Close)
			}
			if more, _ := io.ReadAll(r); len(more) > 0 {
				t.Errorf("the bytes after the request were answered: %s", more)
			}
		})
	}
}

// An oversized body is refused before it has arrived.
func TestOversizedBodyIsRefused(t *testing.T) {
	d := startGateway(t)
	c, err := net.Dial("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "POST /v1/agents/helper/messages HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", d.address, BodyBytesMax+1); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != 413 || !strings.Contains(string(body), "exceeds 1048576 bytes") || !response.Close {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	exact := `{"content":"` + strings.Repeat("x", BodyBytesMax-len(`{"content":""}`)) + `"}`
	if status, _, _ := d.do("POST", "/v1/agents/helper/messages", exact); status != 200 && status != 400 {
		t.Errorf("body of maximum size: %d", status)
	}
}

func TestPanicReturnsInternalError(t *testing.T) {
	d := startGateway(t)
	handler := d.server.handler(func(*fasthttp.RequestCtx) { panic("test panic") })
	var ctx fasthttp.RequestCtx
	ctx.Init(&fasthttp.Request{}, nil, nil)
	if err := ctx.Request.Header.Read(bufio.NewReader(strings.NewReader("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))); err != nil {
		t.Fatal(err)
	}
	handler(&ctx)
	if ctx.Response.StatusCode() != 500 || !strings.Contains(string(ctx.Response.Body()), `"code":"internal"`) || strings.Contains(string(ctx.Response.Body()), "test panic") {
		t.Errorf("%d %s", ctx.Response.StatusCode(), ctx.Response.Body())
	}
}

// The fast path takes exactly the requests that the router sends to the same
// handler.
func TestMessageFastPathMatchesRouter(t *testing.T) {
	for _, c := range []struct {
		method, path string
		short        bool
	}{
		{"POST", "/v1/agents/a/messages", true},
		{"POST", "/v1/agents/messages/messages", true},
		{"POST", "/v1/agents/a:b/messages?x=1", true},
		{"GET", "/v1/agents/a/messages", false},
		{"PUT", "/v1/agents/a/messages", false},
		{"POST", "/v1/agents/a/b/messages", false},
		{"POST", "/v1/agents/messages", false},
		{"POST", "/v1/agents/a/messages/", false},
		{"POST", "/v1/agents/a/Messages", false},
		{"POST", "/v1/agents/a", false},
		{"POST", "/v1/runs/a/messages", false},
	} {
		var ids []string
		r := router.New()
		r.RedirectTrailingSlash, r.RedirectFixedPath = false, false
		r.NotFound = func(*fasthttp.RequestCtx) {}
		note := func(ctx *fasthttp.RequestCtx) { ids = append(ids, pathParam(ctx, "id")) }
		r.POST("/v1/agents/{id}/messages", note)
		routed := false
		short := messageFastPath(func(*fasthttp.RequestCtx) { routed = true }, note)
		for _, handle := range []fasthttp.RequestHandler{r.Handler, short} {
			var ctx fasthttp.RequestCtx
			ctx.Request.Header.SetMethod(c.method)
			ctx.Request.SetRequestURI(c.path)
			handle(&ctx)
		}
		if want := map[bool]int{true: 2}[c.short]; len(ids) != want || c.short && ids[0] != ids[1] || routed == c.short {
			t.Errorf("%s %s: ids %q, routed %v", c.method, c.path, ids, routed)
		}
	}
}

func TestReadinessWhileDraining(t *testing.T) {
	d := startGateway(t)
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, _, body := d.do("GET", path, ""); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	d.server.Drain()
	if status, headers, body := d.do("GET", "/readyz", ""); status != 503 || headers.Get("Retry-After") == "" {
		t.Errorf("readiness while draining: %d %s", status, body)
	}
	if status, _, _ := d.do("GET", "/healthz", ""); status != 200 {
		t.Error("healthz fails while draining")
	}
}

func TestCheckListenAddressWithoutKeys(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:8283", "localhost:0", "[::1]:80", "127.9.9.9:1"} {
		if err := CheckListenAddress(listen, 0); err != nil {
			t.Error(err)
		}
	}
	for _, listen := range []string{"0.0.0.0:8283", ":8283", "[::]:80", "192.168.1.1:80", "example.com:80", "127.0.0.1", ""} {
		if err := CheckListenAddress(listen, 0); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", listen, err)
		}
	}
}
