// SPDX-License-Identifier: Apache-2.0

package agentstest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// recorder is a TB that records failures. Its Fatalf ends the test.
type recorder struct {
	messages []string
	cleanup  []func()
}

type fatalExit struct{}

func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return len(r.messages) > 0 }
func (r *recorder) Cleanup(f func()) { r.cleanup = append(r.cleanup, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.messages = append(r.messages, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(fatalExit{})
}

// failureMessages runs a test and returns its failures.
func failureMessages(test func(tb TB)) string {
	r := &recorder{}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (fatalExit{}) {
				panic(p)
			}
		}()
		test(r)
	}()
	for _, f := range r.cleanup {
		f()
	}
	return strings.Join(r.messages, "\n")
}

var asker = agents.Define("asker", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
	switch t.Message() {
	case "panic":
		panic("requested panic")
	case "fail":
		return "", errors.New("something broke")
	case "wait":
		_, err := t.Wait("go", actor.WaitTimeoutMax)
		return "went", err
	case "wait too long":
		_, err := t.Wait("go", actor.WaitTimeoutMax+time.Second)
		return "went", err
	case "nap":
		return "woke", t.Sleep(time.Second)
	}
	out, err := t.Tool("search", map[string]int{"n": 1})
	return string(out), err
})))

// counter is a transition that counts its messages in the actor's state.
var counter = agents.Define("counter", "1", "", agents.Pure(agents.Config{}, func(_ agents.Config, s agents.State) (agents.Action, error) {
	n := len(s.Request.ActorState)
	a := agents.Complete(fmt.Sprint(n + 1))
	a.StateUpdates = []actor.StateItem{{Name: "n", Value: fmt.Append(nil, n+1)}}
	return a, nil
}))

func TestTurnExpectations(t *testing.T) {
	calls := 0
	impure := agents.Define("impure", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		calls++
		return "", t.Sleep(time.Duration(calls) * time.Second)
	})))
	tests := map[string]struct {
		test func(tb TB)
		want string // expected failure; empty: the test passes
	}{
		"matching tool": {func(tb TB) {
			u := Start(tb, asker, "")
			u.Expect(Tool("search").With(`{ "n":1 }`)).AnswerJSON("[]")
			u.Completes("[]")
		}, ""},
		"other input":       {func(tb TB) { Start(tb, asker, "").Expect(Tool("search").With(`{"n":2}`)) }, `its input is {"n":1}`},
		"other name":        {func(tb TB) { Start(tb, asker, "").Expect(Tool("find")) }, "expected: tool find\ngot:      tool search"},
		"other text":        {func(tb TB) { Start(tb, asker, "").Expect(Tool("search").Containing("m")) }, `its text is "{\"n\":1}"`},
		"other timeout":     {func(tb TB) { Start(tb, asker, "nap").Expect(Sleep(2 * time.Second)) }, "its timeout is 1s"},
		"other kind":        {func(tb TB) { Start(tb, asker, "").Expect(Call("search")) }, "expected: call search"},
		"ask after the end": {func(tb TB) { Start(tb, counter, "").Expect(Call("search")) }, `got:      outcome: succeeded, "1"`},
		"longest wait": {func(tb TB) {
			u := Start(tb, asker, "wait")
			u.Expect(Wait("go")).AnswerEmpty()
			u.Completes("went")
		}, ""},
		"wait above the maximum": {func(tb TB) {
			u := Start(tb, asker, "wait too long")
			u.Expect(Wait("go")).AnswerEmpty()
			u.Completes("went")
		}, `waits 2160h0m1s for the signal "go", at most 2160h0m0s is allowed (limit wait_timeout_ms_max)`},
		"matching sleep": {func(tb TB) {
			u := Start(tb, asker, "nap")
			u.Expect(Sleep(time.Second)).AnswerEmpty()
			u.Completes("woke")
		}, ""},
		"other answer": {func(tb TB) {
			u := Start(tb, asker, "nap")
			u.Expect(Sleep(time.Second)).AnswerEmpty()
			u.Completes("slept")
		}, `expected: outcome: succeeded, "slept"`},
		"outcome before the end": {func(tb TB) { Start(tb, asker, "").Completes("") }, "got:      tool search"},
		"not answered":           {func(tb TB) { u := Start(tb, asker, ""); u.Expect(Tool("search")); u.Completes("") }, "(expected, not answered)"},
		"answered twice":         {func(tb TB) { a := Start(tb, asker, "").Expect(Tool("search")); a.Answer("1"); a.Answer("2") }, ": answered twice"},
		"left waiting":           {func(tb TB) { Start(tb, asker, "").Expect(Tool("search")) }, "was left waiting\ngot:      tool search"},
		"not started":            {func(tb TB) { Start(tb, asker, "") }, "the turn has not started"},
		"cancelled":              {func(tb TB) { u := Start(tb, asker, ""); u.Expect(Tool("search")); u.Cancel() }, ""},
		"ask after cancel":       {func(tb TB) { u := Start(tb, asker, ""); u.Cancel(); u.Expect(Tool("search")) }, "was cancelled"},
		"prompt of a tool":       {func(tb TB) { Start(tb, asker, "").Expect(Tool("search")).Scripted() }, "has no prompt"},
		"matching refusal": {func(tb TB) {
			u := Start(tb, asker, "")
			u.Expect(Tool("search")).Refuse(actor.Unavailable, "down")
			u.Refuses(actor.Unavailable, "down")
		}, ""},
		"other reason": {func(tb TB) {
			u := Start(tb, asker, "")
			u.Expect(Tool("search")).Refuse(actor.Busy, "down")
			u.Refuses(actor.Unavailable, "down")
		}, "expected: outcome: refused, Unavailable"},
		"matching failure":           {func(tb TB) { Start(tb, asker, "fail").Fails("something broke") }, ""},
		"matching panic":             {func(tb TB) { Start(tb, asker, "panic").Fails("requested panic") }, ""},
		"no failure":                 {func(tb TB) { Start(tb, counter, "").Fails("") }, "expected: failure"},
		"failure instead of outcome": {func(tb TB) { Start(tb, asker, "fail").Ends() }, "got:      failure: something broke"},
		"matching state": {func(tb TB) {
			u := Start(tb, counter, "", WithState("b", "x"), WithState("a", "y"))
			u.Completes("3")
			u.SetsState("n", "3")
		}, ""},
		"other state value": {func(tb TB) { u := Start(tb, counter, ""); u.Completes("1"); u.SetsState("n", "2") }, "expected: \"2\"\ngot:      \"1\""},
		"no state update":   {func(tb TB) { u := Start(tb, counter, ""); u.Completes("1"); u.SetsState("m", "2") }, "got:      no update"},
		"impure agent": {func(tb TB) {
			u := Start(tb, impure, "")
			u.Expect(Sleep(time.Duration(calls+1) * time.Second).Within(0)).AnswerEmpty()
			u.Completes("")
		}, "as after a crash"},
		"no behavior":  {func(tb TB) { Start(tb, actor.Definition{Name: "x"}, "") }, "has no behavior"},
		"invalid TOML": {func(tb TB) { Declared(tb, "nmae = 1", nil) }, "nmae"},
	}
	for name, test := range tests {
		got := failureMessages(test.test)
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, test.want)
		}
	}
}

func TestStartOptions(t *testing.T) {
	var got *agents.Turn
	def := agents.Define("who", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		got = t
		caller, _ := t.Caller()
		return fmt.Sprint(t.Self(), " ", caller, " ", len(t.Request().Chain), " ", t.Message()), nil
	})))
	Start(t, def, "hello", To("s-1"), From("desk", "billing")).Completes("who/s-1 billing/s-1 2 hello")
	if got.Request().Origin != actor.Agent {
		t.Error(got.Request().Origin)
	}
}

// If several asks have the expected kind and name, the failure compares each of
// them with the expectation, except those that were expected before.
func TestMismatchComparesEachParallelAsk(t *testing.T) {
	def := agents.Define("parallel", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		t.All(agents.Call("helper", "one"), agents.Call("helper", "two"), agents.Call("helper", "three"), agents.Call("other", "four"))
		return "", nil
	})))
	got := failureMessages(func(tb TB) {
		u := Start(tb, def, "")
		u.Expect(Call("helper").Containing("one"))
		u.Expect(Call("helper").Containing("four"))
	})
	const want = `
but:      call helper with text "two": its text is "two"
but:      call helper with text "three": its text is "three"`
	if reasons := got[max(0, strings.Index(got, "\nbut:")):]; !strings.HasPrefix(reasons, want) || strings.Count(got, "but:") != 2 {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Of two identical asks, the first call of Expect returns the first.
func TestIdenticalAsksMatchInOrder(t *testing.T) {
	def := agents.Define("twice", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		a := t.All(agents.Call("helper", "x"), agents.Call("helper", "x"))
		one, _ := a[0].Text()
		two, _ := a[1].Text()
		return one + two, nil
	})))
	u := Start(t, def, "")
	one, two := u.Expect(Call("helper")), u.Expect(Call("helper"))
	two.Answer("2")
	one.Answer("1")
	u.Completes("12")
}

func TestExternalAgent(t *testing.T) {
	def := Declared(t, "name = \"ext\"\nendpoint = \"http://127.0.0.1:1\"\n", nil)
	u := Start(t, def, "hello")
	u.Expect(Invoke("ext")).Answer("there")
	u.Completes("there")
}

// The built-in model of a declared agent follows the instructions in its prompt.
func TestScriptedModel(t *testing.T) {
	def := Declared(t, "name = \"desk\"\n", nil)
	u := Start(t, def, "ask the helper agent to say xyzzy")
	u.Expect(Model("scripted")).Scripted()
	if p := u.Expect(Call("helper").Containing("xyzzy")); p.Ask().Kind != actor.AskTool {
		t.Error(p.Ask())
	} else {
		p.Answer("xyzzy")
	}
	u.Expect(Model("scripted")).Scripted()
	u.Completes("xyzzy")
}
