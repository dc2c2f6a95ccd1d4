// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// Paths of the OpenAI API.
const (
	completionsRoute = "/v1/chat/completions"
	modelsRoute      = "/v1/models"
)

const chatBody = `{"model":"scripted","messages":[{"role":"user","content":"hi there"}]}`

// openAIError is an error in the form of the OpenAI API.
type openAIError struct {
	Error struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Param   string `json:"param"`
		Code    string `json:"code"`
	} `json:"error"`
}

// modelEvents returns the events of a run about requests to models, as JSON.
func (d *testGateway) modelEvents(run string) (all []map[string]any) {
	d.Helper()
	var page struct {
		Events []map[string]any `json:"events"`
	}
	if status := d.doJSON(&page, "GET", "/v1/runs/"+run+"/events?limit=100", ""); status != 200 {
		d.Fatalf("%d %v", status, page)
	}
	for _, e := range page.Events {
		if strings.HasPrefix(e["type"].(string), "llm_call_") {
			all = append(all, e["payload"].(map[string]any))
		}
	}
	return all
}

// A request of an agent during a run is recorded there: before the model is asked, and before
// the agent reads the end of the answer.
func TestCompletionIsRecordedInRun(t *testing.T) {
	d := startGateway(t)
	service := newExternalService(d, "outside")
	in := service.begin("outside", `{"content":"x"}`)
	for i, c := range []struct {
		body    string
		headers []string
		want    string
	}{
		{chatBody, []string{"Authorization", "Bearer " + in.token}, `"content":"You said: hi there"`},
		{strings.Replace(chatBody, "{", `{"stream":true,`, 1), []string{RunToken, in.token}, "data: [DONE]\n\n"},
		{chatBody, []string{runHeader, in.run, requestIDHeader, "mine"}, `"finish_reason":"stop"`},
	} {
		status, head, body := d.do("POST", completionsRoute, c.body, c.headers...)
		if status != 200 || !strings.Contains(body, c.want) || head.Get(requestIDHeader) == "" {
			t.Fatalf("%v: %d %v %s", c.headers, status, head, body)
		}
		events := d.modelEvents(in.run)
		if len(events) != 2*i+2 {
			t.Fatalf("%v: got events %v", c.headers, events)
		}
		began, done := events[2*i], events[2*i+1]
		tokens := fmt.Sprint(done["usage"].(map[string]any)["total_tokens"])
		if id := head.Get(requestIDHeader); began["request_id"] != id || began["name"] != "scripted" || tokens != "7" || strings.Contains(fmt.Sprint(events), "hi there") {
			t.Errorf("%s: got events %v", id, events)
		}
	}
	if got := d.modelEvents(in.run)[4]["request_id"]; got != "mine" {
		t.Errorf("got request %v, want that of the client", got)
	}
	var metrics string
	if _, _, metrics = d.do("GET", "/metrics", ""); !strings.Contains(metrics, `troupe_model_tokens_total{direction="input",model="scripted"} 6`) || !strings.Contains(metrics, `troupe_agent_tokens_total{agent="outside",direction="input"} 6`) {
		t.Errorf("got metrics %s", metrics)
	}
	service.answers <- "done"
	d.waitForEnd(in.run)
	var out openAIError
	for _, headers := range [][]string{{"Authorization", "Bearer " + in.token}, {runHeader, in.run}} {
		if status := d.doJSON(&out, "POST", completionsRoute, chatBody, headers...); status != 404 || out.Error.Code != "run_not_found" {
			t.Errorf("%v: %d %+v after the end of the run", headers, status, out)
		}
	}
}

// A request with a key alone belongs to the only run on which agents of the key's user work.
func TestCompletionOfOnlyRun(t *testing.T) {
	d := startGateway(t)
	mine, other := d.newUser(`"user":"maker","scopes":["agents","call","read"]`), d.newUser(`"user":"other","scopes":["agents","call","read"]`)
	names := d.newUser(`"user":"proxy","act_as_user":true,"scopes":["agents","call"]`)
	key := []string{"Authorization", "Bearer " + mine.key}
	service := newExternalService(d, "outside", key...)
	newExternalService(d, "theirs", "Authorization", "Bearer "+other.key)
	ask := func(run, body string, headers ...string) {
		t.Helper()
		status, head, answer := d.do("POST", completionsRoute, body, headers...)
		if status != 200 || head.Get(runHeader) != run || !strings.Contains(answer, "hi the") {
			t.Errorf("%v: %d %v %s, want run %q", headers, status, head, answer, run)
		}
	}
	recorded := func(in invocation, want int) {
		t.Helper()
		if events := d.modelEvents(in.run); len(events) != 2*want {
			t.Errorf("got %v in run %s, want %d requests", events, in.run, want)
		}
	}
	ask("", chatBody, key...)
	first := service.begin("outside", `{"content":"x"}`)
	ask(first.run, chatBody, key...)
	ask(first.run, strings.Replace(chatBody, "{", `{"stream":true,`, 1), key...)
	recorded(first, 2)
	ask("", chatBody, "Authorization", "Bearer "+other.key)
	ask("", chatBody, "Authorization", "Bearer "+names.key, userHeader, "maker")
	second := service.begin("outside", `{"content":"x"}`, userHeader, "alice")
	ask("", chatBody, key...)
	ask(second.run, chatBody, append([]string{runHeader, second.run}, key...)...)
	recorded(first, 2)
	service.answers <- "done"
	service.answers <- "done"
	d.waitForEnd(first.run)
	ask("", chatBody, key...)
}

// waitForEnd waits until a run has ended.
func (d *testGateway) waitForEnd(run string) {
	d.Helper()
	if status, _, body := d.do("GET", "/v1/runs/"+run+"/events?wait_ms=20000&after=1000", ""); status >= 500 {
		d.Fatalf("%d %s", status, body)
	}
	var out runResponse
	for range 200 {
		if d.doJSON(&out, "GET", "/v1/runs/"+run, ""); out.Status == "DONE" {
			return
		}
		_, _, _ = d.do("GET", "/v1/runs/"+run+"/events?wait_ms=100&after=900", "")
	}
	d.Fatalf("the run is %s", out.Status)
}

// Errors have the form of the OpenAI API, also those before the route.
func TestCompletionErrors(t *testing.T) {
	d := startGateway(t)
	service := newExternalService(d, "outside")
	in, other := service.begin("outside", `{"content":"x"}`), service.begin("outside", `{"content":"x"}`)
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		kind, param, code        string
	}{
		{"an unknown model", "POST", completionsRoute, strings.Replace(chatBody, "scripted", "other", 1), nil, 404, "invalid_request_error", "model", "model_not_found"},
		{"no messages", "POST", completionsRoute, `{"model":"scripted"}`, nil, 400, "invalid_request_error", "messages", "invalid_request"},
		{"not JSON", "POST", completionsRoute, `{`, nil, 400, "invalid_request_error", "", "invalid_request"},
		{"another media type", "POST", completionsRoute, `x`, []string{"Content-Type", "text/plain"}, 415, "invalid_request_error", "Content-Type", "invalid_request"},
		{"a parameter", "POST", completionsRoute + "?x=1", chatBody, nil, 400, "invalid_request_error", "x", "invalid_request"},
		{"a wrong key", "POST", completionsRoute, chatBody, []string{"Authorization", "Bearer troupe_wrong"}, 401, "authentication_error", "", "unauthorized"},
		{"a wrong token", "POST", completionsRoute, chatBody, []string{RunToken, "troupe_run_wrong"}, 401, "authentication_error", "", "unauthorized"},
		{"no run", "POST", completionsRoute, chatBody, []string{runHeader, "x"}, 400, "invalid_request_error", runHeader, "invalid_request"},
		{"a token and another run", "POST", completionsRoute, chatBody, []string{RunToken, in.token, runHeader, other.run}, 403, "permission_error", runHeader, "forbidden_run"},
		{"an unknown model of the list", "GET", modelsRoute + "/other", "", nil, 404, "invalid_request_error", "model", "model_not_found"},
		{"another part of the API", "POST", "/v1/responses", chatBody, nil, 404, "invalid_request_error", "", "not_found"},
		{"a base URL without /v1", "POST", "/chat/completions", chatBody, nil, 404, "invalid_request_error", "", "not_found"},
		{"a base URL with /v1 twice", "POST", "/v1" + completionsRoute, chatBody, nil, 404, "invalid_request_error", "", "not_found"},
		{"no such method", "PUT", completionsRoute, chatBody, nil, 405, "invalid_request_error", "", "method_not_allowed"},
	} {
		var out openAIError
		status := d.doJSON(&out, c.method, c.path, c.body, c.headers...)
		if e := out.Error; status != c.status || e.Type != c.kind || e.Param != c.param || e.Code != c.code || e.Message == "" {
			t.Errorf("%s: %d %+v", c.name, status, out)
		}
	}
	if events := d.modelEvents(in.run); len(events) != 0 {
		t.Errorf("refused requests were recorded: %v", events)
	}
	if status, _, body := d.do("GET", modelsRoute, "", "Authorization", "Bearer sk-unused"); status != 200 || body != `{"object":"list","data":[{"id":"scripted","object":"model","created":0,"owned_by":"troupe"}]}` {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.do("GET", modelsRoute+"/scripted", ""); status != 200 || !strings.Contains(body, `"id":"scripted"`) {
		t.Errorf("%d %s", status, body)
	}
}

// A request for a run to a model that the server does not have is recorded there with its error.
func TestCompletionOfUnknownModelIsRecorded(t *testing.T) {
	d := startGateway(t)
	service := newExternalService(d, "outside")
	in := service.begin("outside", `{"content":"x"}`)
	for i, c := range []struct{ model, shown, code string }{
		{"other", "other", "model_not_found"}, {"vendor/m-1", "vendor/m-1", "invalid_request"}, {strings.Repeat("é", 100), strings.Repeat("é", 38) + "…", "invalid_request"}, // no names of models
	} {
		for j, stream := range []string{"{", `{"stream":true,`} {
			var out openAIError
			status := d.doJSON(&out, "POST", completionsRoute, strings.Replace(strings.Replace(chatBody, "scripted", c.model, 1), "{", stream, 1), RunToken, in.token)
			if e := out.Error; status != 404 || e.Type != "invalid_request_error" || e.Param != "model" || e.Code != "model_not_found" || !strings.Contains(e.Message, "want one of scripted") {
				t.Errorf("%s: %d %+v", c.shown, status, out)
			}
			events := d.modelEvents(in.run)
			if at := 4*i + 2*j; len(events) != at+2 || events[at]["name"] != c.shown || events[at]["request_id"] == "" ||
				events[at+1]["error"].(map[string]any)["code"] != c.code {
				t.Fatalf("%s: got events %v", c.shown, events)
			}
		}
	}
	if status, _, body := d.do("POST", completionsRoute, chatBody, RunToken, in.token); status != 200 {
		t.Errorf("the next request: %d %s", status, body)
	}
	service.answers <- "done"
	d.waitForEnd(in.run)
}

// A run without events records no request, so it cannot send one.
func TestCompletionOfVolatileAgent(t *testing.T) {
	d := startGateway(t)
	tokens, ended := make(chan string, 1), make(chan struct{})
	served := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/invoke" {
			_, _ = io.Copy(io.Discard, r.Body) // a server sees that its client left behind the body only
			select {
			case tokens <- r.Header.Get(RunToken):
			default: // a second attempt
			}
			select {
			case <-r.Context().Done():
			case <-ended:
			}
		}
	}))
	end := sync.OnceFunc(func() { close(ended) })
	t.Cleanup(served.Close)
	t.Cleanup(end)
	if status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"quick","endpoint":"`+served.URL+`","durability":"none"}`); status != 201 {
		t.Fatal(status, body)
	}
	answered := make(chan string, 1)
	go func() {
		var body string
		defer func() { answered <- body }() // also if the request fails
		_, _, body = d.do("POST", "/v1/agents/quick/messages", `{"content":"x"}`)
	}()
	var token string
	select {
	case token = <-tokens:
	case body := <-answered:
		t.Fatal(body)
	}
	var out openAIError
	if status := d.doJSON(&out, "POST", completionsRoute, chatBody, RunToken, token); status != 403 || out.Error.Code != "call_rejected" || !strings.Contains(out.Error.Message, "durability none") {
		t.Errorf("%d %+v", status, out)
	}
	end()
	<-answered
}

// The tokens that an agent claims count unless its requests to models are counted.
func TestClaimedTokensCountOnce(t *testing.T) {
	d := startGateway(t)
	asks := true // the first invocation asks a model
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/invoke" {
			return
		}
		if asks {
			if status, _, body := d.do("POST", completionsRoute, chatBody, RunToken, r.Header.Get(RunToken)); status != 200 {
				t.Errorf("%d %s", status, body)
			}
		}
		asks = false
		w.Header().Set("Content-Type", ingress.EventStream)
		_, _ = io.WriteString(w, "event: delta\ndata: {\"text\":\"x\"}\n\nevent: done\ndata: {\"usage\":{\"input_tokens\":1000,\"output_tokens\":100}}\n\n")
	}))
	t.Cleanup(served.Close)
	if status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"outside","endpoint":"`+served.URL+`"}`); status != 201 {
		t.Fatal(status, body)
	}
	for _, want := range []string{`"input_tokens":2,"output_tokens":5,"total_tokens":7`, `"input_tokens":1000,"output_tokens":100,"total_tokens":1100`} {
		if status, _, body := d.do("POST", "/v1/agents/outside/messages", `{"content":"x"}`); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%d %s, want %s", status, body, want)
		}
	}
	if _, _, metrics := d.do("GET", "/metrics", ""); !strings.Contains(metrics, `troupe_agent_tokens_total{agent="outside",direction="input"} 1002`) || !strings.Contains(metrics, `troupe_agent_tokens_total{agent="outside",direction="output"} 105`) {
		t.Errorf("got metrics %s", metrics)
	}
}

// A request to a model may be longer than others: it has a whole conversation.
func TestLongCompletion(t *testing.T) {
	d := startGateway(t)
	long := func(n int) string {
		return `{"model":"scripted","messages":[{"role":"user","content":"` + strings.Repeat("x", n-len(`{"model":"scripted","messages":[{"role":"user","content":""}]}`)) + `"}]}`
	}
	if status, _, body := d.do("POST", completionsRoute, long(ChatBytesMax)); status != 200 {
		t.Errorf("%d %.200s", status, body)
	}
	var out openAIError
	if status := d.doJSON(&out, "POST", completionsRoute, long(ChatBytesMax+1)); status != 413 || !strings.Contains(out.Error.Message, "8388608") {
		t.Errorf("%d %+v", status, out)
	}
	if status, _, _ := d.do("POST", "/v1/agents/helper/messages", long(BodyBytesMax+1)); status != 413 {
		t.Errorf("another request: %d", status)
	}
}

// scriptedNode answers requests to models with prepared parts.
type scriptedNode struct {
	command.Node
	parts     chan command.ChatPart
	cancelled chan struct{}
}

// A client that leaves cancels its request at the model. A stream that fails ends with an
// error, without [DONE].
func TestCompletionStream(t *testing.T) {
	d := startGateway(t)
	node := &scriptedNode{d.server.node, make(chan command.ChatPart, 4), make(chan struct{}, 4)}
	other := d.serve(New(node, d.server.log, d.server.config), func(l net.Listener) net.Listener { return l })
	body := strings.Replace(chatBody, "{", `{"stream":true,`, 1)
	event := []byte("data: {\"choices\":[]}\n\n")

	node.parts <- command.ChatPart{Bytes: event}
	left := other.openStream("POST", completionsRoute, body)
	if line, err := bufio.NewReader(left.response.Body).ReadString('\n'); err != nil || left.response.Header.Get("Content-Type") != ingress.EventStream+"; charset=utf-8" {
		t.Fatal(line, err, left.response.Header)
	}
	_ = left.response.Body.Close()
	select {
	case <-node.cancelled:
	case <-time.After(20 * time.Second):
		t.Fatal("the request was not cancelled")
	}

	// The reader of that request may still wait for a part.
	node = &scriptedNode{d.server.node, make(chan command.ChatPart, 4), make(chan struct{}, 4)}
	other = d.serve(New(node, d.server.log, d.server.config), func(l net.Listener) net.Listener { return l })
	node.parts <- command.ChatPart{Last: true, Refusal: actor.Refuse(actor.ModelAuth, "wrong key"), Status: 401, Code: "invalid_api_key"}
	if status, head, text := other.do("POST", completionsRoute, body); status != 502 || head.Get("X-Should-Retry") != "false" || !strings.Contains(text, `"code":"model_auth"`) {
		t.Errorf("a rejected key: %d %v %s", status, head, text)
	}
	node.parts <- command.ChatPart{Last: true, Refusal: actor.RefuseUnavailable(time.Second, "down"), Status: 503}
	if status, head, text := other.do("POST", completionsRoute, body); status != 503 || head.Get("X-Should-Retry") != "" || head.Get("Retry-After") != "1" {
		t.Errorf("a model that is down: %d %v %s", status, head, text)
	}

	node.parts <- command.ChatPart{Bytes: event}
	node.parts <- command.ChatPart{}
	node.parts <- command.ChatPart{Last: true, Refusal: modelDown, Status: 429, Code: "rate_limit_exceeded"}
	failed := other.openStream("POST", completionsRoute, body)
	defer failed.response.Body.Close()
	got, err := io.ReadAll(failed.response.Body)
	if want := string(event) + ": ping\ndata: {\"error\":{\"message\":\"down\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}\n\n"; err != nil || string(got) != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}

// A request names one run, and an ID that a header may have.
func TestCompletionHeaders(t *testing.T) {
	d := startGateway(t)
	service := newExternalService(d, "outside")
	run, other := service.begin("outside", `{"content":"x"}`).run, service.begin("outside", `{"content":"x"}`).run
	for name, c := range map[string]struct {
		headers []string
		status  int
	}{
		"two runs":         {[]string{runHeader + ": " + run, runHeader + ": " + other}, 400},
		"the same run":     {[]string{runHeader + ": " + run, runHeader + ": " + run}, 400},
		"an ID with space": {[]string{requestIDHeader + ": a b"}, 200},
		"a printable ID":   {[]string{requestIDHeader + ": mine"}, 200},
	} {
		conn, err := net.Dial("tcp", d.address)
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n\r\n%s", completionsRoute, d.address, len(chatBody), strings.Join(c.headers, "\r\n"), chatBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(name, err)
		}
		id := response.Header.Get(requestIDHeader)
		if response.StatusCode != c.status || strings.Contains(id, " ") || (id == "mine") != (name == "a printable ID") {
			t.Errorf("%s: %d with the ID %q, want %d", name, response.StatusCode, id, c.status)
		}
		_ = conn.Close()
	}
	if events := append(d.modelEvents(run), d.modelEvents(other)...); len(events) != 0 {
		t.Errorf("refused requests were recorded: %v", events)
	}
}

// The revocation of a key ends the streams that it has begun.
func TestKeyRevocationEndsCompletionStream(t *testing.T) {
	keys := new(Keys)
	mine, text := newTestKey(t, 1, 0, ingress.ScopeAgents, ingress.ScopeCall)
	other, _ := newTestKey(t, 2, 0, ingress.ScopeCall)
	keys.Set([]ingress.Key{mine, other})
	d := startGatewayWith(t, Config{Keys: keys})
	node := &scriptedNode{d.server.node, make(chan command.ChatPart, 1), make(chan struct{}, 4)}
	served := d.serve(New(node, d.server.log, d.server.config), func(l net.Listener) net.Listener { return l })
	node.parts <- command.ChatPart{Bytes: []byte("data: {\"choices\":[]}\n\n")}
	stream := served.openStream("POST", completionsRoute, strings.Replace(chatBody, "{", `{"stream":true,`, 1), "Authorization", "Bearer "+text)
	defer stream.response.Body.Close()
	keys.Set([]ingress.Key{other})
	got, err := io.ReadAll(stream.response.Body)
	if err != nil || !strings.Contains(string(got), `"code":"unauthorized"`) || strings.Contains(string(got), "[DONE]") {
		t.Errorf("got %s, %v", got, err)
	}
	<-node.cancelled
}

// A stream that is cut is an error for a client of HTTP/1.1, not a short answer.
func TestCutCompletionStreamIsAnError(t *testing.T) {
	keys := new(Keys)
	d := startGatewayWith(t, Config{Keys: keys})
	key, text := newTestKey(t, 1, 0, ingress.ScopeAgents)
	keys.Set([]ingress.Key{key})
	node := &scriptedNode{d.server.node, make(chan command.ChatPart, 4), make(chan struct{}, 4)}
	accepted := make(chan net.Conn, 4)
	other := d.serve(New(node, d.server.log, d.server.config), func(l net.Listener) net.Listener { return keptListener{l, accepted} })
	body := strings.Replace(chatBody, "{", `{"stream":true,`, 1)
	event := "data: {\"choices\":[]}\n\n"

	node.parts <- command.ChatPart{Bytes: []byte(event)}
	cut := other.openStream("POST", completionsRoute, body)
	defer cut.response.Body.Close()
	if line, err := bufio.NewReader(cut.response.Body).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	_ = (<-accepted).Close()
	if rest, err := io.ReadAll(cut.response.Body); err != io.ErrUnexpectedEOF {
		t.Errorf("got %q, %v; want an error", rest, err)
	}
	node.parts <- command.ChatPart{Bytes: []byte(event)} // which cannot be written
	<-node.cancelled

	// The stream that was cut may still take a part, so the next ones have parts of their own.
	node = &scriptedNode{d.server.node, make(chan command.ChatPart, 4), make(chan struct{}, 4)}
	other = d.serve(New(node, d.server.log, d.server.config), func(l net.Listener) net.Listener { return l })
	for version, want := range map[string]string{
		"HTTP/1.1": "\r\n\r\n16\r\n" + event + "\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
		"HTTP/1.0": "\r\n\r\n" + event + "data: [DONE]\n\n",
	} {
		node.parts <- command.ChatPart{Bytes: []byte(event)}
		node.parts <- command.ChatPart{Bytes: []byte("data: [DONE]\n\n"), Last: true}
		conn := other.dial()
		_, _ = fmt.Fprintf(conn, "POST %s %s\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", completionsRoute, version, other.address, text, len(body), body)
		if got, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(got), want) {
			t.Errorf("%s: got %q, %v; want the end %q", version, got, err, want)
		}
		_ = conn.Close()
	}
}

// keptListener keeps the connections that it has accepted.
type keptListener struct {
	net.Listener
	all chan net.Conn
}

func (l keptListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.all <- conn
	}
	return conn, err
}

// The end of a run ends its requests to models.
func TestCompletionEndsWithRun(t *testing.T) {
	d := startGateway(t)
	service := newExternalService(d, "outside")
	in := service.begin("outside", `{"content":"x"}`)
	node := &scriptedNode{d.server.node, make(chan command.ChatPart, 4), make(chan struct{}, 4)}
	other := d.serve(New(node, d.server.log, d.server.config), func(l net.Listener) net.Listener { return l })
	event := []byte("data: {\"choices\":[]}\n\n")
	node.parts <- command.ChatPart{Bytes: event}
	stream := other.openStream("POST", completionsRoute, strings.Replace(chatBody, "{", `{"stream":true,`, 1), RunToken, in.token)
	defer stream.response.Body.Close()
	if status, _, body := d.do("POST", "/v1/runs/"+in.run+":cancel", ""); status != 200 {
		t.Fatal(status, body)
	}
	stop := make(chan struct{})
	go func() { // the model goes on
		for {
			select {
			case node.parts <- command.ChatPart{Bytes: event}:
			case <-stop:
				return
			}
		}
	}()
	got, err := io.ReadAll(stream.response.Body)
	close(stop)
	if err != nil || !strings.Contains(string(got), `"code":"run_not_found"`) || strings.Contains(string(got), "[DONE]") {
		t.Errorf("got the end %s, %v", got[max(0, len(got)-300):], err)
	}
	<-node.cancelled
}

// A stream keeps its share of the memory for bodies until it ends.
func TestCompletionKeepsShareOfItsBody(t *testing.T) {
	d := startGateway(t)
	node := &scriptedNode{d.server.node, make(chan command.ChatPart, 4), make(chan struct{}, 4)}
	other := d.serve(New(node, d.server.log, d.server.config), func(l net.Listener) net.Listener { return l })
	node.parts <- command.ChatPart{Bytes: []byte("data: {\"choices\":[]}\n\n")}
	const size = 1 << 20
	stream := other.openStream("POST", completionsRoute, `{"stream":true,"x":"`+strings.Repeat("x", size)+`"}`)
	if taken := other.server.bodies.Taken(); taken < size {
		t.Errorf("%d bytes are taken during a stream, want at least %d", taken, size)
	}
	_ = stream.response.Body.Close()
	<-node.cancelled
	for range 1000 {
		if other.server.bodies.Taken() == 0 {
			return
		}
		_, _, _ = other.do("GET", "/healthz", "")
	}
	t.Errorf("%d bytes are taken after the stream", other.server.bodies.Taken())
}

// modelDown is the refusal of a model that does not answer.
var modelDown = actor.RefuseUnavailable(0, "down")

// Do implements command.Node.
func (n *scriptedNode) Do(ctx context.Context, in command.Do) (command.Result, error) {
	switch in.Action.(type) {
	case command.StartChat:
		return command.Chat{Model: "scripted"}, nil
	case command.CancelChat:
		n.cancelled <- struct{}{}
		return command.ChatPart{}, nil
	case command.ReadChat:
		select {
		case part := <-n.parts:
			return part, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return n.Node.Do(ctx, in)
}

// The end of a run ends its requests to a silent model at once, before and within the answer.
func TestSilentCompletionEndsWithRun(t *testing.T) {
	event := []byte("data: {\"choices\":[]}\n\n")
	for _, streams := range []bool{false, true} {
		d := startGateway(t)
		service := newExternalService(d, "outside")
		in := service.begin("outside", `{"content":"x"}`)
		node := &scriptedNode{d.server.node, make(chan command.ChatPart, 4), make(chan struct{}, 4)}
		other := d.serve(New(node, d.server.log, d.server.config), func(l net.Listener) net.Listener { return l })
		if streams {
			node.parts <- command.ChatPart{Bytes: event}
		}
		done := make(chan string, 1)
		go func() {
			status, _, text := other.do("POST", completionsRoute, strings.Replace(chatBody, "{", `{"stream":true,`, 1), RunToken, in.token)
			done <- fmt.Sprint(status, " ", text)
		}()
		for len(d.modelEvents(in.run)) == 0 {
			_, _, _ = d.do("GET", "/v1/runs/"+in.run+"/events?wait_ms=100&after=900", "")
		}
		if status, _, body := d.do("POST", "/v1/runs/"+in.run+":cancel", ""); status != 200 {
			t.Fatal(status, body)
		}
		<-node.cancelled // the node has no beats, at which an end would be noticed too
		if !streams {
			node.parts <- command.ChatPart{Last: true, Refusal: actor.Refuse(actor.Stopped, "cancelled")}
		}
		if text := <-done; !strings.Contains(text, `"code":"run_not_found"`) {
			t.Errorf("streams %v: got %s", streams, text)
		}
	}
}
