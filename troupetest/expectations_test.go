// SPDX-License-Identifier: Apache-2.0

package troupetest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/troupe-run/troupe"
	"github.com/troupe-run/troupe/troupetest"
)

// asker does what its message says.
var asker = troupe.Agent{Name: "asker", Tools: []string{"call_agent"}, Func: func(t *troupe.Turn) (string, error) {
	switch t.Message() {
	case "fail":
		return "", errors.New("something broke")
	case "end":
		return "1", nil
	case "nap":
		return "woke", t.Sleep(time.Second)
	case "three":
		t.All(troupe.Call("helper", "one"), troupe.Call("helper", "two"), troupe.Call("helper", "three"), troupe.Call("other", "four"))
		return "", nil
	case "twins":
		answers := t.All(troupe.Call("helper", "x"), troupe.Call("helper", "x"))
		one, _ := answers[0].Text()
		two, _ := answers[1].Text()
		return one + two, nil
	case "model":
		return t.Model(troupe.Prompt{Model: "scripted", Messages: []troupe.Message{{Role: troupe.RoleUser, Text: "say warm"}}})
	}
	out, err := t.Tool("search", map[string]int{"n": 1})
	return string(out), err
}}

func TestExpectationsCompare(t *testing.T) {
	start := func(tb troupetest.TB, message string) *troupetest.Turn { return troupetest.Start(tb, asker, message) }
	for want, test := range map[string]func(tb troupetest.TB){
		`its input is {"n":1}`:                               func(tb troupetest.TB) { start(tb, "").Expect(troupetest.Tool("search").With(`{"n":2}`)) },
		"expected: tool find\ngot:      tool search":         func(tb troupetest.TB) { start(tb, "").Expect(troupetest.Tool("find")) },
		`its text is "{\"n\":1}"`:                            func(tb troupetest.TB) { start(tb, "").Expect(troupetest.Tool("search").Containing("m")) },
		"its timeout is 1s":                                  func(tb troupetest.TB) { start(tb, "nap").Expect(troupetest.Sleep(2 * time.Second)) },
		"expected: call search":                              func(tb troupetest.TB) { start(tb, "").Expect(troupetest.Call("search")) },
		`got:      outcome: succeeded, "1"`:                  func(tb troupetest.TB) { start(tb, "end").Expect(troupetest.Call("search")) },
		"got:      tool search":                              func(tb troupetest.TB) { start(tb, "").Completes("") },
		"the turn has not started":                           func(tb troupetest.TB) { start(tb, "") },
		"expected: failure":                                  func(tb troupetest.TB) { start(tb, "end").Fails("") },
		"got:      failure: something broke":                 func(tb troupetest.TB) { start(tb, "fail").Completes("1") },
		"has no prompt":                                      func(tb troupetest.TB) { start(tb, "").Expect(troupetest.Tool("search")).Scripted() },
		"only a model answers with a completion":             func(tb troupetest.TB) { start(tb, "").Expect(troupetest.Tool("search")).Uses() },
		`expected: outcome: succeeded, "2"`:                  func(tb troupetest.TB) { start(tb, "end").Completes("2") },
		`expected: outcome: partial, "1", warnings ["none"]`: func(tb troupetest.TB) { start(tb, "end").CompletesPartially("1", "none") },
		"was cancelled": func(tb troupetest.TB) {
			turn := start(tb, "")
			turn.Cancel()
			turn.Expect(troupetest.Tool("search"))
		},
		"(expected, not answered)": func(tb troupetest.TB) {
			turn := start(tb, "")
			turn.Expect(troupetest.Tool("search"))
			turn.Completes("")
		},
		": answered twice": func(tb troupetest.TB) {
			a := start(tb, "").Expect(troupetest.Tool("search"))
			a.Answer("1")
			a.Answer("2")
		},
		"expected: outcome: refused, Unavailable": func(tb troupetest.TB) {
			turn := start(tb, "")
			turn.Expect(troupetest.Tool("search")).Refuse(troupe.CodeBusy, "down")
			turn.Refuses(troupe.CodeUnavailable, "down")
		},
		// Each ask of the kind and name is compared, except those that were expected before.
		"\nbut:      call helper with text \"two\": its text is \"two\"\nbut:      call helper with text \"three\": its text is \"three\"": func(tb troupetest.TB) {
			turn := start(tb, "three")
			turn.Expect(troupetest.Call("helper").Containing("one"))
			turn.Expect(troupetest.Call("helper").Containing("four"))
		},
	} {
		wantFailure(t, want, test)
	}
}

func TestExpectationsMatch(tb *testing.T) {
	t := troupetest.Start(tb, asker, "")
	t.Expect(troupetest.Tool("search").With(`{ "n":1 }`)).AnswerJSON([]int{})
	t.Completes("[]")
	t = troupetest.Start(tb, asker, "nap")
	t.Expect(troupetest.Sleep(time.Second)).AnswerEmpty()
	t.Completes("woke")
	troupetest.Start(tb, asker, "fail").Fails("something broke")

	// Of two identical asks, the first call of Expect returns the first.
	t = troupetest.Start(tb, asker, "twins")
	one, two := t.Expect(troupetest.Call("helper")), t.Expect(troupetest.Call("helper"))
	two.Answer("2")
	one.Answer("1")
	t.Completes("12")

	// The built-in model follows its prompt, and another one calls an agent.
	t = troupetest.Start(tb, asker, "model")
	t.Expect(troupetest.Model("scripted").Containing("say warm")).Scripted()
	t.Completes("warm")
	t = troupetest.Start(tb, asker, "model")
	t.Expect(troupetest.Model("scripted")).Uses(troupetest.UseCall("billing", "was it twice?"))
	t.Expect(troupetest.Call("billing").Containing("twice")).Answer("once only")
	t.Expect(troupetest.Model("scripted").Containing("once only")).Answer("You were charged once.")
	t.Completes("You were charged once.")
}
