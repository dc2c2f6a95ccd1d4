// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/upstream"
)

// tokens is a purse without a limit of money.
func tokens(n int64) *actor.Purse { return &actor.Purse{Tokens: n, Micros: actor.NoLimit} }

// micros is a purse without a limit of tokens.
func micros(n int64) *actor.Purse { return &actor.Purse{Tokens: actor.NoLimit, Micros: n} }

// thinking returns an agent that asks model m so often, for answers of at most 40 tokens to prompts of at most 10, and answers with the texts.
func thinking(times int) script {
	return func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) < times {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskModel, Name: "m", PromptTokens: 10, AnswerTokens: 40, Body: []byte("{}")}}}, nil
		}
		var all []string
		for _, step := range answers {
			if r := step[0].Refusal; r != nil {
				all = append(all, r.Reason.String())
				continue
			}
			c, _ := upstream.DecodeCompletion(step[0].Parts[0].Bytes)
			all = append(all, c.Text)
		}
		return actor.Complete(actor.Text(strings.Join(all, " "))), nil
	}
}

// spent returns the answer of a model that reports tokens and a cost.
func spent(tokens, cost int64) actor.Answer {
	c := upstream.Completion{Text: "ok", Finish: upstream.FinishStop, Usage: upstream.Usage{Known: true, Input: tokens, Total: tokens, Priced: true, Cost: cost}}
	return actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: c.Encode()}}}
}

// answerModels answers the requests to models, in order, until there are no more.
func (n *node) answerModels(answer func(i int, o externalCall) actor.Answer) (count int) {
	for ; count < len(n.external); count++ {
		n.sendOutcome(n.external[count], answer(count, n.external[count]))
	}
	return count
}

func TestPurseOfTree(t *testing.T) {
	price := upstream.Price{Known: true, Input: 1_000_000, Output: 10_000_000} // 10 + 400 micros for a request of 10 and 40 tokens
	unknown := actor.Answer{Refusal: actor.Refuse(actor.Unknown, "cut")}
	silent := actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: (upstream.Completion{Text: "ok", Finish: upstream.FinishStop}).Encode()}}}
	for _, test := range []struct {
		name   string
		tree   *actor.Purse
		price  upstream.Price
		times  int
		answer actor.Answer
		want   string
		left   *actor.Purse
	}{
		{"without a limit", nil, upstream.Price{}, 3, spent(1000, 1000), "ok ok ok", nil},
		{"of tokens", tokens(120), upstream.Price{}, 3, spent(30, 0), "ok ok ok", tokens(30)},
		{"of tokens, too few for the third", tokens(109), upstream.Price{}, 3, spent(30, 0), "ok ok Budget", tokens(49)},
		{"of money", micros(1000), price, 3, spent(50, 300), "ok ok Budget", micros(400)},
		{"money of a model without a price", micros(1000), upstream.Price{}, 1, spent(50, 300), "Budget", micros(1000)},
		{"a limit of tokens needs no price", tokens(100), upstream.Price{}, 1, spent(50, 300), "ok", tokens(50)},
		{"more than was reserved", tokens(120), upstream.Price{}, 2, spent(90, 0), "ok Budget", tokens(30)},
		{"much more than there is", tokens(120), upstream.Price{}, 2, spent(500, 0), "ok Budget", tokens(-380)},
		{"usage that is not reported is all of it", tokens(120), upstream.Price{}, 3, silent, "ok ok Budget", tokens(20)},
		{"an unknown outcome is charged", tokens(120), upstream.Price{}, 3, unknown, "Unknown Unknown Budget", tokens(20)},
		{"a refusal is not", tokens(60), upstream.Price{}, 3, actor.Answer{Refusal: actor.Refuse(actor.Busy, "later")}, "Busy Busy Busy", tokens(60)},
	} {
		for _, kind := range []func(*actor.Definition){func(*actor.Definition) {}, volatile} {
			n := newNode(t, 1, agent("thinker", thinking(test.times), kind))
			n.spending = Spending{Tree: test.tree, Models: map[string]ModelCost{"m": {Price: test.price}}, Currency: "USD"}
			n.restart(1)
			id := n.send("thinker", "go")
			n.answerModels(func(int, externalCall) actor.Answer { return test.answer })
			n.want(id, test.want)
			if got := n.replies[id].Purse; (got == nil) != (test.left == nil) || got != nil && *got != *test.left {
				t.Errorf("%s: got %+v left, want %+v", test.name, got, test.left)
			}
		}
	}
}

// A request that names no maximum has one, because its cost was reserved.
func TestPurseBoundsAnswers(t *testing.T) {
	for _, tree := range []*actor.Purse{nil, tokens(100_000)} {
		n := newNode(t, 1, modelAgent())
		n.spending = Spending{Tree: tree}
		n.restart(1)
		n.send("thinker", "why")
		want := int64(0)
		if tree != nil {
			want = AnswerTokensDefault
		}
		if op := n.external[0].effect.Op.(Model); op.AnswerTokens != want {
			t.Errorf("got at most %d tokens, want %d", op.AnswerTokens, want)
		}
	}
}

// What an agent reserves for itself is not given to its calls, and the purse of an agent is a part of its caller's.
func TestPurseOfAgent(t *testing.T) {
	caller := agent("a", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return calling("b")(b, answers)
		}
		return thinking(2)(b, append([][]actor.Answer{}, answers[1:]...))
	}, func(d *actor.Definition) { d.Reserve = tokens(100) })
	n := newNode(t, 1, caller, agent("b", thinking(9), func(d *actor.Definition) { d.Purse = tokens(70) }))
	n.spending = Spending{Tree: tokens(300)}
	n.restart(1)
	id := n.send("a", "go")
	n.answerModels(func(int, externalCall) actor.Answer { return spent(20, 0) })
	n.want(id, "ok ok")
	if got := n.replies[id].Purse; *got != *tokens(300 - 40 - 40) { // b asks while it has 50 of 70
		t.Errorf("got %+v", got)
	}
}

// An agent has its budget also if its caller has none.
func TestPurseOfCalleeAlone(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b")), agent("b", thinking(3), func(d *actor.Definition) { d.Purse = tokens(70) }))
	id := n.send("a", "go")
	n.answerModels(func(int, externalCall) actor.Answer { return spent(20, 0) })
	n.want(id, "a(ok ok Budget)")
}

// A call that spends more than it was given is charged to its caller.
func TestPurseOfCallerIsCharged(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b", "c")), agent("b", thinking(1)), agent("c", thinking(1)))
	n.spending = Spending{Tree: tokens(800)}
	n.restart(1)
	id := n.send("a", "go")
	n.answerModels(func(int, externalCall) actor.Answer { return spent(900, 0) })
	n.want(id, "a(okBudget)")
	if got := *n.replies[id].Purse; got != *tokens(-100) {
		t.Errorf("got %+v", got)
	}
}

// What an approval adds must be of a kind that the budget has, and a tool call has none.
func TestRaiseIsChecked(t *testing.T) {
	n := newNode(t, 1, agent("thinker", thinking(1)))
	n.spending = Spending{Tree: tokens(10), Ask: true}
	n.restart(1)
	n.send("thinker", "go")
	a := n.pending()[0]
	raised := n.raising(a, `,"raise":{"micros":5}`)
	n.want(raised, "Invalid")
	if r := n.replies[raised].Refusal; r == nil || !strings.Contains(r.Detail, "give raise.tokens (--raise-tokens)") {
		t.Errorf("got %v, want what to type", r)
	}
	if len(n.pending()) != 1 || len(n.external) != 0 {
		t.Error("the approval was decided")
	}
	n.raising(a, `,"raise":{"tokens":50,"micros":5}`)
	if len(n.external) != 1 {
		t.Error("the request was not sent")
	}
	tool, _ := toolNode(t, declared(pay))
	tool.want(tool.raising(tool.pending()[0], `,"raise":{"tokens":5}`), "Invalid")
	if len(tool.pending()) != 1 {
		t.Error("the call was decided")
	}
}

// Runs of random trees never spend more than the purse of their root, over restarts too. What was not spent is left if no call timed out.
func TestTreeNeverSpendsMoreThanItsPurse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := []string{"a", "b", "c", "d"}
		late := false // a call timed out: what it was given does not come back
		var agents []actor.Definition
		for i, name := range names {
			steps := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(i, len(names)), 1, 4), 0, 3).Draw(rt, name)
			agents = append(agents, agent(name, func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
				for _, answer := range slices.Concat(answers...) {
					late = late || answer.Refusal != nil && answer.Refusal.Reason == actor.Deadline
				}
				if len(answers) == len(steps) {
					return actor.Complete(actor.Text("done")), nil
				}
				var asks []actor.Ask
				for k, to := range steps[len(answers)] {
					ask := actor.Ask{Kind: actor.AskModel, Name: "m", PromptTokens: 10, AnswerTokens: 40, Body: []byte("{}")}
					if to > i && to < len(names) {
						ask = actor.Ask{Kind: actor.AskCall, Name: fmt.Sprint(names[to], "/", k), Timeout: time.Minute}
					}
					asks = append(asks, ask)
				}
				return actor.Action{Asks: asks}, nil
			}, func(d *actor.Definition) {
				if rapid.IntRange(0, 3).Draw(rt, name+" is limited") == 0 {
					d.Purse = tokens(rapid.Int64Range(1, 300).Draw(rt, name+"'s purse"))
				}
			}))
		}
		n := newNode(t, 2, agents...)
		tree := tokens(rapid.Int64Range(1, 1500).Draw(rt, "purse"))
		n.spending = Spending{Tree: tree}
		tree = tree.Capped(agents[0].Purse)
		n.restart(2)
		id := n.send("a", "", func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} })
		total := int64(0)
		for len(n.external) > 0 {
			if rapid.IntRange(0, 9).Draw(rt, "restart") == 0 {
				n.restart(2)
				n.advance(2 * time.Second)
				continue
			}
			o := n.external[0]
			n.external = n.external[1:]
			took := rapid.Int64Range(0, 50).Draw(rt, "took")
			if total += took; took == 0 { // not reported
				total += 50
			}
			n.sendOutcome(o, spent(took, 0))
			n.advance(time.Second)
		}
		again := n.send("a", "", func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} })
		n.advance(time.Minute)
		reply, ok := n.replies[again]
		if !ok {
			rt.Fatalf("run %s has no outcome", id)
		}
		if left := reply.Purse.Tokens; total+left > tree.Tokens || !late && total+left < tree.Tokens {
			rt.Fatalf("%d tokens spent and %d left of %d", total, left, tree.Tokens)
		}
	})
}

// raising sends a decision about a budget.
func (n *node) raising(a Approval, raise string) actor.CallID {
	return n.send(a.Actor.String(), "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent, c.Principal = actor.Signal, signals.OpDecide, a.ID.Run, "anna"
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: fmt.Appendf(nil, `{"approval_id":%q,"approve":true%s}`, a.ID.Approval(), raise)}}
	})
}

// At the limit a person may raise the budget, days later and over restarts. The request is sent once, after the decision.
func TestPurseAsks(t *testing.T) {
	for _, test := range []struct {
		name, raise string
		want        string // of the three requests
		left        int64
	}{
		{"as much again", "", "ok ok ok", 120 - 3*30 + 60},
		{"by a number", `,"raise":{"tokens":200}`, "ok ok ok", 60 + 200 - 3*30},
		{"less than the request needs", `,"raise":{"tokens":1}`, "ok ok", 20}, // the third asks again
	} {
		n := newNode(t, 2, agent("top", calling("thinker")), agent("thinker", thinking(3), func(d *actor.Definition) { d.Purse = tokens(60) }))
		n.spending = Spending{Tree: tokens(1000), Ask: true}
		n.restart(2)
		root := n.send("top", "go", func(c *actor.Call) { c.Left = 30 * time.Second })
		n.sendOutcome(n.external[0], spent(30, 0))
		if len(n.external) != 1 || len(n.pending()) != 1 {
			t.Fatalf("%s: %d requests, approvals %v", test.name, len(n.external), n.pending())
		}
		n.advance(100 * time.Second)
		n.restart(2)
		n.advance(100 * time.Second)
		a := n.pending()[0]
		if a.Tool != "m" || a.Approver != runs.ApproverOperator || a.Raise == nil || a.Raise.Tokens != 60 || !strings.Contains(a.Summary, "up to 50 tokens, and 30 are left") {
			t.Errorf("%s: got %+v", test.name, a)
		}
		if got := n.types(root); !strings.Contains(got, "approval_required run_paused") {
			t.Errorf("%s: got events %s", test.name, got)
		}
		for _, e := range slices.Concat(n.events[root], n.events[a.ID.Run]) {
			if (e.Type == runs.ApprovalRequired || e.Type == runs.ApprovalCreated) && (e.Kind != runs.KindBudget || e.Name != "m" || e.Text != a.Summary) {
				t.Errorf("%s: got event %s of kind %q, %q, %q", test.name, e.Type, e.Kind, e.Name, e.Text)
			}
		}
		if len(n.external) != 0 {
			t.Fatalf("%s: %d requests before the decision", test.name, len(n.external))
		}
		n.raising(a, test.raise)
		n.want(n.raising(a, test.raise), "ApprovalDecided")
		n.advance(time.Second)
		if len(n.external) != 1 {
			t.Fatalf("%s: %d requests after the decision", test.name, len(n.external))
		}
		if got := n.types(a.ID.Run); !strings.Contains(got, "tool_call_created approval_created run_paused approval_decision run_resumed tool_dispatched tool_result llm_call_started") {
			t.Errorf("%s: got events %s", test.name, got)
		}
		n.answerModels(func(int, externalCall) actor.Answer { return spent(30, 0) })
		n.advance(time.Second)
		if test.want == "ok ok" {
			if len(n.pending()) != 1 {
				t.Errorf("%s: got %v", test.name, n.pending())
			}
			continue
		}
		if state := n.runs[root]; state.Status != runs.Done || state.Text != "top("+test.want+")" {
			t.Errorf("%s: got %s %q", test.name, state.Status, state.Text)
		}
	}
}

// Amounts that a model makes up can be stored and read, as can what a person adds to the debt.
func TestAbsurdUsageCanBeStored(t *testing.T) {
	n := newNode(t, 1, agent("thinker", thinking(2)))
	n.spending = Spending{Tree: tokens(50), Ask: true}
	n.restart(1)
	id := n.send("thinker", "go")
	absurd := upstream.Completion{Text: "ok", Finish: upstream.FinishStop, Usage: upstream.Usage{Known: true, Input: actor.UsageMax, Output: actor.UsageMax}}
	n.sendOutcome(n.external[0], actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: absurd.Encode()}}})
	n.restart(1)
	n.advance(2 * time.Second)
	n.raising(n.pending()[0], fmt.Sprintf(`,"raise":{"tokens":%d}`, actor.UsageMax))
	n.restart(1)
	n.advance(2 * time.Second)
	n.answerModels(func(int, externalCall) actor.Answer { return spent(20, 0) })
	n.advance(time.Second)
	if state := n.runs[id]; state.Text != "ok ok" {
		t.Errorf("got %s %q", state.Status, state.Text)
	}
}

func TestPurseIsNotRaised(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(n *node)
		want string
	}{
		{"rejected", func(n *node) { n.decide(n.pending()[0], false) }, "ApprovalRejected"},
		{"nobody decides", func(n *node) { n.advance(n.limits.ApprovalTimeout + time.Second) }, "Deadline"},
	} {
		n := newNode(t, 1, agent("thinker", thinking(1)))
		n.spending = Spending{Tree: tokens(10), Ask: true}
		n.restart(1)
		id := n.send("thinker", "go")
		test.end(n)
		n.advance(time.Second)
		if state := n.runs[id]; state.Text != test.want || len(n.external) != 0 {
			t.Errorf("%s: got %q, %d requests", test.name, state.Text, len(n.external))
		}
	}
}

// A request of an external agent beyond the purse is refused before it is sent, and leaves nothing in the run.
func TestPurseOfAddedModel(t *testing.T) {
	n := newNode(t, 1, externalAgent(false))
	n.spending = Spending{Tree: tokens(100)}
	n.restart(1)
	m := modelCalls{n, n.send("worker", "go")}
	add := func(prompt, answer int) actor.Reply {
		return m.signal(signals.OpAddModel, fmt.Sprintf(`{"model":"gpt","request":{"request_id":"r7"},"prompt_tokens":%d,"answer_tokens":%d}`, prompt, answer))
	}
	if r := add(10, 0).Refusal; r == nil || r.Reason != actor.Budget { // 4,096 tokens without a maximum
		t.Errorf("got %v", r)
	}
	if r := add(10, 60).Refusal; r != nil {
		t.Error(r)
	}
	if r := add(10, 60).Refusal; r == nil || r.Reason != actor.Budget { // 30 are left while the other is under way
		t.Errorf("got %v", r)
	}
	if r := m.end(1, known).Refusal; r != nil { // it took 34
		t.Error(r)
	}
	if r := add(10, 56).Refusal; r != nil {
		t.Error(r)
	}
	for _, most := range []int{1 << 62, 1<<63 - 1, actor.UsageMax, -1 << 63} { // sums do not overflow
		if r := add(1<<62, most).Refusal; r == nil || r.Reason != actor.Budget {
			t.Errorf("%d tokens: got %v", most, r)
		}
	}
	if got := strings.Count(n.types(m.run), "llm_call_started"); got != 2 {
		t.Errorf("%d requests in the run, want 2", got)
	}
}

// A callee is given nothing of what its caller reserves.
func TestReserveIsKept(t *testing.T) {
	for _, test := range []struct {
		reserve *actor.Purse
		want    string
	}{{tokens(250), "a(ok Budget Budget)"}, {tokens(150), "a(ok ok ok)"}, {nil, "a(ok ok ok)"}} {
		n := newNode(t, 1, agent("a", calling("b"), func(d *actor.Definition) { d.Reserve = test.reserve }), agent("b", thinking(3)))
		n.spending = Spending{Tree: tokens(300)}
		n.restart(1)
		id := n.send("a", "go")
		n.answerModels(func(int, externalCall) actor.Answer { return spent(50, 0) })
		n.want(id, test.want)
	}
}

// Detached calls of one step share what is left, one after the other.
func TestDetachedCallsShareThePurse(t *testing.T) {
	n := newNode(t, 1, agent("asker", sending()), agent("thinker", thinking(1)))
	n.spending = Spending{Tree: tokens(1000)}
	n.restart(1)
	line := `{"agent":"thinker","input":{},"skill":"x"}`
	n.send("asker", strings.Repeat(line+"\n", 4)+line)
	var got []int64
	for _, row := range n.journalOf(actor.NewID("asker", actor.DefaultKey)).Mail.Rows {
		got = append(got, row.Call.Purse.Tokens)
	}
	if want := []int64{250, 187, 140, 105, 79}; !slices.Equal(got, want) {
		t.Errorf("the callees were given %d, want %d", got, want)
	}
}

// Who cannot wait for a person is refused at once, although others are asked.
func TestNobodyIsAsked(t *testing.T) {
	limited := Spending{Tree: tokens(10), Ask: true}
	n := newNode(t, 1, agent("thinker", thinking(1), volatile))
	n.spending = limited
	n.restart(1)
	n.want(n.send("thinker", "go"), "Budget")

	n = newNode(t, 1, externalAgent(false))
	n.spending = limited
	n.restart(1)
	m := modelCalls{n, n.send("worker", "go")}
	if r := m.signal(signals.OpAddModel, `{"model":"gpt","request":{"request_id":"r7"},"prompt_tokens":10,"answer_tokens":10}`).Refusal; r == nil || r.Reason != actor.Budget {
		t.Errorf("an added request: got %v", r)
	}
	if len(n.pending()) > 0 {
		t.Errorf("got %v", n.pending())
	}

	n = newNode(t, 1, agent("thinker", thinking(1)))
	n.spending = limited
	n.restart(1)
	for i := range ApprovalsPerUserMax {
		n.send(fmt.Sprint("thinker/", i), "go")
	}
	n.want(n.send("thinker/more", "go"), "Busy")
	if got := len(n.pending()); got != ApprovalsPerUserMax {
		t.Errorf("%d wait", got)
	}
}

// A model that the configuration does not have needs no price.
func TestUnknownModelNeedsNoPrice(t *testing.T) {
	n := newNode(t, 1, agent("thinker", thinking(1)))
	n.spending = Spending{Tree: micros(10), Models: map[string]ModelCost{"other": {}}, Ask: true}
	n.restart(1)
	id := n.send("thinker", "go")
	n.answerModels(func(int, externalCall) actor.Answer {
		return actor.Answer{Refusal: actor.Refuse(actor.ModelNotFound, "unknown model")}
	})
	n.want(id, "ModelNotFound")
}
