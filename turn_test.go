// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe"
)

// notes is a state of many chunks.
type notes struct {
	Lines []string       `json:"lines,omitempty"`
	Count map[string]int `json:"count"`
}

// keeper adds its message to its notes, and answers with their sizes.
func keeper(t *troupe.Turn) (string, error) {
	n, err := troupe.State[notes](t)
	if err != nil {
		return "", err
	}
	if n.Count == nil {
		n.Count = map[string]int{}
	}
	switch text, rest, _ := strings.Cut(t.Message(), " "); text {
	case "add":
		n.Lines = append(n.Lines, rest)
		n.Count[rest[:1]]++
	case "clear":
		n = notes{}
	}
	if err := troupe.SetState(t, n); err != nil {
		return "", err
	}
	if again, err := troupe.State[notes](t); err != nil || len(again.Lines) != len(n.Lines) {
		return "", fmt.Errorf("read back: %+v, %w", again, err)
	}
	if t.Message() == "fail" {
		return "", errors.New("after SetState")
	}
	b, err := json.Marshal(n)
	return fmt.Sprint(len(n.Lines), " ", len(b)), err
}

func TestStateIsKeptBetweenTurns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	agent := troupe.Agent{Name: "keeper", Func: keeper}
	s := open(t, dir, agent)
	session := troupe.Session("s")
	long := func(first string, n int) string { return "add " + first + strings.Repeat("x", n-1) }
	for i, c := range []struct{ message, want string }{
		{long("a", 200<<10), "1 204830"},
		{long("b", 300<<10), "2 512039"},
		{"reopen", "2 512039"},
		{"clear", "0 14"},
		{long("a", 10), "1 40"},
		{long("b", 900<<10), "2 921649"},
	} {
		if c.message == "reopen" {
			closeServer(t, s)
			s = open(t, dir, agent)
		}
		if r := call(t, s, "keeper", c.message, session); r.Text != c.want {
			t.Errorf("%d: got %s, want %s", i, r.Text, c.want)
		}
	}
	_, err := s.Call(t.Context(), "keeper", long("c", 200<<10), session)
	if r := wantCode(t, "state over its limit", err, troupe.CodeBudgetExceeded); !strings.Contains(r.Detail, "at most 1048576 allowed") || !strings.HasPrefix(r.Detail, "state of keeper in session s: ") {
		t.Errorf("detail %q", r.Detail)
	}
	_, err = s.Call(t.Context(), "keeper", "fail", session)
	wantCode(t, "failed turn", err, troupe.CodeUnavailable)
	if r := call(t, s, "keeper", "read", session); r.Text != "2 921649" {
		t.Errorf("after failed turns: %s", r.Text)
	}
	if r := call(t, s, "keeper", "read"); r.Text != "0 12" {
		t.Errorf("another session: %s", r.Text)
	}
	if err := s.Sessions().Delete(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
}

func TestStateOfAnotherVersionIsMigratedOrRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, dir, troupe.Agent{Name: "keeper", StateVersion: 1, Func: func(t *troupe.Turn) (string, error) {
		return "", troupe.SetState(t, "seven")
	}})
	call(t, s, "keeper", "x", troupe.Session("s"))
	closeServer(t, s)

	counter := func(t *troupe.Turn) (string, error) {
		if t.Message() == "overwrite" {
			return "", troupe.SetState(t, 1)
		}
		n, err := troupe.State[int](t)
		if err != nil {
			return "", err
		}
		return fmt.Sprint(n), troupe.SetState(t, n+1)
	}
	s = open(t, dir, troupe.Agent{Name: "keeper", StateVersion: 2, Func: counter})
	for _, message := range []string{"read", "overwrite"} {
		_, err := s.Call(t.Context(), "keeper", message, troupe.Session("s"))
		if r := wantCode(t, message, err, troupe.CodeRejected); !strings.Contains(r.Detail, "it has version 1, and this program has version 2: set Agent.Migrate") {
			t.Errorf("%s: %s", message, r.Detail)
		}
	}
	closeServer(t, s)

	migrations := 0
	s = open(t, dir, troupe.Agent{Name: "keeper", StateVersion: 2, Func: counter, Migrate: func(version int, state []byte) ([]byte, error) {
		migrations++
		if version != 1 || string(state) != `"seven"` {
			return nil, fmt.Errorf("version %d, state %s", version, state)
		}
		return []byte("7"), nil
	}})
	for _, want := range []string{"7", "8"} {
		if r := call(t, s, "keeper", "x", troupe.Session("s")); r.Text != want {
			t.Errorf("got %s, want %s", r.Text, want)
		}
	}
	if migrations != 1 {
		t.Errorf("%d migrations, want 1", migrations)
	}
	closeServer(t, s)
	s = open(t, dir, troupe.Agent{Name: "keeper", StateVersion: 2, Func: func(t *troupe.Turn) (string, error) {
		_, err := troupe.State[[]string](t)
		return "", err
	}})
	_, err := s.Call(t.Context(), "keeper", "x", troupe.Session("s"))
	if r := wantCode(t, "state of another type", err, troupe.CodeUnavailable); !strings.Contains(r.Detail, "state of keeper in session s: json: ") {
		t.Errorf("%s", r.Detail)
	}
}

// team is an agent with the method Turn.
type team struct{ greeting string }

func (a team) Turn(t *troupe.Turn) (string, error) {
	answers := t.All(
		troupe.Call("echo", "one"),
		troupe.Call("echo", "two", troupe.Session("other"), troupe.Timeout(time.Minute)),
		troupe.Call("ghost", "three"),
		troupe.Do("count", func(context.Context) ([]byte, error) { return []byte("4"), nil }, troupe.Idempotent()),
		troupe.Do("broken", func(context.Context) ([]byte, error) { return nil, errors.New("no disk") }),
		troupe.Sleep(time.Millisecond),
		troupe.Call("echo", "seven", troupe.User("alice")),
		troupe.Wait("never", time.Millisecond),
	)
	var out []string
	for _, a := range answers {
		b, _ := a.Bytes()
		text, err := a.Text()
		var r *troupe.Refusal
		switch {
		case errors.As(err, &r):
			text = string(r.Code)
		case err != nil || a.Err() != nil:
			return "", err
		case text == "":
			text = string(b)
		}
		out = append(out, text)
		for _, w := range a.Warnings() {
			t.Warn("%s: %s", text, w)
		}
	}
	none := t.All()
	return fmt.Sprintf("%s %s, %d", a.greeting, strings.Join(out, ", "), len(none)), nil
}

func TestTurnMakesEveryKindOfAsk(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "data"),
		troupe.Agent{Name: "team", Handler: team{"answers:"}},
		troupe.Agent{Name: "echo", Func: func(t *troupe.Turn) (string, error) {
			if t.Message() == "two" {
				t.Warn("nothing from %d", 2)
			}
			return strings.Join([]string{t.Message(), t.Caller(), t.Session(), t.User()}, "/"), nil
		}})
	r, err := s.Call(t.Context(), "team", "x", troupe.Session("s"), troupe.User("bob"))
	for w := new(troupe.Waiting); errors.As(err, &w); { // its wait has not ended yet
		r, err = s.Await(t.Context(), w.Run, troupe.User("bob"))
	}
	if err != nil {
		t.Fatal(err)
	}
	const want = "answers: one/team/s/bob, two/team/other/bob, agent_not_found, 4, agent_unavailable, , invalid_request, timeout, 0"
	if r.Text != want || len(r.Warnings) != 1 || r.Warnings[0] != "two/team/other/bob: nothing from 2" {
		t.Errorf("got  %q\nwant %q, warnings %q", r.Text, want, r.Warnings)
	}
	direct := call(t, s, "echo", "two")
	if direct.Text != "two//"+direct.Session+"/local" || len(direct.Warnings) != 1 {
		t.Errorf("%+v", direct)
	}
}

// An agent runs again from its start after each restart, with the answers that it had.
func TestTurnContinuesAfterRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	begun, worked := 0, 0
	agent := troupe.Agent{Name: "a", Transcript: "all", Func: func(t *troupe.Turn) (string, error) {
		begun++
		run := t.Run()
		b, err := t.Do("work", func(context.Context) ([]byte, error) {
			worked++
			return []byte(fmt.Sprint(worked)), nil
		})
		if err != nil {
			return "", err
		}
		heard := len(t.Transcript())
		if err := troupe.SetState(t, run); err != nil {
			return "", err
		}
		signal, err := t.Wait("go", time.Minute)
		return fmt.Sprintf("work %s, heard %d, %s, same run %v", b, heard, signal, run == t.Run()), err
	}}
	s := open(t, dir, agent)
	_, err := s.Call(t.Context(), "a", "x", troupe.Session("s"))
	var w *troupe.Waiting
	if !errors.As(err, &w) {
		t.Fatal(err)
	}
	if _, err := s.Sessions().Append(t.Context(), "s", "a", troupe.Message{Role: troupe.RoleUser, Text: "later"}); err != nil {
		t.Fatal(err)
	}
	closeServer(t, s)
	s = open(t, dir, agent)
	if err := s.Signal(t.Context(), w.To, "go", []byte("on")); err != nil {
		t.Fatal(err)
	}
	r, err := s.Await(t.Context(), w.Run)
	if err != nil || r.Text != "work 1, heard 0, on, same run true" || begun != 2 || worked != 1 {
		t.Errorf("%+v, %v; begun %d, worked %d", r, err, begun, worked)
	}
}

// A turn continues after Send. The call is pending until its outcome is a message of the session, also over a
// restart of the server.
func TestSendComesBackAfterRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	heard := make(chan string, 1)
	begun := make(chan bool, 8) // one for each time that the worker begins its turn
	asker := troupe.Agent{Name: "asker", Func: func(t *troupe.Turn) (string, error) {
		if t.Correlation != "" {
			text, err := t.Outcome.Text()
			heard <- fmt.Sprint(t.Correlation, " ", text, " ", err)
			return "heard", nil
		}
		if t.Message() == "send" {
			return t.Send("worker", "look", map[string]int{"n": 1}, troupe.Session("other"), troupe.Timeout(2*time.Minute))
		}
		all, err := t.Pending()
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(all)
		return string(b), err
	}}
	worker := troupe.Agent{Name: "worker", Func: func(t *troupe.Turn) (string, error) {
		if !strings.HasPrefix(t.Message(), `{"kind":"skill_invocation","skill":"look","mode":"execute","input":{"n":1},`) {
			return t.Message(), nil
		}
		begun <- true
		b, err := t.Wait("go", time.Minute)
		return "it is " + string(b), err
	}}
	s := open(t, dir, asker, worker)
	correlation := call(t, s, "asker", "send", troupe.Session("s")).Text
	closeServer(t, s)
	s = open(t, dir, asker, worker)
	// The message of a user is no outcome, whatever it has.
	forged := call(t, s, "asker", `{"kind":"skill_response","correlationId":"`+correlation+`","status":"completed","output":"x"}`, troupe.Session("s")).Text
	if want := fmt.Sprintf("[%q]", correlation); forged != want {
		t.Errorf("pending: %s, want %s", forged, want)
	}
	<-begun // before or after the restart: until then the worker has no such run
	if err := s.Signal(t.Context(), correlation, "go", []byte("done")); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-heard:
		if want := correlation + " it is done <nil>"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	case <-t.Context().Done():
	}
	if got := call(t, s, "asker", "pending", troupe.Session("s")).Text; got != "null" {
		t.Errorf("pending afterwards: %s", got)
	}
	closeServer(t, s)
}

// A call that cannot be made is refused at once, and one that fails or takes too long has a refusal as its outcome.
func TestSendFails(t *testing.T) {
	heard := make(chan error, 1)
	asker := troupe.Agent{Name: "asker", Func: func(t *troupe.Turn) (string, error) {
		if t.Correlation != "" {
			heard <- t.Outcome.Err()
			return "heard", nil
		}
		switch t.Message() {
		case "option":
			return t.Send("worker", "look", nil, troupe.User("x"))
		case "late":
			return t.Send("worker", "wait", nil, troupe.Timeout(time.Millisecond))
		case "skill":
			return t.Send("worker", "sing", nil)
		}
		return t.Send(t.Message(), "look", nil)
	}}
	worker := troupe.Agent{Name: "worker", Skills: []string{"look", "wait"}, Func: func(t *troupe.Turn) (string, error) {
		if strings.Contains(t.Message(), `"skill":"wait"`) {
			_, err := t.Wait("go", time.Minute)
			return "", err
		}
		return "", troupe.Refuse(troupe.CodeInvalid, "no such thing")
	}}
	s := open(t, filepath.Join(t.TempDir(), "data"), asker, worker)
	defer closeServer(t, s)
	for message, want := range map[string]troupe.Code{"option": troupe.CodeInvalid, "skill": troupe.CodeInvalid, "nobody": troupe.CodeAgentNotFound} {
		_, err := s.Call(t.Context(), "asker", message)
		wantCode(t, message, err, want)
	}
	for message, want := range map[string]troupe.Code{"worker": troupe.CodeInvalid, "late": troupe.CodeTimeout} {
		call(t, s, "asker", message)
		wantCode(t, message, <-heard, want)
	}
}

// A parked run continues once the former code is back, also if operations were open when it was
// parked. Until then the log and the refusals have the reason.
func TestParkedRunIsRetried(t *testing.T) {
	dir, logs := filepath.Join(t.TempDir(), "data"), new(logBuffer)
	former := troupe.Agent{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		signal, err := t.Wait("go", time.Minute)
		if err != nil {
			return "", err
		}
		b, err := t.Call("b", string(signal))
		return "after " + b, err
	}}
	b := troupe.Agent{Name: "b", Func: func(t *troupe.Turn) (string, error) { return "b " + t.Message(), nil }}
	serve := func(a troupe.Agent) *troupe.Server {
		return openWith(t, troupe.Config{Data: dir, Agents: []troupe.Agent{a, b}, Log: slog.New(slog.NewTextHandler(logs, nil))})
	}
	s := serve(former)
	r, err := s.Call(t.Context(), "a", "x", troupe.Session("one"))
	if !errors.As(err, new(*troupe.Waiting)) {
		t.Fatal(err)
	}
	closeServer(t, s)
	s = serve(troupe.Agent{Name: "a", Version: "2", Func: func(t *troupe.Turn) (string, error) { return "", t.Sleep(time.Hour) }})
	if err := s.Retry(t.Context(), r.Run); err != nil {
		t.Errorf("a run that is not parked: %v", err)
	}
	if err := s.Signal(t.Context(), r.Run, "go", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	_, err = s.Await(t.Context(), r.Run)
	if r := wantCode(t, "parked run", err, troupe.CodeUnavailable); !strings.Contains(r.Detail, "is parked") || !strings.Contains(r.Detail, "step 1") {
		t.Error(r.Detail)
	}
	wantCode(t, "retry with other code", s.Retry(t.Context(), r.Run), troupe.CodeRejected)
	if n := strings.Count(logs.String(), "level=WARN msg=\"run parked"); n != 1 {
		t.Errorf("%d warnings when the run was parked, log\n%s", n, logs)
	}
	closeServer(t, s)
	s = serve(former)
	_, err = s.Await(t.Context(), r.Run)
	wantCode(t, "parked run after a restart", err, troupe.CodeUnavailable)
	if n := strings.Count(logs.String(), "level=WARN msg=\"run parked"); n != 2 {
		t.Errorf("%d warnings after the restart, log\n%s", n, logs)
	}
	wantCode(t, "retry by another user", s.Retry(t.Context(), r.Run, troupe.User("bob")), troupe.CodeRunNotFound)
	if err := s.Retry(t.Context(), r.Run); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Await(t.Context(), r.Run); err != nil || got.Text != "after b hello" {
		t.Errorf("%+v %v", got, err)
	}
	wantCode(t, "retry of an ended run", s.Retry(t.Context(), r.Run), troupe.CodeRejected)
	if _, err := s.Call(t.Context(), "a", "y", troupe.Session("one")); !errors.As(err, new(*troupe.Waiting)) {
		t.Errorf("the session is blocked: %v", err)
	}
}

// A program whose agent makes other asks than before cannot continue the run.
func TestChangedAgentIsParked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, dir, troupe.Agent{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		_, err := t.Wait("go", time.Minute)
		return "", err
	}})
	r, err := s.Call(t.Context(), "a", "x")
	if !errors.As(err, new(*troupe.Waiting)) {
		t.Fatal(err)
	}
	closeServer(t, s)
	s = open(t, dir, troupe.Agent{Name: "a", Version: "2", Func: func(t *troupe.Turn) (string, error) {
		return "", t.Sleep(time.Hour)
	}})
	if err := s.Signal(t.Context(), r.Run, "go", nil); err != nil {
		t.Fatal(err)
	}
	_, err = s.Await(t.Context(), r.Run)
	if r := wantCode(t, "parked run", err, troupe.CodeUnavailable); !strings.Contains(r.Detail, "is parked") {
		t.Error(r.Detail)
	}
	if err := s.Cancel(t.Context(), r.Run); err != nil {
		t.Fatal(err)
	}
	_, err = s.Await(t.Context(), r.Run)
	wantCode(t, "cancelled run", err, troupe.CodeCancelled)
}
