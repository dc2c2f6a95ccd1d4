// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// invocation holds the headers of a request to an external agent.
type invocation struct{ run, token, trace string }

// externalService is an external agent whose requests wait until the test answers them.
type externalService struct {
	*testGateway
	invoked chan invocation
	answers chan string // a test sends the answer of the oldest request
}

func newExternalService(d *testGateway, name string, headers ...string) *externalService {
	d.Helper()
	s := &externalService{d, make(chan invocation, 8), make(chan string)}
	ended := make(chan struct{})
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/invoke" {
			return // health poll
		}
		in := invocation{r.Header.Get("x-run-id"), r.Header.Get(RunToken), r.Header.Get("traceparent")}
		s.invoked <- in
		select {
		case text := <-s.answers:
			w.Header().Set("Content-Type", ingress.EventStream)
			b := runs.Frame{Name: "delta", Data: fmt.Sprintf(`{"text":%q,"run_id":%q}`, text, in.run)}.Append(nil)
			_, _ = w.Write(runs.Frame{Name: "done", Data: `{}`}.Append(b))
		case <-ended:
		}
	}))
	d.Cleanup(served.Close)
	d.Cleanup(func() { close(ended) })
	if status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"`+name+`","endpoint":"`+served.URL+`"}`, headers...); status != 201 {
		d.Fatalf("%d %s", status, body)
	}
	return s
}

// begin sends the service a message and returns its invocation.
func (s *externalService) begin(agent, body string, headers ...string) invocation {
	s.Helper()
	stream := s.openStream("POST", "/v1/agents/"+agent+"/messages", body, headers...)
	s.Cleanup(func() { _ = stream.response.Body.Close() })
	return <-s.invoked
}

// runResponse holds the place of a run in its tree.
type runResponse struct {
	Run      string   `json:"run_id"`
	Root     string   `json:"root_run_id"`
	Parent   string   `json:"parent_run_id"`
	Depth    int      `json:"call_depth"`
	Chain    []string `json:"call_chain"`
	Priority string   `json:"priority"`
	Project  string   `json:"project_id"`
	Left     int64    `json:"time_left_ms"`
	Trace    string   `json:"trace_id"`
	Claimed  string   `json:"claimed_run_id"`
	Status   string   `json:"status"`
}

const rootTrace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"

// A message with the token of a run, in either header, is a call of that run.
func TestMessageWithRunTokenJoinsTree(t *testing.T) {
	d := startGateway(t)
	inner := newExternalService(d, "inner")
	outer := newExternalService(d, "outer")
	in := outer.begin("outer", `{"content":"x","session_id":"s-7","timeout_ms":20000,"priority":"low","project_id":"p-1"}`, "traceparent", rootTrace)
	for name, headers := range map[string][]string{
		"token":  {RunToken, in.token},
		"bearer": {"Authorization", "Bearer " + in.token},
	} {
		answered := make(chan messageResponse, 1)
		go func() {
			var m messageResponse
			d.doJSON(&m, "POST", "/v1/agents/inner/messages", `{"content":"y","timeout_ms":300000,"priority":"high"}`, append(headers, "traceparent", strings.Replace(rootTrace, "0", "f", 1))...)
			answered <- m
		}()
		below := <-inner.invoked
		inner.answers <- "done " + name
		m := <-answered
		if m.Content != "done "+name || m.Run != below.run || m.Agent != "inner" || m.Session != "s-7" {
			t.Errorf("%s: %+v", name, m)
		}
		if below.trace != rootTrace {
			t.Errorf("%s: got traceparent %s, want that of the root", name, below.trace)
		}
		var run runResponse
		d.doJSON(&run, "GET", "/v1/runs/"+m.Run, "")
		if left := run.Left; run.Root != in.run || run.Parent != in.run || run.Depth != 1 || !slices.Equal(run.Chain, []string{"outer/s-7"}) ||
			run.Priority != "low" || run.Project != "p-1" || left > 20000 || left == 0 {
			t.Errorf("%s: %+v", name, run)
		}
	}
	// A call into the own chain is a cycle, whichever way it takes.
	if status, _, body := d.do("POST", "/v1/agents/outer/messages", `{"content":"y"}`, RunToken, in.token); status != 409 || !strings.Contains(body, `"call_cycle"`) {
		t.Errorf("call of the own agent: %d %s", status, body)
	}
}

// The number of calls between agents is limited also if each one leaves the platform
// and enters it again as a message.
func TestMessageWithRunTokenCountsDepth(t *testing.T) {
	d := startGateway(t)
	const deepest = 5 // docs/api.md
	services := make([]*externalService, deepest+2)
	for i := range services {
		services[i] = newExternalService(d, fmt.Sprint("agent-", i))
	}
	in := services[0].begin("agent-0", `{"content":"x"}`)
	var calls sync.WaitGroup
	for i := 1; i <= deepest; i++ {
		token := in.token
		calls.Go(func() {
			d.do("POST", fmt.Sprintf("/v1/agents/agent-%d/messages", i), `{"content":"x"}`, RunToken, token)
		})
		in = <-services[i].invoked
	}
	status, _, body := d.do("POST", fmt.Sprintf("/v1/agents/agent-%d/messages", deepest+1), `{"content":"x"}`, RunToken, in.token)
	if status != 409 || !strings.Contains(body, `"call_depth"`) {
		t.Errorf("%d %s", status, body)
	}
	for i := deepest; i >= 0; i-- {
		services[i].answers <- "done"
	}
	calls.Wait()
}

// A key repeats the call of a run, on both routes, and never starts another run.
func TestMessageWithRunTokenIsIdempotent(t *testing.T) {
	count := 0
	d := startGateway(t, agents.Define("counter", "1", "", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		count++
		return fmt.Sprint(count), nil
	}))))
	in := newExternalService(d, "outer").begin("outer", `{"content":"x"}`)
	const path, body = "/v1/agents/counter/messages", `{"content":"y"}`
	headers := []string{RunToken, in.token, ingress.IdempotencyKey, "k"}
	var first messageResponse
	d.doJSON(&first, "POST", path, body, headers...)
	for _, other := range []string{path, "/v1/agents/counter:invoke"} {
		var again messageResponse
		if d.doJSON(&again, "POST", other, body, headers...); again != first || again.Content != "1" {
			t.Errorf("%s: got %+v, want %+v", other, again, first)
		}
	}
	if status, _, answer := d.do("POST", path, `{"content":"z"}`, headers...); status != 422 {
		t.Errorf("same key with another body: %d %s", status, answer)
	}
	if count != 1 {
		t.Errorf("got %d turns, want 1", count)
	}
}

// A message whose run token is wrong, or of a run that ended, is refused. It never
// becomes the root of another tree, whatever else authorizes the request.
func TestMessageWithBadRunTokenIsRefused(t *testing.T) {
	d := startGateway(t)
	outer := newExternalService(d, "outer")
	in, other := outer.begin("outer", `{"content":"x"}`), outer.begin("outer", `{"content":"x","session_id":"s-2"}`)
	list := func() string {
		_, _, body := d.do("GET", "/v1/runs?limit=200", "")
		return body
	}
	before := list()
	claim, _, _ := strings.Cut(in.token[len("troupe-run."):], ".")
	forged := "troupe-run." + claim + other.token[strings.LastIndexByte(other.token, '.'):] // this run, the signature of another
	const path, body = "/v1/agents/helper/messages", `{"content":"y"}`
	for name, c := range map[string]struct {
		headers []string
		body    string
		want    int
		code    string
	}{
		"truncated token":        {[]string{RunToken, in.token[:len(in.token)-1]}, body, 401, "unauthorized"},
		"truncated bearer token": {[]string{"Authorization", "Bearer " + in.token[:len(in.token)-1]}, body, 401, "unauthorized"},
		"empty token":            {[]string{RunToken, ""}, body, 401, "unauthorized"},
		"forged token":           {[]string{RunToken, forged}, body, 401, "unauthorized"},
		"run ID as token":        {[]string{RunToken, in.run}, body, 401, "unauthorized"},
		"project of its own":     {[]string{RunToken, in.token}, `{"content":"y","project_id":"p"}`, 400, "invalid_request"},
		"stream":                 {[]string{RunToken, in.token, "Accept", ingress.EventStream}, body, 406, "invalid_request"},
	} {
		status, _, answer := d.do("POST", path, c.body, c.headers...)
		if status != c.want || !strings.Contains(answer, `"code":"`+c.code+`"`) {
			t.Errorf("%s: %d %s", name, status, answer)
		}
		if status, _, answer := d.owner().do("POST", path, c.body, c.headers...); status != c.want {
			t.Errorf("%s, by the owner: %d %s", name, status, answer)
		}
	}
	if after := list(); after != before {
		t.Errorf("got runs %s, want %s", after, before)
	}
	outer.answers <- "done"
	outer.answers <- "done"
	for _, run := range []string{in.run, other.run} {
		d.openStream("GET", "/v1/runs/"+run+"/events", "").readUntil("run_done")
	}
	before = list()
	if status, _, answer := d.do("POST", path, body, RunToken, in.token); status != 404 || !strings.Contains(answer, "no open run") {
		t.Errorf("token of an ended run: %d %s", status, answer)
	}
	if after := list(); after != before {
		t.Errorf("ended run: got runs %s, want %s", after, before)
	}
}

// A message that only names a run or its trace begins a tree of its own. It shows the
// claim, which gives it neither the chain nor the limits of that run.
func TestMessageWithoutRunTokenShowsClaim(t *testing.T) {
	d := startGateway(t)
	outer := newExternalService(d, "outer")
	in := outer.begin("outer", `{"content":"x","session_id":"s-7","priority":"low","project_id":"p-1"}`, "traceparent", rootTrace)
	for name, c := range map[string]struct {
		headers        []string
		trace, claimed string
	}{
		"run":     {[]string{"x-run-id", in.run}, "", in.run},
		"trace":   {[]string{"traceparent", in.trace}, rootTrace[3:35], ""},
		"both":    {[]string{"x-run-id", in.run, "traceparent", in.trace}, rootTrace[3:35], in.run},
		"neither": {nil, "", ""},
		"foreign": {[]string{"x-run-id", "job 7", "traceparent", "job 7"}, "", ""},
	} {
		var m messageResponse
		if status := d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"y"}`, c.headers...); status != 200 {
			t.Fatalf("%s: %d %+v", name, status, m)
		}
		var run runResponse
		d.doJSON(&run, "GET", "/v1/runs/"+m.Run, "")
		if run.Root != m.Run || run.Parent != "" || run.Depth != 0 || len(run.Chain) > 0 || run.Priority != "normal" || run.Project != "" {
			t.Errorf("%s: got %+v, want a root of its own", name, run)
		}
		if run.Trace != c.trace || run.Claimed != c.claimed {
			t.Errorf("%s: got trace %q, claimed run %q, want %q, %q", name, run.Trace, run.Claimed, c.trace, c.claimed)
		}
		s := d.openStream("GET", "/v1/runs/"+m.Run+"/events", "")
		if e, err := runs.Decode([]byte(s.readUntil("user_input").Data)); err != nil || e.Trace != run.Trace || e.Claimed.IsZero() != (c.claimed == "") {
			t.Errorf("%s: got %+v, %v", name, e, err)
		}
		s.readUntil("")
	}
}

// A run token calls agents in the session of its run only.
func TestRunTokenNamesItsSessionOnly(t *testing.T) {
	d := startGateway(t)
	service := newExternalService(d, "outer")
	in := service.begin("outer", `{"content":"x","session_id":"s-7"}`)
	for target, body := range map[string]string{
		"/v1/agents/helper:invoke":         `{"message":{"content":"y"},"session_id":"s-8"}`,
		"/v1/agents/helper/messages":       `{"content":"y","session_id":"s-8"}`,
		"/v1/agents/helper%2Fs-8:invoke":   `{"content":"y"}`,
		"/v1/agents/helper%2Fs-8/messages": `{"content":"y"}`,
	} {
		if status, _, answer := d.do("POST", target, body, RunToken, in.token); status/100 != 4 {
			t.Errorf("%s: %d %s", target, status, answer)
		}
	}
	if status, _, answer := d.do("POST", "/v1/agents/helper:invoke", `{"content":"y","session_id":"s-7"}`, RunToken, in.token); status != 200 {
		t.Errorf("own session: %d %s", status, answer)
	}
	if status, _, answer := d.do("GET", "/v1/sessions/s-8", ""); status != 404 {
		t.Errorf("a session has begun: %d %s", status, answer)
	}
}

// A tool, model or agent at the address of the server begins no run there: the run would have no
// limits of its caller. Requests of other servers do.
func TestRequestOfTheServerItselfBeginsNoRun(t *testing.T) {
	d := startGatewayWith(t, Config{}, newBuyer())
	key := d.newUser(`"user":"alice","scopes":["call","read","agents"]`).key
	for name, tool := range map[string]string{
		"message": `/v1/agents/helper/messages","body":{"content":"x"}`,
		"chat":    `/v1/openai/chat/completions","body":{"model":"helper","messages":[{"role":"user","content":"x"}]}`,
	} {
		if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"`+name+`","on_failure":"return_error","headers":{"authorization":{"value":"Bearer `+key+`"}},"url":"http://`+d.address+tool+`}`); status != 201 {
			t.Fatal(status, body)
		}
		if status, _, body := d.do("POST", "/v1/agents/buyer/messages", `{"content":"`+name+` {}"}`); !strings.Contains(body, "it begins no run") {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if status, _, body := d.do("GET", "/v1/runs?user=alice", ""); strings.Contains(body, `"run_id"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/helper/messages", `{"content":"x"}`, "X-Troupe-Egress", "1"); status != 200 {
		t.Errorf("another server: %d %s", status, body)
	}
}

// A key that speaks for users is not the owner of their agents: it neither makes, changes nor
// deletes agents as a user that it names, nor works on runs of that user's agents.
func TestKeyForUsersIsNoOwner(t *testing.T) {
	d := startGateway(t)
	service := newExternalService(d, "outside")
	const scopes = `"scopes":["call","read","agents"]`
	alice, bot := d.newUser(`"user":"alice",`+scopes), d.newUser(`"user":"bot","act_as_user":true,`+scopes)
	_, _, registered := d.do("GET", "/v1/agents/outside", "")
	_, endpoint, _ := strings.Cut(registered, `"endpoint":"`)
	endpoint, _, _ = strings.Cut(endpoint, `"`)
	if status, body := alice.do("POST", "/v1/agents/register", `{"agent_id":"hers","endpoint":"`+endpoint+`"}`); status != 201 {
		t.Fatal(status, body)
	}
	in := service.begin("hers", `{"content":"x"}`, userHeader, "alice")
	for request, body := range map[string]string{
		"POST /v1/agents":                `{"agent_id":"as-alice"}`,
		"POST /v1/agents/register":       `{"agent_id":"hers","endpoint":"` + endpoint + `/other"}`,
		"DELETE /v1/agents/hers":         ``,
		"POST /v1/agents/hers:heartbeat": ``,
		"POST /v1/agents/helper:invoke":  `{"content":"y"}`,
		"POST /v1/tools/pay:invoke":      `{"args":{}}`,
		"POST /v1/chat/completions":      `{"model":"scripted","messages":[{"role":"user","content":"x"}]}`,
	} {
		method, path, _ := strings.Cut(request, " ")
		headers := []string{userHeader, "alice"}
		want := 403
		if !strings.Contains(path, "/agents/hers") && !strings.HasPrefix(path, "/v1/agents/register") && path != "/v1/agents" {
			headers, want = append(headers, runHeader, in.run), 404
		}
		if status, answer := bot.do(method, path, body, headers...); status != want {
			t.Errorf("%s: %d %s, want %d", request, status, answer, want)
		}
	}
	// Nor does the owner name another user than that of the run. Each route answers alike.
	for path, body := range map[string]string{"/v1/agents/helper:invoke": `{"content":"y"}`, "/v1/tools/pay:invoke": `{"args":{}}`,
		"/v1/chat/completions": `{"model":"scripted","messages":[{"role":"user","content":"x"}]}`} {
		if status, answer := alice.do("POST", path, body, userHeader, "bob", runHeader, in.run); status != 404 || !strings.Contains(answer, "run_not_found") {
			t.Errorf("%s for another user: %d %s", path, status, answer)
		}
	}
	if status, answer := alice.do("POST", "/v1/chat/completions", `{"model":"scripted","messages":[{"role":"user","content":"x"}]}`, userHeader, "alice", runHeader, in.run); status != 200 {
		t.Errorf("owner: %d %s", status, answer)
	}
}

// The token of a run that has ended reaches nothing, neither the conversation nor the contexts.
func TestTokenOfEndedRunIsRefused(t *testing.T) {
	d := startGateway(t)
	outer := newExternalService(d, "outer")
	in := outer.begin("outer", `{"content":"x","session_id":"s-7"}`)
	var c contextResponse
	if status := d.doJSON(&c, "POST", "/v1/context", `{"data":{}}`, RunToken, in.token); status != 201 {
		t.Fatalf("%d %+v", status, c)
	}
	requests := []struct{ method, path, body string }{
		{"GET", "/v1/sessions/s-7/messages", ""},
		{"GET", "/v1/context/" + c.Key, ""},
		{"PUT", "/v1/context/" + c.Key, `{"data":{}}`},
		{"POST", "/v1/context", `{"data":{}}`},
		{"DELETE", "/v1/context/" + c.Key, ""},
	}
	for _, r := range requests[:4] {
		if status, _, answer := d.do(r.method, r.path, r.body, RunToken, in.token); status >= 300 {
			t.Errorf("%s %s of an open run: %d %s", r.method, r.path, status, answer)
		}
	}
	outer.answers <- "done"
	d.openStream("GET", "/v1/runs/"+in.run+"/events", "").readUntil("run_done")
	for _, r := range requests {
		status, _, answer := d.do(r.method, r.path, r.body, RunToken, in.token)
		if status != 404 || !strings.Contains(answer, `"code":"run_not_found"`) || !strings.Contains(answer, "no longer valid") {
			t.Errorf("%s %s: %d %s, want 404", r.method, r.path, status, answer)
		}
	}
}
