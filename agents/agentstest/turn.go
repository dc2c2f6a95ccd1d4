// SPDX-License-Identifier: Apache-2.0

package agentstest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

// TB is the subset of *testing.T that the package needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// Declared returns the agent of a spec in TOML. It may use the tools of the registry;
// a nil registry has call_agent only.
func Declared(tb TB, text string, registry *tools.Registry) actor.Definition {
	tb.Helper()
	if registry == nil {
		registry = tools.NewRegistry()
	}
	spec, err := agents.ReadTOML(text)
	if err != nil {
		tb.Fatalf("agentstest: %v", err)
	}
	def, err := agents.Compile(spec, registry)
	if err != nil {
		tb.Fatalf("agentstest: %v", err)
	}
	return def
}

// Option sets an optional property of the message.
type Option func(*actor.Begin)

// To sets the key of the actor, which is the session. The default is main.
func To(key string) Option {
	return func(b *actor.Begin) { b.Call.To = actor.NewID(b.Call.To.Agent, key) }
}

// From sets the call chain, nearest caller last.
func From(chain ...string) Option {
	return func(b *actor.Begin) {
		for _, agent := range chain {
			b.Call.Chain = append(b.Call.Chain, actor.NewID(agent, b.Call.To.Key))
		}
		b.Call.Origin = actor.Agent
	}
}

// WithState adds an item to the actor's state before the message.
func WithState(name, value string) Option {
	return func(b *actor.Begin) {
		b.ActorState = append(b.ActorState, actor.StateItem{Name: name, Value: []byte(value)})
		slices.SortFunc(b.ActorState, func(a, c actor.StateItem) int { return strings.Compare(a.Name, c.Name) })
	}
}

// Turn is a turn that is run by a test.
type Turn struct {
	tb           TB
	def          actor.Definition
	begin        actor.Begin
	turn         actor.Turn
	asks         []*PendingAsk     // asks of the last action
	answers      [][]actor.Answer  // answers to all earlier actions
	stateUpdates []actor.StateItem // state updates so far
	done         *actor.Outcome    // outcome, if the turn has ended
	err          error             // error, if the turn has failed
	started      bool
	stopped      bool
}

// acceptedAt is the time at which the message of every turn is accepted.
const acceptedAt = actor.Time(1_767_225_600_000_000_000) // 2026-01-01

// Start delivers a message to an agent. The turn starts at the first expectation of
// the test.
func Start(tb TB, def actor.Definition, message string, opts ...Option) *Turn {
	tb.Helper()
	if def.Behavior == nil {
		tb.Fatalf("agentstest: the definition of %q has no behavior; use agents.Define, or Declared", def.Name)
	}
	id := actor.CallID{15: 1}
	begin := actor.Begin{At: acceptedAt, Left: 10 * time.Minute, Call: actor.Call{ID: id, Root: id, To: actor.NewID(def.Name, actor.DefaultKey),
		Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: 10 * time.Minute, Attempt: 1,
		Principal: "test", Origin: actor.Human, Parts: actor.Text(message)}}
	for _, o := range opts {
		o(&begin)
	}
	t := &Turn{tb: tb, def: def, begin: begin, turn: def.Behavior.Begin(begin)}
	tb.Cleanup(t.cleanup)
	return t
}

// Cancel stops the turn, as a timeout of the caller does.
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
		t.asks = append(t.asks, &PendingAsk{turn: t, ask: ask})
	}
}

// unanswered returns the asks without an answer.
func (t *Turn) unanswered() []*PendingAsk {
	return slices.DeleteFunc(slices.Clone(t.asks), func(a *PendingAsk) bool { return a.answer != nil })
}

// Expect runs the turn until it makes an ask that matches want and returns the ask.
// If several asks match, it returns the first.
func (t *Turn) Expect(want Want) *PendingAsk {
	t.tb.Helper()
	t.advance()
	for _, a := range t.asks {
		if !a.expected && want.mismatch(&a.ask) == "" {
			a.expected = true
			return a
		}
	}
	var near []*PendingAsk // asks of the same kind and name
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

// Request returns the call that the turn answers.
func (t *Turn) Request() actor.Call { return t.begin.Call }

// Updates returns the changes of the actor's state so far.
func (t *Turn) Updates() []actor.StateItem { return slices.Clone(t.stateUpdates) }

// Ends runs the turn to its end and returns the outcome.
func (t *Turn) Ends() actor.Outcome {
	t.tb.Helper()
	t.runToEnd("an outcome")
	if t.done == nil {
		t.tb.Fatalf("step %d of %s\nexpected: an outcome%s", len(t.answers)+1, t.begin.Call.To, t.progress())
	}
	return *t.done
}

// Completes expects the turn to end with this complete answer.
func (t *Turn) Completes(text string) {
	t.tb.Helper()
	want := fmt.Sprintf("outcome: %s, %q", actor.Succeeded, text)
	t.runToEnd(want)
	if t.done == nil || t.done.Status != actor.Succeeded || actor.TextOf(t.done.Parts) != text {
		t.tb.Fatalf("step %d of %s\nexpected: %s%s", len(t.answers)+1, t.begin.Call.To, want, t.progress())
	}
}

// CompletesPartially expects the turn to end with this partial answer. Each warning
// of the outcome must contain the given text at the same index.
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

// Refuses expects the turn to end with a refusal that has this reason and contains
// this text.
func (t *Turn) Refuses(reason actor.Reason, text string) {
	t.tb.Helper()
	want := fmt.Sprintf("outcome: refused, %s with %q", reason, text)
	t.runToEnd(want)
	if t.done == nil || t.done.Refusal == nil || t.done.Refusal.Reason != reason || !strings.Contains(t.done.Refusal.Error(), text) {
		t.tb.Fatalf("step %d of %s\nexpected: %s%s", len(t.answers)+1, t.begin.Call.To, want, t.progress())
	}
}

// Fails expects the turn to fail with a panic or an error that contains this text. A
// refusal is not a failure.
func (t *Turn) Fails(text string) {
	t.tb.Helper()
	t.runToEnd("failure")
	if t.err == nil || !strings.Contains(t.err.Error(), text) {
		t.tb.Fatalf("step %d of %s\nexpected: failure with %q%s", len(t.answers)+1, t.begin.Call.To, text, t.progress())
	}
}

// SetsState expects the turn to have set an item of the actor's state. The last update
// counts; the empty value means that the item was deleted.
func (t *Turn) SetsState(name, value string) {
	t.tb.Helper()
	for _, item := range slices.Backward(t.stateUpdates) {
		if item.Name == name {
			if string(item.Value) != value {
				t.tb.Fatalf("%s: state item %s\nexpected: %q\ngot:      %q", t.begin.Call.To, name, value, item.Value)
			}
			return
		}
	}
	t.tb.Fatalf("%s: state item %s\nexpected: %q\ngot:      no update", t.begin.Call.To, name, value)
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
