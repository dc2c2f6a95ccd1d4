// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

type agentResponse struct {
	ID           string         `json:"agent_id"`
	Name         string         `json:"name"`
	Kind         string         `json:"kind"`
	Endpoint     string         `json:"endpoint"`
	Status       string         `json:"status"`
	LastSeen     string         `json:"last_heartbeat_at"`
	Capabilities []string       `json:"capabilities"`
	Served       *uint64        `json:"served_runs"`
	Spec         map[string]any `json:"spec"`
	Actors       []struct {
		Session string   `json:"session_id"`
		Mailbox []string `json:"mailbox"`
		Turns   []struct {
			Run     string    `json:"run_id"`
			Status  string    `json:"status"`
			Started time.Time `json:"started_at"`
			Left    int64     `json:"time_left_ms"`
			Due     time.Time `json:"deadline_at"`
			Waits   []struct {
				Run    string    `json:"run_id"`
				Target string    `json:"target"`
				Since  time.Time `json:"since"`
				Left   int64     `json:"time_left_ms"`
				Due    time.Time `json:"deadline_at"`
			} `json:"waits_for"`
		} `json:"turns"`
	} `json:"actors"`
}

func TestAgentLifecycle(t *testing.T) {
	d := startGateway(t)
	d.createAgent("maker")
	if status, _, body := d.do("POST", "/v1/agents", `{"name":"maker"}`); status != 200 || !strings.Contains(body, `"created":false`) {
		t.Errorf("repeated create: %d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents", `{"agent_id":"m-2","name":"Zweiter","prompt":"Be brief."}`); status != 201 {
		t.Errorf("%d %s", status, body)
	}
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/Zweiter/messages", `{"content":"hello"}`); status != 200 || m.Agent != "m-2" {
		t.Errorf("message by display name: %d %+v", status, m)
	}
	if status, _, body := d.do("POST", "/v1/agents", `{"agent_id":"m-3","name":"Zweiter"}`); status != 201 {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/Zweiter/messages", `{"content":"hello"}`); status != 409 || !strings.Contains(body, "use the agent_id") {
		t.Errorf("message by an ambiguous name: %d %s", status, body)
	}
	for body, want := range map[string]string{`{"name":"x","modell":"y"}`: `"field":"modell"`, `{}`: `"field":"name"`, `{"name":"troupe"}`: `"field":"name"`,
		`{"name":"x","name":"y"}`: "is a duplicate", `[]`: "want a JSON object", `{"name":"helper"}`: "call_rejected", `{"name":"x","endpoint":"http://127.0.0.1:1"}`: `"field":"endpoint"`} {
		if status, _, answer := d.do("POST", "/v1/agents", body); status < 400 || status > 499 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	var list struct {
		Agents []agentResponse `json:"agents"`
	}
	d.doJSON(&list, "GET", "/v1/agents", "")
	got := ""
	for _, a := range list.Agents {
		got += a.ID + " " + a.Kind + ", "
	}
	if want := "coordinator native, helper native, m-2 declared, m-3 declared, maker declared, "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var one agentResponse
	if d.doJSON(&one, "GET", "/v1/agents/m-2", ""); one.Name != "Zweiter" || one.Spec["prompt"] != "Be brief." || one.Actors == nil {
		t.Errorf("%+v", one)
	}
	if status, _, body := d.do("GET", "/v1/agents/troupe", ""); status != 404 {
		t.Errorf("the registry is visible: %d %s", status, body)
	}
	if status, _, body := d.do("DELETE", "/v1/agents/maker", ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	for _, c := range [][3]string{{"DELETE", "/v1/agents/maker", ""}, {"GET", "/v1/agents/maker", ""}, {"POST", "/v1/agents/maker/messages", `{"content":"x"}`}} {
		if status, _, body := d.do(c[0], c[1], c[2]); status != 404 || !strings.Contains(body, "agent_not_found") {
			t.Errorf("%v of a deleted agent: %d %s", c, status, body)
		}
	}
	if status, _, body := d.do("DELETE", "/v1/agents/helper", ""); status != 403 {
		t.Errorf("delete of a native agent: %d %s", status, body)
	}
}

func TestAgentShowsActiveTurns(t *testing.T) {
	d := startGateway(t, agents.Define("above", "1", "", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		return turn.Call("coordinator", turn.Message())
	}))))
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/above/messages", `{"content":"x","session":"s-7"}`)
	var one agentResponse
	if d.doJSON(&one, "GET", "/v1/agents/above", ""); len(one.Actors) != 1 || one.Actors[0].Session != "s-7" || len(one.Actors[0].Turns) != 1 {
		t.Fatalf("%+v", one)
	}
	turn := one.Actors[0].Turns[0]
	if turn.Run != m.Run || turn.Status != "PAUSED_WAITING_APPROVAL" || len(turn.Waits) != 1 || turn.Waits[0].Run != m.Signal.Run || turn.Waits[0].Target != "coordinator/s-7" {
		t.Errorf("%+v", turn)
	}
}

// The deadlines of a turn and of its call are those of the start until a hold moves
// them: they then lie behind the end of the hold, by at most the time that was left.
func TestAgentShowsDeadlines(t *testing.T) {
	d := startGateway(t, agents.Define("above", "1", "", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		return turn.Call(turn.Message(), "x")
	}))))
	outer := newExternalService(d, "outer")
	running := d.openStream("POST", "/v1/agents/above/messages", `{"content":"outer","session":"s-1"}`)
	<-outer.invoked
	var held messageResponse
	d.doJSON(&held, "POST", "/v1/agents/above/messages", `{"content":"coordinator","session":"s-2"}`)
	var record struct {
		Paused []struct {
			Until time.Time `json:"until"`
		} `json:"paused"`
	}
	if d.doJSON(&record, "GET", "/v1/runs/"+held.Run, ""); len(record.Paused) != 1 {
		t.Fatalf("%+v", record)
	}
	until := record.Paused[0].Until
	var one agentResponse
	if d.doJSON(&one, "GET", "/v1/agents/above", ""); len(one.Actors) != 2 || len(one.Actors[0].Turns) != 1 || len(one.Actors[1].Turns) != 1 {
		t.Fatalf("%+v", one)
	}
	for i, actor := range one.Actors {
		turn := actor.Turns[0]
		if len(turn.Waits) != 1 {
			t.Fatalf("%+v", turn)
		}
		wait := turn.Waits[0]
		for name, c := range map[string]struct {
			since, due time.Time
			left       int64
		}{"turn": {turn.Started, turn.Due, turn.Left}, "wait": {wait.Since, wait.Due, wait.Left}} {
			left := time.Duration(c.left) * time.Millisecond
			switch {
			case i == 0 && (c.due.Sub(c.since)-left).Abs() > time.Millisecond: // the event has whole milliseconds
				t.Errorf("%s: got deadline %v of %v and %v", name, c.due, c.since, left)
			case i == 1 && (!c.due.After(until) || c.due.Sub(until) > left):
				t.Errorf("held %s: got deadline %v, want at most %v after %v", name, c.due, left, until)
			}
		}
	}
	outer.answers <- "done"
	running.readUntil("run_done")
}

// Each agent has the number of runs that it has ended, open ones excluded.
func TestAgentsShowServedRuns(t *testing.T) {
	d := startGateway(t)
	check := func(name string, want uint64) {
		t.Helper()
		var list struct {
			Agents []agentResponse `json:"agents"`
		}
		var one agentResponse
		d.doJSON(&list, "GET", "/v1/agents", "")
		d.doJSON(&one, "GET", "/v1/agents/"+name, "")
		for _, a := range list.Agents {
			if a.ID == name && (a.Served == nil || *a.Served != want || one.Served == nil || *one.Served != want) {
				t.Errorf("%s: got %v and %v, want %d", name, a.Served, one.Served, want)
			}
		}
	}
	check("helper", 0)
	for range 3 {
		d.do("POST", "/v1/agents/helper/messages", `{"content":"x"}`)
	}
	check("helper", 3)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"x"}`)
	check("coordinator", 0)
	if status, _, body := d.do("POST", "/v1/runs/"+m.Run+":cancel", ""); status >= 300 {
		t.Fatalf("%d %s", status, body)
	}
	d.openStream("GET", "/v1/runs/"+m.Run+"/events", "").readUntil("run_cancelled")
	check("coordinator", 1)
}

// The node counts the agents beyond its bound together. The gateway gives them no
// number, and never that of all of them.
func TestServedRunsBeyondTheBoundAreUnknown(t *testing.T) {
	for _, c := range []struct {
		named string
		all   bool
		want  string
	}{{"a", false, "7"}, {"b", false, "-"}, {command.StatsOther, false, "-"}, {"b", true, "0"}, {command.StatsOther, true, "9"}} {
		v := agentView{ID: c.named}
		v.setServed(map[string]uint64{"a": 7, command.StatsOther: 9}, c.all)
		got := "-"
		if v.Served != nil {
			got = fmt.Sprint(*v.Served)
		}
		if got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}

// The node may have counted an agent together with others, and freed names since.
func TestServedRunsOfFreedNamesAreUnknown(t *testing.T) {
	stats := []command.AgentStats{{Agent: "a", Runs: []command.RunStats{{Status: runs.Done, Count: 2}, {Status: runs.Failed, Count: 1}}}}
	if served, all := countServed(stats); !all || served["a"] != 3 {
		t.Errorf("got %v, all: %t", served, all)
	}
	stats = append(stats, command.AgentStats{Agent: command.StatsOther, Runs: []command.RunStats{{Status: runs.Done, Count: 1}}})
	if served, all := countServed(stats); all || served["a"] != 3 {
		t.Errorf("with freed names: got %v, all: %t", served, all)
	}
	if _, all := countServed(make([]command.AgentStats, command.StatsNamesMax)); all {
		t.Error("a full table claims to have all names")
	}
}

// An external agent registers, receives an invocation, calls another agent on
// behalf of its run, and answers.
func TestExternalAgentCallback(t *testing.T) {
	d := startGateway(t)
	callback := make(chan string, 1)
	var tokens []string
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/invoke" {
			return // health poll
		}
		token := r.Header.Get(RunToken)
		tokens = append(tokens, token)
		status, _, body := d.do("POST", "/v1/agents/helper:invoke", `{"message":"from outside","timeout_ms":5000}`, RunToken, token)
		callback <- fmt.Sprintf("%d %s", status, body)
		var reply messageResponse
		_ = json.Unmarshal([]byte(body), &reply)
		w.Header().Set("Content-Type", ingress.EventStream)
		b := runs.Frame{Name: "delta", Data: `{"text":` + fmt.Sprintf("%q", "the helper said: "+reply.Content) + `,"run_id":"` + r.Header.Get("x-run-id") + `"}`}.Append(nil)
		b = runs.Frame{Name: "done", Data: `{}`}.Append(b)
		_, _ = w.Write(b)
	}))
	t.Cleanup(agent.Close)
	register := `{"agent_id":"outside","name":"Outside","endpoint":"` + agent.URL + `","capabilities":["talk"]}`
	if status, _, body := d.do("POST", "/v1/agents/register", register); status != 201 || !strings.Contains(body, `"ok":true`) {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"x"}`); status != 400 || !strings.Contains(body, `"field":"endpoint"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/outside:heartbeat", ""); status != 200 || body != `{"ok":true}` {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/helper:heartbeat", "{}"); status != 403 || !strings.Contains(body, "needs no heartbeat") {
		t.Errorf("%d %s", status, body)
	}
	var one agentResponse
	if d.doJSON(&one, "GET", "/v1/agents/outside", ""); one.Kind != "external" || one.Endpoint != agent.URL || one.Status != "healthy" || one.LastSeen == "" || !slices.Equal(one.Capabilities, []string{"talk"}) {
		t.Errorf("%+v", one)
	}
	s := d.openStream("POST", "/v1/agents/outside/messages", `{"content":"ask the helper"}`)
	s.readUntil("")
	if got := <-callback; !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `"content":"response from helper: from outside"`) || !strings.Contains(got, `"agent_id":"helper"`) {
		t.Errorf("callback: %s", got)
	}
	if deltas, whole := s.answerTexts(); whole != "the helper said: response from helper: from outside" || deltas != whole {
		t.Errorf("%q, %q: %s", deltas, whole, s.frameNames())
	}
	tree := d.openStream("GET", "/v1/runs/"+s.response.Header.Get("X-Run-Id")+"/events?tree=1", "")
	tree.readUntil("")
	if got := tree.frameNames(); !strings.Contains(got, "agent_called_child") || strings.Count(got, "run_done") != 2 {
		t.Errorf("the callback is not a child run: %s", got)
	}
	const body = `{"message":"x"}`
	for name, headers := range map[string][]string{"no token": nil, "truncated token": {RunToken, tokens[0][1:]}} {
		if status, _, answer := d.do("POST", "/v1/agents/helper:invoke", body, headers...); status != 401 {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if status, _, answer := d.do("POST", "/v1/agents/helper:invoke", body, "Authorization", "Bearer "+tokens[0]); status != 404 {
		t.Errorf("token of an ended run: %d %s", status, answer)
	}
	if status, _, answer := d.do("POST", "/v1/agents/helper:explode", body); status != 404 || !strings.Contains(answer, ":heartbeat, :invoke") {
		t.Errorf("%d %s", status, answer)
	}
}

// shortCallbackNode limits each call of an external agent to 800 ms.
type shortCallbackNode struct{ command.Node }

func (n shortCallbackNode) Signal(ctx context.Context, c command.Signal) (command.Answer, error) {
	if c.Call.Operation == signals.OpCallAgent {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 800*time.Millisecond)
		defer cancel()
	}
	return n.Node.Signal(ctx, c)
}

// The clock of an invocation is stopped while a call of its agent waits for a
// signal. The invocation of another agent, which begins later and has the same
// limit, shows that the limit has passed. The request of the agent ends before the
// signal; a retry with the same key gets the answer.
func TestHeldCallbackOutlastsInvokeTimeout(t *testing.T) {
	d := startGateway(t)
	d.server.node = shortCallbackNode{d.server.node}
	early := make(chan string, 1)
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent/invoke":
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		case "/outside/invoke":
			var status int
			status, headers := 503, http.Header(nil)
			var body string
			for status == 503 {
				status, headers, body = d.do("POST", "/v1/agents/coordinator:invoke", `{"message":"from outside","timeout_ms":1000}`, RunToken, r.Header.Get(RunToken), "Idempotency-Key", "one")
				select {
				case early <- fmt.Sprint(status, " ", headers.Get("Retry-After"), " ", body):
				default:
				}
			}
			var reply messageResponse
			_ = json.Unmarshal([]byte(body), &reply)
			text, _ := json.Marshal("it said: " + reply.Content)
			w.Header().Set("Content-Type", ingress.EventStream)
			b := runs.Frame{Name: "delta", Data: `{"text":` + string(text) + `,"run_id":"` + r.Header.Get("x-run-id") + `"}`}.Append(nil)
			_, _ = w.Write(runs.Frame{Name: "done", Data: `{}`}.Append(b))
		}
	}))
	t.Cleanup(agent.Close)
	for _, name := range []string{"outside", "silent"} {
		register := `{"agent_id":"` + name + `","endpoint":"` + agent.URL + "/" + name + `","limits":{"invoke_timeout_ms":2000}}`
		if status, _, body := d.do("POST", "/v1/agents/register", register); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/outside/messages", `{"content":"x"}`); status != 202 || m.Signal.Run == "" {
		t.Fatalf("%d %+v", status, m)
	}
	if status, _, body := d.do("POST", "/v1/agents/silent/messages", `{"content":"x"}`); status != 504 || !strings.Contains(body, `"timeout"`) {
		t.Errorf("%d %s", status, body)
	}
	if got := <-early; !strings.HasPrefix(got, "503 1 ") || !strings.Contains(got, "same Idempotency-Key") {
		t.Errorf("callback: %s", got)
	}
	if status, _, body := d.do("POST", "/v1/runs/"+m.Signal.Run+":signal", `{"name":"go","payload":"yes"}`); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	s := d.openStream("GET", "/v1/runs/"+m.Run+"/events", "")
	s.readUntil("")
	if _, whole := s.answerTexts(); !strings.HasPrefix(whole, "it said: ") || whole == "it said: " {
		t.Errorf("%q: %s", whole, s.frameNames())
	}
}

// A client cannot send the signal by which an external agent makes a call.
func TestSignalCannotForgeCallback(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"x"}`)
	if status, _, body := d.do("POST", "/v1/runs/"+m.Run+":signal", `{"name":"call_agent","payload":{"agent_id":"helper","message":"x"}}`); status != 400 || !strings.Contains(body, `"field":"name"`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestKeyLifecycle(t *testing.T) {
	d := startGateway(t)
	type key struct {
		ID      string   `json:"key_id"`
		Key     string   `json:"key"`
		Name    string   `json:"name"`
		Scopes  []string `json:"scopes"`
		Expires string   `json:"expires_at"`
	}
	var made key
	if status := d.owner().doJSON(&made, "POST", "/v1/keys", `{"name":"ci","scopes":["read"],"expires_at":"2199-01-01T00:00:00Z"}`); status != 201 || !strings.HasPrefix(made.Key, "troupe_"+made.ID+"_") {
		t.Fatalf("%d %+v", status, made)
	}
	var list struct {
		Keys []key `json:"keys"`
	}
	status, _, body := d.do("GET", "/v1/keys", "", "Authorization", "Bearer "+made.Key)
	if status != 403 || !strings.Contains(body, "forbidden_scope") {
		t.Errorf("with a read key: %d %s", status, body)
	}
	if d.owner().doJSON(&list, "GET", "/v1/keys", ""); len(list.Keys) != 1 || list.Keys[0].ID != made.ID || list.Keys[0].Key != "" || list.Keys[0].Expires[:4] != "2199" || list.Keys[0].Name != "ci" {
		t.Errorf("%+v", list)
	}
	if status, _, body := d.do("GET", "/v1/runs", "", "Authorization", "Bearer "+made.Key); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	for body, field := range map[string]string{`{"scopes":[]}`: "scopes", `{"scopes":["root"]}`: "scopes", `{"scopes":["read"],"expires_at":"soon"}`: "expires_at", `{"scopes":["read"],"expires_at":"2700-01-01T00:00:00Z"}`: "expires_at",
		`{"scopes":["read"],"expires_at":"2001-01-01T00:00:00Z"}`: "expires_at", `{"scopes":["read"],"digest":"x"}`: "digest"} {
		if status, _, answer := d.owner().do("POST", "/v1/keys", body); status != 400 || !strings.Contains(answer, `"field":"`+field+`"`) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	if status, _, body := d.owner().do("POST", "/v1/keys", `{"scopes":["read"]}`, "Idempotency-Key", "k"); status != 400 || !strings.Contains(body, "shown once") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.owner().do("DELETE", "/v1/keys/"+made.ID, ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.do("GET", "/v1/runs", "", "Authorization", "Bearer "+made.Key); status != 401 {
		t.Errorf("with a revoked key: %d %s", status, body)
	}
	if status, _, body := d.owner().do("DELETE", "/v1/keys/"+made.ID, ""); status != 404 {
		t.Errorf("second revocation: %d %s", status, body)
	}
}

func TestMetrics(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x"}`)
	d.do("POST", "/v1/agents/nobody/messages", `{"content":"x"}`)
	s := d.openStream("POST", "/v1/agents/coordinator/messages", `{"content":"x"}`)
	s.readUntil("wait_opened")
	clients := func() int {
		stats, err := command.Find(t.Context(), d.server.node, actor.NewPrincipal("", ""), command.StatsQuery{})
		if err != nil {
			t.Fatal(err)
		}
		return stats.Clients
	}
	for began := time.Now(); clients() > 0 && time.Since(began) < 30*time.Second; { // the client gets its answer just before it is removed from the count
		goruntime.Gosched()
	}
	response, err := d.client.Get("http://" + d.address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, _ := io.ReadAll(response.Body)
	text := string(b)
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Error(response.Header)
	}
	for _, want := range []string{"troupe_streams_open 1\n", `troupe_runs_ended_total{status="DONE"} 2` + "\n", `troupe_mailbox_messages{cell="0"}`, `troupe_outstanding_calls{cell="0"}`,
		"troupe_clients_waiting 0\n", `troupe_ask_duration_seconds_count{kind="call"} 1` + "\n", `troupe_asks_under_way{kind="model"} 0` + "\n",
		`troupe_http_request_duration_seconds_count{route="POST /v1/agents/{id}/messages",status="4xx"} 1` + "\n", "go_goroutines "} {
		if !strings.Contains(text, want) {
			t.Errorf("missing metric %s", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if err != nil {
		t.Error(err)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Contains(line, m.Run) || strings.Contains(line, "helper/") {
			t.Errorf("a label contains an id: %s", line)
		}
	}
}

// Two agents have nothing but a name, and one calls the other.
func TestAgentCallsAgentByName(t *testing.T) {
	d := startGateway(t)
	for _, name := range []string{"assistant", "organizer"} {
		d.createAgent(name)
	}
	var m messageResponse
	status := d.doJSON(&m, "POST", "/v1/agents/organizer/messages", `{"content":"Ask the assistant agent what 2+2 is","session_id":"main"}`)
	if status != 200 || !strings.Contains(m.Content, "2+2") {
		t.Fatalf("%d %+v", status, m)
	}
	var record struct {
		Children []struct {
			Target string `json:"target"`
		} `json:"children"`
	}
	if d.doJSON(&record, "GET", "/v1/runs/"+m.Run, ""); len(record.Children) != 1 || record.Children[0].Target != actor.NewID("assistant", "").String() {
		t.Errorf("%+v", record)
	}
}

// Clients cannot create an agent with a name of the runtime's own agents. A session may have
// such a name.
func TestReservedNamesOfAgents(t *testing.T) {
	d := startGateway(t)
	for _, name := range []string{"troupe", "Troupe", "troupe.session", "TROUPE.x", "troupe."} {
		for path, body := range map[string]string{
			"/v1/agents":          `{"agent_id":"` + name + `"}`,
			"/v1/agents/register": `{"agent_id":"` + name + `","endpoint":"http://127.0.0.1:1"}`,
		} {
			status, _, answer := d.do("POST", path, body)
			if status != 400 || !strings.Contains(answer, `"field":"agent_id"`) || !strings.Contains(answer, "is reserved") || !strings.Contains(answer, "choose another name, such as") {
				t.Errorf("POST %s %s: %d %s", path, body, status, answer)
			}
		}
		if status, _, answer := d.do("POST", "/v1/agents", `{"agent_id":"x","name":"`+name+`"}`); status != 400 || !strings.Contains(answer, `"field":"name"`) {
			t.Errorf("name %s: %d %s", name, status, answer)
		}
		var m messageResponse
		if status := d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x","session_id":"`+name+`"}`); status != 200 || m.Session != name {
			t.Errorf("session %s: %d %+v", name, status, m)
		}
	}
	for _, name := range []string{"troupes", "troupe-session", "my.troupe"} {
		d.createAgent(name)
	}
}

// Another user cannot bring an agent back to life by its heartbeat.
func TestHeartbeatOfAnotherUser(t *testing.T) {
	keys := new(Keys)
	var all []ingress.Key
	text := map[string]string{}
	for i, user := range []string{"ann", "bob", "boss"} {
		scope := ingress.ScopeAgents
		if user == "boss" {
			scope = ingress.ScopeAdmin
		}
		key, secret, r := ingress.NewKey([ingress.KeyRandomBytes]byte{byte(i + 1)}, "", user, []ingress.Scope{scope}, 0, 0)
		if r != nil {
			t.Fatal(r)
		}
		all, text[user] = append(all, key), secret
	}
	keys.Set(all)
	d := startGatewayWith(t, Config{Keys: keys, KeysRequired: true})
	if status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"remote","endpoint":"http://127.0.0.1:1"}`, "Authorization", "Bearer "+text["ann"]); status != 201 {
		t.Fatal(status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"filed","endpoint":"http://127.0.0.1:1"}`, "Authorization", "Bearer "+text["boss"]); status != 201 {
		t.Fatal(status, body)
	}
	for agent, users := range map[string]map[string]int{"remote": {"ann": 200, "bob": 403, "boss": 200}, "filed": {"ann": 403, "bob": 403, "boss": 200}} {
		for user, want := range users {
			if status, _, body := d.do("POST", "/v1/agents/"+agent+":heartbeat", "", "Authorization", "Bearer "+text[user]); status != want || want == 403 && !strings.Contains(body, "belongs to ") {
				t.Errorf("%s of %s: %d %s", agent, user, status, body)
			}
		}
	}
	// Nor by a repeated registration.
	seen := func() string {
		_, _, body := d.do("GET", "/v1/agents/remote", "", "Authorization", "Bearer "+text["boss"])
		_, at, _ := strings.Cut(body, "last_heartbeat_at")
		return strings.SplitN(at, ",", 2)[0]
	}
	before := seen()
	if status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"remote","endpoint":"http://127.0.0.1:1"}`, "Authorization", "Bearer "+text["bob"]); status != 200 || seen() != before || before == "" {
		t.Errorf("registered by another user: %d %s; last heartbeat %s, before %s", status, body, seen(), before)
	}
	if status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"remote","endpoint":"http://127.0.0.1:1"}`, "Authorization", "Bearer "+text["ann"]); status != 200 || seen() == before {
		t.Errorf("registered by its owner: %d %s; last heartbeat %s", status, body, seen())
	}
}

// An orchestrator is created as other agents are, once the capabilities in its workflows exist, and names none of them.
func TestOrchestratorOverHTTP(t *testing.T) {
	d := startGateway(t)
	desk := `{"name":"desk","kind":"orchestrator","prompt":"on letter say {\"primary_intent\":\"letter\",\"intent_confidence\":1,\"workflow\":\"letter\"}",` +
		`"workflow":{"letter":{"description":"a letter","steps":[{"title":"Letter","capability":"DOC_WRITE"}]}}}`
	if status, _, body := d.do("POST", "/v1/agents", desk); status != 400 || !strings.Contains(body, "no agent provides DOC_WRITE") || !strings.Contains(body, `"field":"workflow.letter"`) {
		t.Errorf("got %d %s", status, body)
	}
	for _, agent := range []string{`{"name":"writer","code":"DOC","prompt":"on DOC_WRITE say DOC has done DOC_WRITE","provides":[{"code":"DOC_WRITE","description":"d","user_text":"the letter"}]}`, desk} {
		if status, _, body := d.do("POST", "/v1/agents", agent); status != 201 {
			t.Fatalf("got %d %s", status, body)
		}
	}
	if _, _, body := d.do("GET", "/v1/agents", ""); !strings.Contains(body, `"kind":"orchestrator"`) {
		t.Errorf("got %s", body)
	}
	if status, _, body := d.do("POST", "/v1/agents/desk/messages", `{"content":"a letter"}`); status != 200 || !strings.Contains(body, `"content":"Letter: a specialist has done the letter. Confidence: medium."`) {
		t.Errorf("got %d %s", status, body)
	}
}
