// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
)

// begin returns a message from root/s-1 to planner/s-1.
func begin(text string) actor.Begin {
	root := actor.NewCallID(1, 1, 1)
	return actor.Begin{
		Call: actor.Call{
			ID: actor.NewCallID(1, 1, 2), Root: root, Parent: root, To: actor.NewID("planner", "s-1"), Chain: []actor.ID{actor.NewID("root", "s-1")},
			Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: time.Minute, Attempt: 1, Origin: actor.Human,
			Parts: actor.Text(text),
		},
		At: 7, Left: time.Minute,
	}
}

func text(s string) actor.Answer { return actor.Answer{Parts: actor.Text(s)} }

func blocking(f agents.Func) actor.Behavior { return agents.Blocking(f) }

// runTurn runs a whole turn. Work is executed. The map answers holds the answers to
// other asks by name. An ask whose name is not in the map is refused with NotFound.
func runTurn(t *testing.T, b actor.Behavior, message string, answers map[string]string) (actor.Outcome, []string, error) {
	t.Helper()
	var asked []string
	out, err := agents.ExecuteAgentRequest(context.Background(), b, begin(message), func(ctx context.Context, ask actor.Ask) actor.Answer {
		asked = append(asked, ask.String())
		if ask.Kind == actor.AskWork {
			b, err := ask.Work(ctx)
			if err != nil {
				return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "%v", err)}
			}
			return actor.Answer{Parts: []actor.Part{{Media: "application/octet-stream", Bytes: b}}}
		}
		if reply, ok := answers[ask.Name]; ok {
			return text(reply)
		}
		return actor.Answer{Refusal: actor.Refuse(actor.NotFound, "no %s", ask.Name)}
	})
	return out, asked, err
}

func TestBlockingTurnMakesEveryKindOfAsk(t *testing.T) {
	b := blocking(func(t *agents.Turn) (string, error) {
		caller, byAgent := t.Caller()
		papers, err := t.Call("research", t.Message(), agents.Within(time.Second), agents.Operation("look"))
		if err != nil {
			return "", err
		}
		now, err := t.Tool("clock", map[string]int{"b": 2, "a": 1})
		if err != nil {
			return "", err
		}
		sum, err := t.Do("sum", func(context.Context) ([]byte, error) { return []byte{4, 2}, nil }, agents.Idempotent())
		if err != nil {
			return "", err
		}
		signal, err := t.Wait("go", time.Hour)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s %s %v %s %s to %s, asked by %s %v", papers, now, sum, signal, t.Sleep(time.Second), t.Self(), caller, byAgent), nil
	})
	out, asked, err := runTurn(t, b, "whales", map[string]string{"research": "papers", "clock": "noon", "go": "yes", "": ""})
	want := "papers noon [4 2] yes %!s(<nil>) to planner/s-1, asked by root/s-1 true"
	if got := actor.TextOf(out.Parts); err != nil || out.Status != actor.Succeeded || got != want {
		t.Errorf("got %s %q, %v, want %q", out.Status, got, err, want)
	}
	wantAsked := []string{`call research "whales" within 1s`, `tool clock "" within 0s`, `work sum "" within 0s`, `wait go "" within 1h0m0s`, `sleep  "" within 1s`}
	if !slices.Equal(asked, wantAsked) {
		t.Errorf("asked\n%s", strings.Join(asked, "\n"))
	}
	actions, err := agents.Replay(b, begin("whales"), [][]actor.Answer{{text("papers")}, {text("noon")}, {text("")}})
	if err != nil || len(actions) != 4 {
		t.Fatalf("%d actions, %v", len(actions), err)
	}
	if got := actions[0].Asks[0].Operation; got != "look" {
		t.Errorf("operation %q", got)
	}
	if got := string(actions[1].Asks[0].Parts[0].Bytes); got != `{"a":1,"b":2}` {
		t.Errorf("input %s", got)
	}
	if !actions[2].Asks[0].Idempotent || actions[1].Asks[0].Idempotent {
		t.Error("want Idempotent on the work ask only")
	}
}

func TestToolInputIsJSON(t *testing.T) {
	for _, c := range []struct {
		input any
		want  string
	}{
		{nil, `{}`},
		{[]byte(`{"x":1}`), `{"x":1}`},
		{struct {
			A string `json:"a"`
		}{"ä"}, `{"a":"ä"}`},
	} {
		if got := agents.Tool("x", c.input).Parts[0]; string(got.Bytes) != c.want || got.Media != actor.MediaJSON {
			t.Errorf("input %v: got %s %s", c.input, got.Media, got.Bytes)
		}
	}
	_, _, err := runTurn(t, blocking(func(t *agents.Turn) (string, error) {
		_, err := t.Tool("x", func() {})
		return "", err
	}), "", nil)
	if err == nil || !strings.Contains(err.Error(), "cannot be encoded as JSON") {
		t.Errorf("function as input: %v", err)
	}
}

func TestAllIssuesAsksTogether(t *testing.T) {
	b := blocking(func(t *agents.Turn) (string, error) {
		if t.All() != nil {
			return "", errors.New("All without asks must return nil")
		}
		answers := t.All(agents.Call("a", "1"), agents.Call("b", "2"), agents.Sleep(time.Second))
		one, _ := answers[0].Text()
		_, err := answers[1].Text()
		return one + ", " + err.Error(), answers[2].Err()
	})
	actions, err := agents.Replay(b, begin(""), [][]actor.Answer{{text("yes"), {Refusal: actor.Refuse(actor.Busy, "full")}, {}}})
	if err != nil || len(actions) != 2 || len(actions[0].Asks) != 3 {
		t.Fatalf("%d actions, %v", len(actions), err)
	}
	if got := actor.TextOf(actions[1].Done.Parts); got != "yes, AgentBusy: full" {
		t.Errorf("got %q", got)
	}
}

func TestReturnedRefusalKeepsReasonAndDetail(t *testing.T) {
	deadline := actor.RefuseDeadline(actor.NewID("slow", "s-1"), "handle_message_full", time.Second)
	for _, c := range []struct {
		name   string
		agent  agents.Func
		detail string // expected detail of the refusal, if err is empty
		err    string // expected error, if the turn fails
	}{
		{"unwrapped", func(t *agents.Turn) (string, error) { return t.Call("slow", "") }, deadline.Detail, ""},
		{"with a prefix", func(t *agents.Turn) (string, error) {
			_, err := t.Call("slow", "")
			return "", fmt.Errorf("asking: %w", err)
		}, "asking: " + deadline.Detail, ""},
		{"with a suffix", func(t *agents.Turn) (string, error) {
			_, err := t.Call("slow", "")
			return "", fmt.Errorf("%w, suffix", err)
		}, deadline.Detail, ""},
		{"replaced by another error", func(t *agents.Turn) (string, error) {
			_, err := t.Call("slow", "")
			var r *actor.Refusal
			if errors.As(err, &r) && r.Reason == actor.Deadline {
				return "", errors.New("too late")
			}
			return "", nil
		}, "", "too late"},
	} {
		actions, err := agents.Replay(agents.Blocking(c.agent), begin(""), [][]actor.Answer{{{Refusal: deadline}}})
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		done := actions[len(actions)-1].Done
		if err != nil || done == nil || done.Status != actor.Failed || done.Refusal.Reason != actor.Deadline || done.Refusal.Detail != c.detail {
			t.Errorf("%s: %+v, %v", c.name, done, err)
		}
	}
	if deadline.Detail != "timeout: slow/s-1 has not answered within 1000 ms" {
		t.Errorf("the callee's refusal was modified: %s", deadline.Detail)
	}
}

func TestWarningMakesOutcomePartial(t *testing.T) {
	out, _, err := runTurn(t, blocking(func(t *agents.Turn) (string, error) {
		t.Warn("page %d is missing", 3)
		return "the rest", nil
	}), "", nil)
	if err != nil || out.Status != actor.Partial || !slices.Equal(out.Warnings, []string{"page 3 is missing"}) {
		t.Errorf("%+v, %v", out, err)
	}
}

// The changes of a turn leave it with its outcome, and only if the turn succeeds.
func TestTurnChangesStateWithItsOutcome(t *testing.T) {
	b := blocking(func(t *agents.Turn) (string, error) {
		before := string(t.State("n"))
		t.SetState("n", []byte("2"))
		t.SetState("old", nil)
		if _, err := t.Call("helper", ""); err != nil {
			return "", err
		}
		t.SetState("n", append(t.State("n"), '0'))
		return before + " " + string(t.State("n")) + " " + string(t.State("old")) + string(t.State("none")), nil
	})
	in := begin("")
	in.ActorState = []actor.StateItem{{Name: "a", Value: []byte("x")}, {Name: "n", Value: []byte("1")}, {Name: "old", Value: []byte("y")}}
	actions, err := agents.Replay(b, in, [][]actor.Answer{{text("")}})
	if err != nil || len(actions) != 2 || len(actions[0].StateUpdates) != 0 {
		t.Fatalf("%+v, %v", actions, err)
	}
	want := []actor.StateItem{{Name: "n", Value: []byte("20")}, {Name: "old"}}
	if got := actions[1]; actor.TextOf(got.Done.Parts) != "1 20 " || !reflect.DeepEqual(got.StateUpdates, want) {
		t.Errorf("outcome %+v, updates %+v", got.Done, got.StateUpdates)
	}
	actions, err = agents.Replay(b, in, [][]actor.Answer{{{Refusal: actor.Refuse(actor.NotFound, "no helper")}}})
	if err != nil || actions[1].Done.Refusal == nil || len(actions[1].StateUpdates) != 0 {
		t.Errorf("refused turn: %+v, %v", actions, err)
	}
}

func TestPanicBecomesErrorNamingAgent(t *testing.T) {
	for name, b := range map[string]actor.Behavior{
		"blocking": blocking(func(t *agents.Turn) (string, error) {
			_, _ = t.Call("a", "")
			return fmt.Sprint([]int{}[len(t.Message())]), nil
		}),
		"pure": agents.Pure(agents.Config{}, func(_ agents.Config, s agents.State) (agents.Action, error) {
			if len(s.Answers) == 0 {
				return agents.Continue("", nil, agents.Call("a", "")), nil
			}
			return agents.Complete(fmt.Sprint(s.Answers[7])), nil
		}),
	} {
		actions, err := agents.Replay(b, begin(""), [][]actor.Answer{{text("")}})
		if err == nil || !strings.HasPrefix(err.Error(), "agent planner: panic: ") || len(actions) != 1 {
			t.Errorf("%s: %d actions, %v", name, len(actions), err)
		}
	}
}

// Stop unwinds a waiting turn. Deferred functions run, and nothing that the function
// does while it unwinds has an effect outside.
func TestStopUnwindsBlockingTurn(t *testing.T) {
	for name, agent := range map[string]func(t *agents.Turn, record func(string)){
		"plain": func(t *agents.Turn, _ func(string)) { _, _ = t.Call("a", "") },
		"asks while unwinding": func(t *agents.Turn, record func(string)) {
			defer func() { _, _ = t.Call("b", ""); record("not reached") }()
			_, _ = t.Call("a", "")
		},
		"recovers and asks": func(t *agents.Turn, record func(string)) {
			func() {
				defer func() { _ = recover() }()
				_, _ = t.Call("a", "")
			}()
			_, _ = t.Call("b", "")
			record("not reached")
		},
		"recovers and returns": func(t *agents.Turn, _ func(string)) {
			defer func() { _ = recover() }()
			_, _ = t.Call("a", "")
		},
		"panics while unwinding": func(t *agents.Turn, _ func(string)) {
			defer func() { panic("during unwind") }()
			_, _ = t.Call("a", "")
		},
	} {
		var seen []string
		record := func(s string) { seen = append(seen, s) }
		turn := blocking(func(t *agents.Turn) (string, error) {
			defer record("deferred")
			agent(t, record)
			return "", nil
		}).Begin(begin(""))
		if action, err := turn.Next(nil); err != nil || len(action.Asks) != 1 {
			t.Fatalf("%s: %+v, %v", name, action, err)
		}
		turn.Stop()
		if !slices.Equal(seen, []string{"deferred"}) {
			t.Errorf("%s: recorded %v", name, seen)
		}
		turn.Stop() // a second Stop has no effect
	}
	blocking(func(*agents.Turn) (string, error) { panic("never started") }).Begin(begin("")).Stop()
}

// A cell is stepped by one goroutine at a time, but not always by the same goroutine.
func TestTurnResumesOnAnyGoroutine(t *testing.T) {
	turn := blocking(chain).Begin(begin("a b c"))
	defer turn.Stop()
	var answers []actor.Answer
	for range 4 {
		stepped := make(chan actor.Action)
		go func() {
			action, err := turn.Next(answers)
			if err != nil {
				t.Error(err)
			}
			stepped <- action
		}()
		action := <-stepped
		if action.Done != nil {
			if got := actor.TextOf(action.Done.Parts); got != "+x+x+x" {
				t.Errorf("got %q", got)
			}
			return
		}
		answers = []actor.Answer{text("x"), text("y")}
	}
	t.Error("the turn did not end")
}

func TestTurnPanicsOutsideItsFunction(t *testing.T) {
	mustPanic := func(name string, f func()) {
		defer func() {
			if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "outside its function") {
				t.Errorf("%s: %v", name, p)
			}
		}()
		f()
	}
	var leaked *agents.Turn
	turn := blocking(func(t *agents.Turn) (string, error) {
		leaked = t
		_, err := t.Do("x", func(context.Context) ([]byte, error) { return nil, t.Sleep(1) })
		return "", err
	}).Begin(begin(""))
	action, err := turn.Next(nil)
	if err != nil {
		t.Fatal(err)
	}
	mustPanic("inside Do", func() { _, _ = action.Asks[0].Work(context.Background()) })
	if action, err = turn.Next([]actor.Answer{text("")}); err != nil || action.Done == nil {
		t.Fatalf("%+v, %v", action, err)
	}
	mustPanic("after its end", func() { _ = leaked.Sleep(1) })
}

// chain calls the agents named in its message, one after another. It passes each agent
// the answers so far. It ends with the first refusal. chainNext is the same agent as a
// transition.
func chain(t *agents.Turn) (string, error) {
	reply := ""
	for _, name := range strings.Fields(t.Message()) {
		answers := t.All(agents.Call(name, reply), agents.Tool("note", map[string]string{"at": name}))
		next, err := answers[0].Text()
		if err != nil {
			return "", err
		}
		reply += "+" + next
	}
	return reply, nil
}

func chainNext(config agents.Config, s agents.State) (agents.Action, error) {
	names := strings.Fields(s.Message())
	reply := string(s.Continuation)
	if s.Phase == config.Name {
		next, err := s.Last()[0].Text()
		if err != nil {
			return agents.Action{}, err
		}
		reply += "+" + next
	}
	if len(s.Answers) == len(names) {
		return agents.Complete(reply), nil
	}
	name := names[len(s.Answers)]
	return agents.Continue(config.Name, []byte(reply), agents.Call(name, reply), agents.Tool("note", map[string]string{"at": name})), nil
}

var chainPure = agents.Pure(agents.Config{Name: "asking"}, chainNext)

func drawAnswers(t *rapid.T) [][]actor.Answer {
	answer := rapid.Custom(func(t *rapid.T) actor.Answer {
		if rapid.IntRange(0, 9).Draw(t, "refused") == 0 {
			return actor.Answer{Refusal: actor.Refuse(rapid.SampledFrom(actor.Reasons()).Draw(t, "reason"), "no")}
		}
		return text(rapid.String().Draw(t, "text"))
	})
	return rapid.SliceOfN(rapid.SliceOfN(answer, 2, 2), 0, 6).Draw(t, "answers")
}

func TestBlockingAndPureAgentsMakeSameActions(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "b", "c"}) // the third identical tool ask is refused in both styles
	rapid.Check(t, func(t *rapid.T) {
		message := strings.Join(rapid.SliceOfN(names, 0, 6).Draw(t, "names"), " ")
		answers := drawAnswers(t)
		if err := agents.SameTurn(chainPure, blocking(chain), begin(message), answers); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSameTurnDetectsImpureAgents(t *testing.T) {
	count := 0
	for want, f := range map[string]agents.Func{
		"step 1: ask 0": func(t *agents.Turn) (string, error) { count++; return t.Call("a", fmt.Sprint(count)) },
		"step 1: made 1 asks": func(t *agents.Turn) (string, error) {
			if count++; count%2 == 0 {
				return "", nil
			}
			return t.Call("a", "")
		},
		"step 1: the first ends": func(*agents.Turn) (string, error) { count++; return fmt.Sprint(count), nil },
		"fails": func(*agents.Turn) (string, error) {
			if count++; count%2 == 0 {
				return "", errors.New("even")
			}
			return "", nil
		},
	} {
		count = 0
		err := agents.SameTurn(agents.Blocking(f), agents.Blocking(f), begin(""), [][]actor.Answer{{text("")}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := agents.SameTurn(chainPure, chainPure, begin("a b"), [][]actor.Answer{{text("1"), text("")}, {text("2"), text("")}}); err != nil {
		t.Error(err)
	}
}

// The state is encoded after each step, and the next step runs from the decoded
// bytes alone.
func TestPureTurnResumesFromEncodedState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		answers := drawAnswers(t)
		want, err := agents.Replay(chainPure, begin("a b c"), answers)
		if err != nil {
			t.Fatal(err)
		}
		state := agents.State{Request: begin("a b c")}
		for i, action := range want {
			if i > 0 {
				state.Answers = append(state.Answers, answers[i-1])
			}
			encoded := state.Encode()
			decoded, err := agents.DecodeState(encoded)
			if err != nil || !bytes.Equal(decoded.Encode(), encoded) {
				t.Fatalf("step %d: %v", i+1, err)
			}
			got, err := agents.ExecuteAgentStep(chainNext, agents.Config{Name: "asking"}, decoded)
			if err != nil || !reflect.DeepEqual(got.Action, action) {
				t.Fatalf("step %d: %+v, %v, want %+v", i+1, got, err, action)
			}
			state.Phase, state.Continuation = got.Phase, got.Continuation
		}
	})
}

func TestThirdIdenticalToolAskIsRejected(t *testing.T) {
	b := blocking(func(t *agents.Turn) (string, error) {
		for i := range 10 {
			answers := t.All(agents.Call("a", ""), agents.Tool("clock", nil), agents.Tool("other", i))
			if _, err := answers[1].Text(); err != nil {
				return fmt.Sprint(i, " ", err), answers[2].Err()
			}
		}
		return "never", nil
	})
	out, asked, err := runTurn(t, b, "", map[string]string{"a": "", "clock": "noon", "other": ""})
	if want := "2 AgentCallRejected: clock was asked for 3 times with the same input: it will not say anything else"; err != nil || actor.TextOf(out.Parts) != want {
		t.Errorf("got %q, %v", actor.TextOf(out.Parts), err)
	}
	if len(asked) != 8 {
		t.Errorf("asked %d times: %v", len(asked), asked)
	}
}

func TestTurnWithOnlyRejectedAsksEnds(t *testing.T) {
	refusals := 0
	b := blocking(func(t *agents.Turn) (string, error) {
		for {
			if _, err := t.Tool("clock", nil); err != nil {
				refusals++
			}
		}
	})
	out, asked, err := runTurn(t, b, "", map[string]string{"clock": "noon"})
	if err != nil || out.Refusal == nil || out.Refusal.Reason != actor.Budget || len(asked) != agents.SameToolMax-1 || refusals != agents.StepsMax-len(asked) {
		t.Errorf("%+v, %v, asked %d, refused %d", out, err, len(asked), refusals)
	}
}

func TestStepsPerTurnLimit(t *testing.T) {
	asks := func(n int) actor.Behavior {
		return blocking(func(t *agents.Turn) (string, error) {
			for range n {
				if _, err := t.Call("a", ""); err != nil {
					return "", err
				}
			}
			return "done", nil
		})
	}
	if out, asked, err := runTurn(t, asks(agents.StepsMax), "", map[string]string{"a": ""}); err != nil || out.Status != actor.Succeeded || len(asked) != 50 {
		t.Errorf("%+v, %v, asked %d", out, err, len(asked))
	}
	if out, asked, err := runTurn(t, asks(agents.StepsMax+1), "", map[string]string{"a": ""}); err != nil || out.Refusal == nil || out.Refusal.Reason != actor.Budget || len(asked) != 50 {
		t.Errorf("%+v, %v, asked %d", out, err, len(asked))
	}
}

// A state of exactly StateBytesMax is accepted.
func TestStateOfMaximumSize(t *testing.T) {
	refusal := func(continuation int) string {
		action, err := agents.ExecuteAgentStep(func(agents.Config, agents.State) (agents.Action, error) {
			return agents.Continue("", make([]byte, continuation), agents.Call("a", "")), nil
		}, agents.Config{}, agents.State{})
		if err != nil {
			t.Fatal(err)
		}
		if action.Done == nil {
			return ""
		}
		return action.Done.Refusal.Detail
	}
	var id string
	var size int
	detail := strings.TrimPrefix(refusal(2*agents.StateBytesMax), "the state of ")
	if n, err := fmt.Sscanf(detail, "%s is %d bytes", &id, &size); n != 2 {
		t.Fatalf("%q: %v", detail, err)
	}
	rest := 3*agents.StateBytesMax - size
	if got := refusal(rest); got != "" {
		t.Errorf("a state of the maximum size is refused: %s", got)
	}
	if refusal(rest+1) == "" {
		t.Error("a state above the maximum size is accepted")
	}
}

func TestTurnStateLimit(t *testing.T) {
	big := strings.Repeat("x", agents.StateBytesMax*2/3)
	twice := func(t *agents.Turn) (string, error) {
		_, _ = t.Call("a", "1")
		_, _ = t.Call("a", "2")
		return "done", nil
	}
	growing := agents.Pure(agents.Config{}, func(_ agents.Config, s agents.State) (agents.Action, error) {
		return agents.Continue("", append(s.Continuation, big...), agents.Call("a", "")), nil
	})
	for name, b := range map[string]actor.Behavior{"answers": blocking(twice), "continuation": growing} {
		out, asked, err := runTurn(t, b, "", map[string]string{"a": big})
		if err != nil || out.Refusal == nil || out.Refusal.Reason != actor.Budget || !strings.Contains(out.Refusal.Detail, "at most 4194304") {
			t.Errorf("%s: %s %v, %v, asked %d", name, out.Status, out.Refusal, err, len(asked))
		}
	}
	if out, _, err := runTurn(t, blocking(twice), "", map[string]string{"a": big[:len(big)/2]}); err != nil || out.Status != actor.Succeeded {
		t.Errorf("half the size: %v, %v", out.Refusal, err)
	}
}

func TestActionMustAskOrEnd(t *testing.T) {
	both := agents.Complete("")
	both.Asks = []actor.Ask{agents.Sleep(1)}
	for name, action := range map[string]agents.Action{"neither": {}, "both": both} {
		b := agents.Pure(agents.Config{}, func(agents.Config, agents.State) (agents.Action, error) { return action, nil })
		if _, err := agents.Replay(b, begin(""), nil); err == nil || !strings.Contains(err.Error(), "either asks or an outcome") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswerCountMismatchIsError(t *testing.T) {
	two := blocking(func(t *agents.Turn) (string, error) {
		return "", t.All(agents.Sleep(1), agents.Sleep(2))[1].Err()
	})
	for _, answers := range [][]actor.Answer{nil, {{}}, {{}, {}, {}}} {
		if _, err := agents.Replay(two, begin(""), [][]actor.Answer{answers}); err == nil {
			t.Errorf("%d answers to two asks: want an error", len(answers))
		}
	}
}

func TestCancelledRequestUnwindsTurn(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	unwound := false
	_, err := agents.ExecuteAgentRequest(ctx, blocking(func(t *agents.Turn) (string, error) {
		defer func() { unwound = true }()
		for {
			_ = t.Sleep(1)
		}
	}), begin(""), func(context.Context, actor.Ask) actor.Answer { cancel(); return actor.Answer{} })
	if !errors.Is(err, context.Canceled) || !unwound {
		t.Errorf("%v, unwound: %v", err, unwound)
	}
}

// builtinAnswerer answers calls by running the built-in agents, without cells.
func builtinAnswerer(t *testing.T, signal actor.Answer, asked *[]string) agents.Answerer {
	ready := agents.Builtin()
	registry := tools.NewRegistry()
	var answer agents.Answerer
	answer = func(ctx context.Context, ask actor.Ask) actor.Answer {
		*asked = append(*asked, ask.String())
		if ask.Kind == actor.AskWait {
			return signal
		}
		planned, done := registry.Plan(tools.NewContext(begin("").Call, time.Minute, dispatcher.Asks{}), ask)
		if done != nil {
			return *done
		}
		i := slices.IndexFunc(ready, func(d actor.Definition) bool { return d.Name == planned.Name })
		if i < 0 {
			return actor.Answer{Refusal: actor.Refuse(actor.NotFound, "no agent is named %s", planned.Name)}
		}
		request := begin("")
		request.Call.Parts = planned.Parts
		out, err := agents.ExecuteAgentRequest(ctx, ready[i].Behavior, request, answer)
		if err != nil {
			t.Errorf("%s: %v", planned.Name, err)
		}
		return actor.Answer{Parts: out.Parts, Warnings: out.Warnings, Refusal: out.Refusal}
	}
	return answer
}

func TestCoordinatorCallsHelper(t *testing.T) {
	var asked []string
	coordinator := agents.Builtin()[0].Behavior
	out, err := agents.ExecuteAgentRequest(context.Background(), coordinator, begin(" xyzzy\n"), builtinAnswerer(t, actor.Answer{}, &asked))
	if got := actor.TextOf(out.Parts); err != nil || got != "I asked the helper. It said: response from helper: xyzzy" {
		t.Errorf("%q, %v", got, err)
	}
	if want := []string{`call helper "xyzzy" within 0s`, `wait go "" within 10m0s`}; !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
	expired := actor.Answer{Refusal: actor.Refuse(actor.Deadline, "signal expired")}
	out, err = agents.ExecuteAgentRequest(context.Background(), coordinator, begin("xyzzy"), builtinAnswerer(t, expired, &asked))
	if err != nil || out.Refusal == nil || out.Refusal.Reason != actor.Deadline {
		t.Errorf("without a signal: %+v, %v", out, err)
	}
	out, err = agents.ExecuteAgentRequest(context.Background(), coordinator, begin(" "), builtinAnswerer(t, expired, &asked))
	if err != nil || out.Refusal == nil || out.Refusal.Reason != actor.Invalid {
		t.Errorf("empty message: %+v, %v", out, err)
	}
	if err := agents.SameTurn(coordinator, coordinator, begin("x"), [][]actor.Answer{{text("y")}, {{}}}); err != nil {
		t.Error(err)
	}
}

// A call through the tool call_agent has the same result as a direct call.
func TestCallAgentToolCallsAgent(t *testing.T) {
	var asked []string
	out, err := agents.ExecuteAgentRequest(context.Background(), blocking(func(t *agents.Turn) (string, error) {
		reply, err := t.Tool(tools.CallAgent, map[string]any{"agent_id": "helper", "message": t.Message()})
		return string(reply), err
	}), begin("xyzzy"), builtinAnswerer(t, actor.Answer{}, &asked))
	if got := actor.TextOf(out.Parts); err != nil || got != "response from helper: xyzzy" {
		t.Errorf("%q, %v, asked %q", got, err, asked)
	}
}

func TestDefineHashesNameAndVersion(t *testing.T) {
	b := agents.Blocking(agents.Helper{})
	first, same := agents.Define("helper", "1", "x", b), agents.Define("helper", "1", "y", b)
	if first.Hash != same.Hash || first.Hash != actor.HashOf([]byte("go:helper:1")) {
		t.Error("equal names and versions have different hashes")
	}
	for _, other := range []actor.Definition{agents.Define("helper", "2", "x", b), agents.Define("helpers", "1", "x", b)} {
		if other.Hash == first.Hash {
			t.Errorf("%s: same hash as another agent", other.Name)
		}
	}
}

func FuzzDecodeState(f *testing.F) {
	s := agents.State{Request: begin("x"), Phase: "p", Continuation: []byte{1}, Answers: [][]actor.Answer{{text("y"), {Refusal: actor.Refuse(actor.Busy, "full")}}}}
	f.Add(s.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := agents.DecodeState(b)
		if err == nil && !bytes.Equal(s.Encode(), b) {
			t.Fatalf("DecodeState accepted %x, Encode returns %x", b, s.Encode())
		}
	})
}
