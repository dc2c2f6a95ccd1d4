// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe"
)

// payment is the argument of the tool pay.
type payment struct {
	To     string `json:"to" jsonschema:"name of the payee"`
	Amount int    `json:"amount"`
	Note   string `json:"note,omitempty"`
}

// ledger counts the calls of a tool.
type ledger struct {
	mu    sync.Mutex
	calls []string
}

func (l *ledger) pay(ctx context.Context, p payment) (map[string]any, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := troupe.ToolCallOf(ctx)
	l.calls = append(l.calls, of.ID)
	switch p.To {
	case "nobody":
		return nil, errors.New("no such account")
	case "closed":
		return nil, fmt.Errorf("bank: %w", troupe.Refuse(troupe.CodeRejected, "the account is closed"))
	case "panic":
		panic("no vault")
	}
	return map[string]any{"paid": p.Amount, "agent": of.Agent, "session": of.Session, "user": of.User, "run": of.Run != ""}, nil
}

// cashier passes its message to the tool pay as arguments.
var cashier = troupe.Agent{Name: "cashier", Func: func(t *troupe.Turn) (string, error) {
	b, err := t.Tool("bank.pay", []byte(t.Message()))
	return string(b), err
}}

func TestToolIsAGoFunction(t *testing.T) {
	var l ledger
	s := openWith(t, troupe.Config{Data: filepath.Join(t.TempDir(), "data"), Agents: []troupe.Agent{cashier, {Name: "curious", Func: func(t *troupe.Turn) (string, error) {
		answers := t.All(troupe.UseTool("clock", nil), troupe.UseTool("bank.pay", payment{To: "ada", Amount: 2}), troupe.UseTool("bank.pay", func() {}), troupe.UseTool("gone", nil))
		text, err := answers[0].Text()
		b, payErr := answers[1].Bytes()
		return fmt.Sprintf("%s|%s|%v|%v", text, b, answers[2].Err(), answers[3].Err()), errors.Join(err, payErr)
	}}},
		Tools: []troupe.Tool{
			troupe.NewTool("bank.pay", "Pays.", l.pay),
			troupe.NewTool("clock", "Tells the time.", func(context.Context, struct{}) (string, error) { return "noon", nil }, troupe.Idempotent()),
		},
		Policy: []troupe.PolicyRule{{Tool: "bank.*", When: "args.amount > 100", Decision: troupe.Block}},
	})
	r := call(t, s, "cashier", `{"amount": 5, "to": "ada"}`, troupe.User("bob"), troupe.Session("s"))
	if r.Text != `{"agent":"cashier","paid":5,"run":true,"session":"s","user":"bob"}` {
		t.Errorf("%s", r.Text)
	}
	want := `noon|{"agent":"curious","paid":2,"run":true,"session":"s","user":"bob"}|invalid_request: arguments of tool bank.pay: json: unsupported type: func()|tool_not_found: no tool is named "gone"`
	if r = call(t, s, "curious", "x", troupe.User("bob"), troupe.Session("s")); r.Text != want {
		t.Errorf("got  %s\nwant %s", r.Text, want)
	}
	if n := len(l.calls); n != 2 || l.calls[0] == l.calls[1] || !strings.HasPrefix(l.calls[0], "tc_") {
		t.Errorf("calls %q", l.calls)
	}
	for message, want := range map[string]struct {
		code troupe.Code
		text string
	}{
		`{"to": "ada"}`:                              {troupe.CodeInvalid, "amount"},
		`{"to": "ada", "amount": "5"}`:               {troupe.CodeInvalid, "integer"},
		`{"to": "ada", "amount": 5, "x": 1}`:         {troupe.CodeInvalid, "x"},
		`{"to": "ada", "amount": 101}`:               {troupe.CodeBlocked, "rule 1 (bank.*)"},
		`{"to": "nobody", "amount": 5}`:              {troupe.CodeUnavailable, "bank.pay: no such account"},
		`{"to": "closed", "amount": 5, "note": "n"}`: {troupe.CodeRejected, "bank: the account is closed"},
		`{"to": "panic", "amount": 5}`:               {troupe.CodeUnavailable, "panic: no vault"},
	} {
		_, err := s.Call(t.Context(), "cashier", message)
		if r := wantCode(t, message, err, want.code); !strings.Contains(r.Detail, want.text) {
			t.Errorf("%s: %q does not contain %q", message, r.Detail, want.text)
		}
	}
}

// A tool is listed for clients and used by declared agents, whose policies decide about it.
func TestDeclaredAgentUsesGoTool(t *testing.T) {
	var l ledger
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "clerk.toml"), []byte("name = \"clerk\"\nmodel = \"scripted\"\nprompt = \"Pay.\"\ntools = [\"bank.pay\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openWith(t, troupe.Config{Data: filepath.Join(t.TempDir(), "data"), AgentFiles: dir,
		Tools: []troupe.Tool{troupe.NewTool("bank.pay", "Pays.", l.pay, troupe.Timeout(5*time.Second), troupe.Summary("pays {{amount}} to {{to}}"))}})
	listener := listen(t)
	go func() { _ = s.Serve(listener) }()
	response, err := http.Get("http://" + listener.Addr().String() + "/v1/tools")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(response.Body)
	response.Body.Close()
	var listed struct {
		Tools []struct {
			Name    string `json:"tool_name"`
			Via     string `json:"via"`
			Timeout int    `json:"timeout_ms"`
		} `json:"tools"`
	}
	if err = errors.Join(err, json.Unmarshal(b, &listed)); err != nil || len(listed.Tools) != 1 || listed.Tools[0].Name != "bank.pay" || listed.Tools[0].Via != "go" || listed.Tools[0].Timeout != 5000 {
		t.Errorf("%s, %v", b, err)
	}
	for _, change := range []struct{ method, path, body string }{
		{"DELETE", "/bank.pay", ""},
		{"POST", "", `{"tool_name": "bank.pay", "url": "http://127.0.0.1:1/x"}`},
		{"PUT", "/bank.pay", `{"name": "bank.pay", "url": "http://127.0.0.1:1/x"}`},
	} {
		r, err := http.NewRequestWithContext(t.Context(), change.method, "http://"+listener.Addr().String()+"/v1/tools"+change.path, strings.NewReader(change.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusForbidden || !strings.Contains(string(b), "is part of this program") {
			t.Errorf("%s: %d %s", change.method, response.StatusCode, b)
		}
	}
	r := call(t, s, "clerk", `use bank.pay {"to": "ada", "amount": 7}`)
	if !strings.Contains(r.Text, `"paid":7`) || len(l.calls) != 1 {
		t.Errorf("%+v, calls %q", r, l.calls)
	}
}

// Work of a tool that a crash has interrupted is repeated only if that is declared safe.
func TestInterruptedToolIsRepeatedIfIdempotent(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "data")
		var performed atomic.Int32
		started := make(chan struct{}, 2)
		tool := func(wait bool) troupe.Config {
			var opts []troupe.Option
			if idempotent {
				opts = append(opts, troupe.Idempotent())
			}
			return troupe.Config{Data: dir, Agents: []troupe.Agent{cashier}, Tools: []troupe.Tool{troupe.NewTool("bank.pay", "Pays.", func(ctx context.Context, p payment) (string, error) {
				performed.Add(1)
				started <- struct{}{}
				if wait {
					<-ctx.Done()
				}
				return "paid", ctx.Err()
			}, opts...)}}
		}
		s := openWith(t, tool(true))
		ended := make(chan error, 1)
		var r troupe.Reply
		go func() {
			var err error
			r, err = s.Call(t.Context(), "cashier", `{"to": "ada", "amount": 5}`)
			ended <- err
		}()
		<-started
		closeServer(t, s)
		if err := <-ended; !errors.Is(err, troupe.ErrClosed) {
			t.Fatal(err)
		}
		s = openWith(t, tool(false))
		r, err := s.Await(t.Context(), r.Run)
		switch {
		case idempotent && (err != nil || r.Text != "paid" || performed.Load() != 2):
			t.Errorf("%+v, %v, performed %d", r, err, performed.Load())
		case !idempotent:
			wantCode(t, "interrupted", err, troupe.CodeOutcomeUnknown)
			if performed.Load() != 1 {
				t.Errorf("performed %d", performed.Load())
			}
		}
	}
}

func TestApprovalOfNestedRunIsDecided(t *testing.T) {
	var l ledger
	config := troupe.Config{Data: filepath.Join(t.TempDir(), "data"),
		Agents: []troupe.Agent{cashier, {Name: "boss", Func: func(t *troupe.Turn) (string, error) { return t.Call("cashier", t.Message()) }}},
		Tools:  []troupe.Tool{troupe.NewTool("bank.pay", "Pays.", l.pay, troupe.Policy(troupe.RequireApproval), troupe.ApprovalTimeout(time.Hour), troupe.Summary("pays {{amount}} to {{to}}"))}}
	s := openWith(t, config)
	alice := troupe.User("alice")
	var waiting []*troupe.Waiting
	for _, session := range []string{"one", "two", "three"} {
		_, err := s.Call(t.Context(), "boss", `{"to": "ada", "amount": 5}`, alice, troupe.Session(session))
		var w *troupe.Waiting
		if !errors.As(err, &w) || w.Signal != "" || len(w.Approvals) != 1 {
			t.Fatalf("%v", err)
		}
		waiting = append(waiting, w)
	}
	a := waiting[0].Approvals[0]
	if a.Summary != "pays 5 to ada" || string(a.Args) != `{"amount":5,"to":"ada"}` || a.Agent != "cashier" || a.Session != "one" || a.Root != waiting[0].Run || a.Run == a.Root ||
		a.User != "alice" || a.Tool != "bank.pay" || a.Status != "PENDING" || !a.Expires.Equal(a.Created.Add(time.Hour)) || !strings.Contains(waiting[0].Error(), a.ID) {
		t.Errorf("%+v: %v", a, waiting[0])
	}
	closeServer(t, s)
	s = openWith(t, config)
	// The restarted node answers as soon as it has loaded its open runs.
	var w *troupe.Waiting
	if _, err := s.Await(t.Context(), waiting[0].Run, alice); !errors.As(err, &w) || w.Approvals[0].ID != a.ID {
		t.Errorf("after a restart: %v", err)
	}
	page, err := s.Approvals(t.Context(), troupe.Page{Limit: 2}, alice)
	if err != nil || len(page.All) != 2 || page.All[0].ID != a.ID || page.Next == "" {
		t.Fatalf("%+v, %v", page, err)
	}
	page, err = s.Approvals(t.Context(), troupe.Page{Cursor: page.Next}, alice)
	if err != nil || len(page.All) != 1 || page.Next != "" {
		t.Errorf("%+v, %v", page, err)
	}
	if page, err = s.Approvals(t.Context(), troupe.Page{}); err != nil || len(page.All) != 0 {
		t.Errorf("approvals of another user: %+v, %v", page, err)
	}
	_, err = s.Decide(t.Context(), a.ID, troupe.Approve, "")
	wantCode(t, "decision of another user", err, troupe.CodeApprovalNotFound)
	_, err = s.Decide(t.Context(), a.ID, "maybe", "", alice)
	wantCode(t, "no decision", err, troupe.CodeInvalid)

	done, err := s.Decide(t.Context(), a.ID, troupe.Approve, "asked Anna", alice, troupe.By("bob"))
	if err != nil || done.Status != "APPROVED" || done.By != "bob" || done.Reason != "asked Anna" || done.Decided.IsZero() {
		t.Errorf("%+v, %v", done, err)
	}
	r, err := s.Await(t.Context(), waiting[0].Run, alice)
	if err != nil || !strings.Contains(r.Text, `"paid":5`) {
		t.Errorf("%+v, %v", r, err)
	}
	again, err := s.Decide(t.Context(), a.ID, troupe.Reject, "", alice)
	if refusal := wantCode(t, "second decision", err, troupe.CodeApprovalDecided); again.Status != "APPROVED" || !strings.Contains(refusal.Detail, "by bob: asked Anna") {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err = s.Decide(t.Context(), waiting[1].Approvals[0].ID, troupe.Reject, "too much", alice); err != nil {
		t.Error(err)
	}
	_, err = s.Await(t.Context(), waiting[1].Run, alice)
	if refusal := wantCode(t, "rejected", err, troupe.CodeApprovalRejected); !strings.Contains(refusal.Detail, "too much") {
		t.Errorf("%v", err)
	}
	if err = s.Cancel(t.Context(), waiting[2].Run, alice); err != nil {
		t.Error(err)
	}
	if expired, err := s.Approval(t.Context(), waiting[2].Approvals[0].ID, alice); err != nil || expired.Status != "EXPIRED" {
		t.Errorf("%+v, %v", expired, err)
	}
	_, err = s.Approval(t.Context(), "x", alice)
	wantCode(t, "no ID", err, troupe.CodeInvalid)
	if len(l.calls) != 1 {
		t.Errorf("performed %q, want one", l.calls)
	}
}

// A tool that returns more than MaxResult is shortened for the agent.
func TestResultIsShortened(t *testing.T) {
	s := openWith(t, troupe.Config{Temporary: true, Agents: []troupe.Agent{{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		answer := t.All(troupe.UseTool("long", nil))[0]
		text, err := answer.Text()
		return fmt.Sprint(len(text), len(answer.Warnings())), err
	}}}, Tools: []troupe.Tool{troupe.NewTool("long", "", func(context.Context, struct{}) (string, error) { return strings.Repeat("x", 5000), nil }, troupe.MaxResult(100))}})
	if r := call(t, s, "a", "x"); r.Text != "100 1" {
		t.Errorf("%+v", r)
	}
}

func TestOpenRejectsInvalidTools(t *testing.T) {
	echo := func(context.Context, payment) (string, error) { return "", nil }
	tool := func(name string, opts ...troupe.Option) []troupe.Tool {
		return []troupe.Tool{troupe.NewTool(name, "", echo, opts...)}
	}
	for want, all := range map[string][]troupe.Tool{
		"is zero":             {{}},
		"is reserved":         tool("troupe.x"),
		"want only letters":   tool("a b"),
		"already registered":  append(tool("a"), tool("a")...),
		`"call_agent"`:        tool("call_agent"),
		"no property":         tool("a", troupe.Summary("{{x}}")),
		`Policy: `:            tool("a", troupe.Policy("perhaps")),
		"MaxResult: got 0":    tool("a", troupe.MaxResult(0)),
		"ApprovalTimeout: ":   tool("a", troupe.ApprovalTimeout(0)),
		"timeout_ms: want":    tool("a", troupe.Timeout(2*time.Hour)),
		"the option User":     tool("a", troupe.User("x")),
		"the function is nil": {troupe.NewTool[payment, string]("a", "", nil)},
		"are a int: want":     {troupe.NewTool("a", "", func(context.Context, int) (string, error) { return "", nil })},
		"no JSON schema":      {troupe.NewTool("a", "", func(context.Context, struct{ C chan int }) (string, error) { return "", nil })},
	} {
		s, err := troupe.Open(troupe.Config{Temporary: true, Tools: all})
		if err == nil || !strings.HasPrefix(err.Error(), "troupe: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if s != nil {
			closeServer(t, s)
		}
	}
	if s, err := troupe.Open(troupe.Config{Temporary: true, Policy: []troupe.PolicyRule{{Tool: "a"}}}); err == nil || !strings.Contains(err.Error(), "Config.Policy: rule 1: decision") {
		t.Error(err, s)
	}
}
