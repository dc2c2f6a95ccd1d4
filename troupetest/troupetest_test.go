// SPDX-License-Identifier: Apache-2.0

package troupetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe"
	"github.com/troupe-run/troupe/troupetest"
)

type order struct {
	Item  string `json:"item"`
	Count int    `json:"count"`
}

// stock is a tool.
var stock = troupe.NewTool("stock.reserve", "Reserves an item.", func(_ context.Context, o order) (string, error) {
	if o.Count > 9 {
		return "", troupe.Refuse(troupe.CodeRejected, "only 9 %s are left", o.Item)
	}
	return fmt.Sprintf("reserved %d %s", o.Count, o.Item), nil
})

// shop is an agent that makes every kind of ask.
var shop = troupe.Agent{Name: "shop", Tools: []string{"stock.reserve"}, StateVersion: 3, Func: func(t *troupe.Turn) (string, error) {
	orders, err := troupe.State[int](t)
	if err != nil {
		return "", err
	}
	answers := t.All(
		troupe.UseTool("stock.reserve", order{t.Message(), 2}, troupe.Timeout(time.Second)),
		troupe.Call("prices", t.Message()),
		troupe.Do("number", func(ctx context.Context) ([]byte, error) { return []byte("no. 7"), troupe.Emit(ctx, "no. 7") }),
	)
	reserved, err := answers[0].Text()
	if err != nil {
		return "", err
	}
	price, err := answers[1].Text()
	if err != nil {
		t.Warn("no price: %v", err)
	}
	number, err := answers[2].Bytes()
	if err != nil {
		return "", err
	}
	advice, err := t.Model(troupe.Prompt{Model: "big", Messages: []troupe.Message{{Role: troupe.RoleUser, Text: "advise on " + t.Message()}}})
	if err != nil {
		return "", err
	}
	if err := t.Sleep(time.Minute); err != nil {
		return "", err
	}
	name, err := t.Wait("signature", time.Hour)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %s, %s, %s, %s for %s", reserved, price, number, advice, name, t.User()), troupe.SetState(t, orders+1)
}}

func TestTurnIsTestedAskByAsk(tb *testing.T) {
	t := troupetest.Start(tb, shop, "lamp", troupetest.WithTools(stock), troupetest.WithState(41), troupetest.ByUser("bob"), troupetest.InSession("s"))
	t.Expect(troupetest.Work("number")).Perform()
	t.Expect(troupetest.Call("prices").Containing("lamp")).Refuse(troupe.CodeAgentNotFound, "no %s", "prices")
	t.Expect(troupetest.Tool("stock.reserve").With(`{"count": 2, "item": "lamp"}`).Within(time.Second)).Perform()
	prompt := t.Expect(troupetest.Model("big").Containing("advise on lamp"))
	if messages, offered := prompt.Prompt(); len(messages) != 2 || messages[1].Role != troupe.RoleUser || len(offered) != 1 || offered[0] != "stock__reserve" {
		tb.Errorf("%+v, %q", messages, offered)
	}
	prompt.Uses(troupetest.Use{Tool: "stock__reserve", Args: `{"item": "lamp", "count": 10}`})
	t.Expect(troupetest.Tool("stock.reserve")).Perform()
	t.Expect(troupetest.Model("big").Containing("only 9 lamp are left")).Answer("take fewer")
	t.Expect(troupetest.Sleep(time.Minute)).AnswerEmpty()
	t.Expect(troupetest.Wait("signature")).Answer("Ada")
	t.CompletesPartially("reserved 2 lamp, , no. 7, take fewer, Ada for bob", "no price: agent_not_found: no prices")
	if n := troupetest.StateOf[int](t); n != 42 {
		tb.Errorf("state %d", n)
	}
}

func TestTurnRefusesAndFails(tb *testing.T) {
	agent := troupe.Agent{Name: "a", Transcript: "all", Func: func(t *troupe.Turn) (string, error) {
		switch t.Message() {
		case "panic":
			panic("no idea")
		case "refuse":
			return "", fmt.Errorf("sorry: %w", troupe.Refuse(troupe.CodeBusy, "later"))
		}
		_, err := t.Tool("gone", nil)
		return fmt.Sprintf("%s after %d by %s: %v", t.Session(), len(t.Transcript()), t.Caller(), err), nil
	}}
	troupetest.Start(tb, agent, "panic").Fails("no idea")
	troupetest.Start(tb, agent, "refuse").Refuses(troupe.CodeBusy, "sorry: later")
	t := troupetest.Start(tb, agent, "x", troupetest.CalledBy("root", "boss"), troupetest.WithTranscript(troupe.Message{Role: troupe.RoleUser, Text: "before"}))
	t.Expect(troupetest.Tool("gone")).Perform()
	t.Completes(`main after 1 by boss: tool_not_found: no tool is named "gone"`)
}

// recorder is a TB that records its failures.
type recorder struct {
	failures []string
	cleanups []func()
}

func (*recorder) Helper()             {}
func (*recorder) Logf(string, ...any) {}
func (r *recorder) Failed() bool      { return len(r.failures) > 0 }
func (r *recorder) Cleanup(f func())  { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(f string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(f, args...))
}
func (r *recorder) Fatalf(f string, args ...any) {
	r.Errorf(f, args...)
	panic(r)
}

// wantFailure runs a test that must fail with a text.
func wantFailure(t *testing.T, text string, test func(tb troupetest.TB)) {
	t.Helper()
	r := &recorder{}
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(r) {
				panic(p)
			}
		}()
		test(r)
	}()
	for _, f := range r.cleanups {
		f()
	}
	if all := strings.Join(r.failures, "\n"); !strings.Contains(all, text) {
		t.Errorf("got %q, want %q", all, text)
	}
}

func TestFailuresNameTheProblem(t *testing.T) {
	n := 0
	impure := troupe.Agent{Name: "impure", Func: func(t *troupe.Turn) (string, error) {
		n++
		return t.Call("b", fmt.Sprint(n))
	}}
	wantFailure(t, "a replay with the same answers", func(tb troupetest.TB) {
		turn := troupetest.Start(tb, impure, "x")
		turn.Expect(troupetest.Call("b")).Answer("y")
		turn.Completes("y")
	})
	wantFailure(t, `waits 2160h0m0.001s for the signal "go", at most 2160h0m0s is allowed`, func(tb troupetest.TB) {
		patient := troupe.Agent{Name: "a", Func: func(t *troupe.Turn) (string, error) {
			_, err := t.Wait("go", 90*24*time.Hour+time.Millisecond)
			return "", err
		}}
		turn := troupetest.Start(tb, patient, "x")
		turn.Expect(troupetest.Wait("go")).AnswerEmpty()
		turn.Completes("")
	})
	wantFailure(t, "left waiting", func(tb troupetest.TB) {
		turn := troupetest.Start(tb, impure, "x")
		turn.Expect(troupetest.Call("b"))
	})
	wantFailure(t, "expected: call c", func(tb troupetest.TB) { troupetest.Start(tb, impure, "x").Expect(troupetest.Call("c")) })
	wantFailure(t, "want one of Func and Handler", func(tb troupetest.TB) { troupetest.Start(tb, troupe.Agent{Name: "a"}, "x") })
	wantFailure(t, "only a tool and work have a function", func(tb troupetest.TB) {
		troupetest.Start(tb, impure, "x").Expect(troupetest.Call("b")).Perform()
	})
	wantFailure(t, `WithTranscript: message 2: Role: got "king", want user, assistant, system or tool`, func(tb troupetest.TB) {
		troupetest.Start(tb, impure, "x", troupetest.WithTranscript(troupe.Message{Role: troupe.RoleUser, Text: "a"}, troupe.Message{Role: "king", Text: "b"}))
	})
	wantFailure(t, "has set no state", func(tb troupetest.TB) {
		turn := troupetest.Start(tb, impure, "x")
		turn.Cancel()
		troupetest.StateOf[int](turn)
	})
	wantFailure(t, "at most 0 Cycle refusals", func(tb troupetest.TB) {
		asks := func(name, other string) troupe.Agent {
			return troupe.Agent{Name: name, Func: func(t *troupe.Turn) (string, error) { return t.Call(other, t.Message()) }}
		}
		troupetest.Test(tb, troupetest.Team{Agents: []troupe.Agent{asks("left", "right"), asks("right", "left")}, Expect: []troupetest.Expect{{Refusals: "Cycle"}}},
			troupetest.Options{Seeds: 1, Faultless: true})
	})
	wantFailure(t, "requests of clients succeeded", func(tb troupetest.TB) {
		fails := troupe.Agent{Name: "fails", Func: func(*troupe.Turn) (string, error) { return "", errors.New("broken") }}
		troupetest.Test(tb, troupetest.Team{Agents: []troupe.Agent{fails}}, troupetest.Options{Seeds: 1, Faultless: true})
	})
	wantFailure(t, "the team has no agents", func(tb troupetest.TB) { troupetest.Test(tb, troupetest.Team{}, troupetest.Options{}) })
}

// A team under faults, with a tool, a model and state.
func TestTeamUnderFaults(t *testing.T) {
	counter := troupe.Agent{Name: "counter", OneSession: true, Func: func(t *troupe.Turn) (string, error) {
		n, err := troupe.State[int](t)
		if err != nil {
			return "", err
		}
		return fmt.Sprint(n + 1), troupe.SetState(t, n+1)
	}}
	desk := troupe.Agent{Name: "desk", Tools: []string{"stock.reserve"}, Func: func(t *troupe.Turn) (string, error) {
		answers := t.All(troupe.UseTool("stock.reserve", order{"lamp", 1}), troupe.Call("counter", "next"),
			troupe.Do("show", func(ctx context.Context) ([]byte, error) { return nil, troupe.Emit(ctx, "one moment") }))
		if err := errors.Join(answers[0].Err(), answers[1].Err(), answers[2].Err()); err != nil {
			return "", err
		}
		return t.Model(troupe.Prompt{Model: "big"})
	}}
	r := troupetest.Test(t, troupetest.Team{Agents: []troupe.Agent{desk, counter}, Tools: []troupe.Tool{stock},
		Asks:   []troupetest.Request{{Agent: "desk", Message: "one lamp", Timeout: 30 * time.Second}},
		Models: []troupetest.Rule{{When: "one lamp", Says: []string{"done"}, Uses: []troupetest.Use{{Tool: "stock__reserve", Args: `{"item":"lamp","count":1}`}}}, {When: "reserved", Says: []string{"done"}}},
		Expect: []troupetest.Expect{{Refusals: "Cycle"}, {DepthAtMost: 1}, {FanOutAtMost: 8}, {Agent: "desk", SucceededPercent: 10}}},
		troupetest.Options{Seeds: 3})
	if r.Seeds != 3 || r.Succeeded == 0 || r.Requests < r.Succeeded+r.Refused {
		t.Errorf("%+v", r)
	}
}

// A stub replaces the function of a tool.
func TestStubReplacesTool(t *testing.T) {
	real := troupe.NewTool("clock", "", func(context.Context, struct{}) (string, error) { panic("not in a simulation") }, troupe.Policy(troupe.RequireApproval))
	r := troupetest.Test(t, troupetest.Team{Agents: []troupe.Agent{{Name: "a", Func: func(t *troupe.Turn) (string, error) {
		b, err := t.Tool("clock", nil)
		if string(b) != "noon" && err == nil {
			err = fmt.Errorf("got %s", b)
		}
		return "", err
	}}}, Tools: []troupe.Tool{real}, Stubs: []troupetest.Stub{{Name: "clock", Says: []string{"noon"}}}, Expect: []troupetest.Expect{{SucceededPercent: 100}}},
		troupetest.Options{Seeds: 2, Faultless: true})
	if r.Requests == 0 || r.Succeeded != r.Requests {
		t.Errorf("%s", r)
	}
}
