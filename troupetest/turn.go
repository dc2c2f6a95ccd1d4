// SPDX-License-Identifier: Apache-2.0

package troupetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe"
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/program"
	"github.com/troupe-run/troupe/tools"
)

// TB is the part of *testing.T that the package needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// Option is an optional property of the turn of Start.
type Option struct{ apply func(*start) }

type start struct {
	begin actor.Begin
	tools []troupe.Tool
	state any
	err   error // of an option
}

// WithTools gives the turn the tools of Config.Tools.
func WithTools(all ...troupe.Tool) Option {
	return Option{func(s *start) { s.tools = append(s.tools, all...) }}
}

// InSession sets the session. The default is main.
func InSession(id string) Option {
	return Option{func(s *start) { s.begin.Call.To.Key = id }}
}

// CalledBy makes another agent call, in place of a client. The nearest caller is last.
func CalledBy(agents ...string) Option {
	return Option{func(s *start) {
		s.begin.Call.Origin = actor.Agent
		for _, agent := range agents {
			s.begin.Call.Chain = append(s.begin.Call.Chain, actor.NewID(agent, s.begin.Call.To.Key))
		}
	}}
}

// ByUser sets the user of the run. The default is test.
func ByUser(name string) Option {
	return Option{func(s *start) { s.begin.Call.Principal = name }}
}

// WithTranscript sets the earlier messages of the session, of which a turn is given those that
// Agent.Transcript selects. A message with another role than those of package troupe fails the test.
func WithTranscript(all ...troupe.Message) Option {
	return Option{func(s *start) {
		for i, m := range all {
			role, err := actor.ParseRole(m.Role)
			if err != nil {
				s.err = fmt.Errorf("WithTranscript: message %d: Role: got %.40q, want %s, %s, %s or %s", i+1, m.Role, troupe.RoleUser, troupe.RoleAssistant, troupe.RoleSystem, troupe.RoleTool)
				return
			}
			s.begin.Transcript = append(s.begin.Transcript, actor.ChatMessage{Role: role, Parts: actor.Text(m.Text)})
		}
	}}
}

// WithState sets the value that troupe.State returns.
func WithState(value any) Option { return Option{func(s *start) { s.state = value }} }

// Turn is a turn that a test runs.
type Turn struct {
	tb           TB
	tools        *tools.Registry
	def          actor.Definition
	begin        actor.Begin
	turn         actor.Turn
	asks         []*Ask            // asks of the last action
	answers      [][]actor.Answer  // answers to all earlier actions
	stateUpdates []actor.StateItem // state updates so far
	done         *actor.Outcome    // outcome, if the turn has ended
	err          error             // error, if the turn has failed
	started      bool
	stopped      bool
}

// acceptedAt is the time at which the message of every turn is accepted.
const acceptedAt = actor.Time(1_767_225_600_000_000_000) // 2026-01-01

// Start delivers a message to an agent. The turn starts at the first expectation of the test.
func Start(tb TB, agent troupe.Agent, message string, opts ...Option) *Turn {
	tb.Helper()
	id := actor.CallID{15: 1}
	s := start{begin: actor.Begin{At: acceptedAt, Left: 10 * time.Minute, Call: actor.Call{ID: id, Root: id, To: actor.NewID(agent.Name, actor.DefaultKey),
		Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: 10 * time.Minute, Attempt: 1,
		Principal: "test", Origin: actor.Human, Parts: actor.Text(message)}}}
	for _, o := range opts {
		if o.apply != nil {
			o.apply(&s)
		}
	}
	if s.err != nil {
		tb.Fatalf("troupetest: %v", s.err)
		return nil
	}
	p, err := program.Troupe.New([]troupe.Agent{agent}, s.tools)
	if err != nil {
		tb.Fatalf("troupetest: %v", err)
		return nil
	}
	if s.state != nil {
		b, err := json.Marshal(s.state)
		if err != nil {
			tb.Fatalf("troupetest: state: %v", err)
			return nil
		}
		s.begin.ActorState = program.Troupe.EncodeState(agent.StateVersion, b)
	}
	t := &Turn{tb: tb, tools: p.Tools, def: p.Agents[0], begin: s.begin, turn: p.Agents[0].Behavior.Begin(s.begin)}
	tb.Cleanup(t.cleanup)
	return t
}

// Cancel stops the turn, as the end of the caller does.
func (t *Turn) Cancel() {
	if !t.stopped {
		t.stopped = true
		t.turn.Stop()
	}
}

func (t *Turn) cleanup() {
	t.tb.Helper()
	if !t.stopped && !t.tb.Failed() {
		t.tb.Errorf("the turn of %s was left waiting%s\nanswer its asks and expect its outcome, or call Cancel", t.begin.Call.To, t.progress())
	}
	t.Cancel()
}

// advance runs the turn to its next asks or its end, if all earlier asks are answered.
func (t *Turn) advance() {
	t.tb.Helper()
	if t.done != nil || t.err != nil || t.started && len(t.unanswered()) > 0 {
		return
	}
	if t.stopped {
		t.tb.Fatalf("the turn of %s was cancelled", t.begin.Call.To)
	}
	var answers []actor.Answer
	for _, a := range t.asks {
		answers = append(answers, *a.answer)
	}
	if t.started {
		t.answers = append(t.answers, answers)
	}
	t.started, t.asks = true, nil
	action, err := t.turn.Next(answers)
	switch {
	case err != nil:
		t.err = err
	case (action.Done == nil) == (len(action.Asks) == 0):
		t.tb.Fatalf("the turn of %s must either ask or end; got %d asks, ended %v", t.begin.Call.To, len(action.Asks), action.Done != nil)
	}
	t.stateUpdates = append(t.stateUpdates, action.StateUpdates...)
	t.done = action.Done
	for _, ask := range action.Asks {
		if ask.Kind == actor.AskWait && ask.Timeout > actor.WaitTimeoutMax {
			t.tb.Errorf("the turn of %s waits %v for the signal %q, at most %v is allowed (limit wait_timeout_ms_max): a server would end the wait then", t.begin.Call.To, ask.Timeout, ask.Name, actor.WaitTimeoutMax)
		}
		t.asks = append(t.asks, &Ask{turn: t, ask: ask})
	}
}

// unanswered returns the asks without an answer.
func (t *Turn) unanswered() []*Ask {
	return slices.DeleteFunc(slices.Clone(t.asks), func(a *Ask) bool { return a.answer != nil })
}

// Expect runs the turn until it makes an ask that matches, and returns it. If several match, it
// returns the first.
func (t *Turn) Expect(want Want) *Ask {
	t.tb.Helper()
	t.advance()
	for _, a := range t.asks {
		if !a.expected && want.mismatch(&a.ask) == "" {
			a.expected = true
			return a
		}
	}
	var near []*Ask // asks of the same kind and name
	for _, a := range t.asks {
		if !a.expected && want.matches(&a.ask) {
			near = append(near, a)
		}
	}
	reason := ""
	for _, a := range near {
		reason += "\nbut:      "
		if len(near) > 1 {
			reason += describeAsk(&a.ask) + ": "
		}
		reason += want.mismatch(&a.ask)
	}
	t.tb.Fatalf("step %d of %s\nexpected: %s%s%s", len(t.answers)+1, t.begin.Call.To, want, t.progress(), reason)
	return nil
}

// progress describes the state of the turn, one line per ask.
func (t *Turn) progress() string {
	switch {
	case t.err != nil:
		return fmt.Sprintf("\ngot:      failure: %v", t.err)
	case t.done != nil:
		return "\ngot:      " + describeOutcome(t.done)
	case !t.started:
		return "\ngot:      nothing: the turn has not started"
	}
	var b strings.Builder
	for i, a := range t.asks {
		head := "         "
		if i == 0 {
			head = "got:     "
		}
		state := ""
		switch {
		case a.answer != nil:
			state = " (answered)"
		case a.expected:
			state = " (expected, not answered)"
		}
		fmt.Fprintf(&b, "\n%s %s%s", head, describeAsk(&a.ask), state)
	}
	return b.String()
}

func describeOutcome(o *actor.Outcome) string {
	if o.Refusal != nil {
		return "outcome: refused, " + o.Refusal.Error()
	}
	s := fmt.Sprintf("outcome: %s, %q", o.Status, actor.TextOf(o.Parts))
	for _, w := range o.Warnings {
		s += fmt.Sprintf(", warning %q", w)
	}
	return s
}

// Completes expects the turn to end with this answer.
func (t *Turn) Completes(text string) {
	t.tb.Helper()
	want := fmt.Sprintf("outcome: %s, %q", actor.Succeeded, text)
	t.runToEnd(want)
	if t.done == nil || t.done.Status != actor.Succeeded || actor.TextOf(t.done.Parts) != text {
		t.tb.Fatalf("step %d of %s\nexpected: %s%s", len(t.answers)+1, t.begin.Call.To, want, t.progress())
	}
}

// CompletesPartially expects the turn to end with this answer and with warnings, each of which contains
// the text at its index.
func (t *Turn) CompletesPartially(text string, warnings ...string) {
	t.tb.Helper()
	want := fmt.Sprintf("outcome: %s, %q, warnings %q", actor.Partial, text, warnings)
	t.runToEnd(want)
	ok := t.done != nil && t.done.Status == actor.Partial && actor.TextOf(t.done.Parts) == text && len(t.done.Warnings) == len(warnings)
	for i, w := range warnings {
		ok = ok && strings.Contains(t.done.Warnings[i], w)
	}
	if !ok {
		t.tb.Fatalf("step %d of %s\nexpected: %s%s", len(t.answers)+1, t.begin.Call.To, want, t.progress())
	}
}

// Refuses expects the turn to end with a refusal that has this code and contains this text.
func (t *Turn) Refuses(code troupe.Code, text string) {
	t.tb.Helper()
	reason := reasonOf(code)
	want := fmt.Sprintf("outcome: refused, %s with %q", reason, text)
	t.runToEnd(want)
	if t.done == nil || t.done.Refusal == nil || t.done.Refusal.Reason != reason || !strings.Contains(t.done.Refusal.Error(), text) {
		t.tb.Fatalf("step %d of %s\nexpected: %s%s", len(t.answers)+1, t.begin.Call.To, want, t.progress())
	}
}

// Fails expects the turn to end with a panic, or an error other than a *troupe.Refusal, that contains
// this text.
func (t *Turn) Fails(text string) {
	t.tb.Helper()
	t.runToEnd("failure")
	if t.err == nil || !strings.Contains(t.err.Error(), text) {
		t.tb.Fatalf("step %d of %s\nexpected: failure with %q%s", len(t.answers)+1, t.begin.Call.To, text, t.progress())
	}
}

// StateOf returns the value that a turn, which has ended, has set with troupe.SetState.
func StateOf[T any](t *Turn) (value T) {
	t.tb.Helper()
	state := program.Troupe.DecodeState(t.stateUpdates)
	if state == nil {
		t.tb.Fatalf("troupetest: the turn has set no state")
		return value
	}
	if err := json.Unmarshal(state, &value); err != nil {
		t.tb.Fatalf("troupetest: state %.200s: %v", state, err)
	}
	return value
}

// reasonOf returns the reason of a refusal with the code.
func reasonOf(code troupe.Code) actor.Reason {
	return program.Troupe.Refusal(troupe.Refuse(code, "")).Reason
}

// context returns the context of tools.
func (t *Turn) context() tools.ExecutionContext {
	return tools.NewContext(t.begin.Call, t.begin.Call.Left, nil)
}

// runToEnd runs the turn to its end and then replays it, as after a crash.
func (t *Turn) runToEnd(want string) {
	t.tb.Helper()
	t.advance()
	if t.done == nil && t.err == nil {
		t.tb.Fatalf("step %d of %s\nexpected: %s%s", len(t.answers)+1, t.begin.Call.To, want, t.progress())
	}
	if t.stopped {
		return
	}
	t.Cancel()
	if err := agents.SameTurn(t.def.Behavior, t.def.Behavior, t.begin, t.answers); err != nil {
		t.tb.Fatalf("%s: a replay with the same answers, as after a crash, differs: %v\n"+
			"between two asks a turn may depend only on its message and the answers; move other code into Do", t.begin.Call.To, err)
	}
}
