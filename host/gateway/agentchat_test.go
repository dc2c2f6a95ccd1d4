// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
)

// chatAnswer is an answer in the form of the OpenAI API.
type chatAnswer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Message chatText `json:"message"`
		Delta   chatText `json:"delta"`
		Finish  string   `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	} `json:"usage"`
}

type chatText struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatBodyOf returns the body of a request with messages that alternate between user and assistant.
func chatBodyOf(agent string, messages ...string) string {
	var all []chatText
	for i, text := range messages {
		all = append(all, chatText{[]string{"user", "assistant"}[i%2], text})
	}
	b, _ := json.Marshal(struct {
		Model    string     `json:"model"`
		Messages []chatText `json:"messages"`
	}{agent, all})
	return string(b)
}

// startScribe starts a gateway with a declared agent that follows the instructions of its messages.
func startScribe(t *testing.T) *testGateway {
	t.Helper()
	d := startGateway(t)
	if status, _, body := d.do("POST", "/v1/agents", `{"agent_id":"scribe","name":"The scribe","prompt":"Be brief."}`); status != 201 {
		t.Fatal(status, body)
	}
	return d
}

// ask sends a conversation and returns the answer and the session.
func (d *testGateway) ask(body string, headers ...string) (text, session string) {
	d.Helper()
	status, head, answer := d.do("POST", agentChatRoute, body, headers...)
	var out chatAnswer
	if err := json.Unmarshal([]byte(answer), &out); err != nil || status != 200 || len(out.Choices) != 1 {
		d.Fatalf("%s: %d %s", body, status, answer)
	}
	if head.Get(shouldRetryHeader) != "false" || out.Object != "chat.completion" || out.ID != "chatcmpl-"+head.Get(runHeader) || out.Choices[0].Finish != "stop" || out.Usage == nil {
		d.Errorf("got %s", answer)
	}
	return out.Choices[0].Message.Content, head.Get(sessionHeader)
}

// Two conversations of one key that begin alike continue in sessions of their own: the server cannot
// know which one a message belongs to. So it is if one has continued before the other begins.
func TestAlikeAgentChatsAreNotMixed(t *testing.T) {
	for name, early := range map[string]bool{"at once": false, "one after the other": true} {
		d := startScribe(t)
		first, a := d.ask(chatBodyOf("scribe", "Say plugh"))
		if early {
			if _, again := d.ask(chatBodyOf("scribe", "Say plugh", first, "Say secret")); again != a {
				t.Fatalf("%s: got session %s, want %s", name, again, a)
			}
		}
		_, b := d.ask(chatBodyOf("scribe", "Say plugh"))
		begun := []string{a, b}
		for _, message := range []string{"Say xyzzy", "List my messages"} {
			answer, next := d.ask(chatBodyOf("scribe", "Say plugh", first, message))
			if slices.Contains(begun, next) || message == "List my messages" && answer != "1. Say plugh" {
				t.Errorf("%s: %s: got %q in session %s, want another one than %v", name, message, answer, next, begun)
			}
			begun = append(begun, next)
		}
		// From there on they differ, and each continues.
		if _, next := d.ask(chatBodyOf("scribe", "Say plugh", first, "Say xyzzy", "xyzzy", "Say more")); next != begun[2] {
			t.Errorf("%s: got session %s, want %s", name, next, begun[2])
		}
	}
}

// A client that sends the whole conversation with each message continues its session. One that
// changes an earlier message begins another, and the agent is given the messages of the request.
func TestAgentChatKeepsConversation(t *testing.T) {
	d := startScribe(t)
	first, session := d.ask(chatBodyOf("scribe", "Say plugh"))
	if first != "plugh" || session == "" {
		t.Fatalf("got %q in session %q", first, session)
	}
	const list = "List my messages"
	answer, again := d.ask(chatBodyOf("The scribe", "Say plugh", first+"\n", list))
	if again != session || answer != "1. Say plugh" {
		t.Errorf("got %q in session %s, want session %s", answer, again, session)
	}
	// The session has continued since, so the same request begins another one.
	repeated, other := d.ask(chatBodyOf("scribe", "Say plugh", first, list))
	if other == session || repeated != "1. Say plugh" {
		t.Errorf("got %q in session %s", repeated, other)
	}
	edited, third := d.ask(chatBodyOf("scribe", "Say xyzzy", "plugh", list))
	if third == session || third == other || edited != "1. Say xyzzy" {
		t.Errorf("got %q in session %s", edited, third)
	}
	var messages struct {
		Messages []struct {
			Role    string `json:"role"`
			Origin  string `json:"origin"`
			Content string `json:"content"`
		} `json:"messages"`
	}
	d.doJSON(&messages, "GET", "/v1/sessions/"+third+"/messages", "")
	want := "[{user user Say xyzzy} {assistant user plugh} {user user List my messages} {assistant agent 1. Say xyzzy}]"
	if got := fmt.Sprint(messages.Messages); got != want {
		t.Errorf("got messages %s, want %s", got, want)
	}
	// A client that names the session need not send its messages.
	if answer, named := d.ask(chatBodyOf("scribe", list), sessionHeader, session); named != session || answer != "1. Say plugh\n2. List my messages" {
		t.Errorf("got %q in session %s", answer, named)
	}
	// The key of a request makes it safe to repeat.
	key := []string{"Idempotency-Key", "k1"}
	_, one := d.ask(chatBodyOf("scribe", "a", "b", list), key...)
	_, two := d.ask(chatBodyOf("scribe", "a", "b", list), key...)
	if d.doJSON(&messages, "GET", "/v1/sessions/"+one+"/messages", ""); one != two || len(messages.Messages) != 4 {
		t.Errorf("got sessions %s and %s with messages %v", one, two, messages.Messages)
	}
}

// A client that repeats a request by itself gets the run of the first attempt, and another request
// with the same messages gets a run of its own.
func TestAgentChatRepeatedByItsClient(t *testing.T) {
	d := startScribe(t)
	first, session := d.ask(chatBodyOf("scribe", "Say plugh"))
	for _, body := range []string{chatBodyOf("scribe", "Say a"), chatBodyOf("scribe", "Say plugh", first, "Say b"), chatBodyOf("scribe", "x", "y", "List my messages")} {
		runs := map[string]bool{}
		for _, count := range []string{"0", "1", "2", "0"} {
			status, head, answer := d.do("POST", agentChatRoute, body, retryCountHeader, count)
			if status != 200 || head.Get(runHeader) == "" {
				t.Fatalf("%d %s", status, answer)
			}
			runs[head.Get(runHeader)] = true
			if count == "2" && len(runs) != 1 {
				t.Errorf("%s: got %d runs after two repeats", body, len(runs))
			}
		}
		if len(runs) != 2 {
			t.Errorf("%s: got %d runs of two requests", body, len(runs))
		}
	}
	var messages struct {
		Messages []struct{} `json:"messages"`
	}
	if d.doJSON(&messages, "GET", "/v1/sessions/"+session+"/messages", ""); len(messages.Messages) != 4 {
		t.Errorf("the session has %d messages, want 4", len(messages.Messages))
	}
	// A repeat of another user is no repeat.
	_, ann, _ := d.do("POST", agentChatRoute, chatBodyOf("scribe", "Say c"), retryCountHeader, "0", userHeader, "ann")
	if _, bob, _ := d.do("POST", agentChatRoute, chatBodyOf("scribe", "Say c"), retryCountHeader, "1", userHeader, "bob"); ann.Get(runHeader) == bob.Get(runHeader) || bob.Get(runHeader) == "" {
		t.Errorf("bob got run %s of ann", bob.Get(runHeader))
	}
}

// Two users with the same messages have two sessions.
func TestAgentChatOfUsers(t *testing.T) {
	d := startScribe(t)
	first, session := d.ask(chatBodyOf("scribe", "Say plugh"), userHeader, "ann")
	if _, other := d.ask(chatBodyOf("scribe", "Say plugh", first, "List my messages"), userHeader, "bob"); other == session {
		t.Error("bob continues the session of ann")
	}
	if _, again := d.ask(chatBodyOf("scribe", "Say plugh", first, "List my messages"), userHeader, "ann"); again != session {
		t.Error("ann does not continue her session")
	}
}

func TestAgentChatStreams(t *testing.T) {
	d := startScribe(t)
	body := strings.Replace(chatBodyOf("scribe", "Say one two three"), "{", `{"stream":true,"stream_options":{"include_usage":true},`, 1)
	status, head, stream := d.do("POST", agentChatRoute, body)
	if status != 200 || !strings.HasPrefix(head.Get("Content-Type"), "text/event-stream") || !strings.HasSuffix(stream, "data: [DONE]\n\n") {
		t.Fatalf("%d %v %s", status, head, stream)
	}
	var text, finish string
	var usage int
	frames := strings.Split(strings.TrimSuffix(stream, "data: [DONE]\n\n"), "\n\n")
	for i, frame := range frames[:len(frames)-1] {
		var chunk chatAnswer
		if err := json.Unmarshal([]byte(strings.TrimPrefix(frame, "data: ")), &chunk); err != nil || chunk.ID != "chatcmpl-"+head.Get(runHeader) || chunk.Object != "chat.completion.chunk" {
			t.Fatalf("frame %d: %s: %v", i, frame, err)
		}
		for _, c := range chunk.Choices {
			text, finish = text+c.Delta.Content, finish+c.Finish
		}
		if chunk.Usage != nil {
			usage = chunk.Usage.Total
		}
	}
	var run runResponse
	d.doJSON(&run, "GET", "/v1/runs/"+head.Get(runHeader), "")
	if text != "one two three" || finish != "stop" || usage == 0 || run.Status != "DONE" {
		t.Errorf("got %q, finish %q, %d tokens, run %+v", text, finish, usage, run)
	}
	if _, again := d.ask(chatBodyOf("scribe", "Say one two three", text, "List my messages")); again != head.Get(sessionHeader) {
		t.Error("the conversation of a stream is not continued")
	}
}

// An agent without events answers in one piece.
func TestAgentChatOfVolatileAgent(t *testing.T) {
	d := startGateway(t)
	if status, _, body := d.do("POST", "/v1/agents", `{"name":"quick","durability":"none"}`); status != 201 {
		t.Fatal(status, body)
	}
	body := chatBodyOf("quick", "Say a", "a", "Say b")
	var out chatAnswer
	if status := d.doJSON(&out, "POST", agentChatRoute, body); status != 200 || out.Choices[0].Message.Content != "b" || out.Usage == nil {
		t.Errorf("%d %+v", status, out)
	}
	status, head, stream := d.do("POST", agentChatRoute, strings.Replace(body, "{", `{"stream":true,`, 1))
	if status != 200 || !strings.HasPrefix(head.Get("Content-Type"), "text/event-stream") || !strings.Contains(stream, `"content":"b"`) || !strings.HasSuffix(stream, "data: [DONE]\n\n") {
		t.Errorf("%d %s", status, stream)
	}
}

// A run that waits for a person is answered after the decision.
func TestAgentChatWaitsForPerson(t *testing.T) {
	for _, stream := range []string{"", `"stream":true,`} {
		d := startGateway(t)
		answered := make(chan string, 1)
		go func() {
			var body string
			defer func() { answered <- body }() // also if the request fails
			_, _, body = d.do("POST", agentChatRoute, strings.Replace(chatBodyOf("coordinator", "xyzzy"), "{", "{"+stream, 1))
		}()
		run := d.waitForRun("PAUSED_WAITING_APPROVAL")
		if status, _, body := d.do("POST", "/v1/runs/"+run+":signal", `{"name":"go"}`); status != 200 {
			t.Fatal(status, body)
		}
		if body := <-answered; !strings.Contains(body, "response from helper: xyzzy") {
			t.Errorf("got %s", body)
		}
	}
}

func TestAgentChatErrors(t *testing.T) {
	d := startGateway(t, agents.Define("broken", "1", "test agent", agents.Blocking(agents.Func(func(*agents.Turn) (string, error) {
		return "", fmt.Errorf("no luck")
	}))))
	service := newExternalService(d, "outside")
	in := service.begin("outside", `{"content":"x"}`)
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code, param, want        string
	}{
		{"unknown agent", "POST", agentChatRoute, chatBodyOf("nobody", "x"), nil, 404, "model_not_found", "model", "/v1/openai/models"},
		{"unknown model", "GET", "/v1/openai/models/nobody", "", nil, 404, "model_not_found", "model", "/v1/openai/models"},
		{"system agent", "POST", agentChatRoute, chatBodyOf("troupe.registry", "x"), nil, 404, "model_not_found", "model", "/v1/openai/models"},
		{"no agent", "POST", agentChatRoute, `{"messages":[{"role":"user","content":"x"}]}`, nil, 400, "invalid_request", "model", "missing"},
		{"no session", "POST", agentChatRoute, chatBodyOf("helper", "x"), []string{sessionHeader, "a/b"}, 400, "invalid_request", sessionHeader, "a/b"},
		{"shared session", "POST", agentChatRoute, chatBodyOf("helper", "x"), []string{sessionHeader, "main"}, 400, "invalid_request", sessionHeader, "main"},
		{"run token", "POST", agentChatRoute, chatBodyOf("helper", "x"), []string{RunToken, in.token}, 403, "forbidden_scope", "", ""},
		{"failed run", "POST", agentChatRoute, chatBodyOf("broken", "x"), nil, 503, "agent_unavailable", "", "no luck"},
		{"part of a message", "POST", agentChatRoute, `{"model":"helper","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, nil, 400, "invalid_request", "messages", "messages: message 0: part 0"},
		{"another API", "POST", "/v1/openai/responses", `{}`, nil, 404, "not_found", "", "/v1/openai"},
		{"wrong base URL", "POST", "/v1/openai/v1/chat/completions", chatBodyOf("helper", "x"), nil, 404, "not_found", "", "ends with /v1 or /v1/openai"},
	} {
		var out openAIError
		status, head, body := d.do(c.method, c.path, c.body, c.headers...)
		if err := json.Unmarshal([]byte(body), &out); err != nil || status != c.status || out.Error.Code != c.code || out.Error.Param != c.param || !strings.Contains(out.Error.Message, c.want) {
			t.Errorf("%s: %d %s, want %d %s of %q with %q", c.name, status, body, c.status, c.code, c.param, c.want)
		}
		if c.name == "failed run" && (head.Get(shouldRetryHeader) != "false" || head.Get(runHeader) == "") {
			t.Errorf("%s: got header %v", c.name, head)
		}
	}
	status, _, body := d.do("POST", agentChatRoute, strings.Replace(chatBodyOf("broken", "x"), "{", `{"stream":true,`, 1))
	if status != 200 || !strings.Contains(body, `data: {"error":{"message":"no luck`) || strings.Contains(body, "[DONE]") {
		t.Errorf("stream of a failed run: %d %s", status, body)
	}
	service.answers <- "done"
}

func TestAgentsAreListedAsModels(t *testing.T) {
	d := startScribe(t)
	var list struct {
		Object string `json:"object"`
		Data   []struct {
			ID     string `json:"id"`
			Object string `json:"object"`
		} `json:"data"`
	}
	if status := d.doJSON(&list, "GET", "/v1/openai/models", ""); status != http.StatusOK || list.Object != "list" || !strings.Contains(fmt.Sprint(list.Data), "{scribe model}") || strings.Contains(fmt.Sprint(list.Data), "troupe.") {
		t.Errorf("%d %+v", status, list)
	}
	if _, _, body := d.do("GET", "/v1/openai/models/scribe", ""); !strings.HasPrefix(body, `{"id":"scribe","object":"model"`) {
		t.Errorf("got %s", body)
	}
}

// waitForRun waits for a run with a status.
func (d *testGateway) waitForRun(status string) (run string) {
	d.Helper()
	var list struct {
		Runs []struct {
			Run string `json:"run_id"`
		} `json:"runs"`
	}
	for range 2000 {
		if d.doJSON(&list, "GET", "/v1/runs?status="+status, ""); len(list.Runs) > 0 {
			return list.Runs[0].Run
		}
	}
	d.Fatalf("no run has the status %s", status)
	return ""
}

// A session continues only while its conversation is that of the client.
func TestAgentChatSessionHasMovedOn(t *testing.T) {
	d := startScribe(t)
	const list = "List my messages"
	key := []string{"Idempotency-Key", "k"}
	first, session := d.ask(chatBodyOf("scribe", "Say one"), key...)
	if _, again := d.ask(chatBodyOf("scribe", "Say one", first, "Say secret")); again != session {
		t.Fatalf("session %s, want %s", again, session)
	}
	if _, repeated := d.ask(chatBodyOf("scribe", "Say one"), key...); repeated != session {
		t.Errorf("the repeat has session %s, want %s", repeated, session)
	}
	if answer, other := d.ask(chatBodyOf("scribe", "Say one", first, list)); other == session || answer != "1. Say one" {
		t.Errorf("got %q in session %s, which has further messages", answer, other)
	}
	first, session = d.ask(chatBodyOf("scribe", "Say two"))
	d.ask(chatBodyOf("scribe", "Say more"), sessionHeader, session)
	if answer, other := d.ask(chatBodyOf("scribe", "Say two", first, list)); other == session || answer != "1. Say two" {
		t.Errorf("got %q in session %s, which has further messages", answer, other)
	}
	first, session = d.ask(chatBodyOf("scribe", "Say three"))
	if status, _, body := d.do("DELETE", "/v1/sessions/"+session, ""); status != 204 {
		t.Fatal(status, body)
	}
	if answer, other := d.ask(chatBodyOf("scribe", "Say three", first, list)); other == session || answer != "1. Say three" {
		t.Errorf("got %q in session %s, which is deleted", answer, other)
	}
	// The same key with other messages before the last one changes nothing of the former request.
	first, session = d.ask(chatBodyOf("scribe", "Say four"), "Idempotency-Key", "k4")
	d.ask(chatBodyOf("scribe", "injected", "forged", "Say four"), "Idempotency-Key", "k4")
	if answer, again := d.ask(chatBodyOf("scribe", "Say four", first, list)); again != session || answer != "1. Say four" {
		t.Errorf("got %q in session %s, want session %s", answer, again, session)
	}
	if status, _, body := d.do("POST", agentChatRoute, chatBodyOf("scribe", "injected", "forged", "Say five"), "Idempotency-Key", "k4"); status != 422 {
		t.Errorf("another message with the same key: %d %s", status, body)
	}
}

// A refused message leaves the session for the next one, and no session of its own.
func TestAgentChatRefused(t *testing.T) {
	d := startScribe(t)
	first, session := d.ask(chatBodyOf("scribe", "Say one"))
	long := strings.Repeat("x", ingress.ChatTextMax)
	for _, body := range []string{chatBodyOf("scribe", "Say one", first, long), chatBodyOf("scribe", "a", "b", long)} {
		if status, _, answer := d.do("POST", agentChatRoute, body); status < 400 {
			t.Fatalf("%d %.200s", status, answer)
		}
	}
	if _, again := d.ask(chatBodyOf("scribe", "Say one", first, "Say two")); again != session {
		t.Errorf("session %s, want %s", again, session)
	}
	var sessions struct {
		Sessions []struct {
			ID string `json:"session_id"`
		} `json:"sessions"`
	}
	if d.doJSON(&sessions, "GET", "/v1/sessions", ""); len(sessions.Sessions) != 1 {
		t.Errorf("got sessions %v, want one", sessions)
	}
}

// One user cannot make a server forget the conversations of others.
func TestChatMemoryHasShares(t *testing.T) {
	var m chatMemory
	key := func(i int) ingress.ChatKey { return ingress.ChatKey{byte(i), byte(i >> 8), byte(i >> 16)} }
	m.put("bob", key(0), chatSession{name: "his"})
	for i := range 3 * chatsMax {
		m.put("alice", key(i), chatSession{name: "hers"})
		m.put("alice", key(i), chatSession{name: "hers"}) // repeated
	}
	if m.sessions.count != chatsMax {
		t.Errorf("%d conversations are remembered, want %d", m.sessions.count, chatsMax)
	}
	if _, ok := m.take("alice", key(3*chatsMax-chatsMax+1)); !ok {
		t.Error("a recent conversation is forgotten")
	}
	if s, ok := m.take("bob", key(0)); !ok || s.name != "his" || len(m.sessions.users) != 1 {
		t.Errorf("got %+v, %v", s, ok)
	}
	if _, ok := m.take("bob", key(0)); ok {
		t.Error("a conversation is taken twice")
	}
}

// A session with an open run is not continued: its answer would become part of the conversation.
func TestAgentChatSessionHasOpenRun(t *testing.T) {
	d := startGateway(t)
	first := d.openStream("POST", agentChatRoute, strings.Replace(chatBodyOf("coordinator", "one"), "{", `{"stream":true,`, 1))
	defer first.response.Body.Close()
	session := first.response.Header.Get(sessionHeader)
	if status, _, body := d.do("POST", "/v1/runs/"+d.waitForRun("PAUSED_WAITING_APPROVAL")+":signal", `{"name":"go"}`); status != 200 {
		t.Fatal(status, body)
	}
	if _, err := io.Copy(io.Discard, first.response.Body); err != nil {
		t.Fatal(err)
	}
	var ended struct {
		Text string `json:"text"`
	}
	d.doJSON(&ended, "GET", "/v1/runs/"+first.response.Header.Get(runHeader), "")
	if status, _, body := d.do("POST", "/v1/agents/coordinator/messages", `{"content":"open","session_id":"`+session+`"}`, "Prefer", "respond-async"); status != 202 {
		t.Fatal(status, body)
	}
	next := d.openStream("POST", agentChatRoute, strings.Replace(chatBodyOf("coordinator", "one", ended.Text, "two"), "{", `{"stream":true,`, 1))
	defer next.response.Body.Close()
	if got := next.response.Header.Get(sessionHeader); got == session || got == "" {
		t.Errorf("got session %q, which has an open run", got)
	}
}

// The answer of an agent with one conversation for all names no session.
func TestAgentChatOfOneSession(t *testing.T) {
	d := startGateway(t)
	if status, _, body := d.do("POST", "/v1/agents", `{"name":"one","default_session":"main"}`); status != 201 {
		t.Fatal(status, body)
	}
	if answer, session := d.ask(chatBodyOf("one", "x", "y", "Say a")); answer != "a" || session != "" {
		t.Errorf("got %q in session %q", answer, session)
	}
}

// The revocation of a key ends the streams of agents that it has begun.
func TestKeyRevocationEndsAgentChat(t *testing.T) {
	keys := new(Keys)
	mine, text := newTestKey(t, 1, 0, ingress.ScopeCall)
	other, _ := newTestKey(t, 2, 0, ingress.ScopeCall)
	keys.Set([]ingress.Key{mine, other})
	d := startGatewayWith(t, Config{Keys: keys})
	stream := d.openStream("POST", agentChatRoute, strings.Replace(chatBodyOf("coordinator", "x"), "{", `{"stream":true,`, 1), "Authorization", "Bearer "+text)
	defer stream.response.Body.Close()
	keys.Set([]ingress.Key{other})
	got, err := io.ReadAll(stream.response.Body)
	if err != nil || !strings.Contains(string(got), `"code":"unauthorized"`) || strings.Contains(string(got), "[DONE]") {
		t.Errorf("got %s, %v", got, err)
	}
}

// A server that stops answers the requests that wait, and names the runs that continue.
func TestStoppingServerAnswersAgentChat(t *testing.T) {
	d := startGateway(t)
	answered := make(chan string, 1)
	go func() {
		var answer string
		defer func() { answered <- answer }() // also if the request fails
		status, _, body := d.do("POST", agentChatRoute, chatBodyOf("coordinator", "x"))
		answer = fmt.Sprint(status, body)
	}()
	run := d.waitForRun("PAUSED_WAITING_APPROVAL")
	d.server.Drain()
	if answer := <-answered; !strings.HasPrefix(answer, "503") || !strings.Contains(answer, "/v1/runs/"+run) {
		t.Errorf("got %s", answer)
	}
}

// A conversation may be longer than other bodies.
func TestLongAgentChat(t *testing.T) {
	d := startScribe(t)
	long := strings.Repeat("x", BodyBytesMax/2)
	if answer, _ := d.ask(chatBodyOf("scribe", long, "a", long, "b", long, "c", "Say d")); answer != "d" {
		t.Errorf("got %.100q", answer)
	}
}
