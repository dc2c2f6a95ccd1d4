// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe"
)

// Each step of a run and of the one below it is shown to its user, page by page, with what the model was sent: also the earlier
// messages of the session.
func TestInspect(t *testing.T) {
	s := withHelper(t, filepath.Join(t.TempDir(), "data"))
	ctx, alice := t.Context(), troupe.User("alice")
	var reply troupe.Reply
	for _, message := range []string{"say first", "say second"} {
		var err error
		if reply, err = s.Call(ctx, "helper", message, alice, troupe.Session("s")); err != nil {
			t.Fatal(err)
		}
	}
	page, err := s.Inspect(ctx, reply.Run, troupe.Page{Limit: 1}, alice)
	if err != nil || len(page.All) != 1 || page.Next == "" || page.Note != "" || page.Agent != "alice/helper/s" {
		t.Fatalf("%+v, %v", page, err)
	}
	prompt := page.All[0].Actions[0]
	for _, want := range []string{"Help.", "say first", `"first"`, "say second"} {
		if !strings.Contains(string(prompt.Prompt), want) {
			t.Errorf("prompt lacks %s: %s", want, prompt.Prompt)
		}
	}
	if step := page.All[0]; prompt.Action != "Request model" || !strings.Contains(prompt.Answer, `"text":"second"`) || step.AnswersBefore != 0 || step.AnswersAfter != 1 || step.BytesAfter <= step.BytesBefore {
		t.Errorf("%+v", step)
	}
	last, err := s.Inspect(ctx, reply.Run, troupe.Page{Cursor: page.Next}, alice)
	if err != nil || len(last.All) != 1 || last.Next != "" || last.All[0].N != 2 || last.All[0].Actions[0].Action != "Complete" || string(last.All[0].Actions[0].Parameters) != `{"response":"second"}` {
		t.Errorf("%+v, %v", last, err)
	}
	for what, c := range map[string]struct {
		run  string
		page troupe.Page
		opts []troupe.Option
		code troupe.Code
	}{
		"another user": {reply.Run, troupe.Page{}, []troupe.Option{troupe.User("bob")}, "run_not_found"},
		"no run":       {"x", troupe.Page{}, nil, troupe.CodeInvalid},
		"limit":        {reply.Run, troupe.Page{Limit: 201}, nil, troupe.CodeInvalid},
		"cursor":       {reply.Run, troupe.Page{Cursor: "x"}, nil, troupe.CodeInvalid},
		"option":       {reply.Run, troupe.Page{}, []troupe.Option{troupe.Idempotent()}, troupe.CodeInvalid},
	} {
		var r *troupe.Refusal
		if _, err := s.Inspect(ctx, c.run, c.page, c.opts...); !errors.As(err, &r) || r.Code != c.code {
			t.Errorf("%s: %v, want %s", what, err, c.code)
		}
	}
}

// The steps of an agent that is a program are shown without prompts, while its run is open too.
func TestInspectOfProgram(t *testing.T) {
	s := withHelper(t, filepath.Join(t.TempDir(), "data"))
	ctx := t.Context()
	reply, err := s.Begin(ctx, "asker", "say hi")
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range s.Stream(ctx, reply.Run) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "wait_opened" {
			break
		}
	}
	page, err := s.Inspect(ctx, reply.Run, troupe.Page{})
	if err != nil || len(page.All) != 2 || !strings.Contains(page.Note, "as of an agent that is a program") {
		t.Fatalf("%+v, %v", page, err)
	}
	if call := page.All[0].Actions[0]; call.Action != "RequestToolCall" || call.Answer != "hi" || !strings.Contains(string(call.Parameters), `"agent_id":"helper"`) {
		t.Errorf("%+v", call)
	}
	if wait := page.All[1]; wait.AnswersAfter != 1 || wait.Actions[0].Answer != "" {
		t.Errorf("%+v", wait)
	}
}
