// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe"
	"github.com/troupe-run/troupe/host/gateway"
)

// open opens a server that is closed at the end of the test.
func open(t *testing.T, dir string, agents ...troupe.Agent) *troupe.Server {
	t.Helper()
	return openWith(t, troupe.Config{Data: dir, Agents: agents})
}

func openWith(t *testing.T, c troupe.Config) *troupe.Server {
	t.Helper()
	s, err := troupe.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, s) })
	return s
}

func closeServer(t *testing.T, s *troupe.Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// call sends a message that must succeed.
func call(t *testing.T, s *troupe.Server, agent, message string, opts ...troupe.Option) troupe.Reply {
	t.Helper()
	reply, err := s.Call(t.Context(), agent, message, opts...)
	if err != nil {
		t.Fatalf("%s %q: %v", agent, message, err)
	}
	return reply
}

// wantCode reports an error that is not a refusal with the code.
func wantCode(t *testing.T, what string, err error, code troupe.Code) *troupe.Refusal {
	t.Helper()
	var r *troupe.Refusal
	if !errors.As(err, &r) || r.Code != code {
		t.Errorf("%s: got %v, want %s", what, err, code)
		return &troupe.Refusal{}
	}
	return r
}

// diary answers with the earlier messages and counts its turns.
var diary = troupe.Agent{Name: "diary", Transcript: "last:4", Func: func(t *troupe.Turn) (string, error) {
	n, err := troupe.State[int](t)
	if err != nil {
		return "", err
	}
	var seen []string
	for _, m := range t.Transcript() {
		seen = append(seen, m.Role+":"+m.Text)
	}
	return fmt.Sprintf("%s %d after [%s]", t.User(), n+1, strings.Join(seen, " ")), troupe.SetState(t, n+1)
}}

func TestConversationSurvivesReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, dir, diary)
	first := call(t, s, "diary", "one")
	if first.Text != "local 1 after []" || first.Session == "" || first.Run == "" {
		t.Errorf("first: %+v", first)
	}
	closeServer(t, s)
	s = open(t, dir, diary)
	if r := call(t, s, "diary", "two", troupe.Session(first.Session)); r.Text != "local 2 after [user:one assistant:local 1 after []]" || r.Session != first.Session {
		t.Errorf("second: %+v", r)
	}
	if r := call(t, s, "diary", "three"); r.Text != "local 1 after []" || r.Session == first.Session {
		t.Errorf("a message without session: %+v", r)
	}
	for _, text := range []string{"three", "four"} {
		call(t, s, "diary", text, troupe.Session(first.Session))
	}
	page, err := s.Sessions().Messages(t.Context(), first.Session, "", troupe.Page{Limit: 3})
	if err != nil || page.Agent != "diary" || page.Total != 8 || len(page.All) != 3 || page.All[1].Text != "four" || page.All[1].Role != troupe.RoleUser || page.All[2].Origin != "agent" ||
		page.All[1].Run != page.All[2].Run || page.All[1].ID == page.All[2].ID || page.Next != page.All[0].ID {
		t.Fatalf("messages: %+v, %v", page, err)
	}
	page, err = s.Sessions().Messages(t.Context(), first.Session, "diary", troupe.Page{Cursor: page.Next})
	if err != nil || len(page.All) != 5 || page.Next != "" || page.All[0].Text != "one" {
		t.Errorf("older messages: %+v, %v", page, err)
	}
}

func TestUsersDoNotSeeEachOther(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "data"), diary)
	ctx, alice, bob := t.Context(), troupe.User("alice"), troupe.User("Bob Ångström")
	a := call(t, s, "diary", "of alice", troupe.Session("s"), alice)
	b := call(t, s, "diary", "of bob", troupe.Session("s"), bob)
	call(t, s, "diary", "of nobody", troupe.Session("s"))
	if a.Text != "alice 1 after []" || b.Text != "Bob Ångström 1 after []" {
		t.Errorf("%+v, %+v", a, b)
	}
	for i, of := range []troupe.Sessions{s.Sessions(alice), s.Sessions(bob), s.Sessions()} {
		list, err := of.List(ctx, troupe.Page{})
		messages, messagesErr := of.Messages(ctx, "s", "diary", troupe.Page{})
		if err != nil || messagesErr != nil || len(list.All) != 1 || len(messages.All) != 2 {
			t.Errorf("user %d: %+v, %v, %+v, %v", i, list, err, messages, messagesErr)
		}
	}
	_, err := s.Await(ctx, a.Run, bob)
	wantCode(t, "bob reads a run of alice", err, troupe.CodeRunNotFound)
	wantCode(t, "bob cancels a run of alice", s.Cancel(ctx, a.Run, bob), troupe.CodeRunNotFound)
	wantCode(t, "bob signals a run of alice", s.Signal(ctx, a.Run, "go", nil, bob), troupe.CodeRunNotFound)
	if r, err := s.Await(ctx, a.Run, alice); err != nil || r.Text != a.Text || r.Session != "s" {
		t.Errorf("alice reads her run: %+v, %v", r, err)
	}
	if err := s.Sessions(alice).Delete(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Sessions(alice).Get(ctx, "s")
	wantCode(t, "deleted session", err, troupe.CodeSessionNotFound)
	if info, err := s.Sessions(bob).Get(ctx, "s"); err != nil || len(info.Agents) != 1 || info.Agents[0].Messages != 2 || info.Created.IsZero() {
		t.Errorf("session of bob: %+v, %v", info, err)
	}
}

func TestSignalReachesWaitingRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	agents := []troupe.Agent{
		{Name: "clerk", Func: func(t *troupe.Turn) (string, error) {
			b, err := t.Wait("approved", time.Minute)
			return "approved: " + string(b), err
		}},
		{Name: "boss", Func: func(t *troupe.Turn) (string, error) { return t.Call("clerk", t.Message()) }},
	}
	s := open(t, dir, agents...)
	reply, err := s.Call(t.Context(), "boss", "buy")
	var w *troupe.Waiting
	if !errors.As(err, &w) || w.Signal != "approved" || w.Run == w.To || w.Run != reply.Run || w.Session != reply.Session || !w.Until.After(time.Now()) {
		t.Fatalf("%+v, %v", reply, err)
	}
	closeServer(t, s)

	s = open(t, dir, agents...)
	ctx := t.Context()
	if _, err := s.Await(ctx, w.Run); !errors.As(err, new(*troupe.Waiting)) {
		t.Errorf("await after a restart: %v", err)
	}
	wantCode(t, "signal to the caller", s.Signal(ctx, w.Run, "approved", nil), troupe.CodeRejected)
	wantCode(t, "reserved signal", s.Signal(ctx, w.To, "troupe.append", nil), troupe.CodeInvalid)
	wantCode(t, "signal to no run", s.Signal(ctx, "x", "approved", nil), troupe.CodeInvalid)
	for range 2 { // the second has no effect
		if err := s.Signal(ctx, w.To, w.Signal, []byte("yes"), troupe.IdempotencyKey("k")); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := s.Await(ctx, w.Run); err != nil || r.Text != "approved: yes" || r.Session != reply.Session {
		t.Errorf("%+v, %v", r, err)
	}
	wantCode(t, "signal to an ended run", s.Signal(ctx, w.To, "approved", nil), troupe.CodeRejected)
}

func TestSessionIsDeletedWithoutOpenRunsOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	waits := troupe.Agent{Name: "waits", Func: func(t *troupe.Turn) (string, error) {
		_, err := t.Wait("go", time.Minute)
		return "done", err
	}}
	s := open(t, dir, waits, diary)
	ctx, sessions := t.Context(), s.Sessions()
	reply, err := s.Call(ctx, "waits", "hello", troupe.Session("s"))
	if !errors.As(err, new(*troupe.Waiting)) {
		t.Fatal(err)
	}
	info, err := sessions.Get(ctx, "s")
	if err != nil || len(info.Agents) != 1 || !slices.Equal(info.Agents[0].Open, []string{reply.Run}) {
		t.Errorf("%+v, %v", info, err)
	}
	wantCode(t, "open run", sessions.Delete(ctx, "s"), troupe.CodeSessionBusy)
	_, err = s.Call(ctx, "waits", "again", troupe.Session("s"), troupe.IfBusy(troupe.BusyReject))
	wantCode(t, "busy session", err, troupe.CodeSessionBusy)
	if err := s.Cancel(ctx, reply.Run); err != nil {
		t.Fatal(err)
	}
	_, err = s.Await(ctx, reply.Run)
	if r := wantCode(t, "cancelled run", err, troupe.CodeCancelled); r.Run != reply.Run {
		t.Errorf("refusal of run %q, want %s", r.Run, reply.Run)
	}
	id, err := sessions.Append(ctx, "s", "", troupe.Message{Role: troupe.RoleSystem, Text: "a note"})
	if err != nil {
		t.Fatal(err)
	}
	page, err := sessions.Messages(ctx, "s", "waits", troupe.Page{})
	if n := len(page.All); err != nil || n == 0 || page.All[n-1].ID != id || page.All[n-1].Origin != "operator" || page.All[n-1].Text != "a note" {
		t.Errorf("%+v, %v", page, err)
	}
	if err := sessions.Delete(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err = sessions.Messages(ctx, "s", "waits", troupe.Page{})
		wantCode(t, "messages", err, troupe.CodeSessionNotFound)
		_, err = s.Await(ctx, reply.Run)
		wantCode(t, "run", err, troupe.CodeRunNotFound)
		_, err = s.Call(ctx, "diary", "x", troupe.Session("s"))
		wantCode(t, "call", err, troupe.CodeSessionDeleted)
		wantCode(t, "second deletion", sessions.Delete(ctx, "s"), troupe.CodeSessionNotFound)
		closeServer(t, s)
		s = open(t, dir, waits, diary)
		sessions = s.Sessions()
	}
}

// The refusal of an address names what a program changes.
func TestRefusedAddressNamesConfig(t *testing.T) {
	s := openWith(t, troupe.Config{Temporary: true, Models: map[string]troupe.Model{"near": {URL: "http://127.0.0.1:9"}}, Agents: []troupe.Agent{
		{Name: "a", Func: func(t *troupe.Turn) (string, error) { return t.Model(troupe.Prompt{Model: "near"}) }},
	}})
	if _, err := s.Call(context.Background(), "a", "x"); err == nil || !strings.Contains(err.Error(), `to allow it: add "127.0.0.1" to Config.Allow`) {
		t.Error(err)
	}
}

func TestRefusalsHaveCodes(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "data"),
		troupe.Agent{Name: "asks", Func: func(t *troupe.Turn) (string, error) {
			text, err := t.Call(t.Message(), "x", troupe.Timeout(time.Minute))
			if err != nil {
				err = fmt.Errorf("no answer: %w", err)
			}
			return text, err
		}},
		troupe.Agent{Name: "refuses", Func: func(*troupe.Turn) (string, error) {
			return "", &troupe.Refusal{Code: troupe.CodeBusy, Detail: "not now", RetryAfter: 7 * time.Second}
		}},
		troupe.Agent{Name: "fails", Func: func(*troupe.Turn) (string, error) { return "", errors.New("broken pipe") }},
		troupe.Agent{Name: "panics", Func: func(t *troupe.Turn) (string, error) { return t.Message()[len(t.Message())+1:], nil }},
		troupe.Agent{Name: "odd", Func: func(*troupe.Turn) (string, error) { return "", troupe.Refuse("my_code", "%d", 1) }},
		troupe.Agent{Name: "slow", Func: func(t *troupe.Turn) (string, error) { return "", t.Sleep(time.Hour) }})
	for _, c := range []struct {
		agent, message string
		code           troupe.Code
		detail         string
		opts           []troupe.Option
	}{
		{"ghost", "x", troupe.CodeAgentNotFound, "ghost", nil},
		{"troupe", "x", troupe.CodeAgentNotFound, "troupe", nil},
		{"asks", "ghost", troupe.CodeAgentNotFound, "no answer: no agent is named ghost", nil},
		{"asks", "refuses", troupe.CodeBusy, "no answer: not now", nil},
		{"asks", "asks", troupe.CodeCycle, "already in call chain", nil},
		{"refuses", "x", troupe.CodeBusy, "not now", nil},
		{"fails", "x", troupe.CodeUnavailable, "broken pipe", nil},
		{"panics", "x", troupe.CodeUnavailable, "panic", nil},
		{"odd", "x", troupe.CodeRejected, "1", nil},
		{"slow", "x", troupe.CodeTimeout, "timeout", []troupe.Option{troupe.Timeout(time.Millisecond)}},
		{"slow", "", troupe.CodeInvalid, "empty", nil},
		{"slow", "\xff", troupe.CodeInvalid, "UTF-8", nil},
		{"slow", strings.Repeat("x", 1<<20+1), troupe.CodeInvalid, "", nil},
		{"slow", "x", troupe.CodeInvalid, "session", []troupe.Option{troupe.Session("a b")}},
		{"slow", "x", troupe.CodeInvalid, "session", []troupe.Option{troupe.Session(strings.Repeat("s", 10_000))}},
		{"slow", "x", troupe.CodeInvalid, "user", []troupe.Option{troupe.User(strings.Repeat("u", 10_000))}},
		{"slow", "x", troupe.CodeInvalid, "reserved", []troupe.Option{troupe.User("local")}},
		{"slow", "x", troupe.CodeInvalid, "Timeout", []troupe.Option{troupe.Timeout(0)}},
		{"slow", "x", troupe.CodeInvalid, "IfBusy", []troupe.Option{troupe.IfBusy("never")}},
		{"slow", "x", troupe.CodeInvalid, "IdempotencyKey", []troupe.Option{troupe.IdempotencyKey("")}},
		{"slow", "x", troupe.CodeInvalid, "Call does not take the option Idempotent", []troupe.Option{troupe.Idempotent()}},
	} {
		_, err := s.Call(t.Context(), c.agent, c.message, c.opts...)
		r := wantCode(t, c.agent, err, c.code)
		if !strings.Contains(r.Detail, c.detail) {
			t.Errorf("%s %.20q: detail %q, want %q", c.agent, c.message, r.Detail, c.detail)
		}
		if c.code == troupe.CodeBusy && r.RetryAfter != 7*time.Second {
			t.Errorf("%s: retry after %v", c.agent, r.RetryAfter)
		}
	}
	_, err := s.Sessions(troupe.Session("s")).List(t.Context(), troupe.Page{})
	wantCode(t, "option of Sessions", err, troupe.CodeInvalid)
	_, err = s.Sessions().List(t.Context(), troupe.Page{Limit: troupe.PageMax + 1})
	wantCode(t, "limit", err, troupe.CodeInvalid)
	_, err = s.Sessions().Append(t.Context(), "s", "slow", troupe.Message{Role: "owner", Text: "x"})
	wantCode(t, "role", err, troupe.CodeInvalid)
}

// A refusal that an agent passes on keeps what package troupe does not show, for HTTP clients.
func TestPassedOnRefusalKeepsItsChain(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "data"), troupe.Agent{Name: "asks", Func: func(t *troupe.Turn) (string, error) {
		_, err := t.Call("asks", "x")
		return "", fmt.Errorf("again: %w", err)
	}})
	l := listen(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	status, m := post(t, "http://"+l.Addr().String()+"/v1/agents/asks/messages", "", `{"content":"x","session_id":"s"}`)
	if status != 409 || m["code"] != "call_cycle" || fmt.Sprint(m["chain"]) != "[asks/s]" || !strings.HasPrefix(fmt.Sprint(m["detail"]), "again: Cycle detected") {
		t.Errorf("%d %v", status, m)
	}
	http.DefaultClient.CloseIdleConnections()
	closeServer(t, s)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRepeatedCallHasOneEffect(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "data"), diary)
	first := call(t, s, "diary", "x", troupe.IdempotencyKey("k"))
	if again := call(t, s, "diary", "x", troupe.IdempotencyKey("k")); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("repeated: %+v, want %+v", again, first)
	}
	if other := call(t, s, "diary", "x", troupe.IdempotencyKey("k"), troupe.User("alice")); other.Session == first.Session {
		t.Errorf("the key of another user: %+v", other)
	}
	_, err := s.Call(t.Context(), "diary", "y", troupe.IdempotencyKey("k"))
	wantCode(t, "key with another message", err, troupe.CodeInvalid)
}

func TestContextEndsTheWaitAndNotTheRun(t *testing.T) {
	started := make(chan struct{})
	release := make(chan struct{})
	s := open(t, filepath.Join(t.TempDir(), "data"), troupe.Agent{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		b, err := t.Do("work", func(context.Context) ([]byte, error) {
			close(started)
			<-release
			return []byte(strings.Repeat("é", 300_000)), nil
		})
		return string(b), err
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	reply, err := s.Call(ctx, "a", "x")
	if !errors.Is(err, context.Canceled) || reply.Run == "" || reply.Session == "" || !strings.Contains(err.Error(), reply.Run) {
		t.Fatalf("%+v, %v", reply, err)
	}
	if _, err := s.Await(ctx, reply.Run); !errors.Is(err, context.Canceled) {
		t.Errorf("await with an ended context: %v", err)
	}
	close(release)
	if r, err := s.Await(t.Context(), reply.Run); err != nil || r.Text != strings.Repeat("é", 300_000) {
		t.Errorf("%d bytes, %v", len(r.Text), err)
	}
}

func TestClosedServerRefuses(t *testing.T) {
	started := make(chan struct{})
	resumed := false
	agent := troupe.Agent{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		_, err := t.Do("work", func(ctx context.Context) ([]byte, error) {
			if resumed {
				return nil, nil
			}
			close(started)
			<-ctx.Done()
			return nil, ctx.Err()
		}, troupe.Idempotent())
		return "done", err
	}}
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, dir, agent)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Call(t.Context(), "a", "x", troupe.Session("s"))
		ended <- err
	}()
	<-started
	closeServer(t, s)
	if err := <-ended; !errors.Is(err, troupe.ErrClosed) || !errors.As(err, new(*troupe.Refusal)) {
		t.Errorf("call that waits: %v", err)
	}
	if _, err := s.Call(t.Context(), "a", "x"); !errors.Is(err, troupe.ErrClosed) {
		t.Errorf("call: %v", err)
	}
	if _, err := s.Sessions().List(t.Context(), troupe.Page{}); !errors.Is(err, troupe.ErrClosed) {
		t.Errorf("list: %v", err)
	}
	if err := s.ListenAndServe("127.0.0.1:0"); !errors.Is(err, troupe.ErrClosed) {
		t.Errorf("serve: %v", err)
	}
	closeServer(t, s)

	resumed = true
	s = open(t, dir, agent)
	info, err := s.Sessions().Get(t.Context(), "s")
	if err != nil || len(info.Agents) != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	for _, run := range info.Agents[0].Open {
		if r, err := s.Await(t.Context(), run); err != nil || r.Text != "done" {
			t.Errorf("resumed run: %+v, %v", r, err)
		}
	}
	if r := call(t, s, "a", "y", troupe.Session("s")); r.Text != "done" {
		t.Errorf("%+v", r)
	}
}

func TestShutdownWaitsForAnswers(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	s := open(t, filepath.Join(t.TempDir(), "data"), troupe.Agent{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		if t.Message() != "x" {
			return "", nil
		}
		b, err := t.Do("work", func(context.Context) ([]byte, error) {
			close(started)
			<-release
			return []byte("done"), nil
		})
		return string(b), err
	}})
	type outcome struct {
		reply troupe.Reply
		err   error
	}
	ended := make(chan outcome, 1)
	go func() {
		r, err := s.Call(t.Context(), "a", "x")
		ended <- outcome{r, err}
	}()
	<-started
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(t.Context()) }()
	for { // until the shutdown has begun
		if _, err := s.Call(t.Context(), "a", "y"); errors.Is(err, troupe.ErrClosed) {
			break
		}
	}
	close(release)
	if o := <-ended; o.err != nil || o.reply.Text != "done" {
		t.Errorf("%+v, %v", o.reply, o.err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// post sends a message over HTTP.
func post(t *testing.T, url, key, body string) (status int, answer map[string]any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil || json.Unmarshal(b, &answer) != nil {
		t.Fatalf("%d %s, %v", response.StatusCode, b, err)
	}
	return response.StatusCode, answer
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestHTTPAndGoShareSessions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, dir, diary)
	l := listen(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	first := call(t, s, "diary", "one")
	url := "http://" + l.Addr().String() + "/v1/agents/diary/messages"
	if status, m := post(t, url, "", `{"content":"two","session_id":"`+first.Session+`"}`); status != 200 || m["content"] != "local 2 after [user:one assistant:local 1 after []]" {
		t.Errorf("%d %v", status, m)
	}
	if r := call(t, s, "diary", "three", troupe.Session(first.Session)); !strings.HasPrefix(r.Text, "local 3 after [user:one") || !strings.Contains(r.Text, "user:two") {
		t.Errorf("%+v", r)
	}
	if err := s.ListenAndServe("127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "called before") {
		t.Errorf("second Serve: %v", err)
	}

	h := listen(t)
	other := &fasthttp.Server{Handler: s.Handler(), CloseOnShutdown: true}
	go func() { ended <- other.Serve(h) }()
	url = "http://" + h.Addr().String() + "/v1/agents/diary/messages"
	if status, m := post(t, url, "", `{"content":"x"}`); status != 401 {
		t.Errorf("handler without key: %d %v", status, m)
	}
	owner := gateway.OwnerClient(dir)
	response, err := owner.Post("http://localhost/v1/keys", "application/json", strings.NewReader(`{"user":"alice"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var key struct {
		Key string `json:"key"`
	}
	if err := json.NewDecoder(response.Body).Decode(&key); err != nil {
		t.Fatal(err)
	}
	if status, m := post(t, url, key.Key, `{"content":"x","session_id":"s"}`); status != 200 || m["content"] != "alice 1 after []" {
		t.Errorf("handler: %d %v", status, m)
	}
	if r := call(t, s, "diary", "y", troupe.User("alice"), troupe.Session("s")); r.Text != "alice 2 after [user:x assistant:alice 1 after []]" {
		t.Errorf("%+v", r)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := other.Shutdown(); err != nil {
		t.Error(err)
	}
	closeServer(t, s)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestServeOffLoopbackNeedsKey(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "data"), diary)
	if err := s.ListenAndServe("0.0.0.0:0"); err == nil || !strings.Contains(err.Error(), "troupe keys create --data") {
		t.Errorf("%v", err)
	}
}

func TestDeclaredAgentsTakePart(t *testing.T) {
	files := t.TempDir()
	if err := os.WriteFile(filepath.Join(files, "writer.toml"), []byte("name = \"writer\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openWith(t, troupe.Config{Temporary: true, AgentFiles: files, Limits: map[string]int64{"run_timeout_ms": 60_000}, Agents: []troupe.Agent{
		{Name: "editor", Func: func(t *troupe.Turn) (string, error) { return t.Call("writer", "say "+t.Message()) }},
	}})
	r := call(t, s, "editor", "xyzzy")
	if r.Text != "xyzzy" || r.TreeUsage.Output == 0 || r.Usage.Output != 0 {
		t.Errorf("%+v", r)
	}
	info, err := s.Sessions().Get(t.Context(), r.Session)
	if err != nil || len(info.Agents) != 1 || info.Agents[0].Agent != "editor" || info.Agents[0].Usage != r.TreeUsage {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestTemporaryFolderIsDeleted(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	s := openWith(t, troupe.Config{Temporary: true, Agents: []troupe.Agent{diary}})
	call(t, s, "diary", "x")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("open: %v, %v", entries, err)
	}
	closeServer(t, s)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("closed: %v, %v", entries, err)
	}
}

func TestOpenRejectsInvalidConfig(t *testing.T) {
	dir := t.TempDir()
	used := filepath.Join(dir, "used")
	open(t, used)
	stored := filepath.Join(dir, "stored")
	files := filepath.Join(dir, "files")
	if err := errors.Join(os.Mkdir(files, 0o700), os.WriteFile(filepath.Join(files, "a.toml"), []byte("name = \"diary\"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	closeServer(t, openWith(t, troupe.Config{Data: stored, AgentFiles: files}))
	wrong := filepath.Join(dir, "wrong")
	if err := errors.Join(os.Mkdir(wrong, 0o700), os.WriteFile(filepath.Join(wrong, "a.toml"), []byte("nam = \"a\"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	agents := func(all ...troupe.Agent) troupe.Config {
		return troupe.Config{Data: filepath.Join(dir, "new"), Agents: all}
	}
	named := func(change func(*troupe.Agent)) troupe.Config {
		a := diary
		change(&a)
		return agents(a)
	}
	for want, c := range map[string]troupe.Config{
		"Config.Data is empty":              {},
		"both Data and Temporary":           {Data: "x", Temporary: true},
		"is in use by":                      {Data: used},
		"two agents are named diary: one":   {Data: stored, Agents: []troupe.Agent{diary}},
		"two agents are named diary":        agents(diary, diary),
		"a.toml:1:1: nam: is unknown":       {Temporary: true, AgentFiles: wrong},
		"want one of Func and Handler":      agents(troupe.Agent{Name: "a"}),
		"want 1 to 64 characters":           named(func(a *troupe.Agent) { a.Name = "" }),
		"only letters":                      named(func(a *troupe.Agent) { a.Name = "a b" }),
		"is reserved":                       named(func(a *troupe.Agent) { a.Name = "troupe.x" }),
		"Transcript: \"last:0\"":            named(func(a *troupe.Agent) { a.Transcript = "last:0" }),
		"the list Skills has":               named(func(a *troupe.Agent) { a.Skills = []string{"a b"} }),
		"code \"anl\": want three capitals": named(func(a *troupe.Agent) { a.Code = "anl" }),
		"description: want 1 to":            named(func(a *troupe.Agent) { a.Provides = "[[provides]]\ncode = \"DOC_GENERATE\"" }),
		"want tables [[provides]] only":     named(func(a *troupe.Agent) { a.Provides = "turns = \"interleaved\"" }),
		"code DIA belongs to agent diary":   agents(troupe.Agent{Name: "diary", Code: "DIA", Func: diary.Func}, troupe.Agent{Name: "other", Code: "DIA", Func: diary.Func}),
		"MaxActive: got -1":                 named(func(a *troupe.Agent) { a.MaxActive = -1 }),
		"StateVersion: got -1":              named(func(a *troupe.Agent) { a.StateVersion = -1 }),
		"limits: speed is unknown":          {Temporary: true, Limits: map[string]int64{"speed": 1}},
		"limits: agent_call_depth_max is 0": {Temporary: true, Limits: map[string]int64{"agent_call_depth_max": 0}},
		"models.big.url":                    {Temporary: true, Models: map[string]troupe.Model{"big": {}}},
		"Config.Keep is 1s":                 {Temporary: true, Keep: time.Second},
		"Config.Hosts":                      {Temporary: true, Hosts: []string{"a b"}},
		"Config.Origins":                    {Temporary: true, Origins: []string{"x"}},
	} {
		s, err := troupe.Open(c)
		if err == nil || !strings.HasPrefix(err.Error(), "troupe: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if s != nil {
			closeServer(t, s)
		}
	}
}
