// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe"
)

// collect returns the events of a stream that ends without an error.
func collect(t *testing.T, events iter.Seq2[troupe.Event, error]) (all []troupe.Event) {
	t.Helper()
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func typesOf(all []troupe.Event) (types []string) {
	for i := range all {
		types = append(types, all[i].Type)
	}
	return types
}

// withHelper returns a server whose agent helper prompts the built-in model. Its other agent passes
// messages on to it and waits for a signal.
func withHelper(t *testing.T, dir string) *troupe.Server {
	t.Helper()
	files := t.TempDir()
	if err := os.WriteFile(filepath.Join(files, "helper.toml"), []byte("name = \"helper\"\nmodel = \"scripted\"\nprompt = \"Help.\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return openWith(t, troupe.Config{Data: dir, AgentFiles: files, Agents: []troupe.Agent{{Name: "asker", Func: func(t *troupe.Turn) (string, error) {
		answer, err := t.Call("helper", t.Message())
		if err != nil {
			return "", err
		}
		_, err = t.Wait("go", time.Minute)
		return answer, err
	}}}})
}

func TestStreamResumesBehindEachEvent(t *testing.T) {
	s := withHelper(t, filepath.Join(t.TempDir(), "data"))
	ctx, alice := t.Context(), troupe.User("alice")
	reply, err := s.Begin(ctx, "asker", "echo hello there", alice, troupe.Session("s"))
	if err != nil || reply.Run == "" || reply.Session != "s" || reply.Text != "" {
		t.Fatalf("%+v, %v", reply, err)
	}
	var all []troupe.Event
	deltas, below := "", ""
	for e, err := range s.Stream(ctx, reply.Run, alice, troupe.Tree()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
		switch e.Type {
		case troupe.EventDelta:
			deltas, below = deltas+e.Text, e.Run
		case "wait_opened":
			if err := s.Signal(ctx, e.Run, "go", nil, alice); err != nil {
				t.Error(err)
			}
		}
	}
	last := all[len(all)-1]
	if first := all[0]; first.Type != troupe.EventInput || first.Text != "echo hello there" || first.Seq != 1 || first.Run != reply.Run || time.Since(first.At) > time.Hour {
		t.Errorf("first: %+v", first)
	}
	if last.Type != troupe.EventDone || last.Text != deltas || deltas == "" || below == reply.Run || !strings.Contains(string(last.Payload), `"status"`) {
		t.Errorf("deltas %q in run %s, last: %+v", deltas, below, last)
	}
	for i := range all {
		rest := collect(t, s.Stream(ctx, reply.Run, alice, troupe.Tree(), troupe.After(all[i].Cursor)))
		if !slices.EqualFunc(rest, all[i+1:], func(a, b troupe.Event) bool { return a.Cursor == b.Cursor && a.Run == b.Run && a.Seq == b.Seq }) {
			t.Errorf("after event %d: got %q, want %q", i, typesOf(rest), typesOf(all[i+1:]))
		}
	}
	own := collect(t, s.Stream(ctx, reply.Run, alice))
	for _, e := range own {
		if e.Run != reply.Run {
			t.Errorf("event of another run: %+v", e)
		}
	}
	for range s.Stream(ctx, reply.Run, alice) {
		break // without an error or a leak
	}
	for what, test := range map[string]struct {
		run  string
		opts []troupe.Option
		code troupe.Code
		text string
	}{
		"another user":              {reply.Run, nil, troupe.CodeRunNotFound, ""},
		"no run":                    {"x", nil, troupe.CodeInvalid, ""},
		"no cursor":                 {reply.Run, []troupe.Option{alice, troupe.After("x")}, troupe.CodeInvalid, "After: got"},
		"cursor of a tree":          {reply.Run, []troupe.Option{alice, troupe.After(last.Cursor)}, troupe.CodeInvalid, "the option Tree"},
		"cursor ahead":              {reply.Run, []troupe.Option{alice, troupe.After("99")}, troupe.CodeInvalid, "no event 99"},
		"option of another command": {reply.Run, []troupe.Option{troupe.Session("s")}, troupe.CodeInvalid, "Stream does not take"},
	} {
		n := 0
		for _, err := range s.Stream(ctx, test.run, test.opts...) {
			n++
			if r := wantCode(t, what, err, test.code); !strings.Contains(r.Detail, test.text) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n != 1 {
			t.Errorf("%s: %d values, want one error", what, n)
		}
	}
}

// A stream ends with its context and with its server. Another continues where it ended.
func TestStreamEndsWithContextAndServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := withHelper(t, dir)
	reply, err := s.Begin(t.Context(), "asker", "echo hello")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stopped := errors.New("enough")
	cursor, seen := "", []string(nil)
	for e, err := range s.Stream(ctx, reply.Run) {
		if err != nil {
			if !errors.Is(err, stopped) || !strings.Contains(err.Error(), "continues") {
				t.Errorf("context: %v", err)
			}
			break
		}
		cursor, seen = e.Cursor, append(seen, e.Type)
		if e.Type == "wait_opened" {
			cancel(stopped)
		}
	}
	waits := s.Stream(t.Context(), reply.Run, troupe.After(cursor))
	next, stop := iter.Pull2(waits)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err, _ := next()
		ended <- err
	}()
	closeServer(t, s)
	if err := <-ended; !errors.Is(err, troupe.ErrClosed) {
		t.Errorf("close: %v", err)
	}
	s = withHelper(t, dir)
	if err := s.Signal(t.Context(), reply.Run, "go", nil); err != nil {
		t.Fatal(err)
	}
	for _, e := range collect(t, s.Stream(t.Context(), reply.Run, troupe.After(cursor))) {
		seen = append(seen, e.Type)
	}
	if all := typesOf(collect(t, s.Stream(t.Context(), reply.Run))); !slices.Equal(seen, all) || seen[len(seen)-1] != troupe.EventDone {
		t.Errorf("got  %q\nwant %q", seen, all)
	}
}

// Begin returns when the message is accepted, and the refusal of one that is not.
func TestBeginDoesNotWaitForTheAnswer(t *testing.T) {
	release := make(chan struct{})
	s := open(t, filepath.Join(t.TempDir(), "data"), troupe.Agent{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		_, err := t.Do("work", func(context.Context) ([]byte, error) { <-release; return nil, nil })
		return "done", err
	}})
	ctx, key := t.Context(), troupe.IdempotencyKey("k")
	first, err := s.Begin(ctx, "a", "x", key, troupe.Session("s"))
	again, againErr := s.Begin(ctx, "a", "x", key, troupe.Session("s"))
	if err = errors.Join(err, againErr); err != nil || again.Run != first.Run {
		t.Errorf("%+v, %+v, %v", first, again, err)
	}
	_, err = s.Begin(ctx, "a", "x", troupe.Session("s"), troupe.IfBusy(troupe.BusyReject))
	wantCode(t, "busy session", err, troupe.CodeSessionBusy)
	_, err = s.Begin(ctx, "b", "x")
	wantCode(t, "no agent", err, troupe.CodeAgentNotFound)
	close(release)
	if r, err := s.Await(ctx, first.Run); err != nil || r.Text != "done" {
		t.Errorf("%+v, %v", r, err)
	}
	if again, err = s.Begin(ctx, "a", "x", key, troupe.Session("s")); err != nil || again.Run != first.Run {
		t.Errorf("after the end: %+v, %v", again, err)
	}
}

// Work emits pieces, which are void once it is repeated.
func TestWorkEmitsPieces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	long := strings.Repeat("é", 3000)
	emitted := make(chan struct{}, 2)
	server := func(wait bool) *troupe.Server {
		return open(t, dir, troupe.Agent{Name: "a", Func: func(t *troupe.Turn) (string, error) {
			b, err := t.Do("write", func(ctx context.Context) ([]byte, error) {
				if err := errors.Join(troupe.Emit(ctx, "once "), troupe.Emit(ctx, long)); err != nil {
					return nil, err
				}
				emitted <- struct{}{}
				if wait {
					<-ctx.Done()
				}
				return []byte("once " + long), ctx.Err()
			}, troupe.Idempotent())
			return string(b), err
		}})
	}
	s := server(true)
	reply, err := s.Begin(t.Context(), "a", "x")
	if err != nil {
		t.Fatal(err)
	}
	<-emitted
	closeServer(t, s)
	s = server(false)
	text, voided := "", 0
	var pieces []troupe.Event
	for _, e := range collect(t, s.Stream(t.Context(), reply.Run)) {
		switch e.Type {
		case troupe.EventDelta:
			pieces = append(pieces, e)
		case troupe.EventAttempt:
			var in struct {
				Discards uint64 `json:"discards_after"`
			}
			if err := json.Unmarshal(e.Payload, &in); err != nil {
				t.Fatal(err)
			}
			n := len(pieces)
			pieces = slices.DeleteFunc(pieces, func(p troupe.Event) bool { return in.Discards > 0 && p.Seq > in.Discards })
			voided += n - len(pieces)
		case troupe.EventDone:
			text = e.Text
		}
	}
	all := ""
	for _, p := range pieces {
		all += p.Text
	}
	if all != text || all != "once "+long || voided != 3 || len(pieces) != 3 {
		t.Errorf("%d pieces with %d bytes, %d voided, answer of %d bytes", len(pieces), len(all), voided, len(text))
	}
	if err := troupe.Emit(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "not that of work in Do") {
		t.Error(err)
	}
}
