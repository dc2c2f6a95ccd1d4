// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-run/troupe"
)

// logBuffer is the output of a log that tests read.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A panic in code of the program fails its run alone, and the log has its stack.
func TestPanicFailsItsRunAlone(t *testing.T) {
	var out logBuffer
	s := openWith(t, troupe.Config{Data: filepath.Join(t.TempDir(), "data"), Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Agents: []troupe.Agent{
			{Name: "a", Func: func(t *troupe.Turn) (string, error) {
				switch t.Message() {
				case "agent":
					panicIn("agent")
				case "work":
					return "", t.All(troupe.Do("w", func(context.Context) ([]byte, error) { panicIn("work"); return nil, nil }))[0].Err()
				case "tool":
					_, err := t.Tool("t", nil)
					return "", err
				case "goexit":
					_, err := t.Do("w", func(context.Context) ([]byte, error) { runtime.Goexit(); return nil, nil })
					return "", err
				case "turn in work":
					_, err := t.Do("w", func(context.Context) ([]byte, error) { return nil, t.Sleep(1) })
					return "", err
				case "nil work":
					_, err := t.Do("w", nil)
					return "", err
				case "refusal in work":
					_, err := t.Do("w", func(context.Context) ([]byte, error) {
						return nil, fmt.Errorf("bank: %w", troupe.Refuse(troupe.CodeRejected, "closed"))
					})
					return "", err
				}
				return "fine", nil
			}},
		},
		Tools: []troupe.Tool{troupe.NewTool("t", "", func(context.Context, struct{}) (string, error) { panicIn("tool"); return "", nil })},
	})
	for message, want := range map[string]struct {
		code troupe.Code
		text string
		log  string
	}{
		"agent":           {troupe.CodeUnavailable, "agent a: panic: in agent", `msg="agent a panicked"`},
		"work":            {troupe.CodeUnavailable, "panic: in work", `msg="work w of agent a panicked"`},
		"tool":            {troupe.CodeUnavailable, "panic: in tool", `msg="tool t panicked"`},
		"goexit":          {troupe.CodeUnavailable, "runtime.Goexit", ""},
		"turn in work":    {troupe.CodeUnavailable, "inside Do", "a turn was used outside its function"},
		"nil work":        {troupe.CodeInvalid, "the function is nil", ""},
		"refusal in work": {troupe.CodeRejected, "bank: closed", ""},
	} {
		_, err := s.Call(t.Context(), "a", message)
		if r := wantCode(t, message, err, want.code); !strings.Contains(r.Detail, want.text) || r.Run == "" {
			t.Errorf("%s: %+v", message, r)
		}
		if log := out.String(); want.log != "" && (!strings.Contains(log, want.log) || !strings.Contains(log, "embedding_test.go")) {
			t.Errorf("%s: the log has no %q with a stack: %s", message, want.log, log)
		}
		if r := call(t, s, "a", "x"); r.Text != "fine" {
			t.Errorf("after %s: %+v", message, r)
		}
	}
}

//go:noinline
func panicIn(where string) { panic("in " + where) }

// Every method of a closed server returns ErrClosed, and closing it again has no effect.
func TestEveryMethodOfClosedServer(t *testing.T) {
	s := openWith(t, troupe.Config{Data: filepath.Join(t.TempDir(), "data"), Agents: []troupe.Agent{cashier},
		Tools: []troupe.Tool{troupe.NewTool("bank.pay", "", new(ledger).pay, troupe.Policy(troupe.RequireApproval))}})
	ctx := t.Context()
	_, err := s.Call(ctx, "cashier", `{"to": "ada", "amount": 5}`, troupe.Session("s"))
	var w *troupe.Waiting
	if !errors.As(err, &w) {
		t.Fatal(err)
	}
	var closing sync.WaitGroup
	for range 4 {
		closing.Go(func() { closeServer(t, s) })
	}
	closing.Wait()
	closeServer(t, s)
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	sessions := s.Sessions()
	for name, do := range map[string]func() error{
		"Call":      func() error { _, err := s.Call(ctx, "cashier", "x"); return err },
		"Begin":     func() error { _, err := s.Begin(ctx, "cashier", "x"); return err },
		"Await":     func() error { _, err := s.Await(ctx, w.Run); return err },
		"Signal":    func() error { return s.Signal(ctx, w.Run, "go", nil) },
		"Cancel":    func() error { return s.Cancel(ctx, w.Run) },
		"Retry":     func() error { return s.Retry(ctx, w.Run) },
		"Approvals": func() error { _, err := s.Approvals(ctx, troupe.Page{}); return err },
		"Approval":  func() error { _, err := s.Approval(ctx, w.Approvals[0].ID); return err },
		"Decide":    func() error { _, err := s.Decide(ctx, w.Approvals[0].ID, troupe.Approve, ""); return err },
		"List":      func() error { _, err := sessions.List(ctx, troupe.Page{}); return err },
		"Get":       func() error { _, err := sessions.Get(ctx, "s"); return err },
		"Messages":  func() error { _, err := sessions.Messages(ctx, "s", "", troupe.Page{}); return err },
		"Append": func() error {
			_, err := sessions.Append(ctx, "s", "cashier", troupe.Message{Role: troupe.RoleUser, Text: "x"})
			return err
		},
		"Delete":         func() error { return sessions.Delete(ctx, "s") },
		"ListenAndServe": func() error { return s.ListenAndServe("127.0.0.1:0") },
		"Stream": func() (last error) {
			for _, err := range s.Stream(ctx, w.Run) {
				last = err
			}
			return last
		},
	} {
		if err := do(); !errors.Is(err, troupe.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A context that has ended ends each method, with its cause.
func TestEveryMethodWithEndedContext(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "data"), cashier)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	run := "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
	for name, do := range map[string]func() error{
		"Call":      func() error { _, err := s.Call(ctx, "cashier", "x"); return err },
		"Begin":     func() error { _, err := s.Begin(ctx, "cashier", "x"); return err },
		"Await":     func() error { _, err := s.Await(ctx, run); return err },
		"Signal":    func() error { return s.Signal(ctx, run, "go", nil) },
		"Cancel":    func() error { return s.Cancel(ctx, run) },
		"Retry":     func() error { return s.Retry(ctx, run) },
		"Approvals": func() error { _, err := s.Approvals(ctx, troupe.Page{}); return err },
		"List":      func() error { _, err := s.Sessions().List(ctx, troupe.Page{}); return err },
		"Stream": func() (last error) {
			for _, err := range s.Stream(ctx, run) {
				last = err
			}
			return last
		},
	} {
		if err := do(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestServerNotMadeByOpenPanicsClearly(t *testing.T) {
	for _, s := range []*troupe.Server{nil, {}} {
		func() {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, "not made by Open") {
					t.Errorf("panic %s", p)
				}
			}()
			_, _ = s.Call(t.Context(), "a", "x")
		}()
	}
}

func TestSecondServerOnOneFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	open(t, dir)
	_, err := troupe.Open(troupe.Config{Data: dir})
	if err == nil || !strings.Contains(err.Error(), "this program") || !strings.Contains(err.Error(), "was not closed") {
		t.Errorf("%v", err)
	}
	output, err := forget(t, dir, "open")
	if err == nil || !strings.Contains(output, fmt.Sprintf("is in use by process %d", os.Getpid())) || !strings.Contains(output, "stop that process, or choose another Data") {
		t.Errorf("%v: %s", err, output)
	}
}

// A folder is in use because of its lock, not because of its name.
func TestFolderNamedInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), fmt.Sprintf("is in use by process %d", os.Getpid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := troupe.Open(troupe.Config{Data: dir}); err == nil || strings.Contains(err.Error(), "which is this program") {
		t.Errorf("%v", err)
	}
}

// A program that forgets Close gets a warning and loses nothing.
func TestForgottenClose(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	output, err := forget(t, dir, "forget")
	if err != nil || !strings.Contains(output, "was not closed") || !strings.Contains(output, dir) {
		t.Fatalf("%v: %s", err, output)
	}
	s := open(t, dir, diary)
	if r := call(t, s, "diary", "two", troupe.Session("s")); !strings.HasPrefix(r.Text, "local 2 after [user:one") {
		t.Errorf("%+v", r)
	}
}

// A kill -9 in the middle of a tool repeats it if it is idempotent, and never otherwise.
func TestKillDuringTool(t *testing.T) {
	for what, want := range map[string]struct {
		performed int
		text      string
		code      troupe.Code
	}{
		"once":       {1, "", troupe.CodeOutcomeUnknown},
		"idempotent": {2, "performed 2", ""},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		if output, err := forget(t, dir, what); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("%v: %s", err, output)
		}
		s := openWith(t, killed(dir, what, false))
		r, err := s.Call(t.Context(), "a", "x", troupe.IdempotencyKey("k")) // it joins the run of the killed process
		if want.code != "" {
			wantCode(t, what, err, want.code)
		} else if err != nil || r.Text != want.text {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		if b, err := os.ReadFile(dir + ".ledger"); err != nil || strings.Count(string(b), "\n") != want.performed {
			t.Errorf("%s: performed %q, want %d; %v", what, b, want.performed, err)
		}
	}
}

// killed returns the configuration of a program whose tool adds a line to a ledger outside of the folder. Then it may
// kill its process.
func killed(dir, what string, kill bool) troupe.Config {
	var opts []troupe.Option
	if what == "idempotent" {
		opts = append(opts, troupe.Idempotent())
	}
	tool := troupe.NewTool("ledger.add", "", func(ctx context.Context, _ struct{}) (string, error) {
		f, err := os.OpenFile(dir+".ledger", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return "", err
		}
		defer f.Close()
		if _, err := fmt.Fprintln(f, troupe.ToolCallOf(ctx).ID); err != nil {
			return "", err
		}
		if kill {
			p, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = p.Kill()
			}
			return "", err
		}
		b, err := os.ReadFile(f.Name())
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		if lines[0] != lines[len(lines)-1] {
			return "", errors.New("a repeated call has another ID")
		}
		return fmt.Sprint("performed ", len(lines)), err
	}, opts...)
	return troupe.Config{Data: dir, Tools: []troupe.Tool{tool}, Agents: []troupe.Agent{{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		b, err := t.Tool("ledger.add", nil)
		return string(b), err
	}}}}
}

// forgetEnv is the variable with the action of TestForgetfulProgram.
const forgetEnv = "TROUPE_TEST_FORGET"

// forget runs TestForgetfulProgram in a process of its own.
func forget(t *testing.T, dir, what string) (output string, err error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestForgetfulProgram$")
	c.Env = append(os.Environ(), forgetEnv+"="+what+":"+dir)
	b, err := c.CombinedOutput()
	return string(b), err
}

// TestForgetfulProgram is a program that opens a server and does not close it.
func TestForgetfulProgram(t *testing.T) {
	what, dir, ok := strings.Cut(os.Getenv(forgetEnv), ":")
	if !ok {
		return // it runs in processes of other tests
	}
	if what == "once" || what == "idempotent" {
		s, err := troupe.Open(killed(dir, what, true))
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Call(t.Context(), "a", "x", troupe.IdempotencyKey("k"))
		t.Fatalf("not killed: %v", err)
	}
	var out logBuffer
	forgetServer(t, troupe.Config{Data: dir, Agents: []troupe.Agent{diary}, Log: slog.New(slog.NewTextHandler(&out, nil))})
	for what == "forget" && !strings.Contains(out.String(), "was not closed") {
		runtime.GC()
	}
	fmt.Println(out.String())
	os.Exit(0) // without Close
}

//go:noinline
func forgetServer(t *testing.T, c troupe.Config) {
	s, err := troupe.Open(c)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	call(t, s, "diary", "one", troupe.Session("s"))
}
