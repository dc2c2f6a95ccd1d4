// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// What cannot be sent is refused to the agent, with the reason.
func TestRefusedDetachedCalls(t *testing.T) {
	only := func(d *actor.Definition) { d.Skills = []string{"look", "listen"} }
	for _, c := range []struct{ input, want string }{
		{`{"agent":"nobody","skill":"x"}`, "NotFound"},
		{`{"agent":"a","skill":"x"}`, "Cycle"},
		{`{"agent":"c","skill":"x"}`, `agent c has no skill "x": it has look, listen`},
		{`{"agent":"d","skill":"x"}`, `a may not call "d": it may call b, c, nobody, a`},
		{`{"agent":"b","skill":"x y"}`, "agent_call: skill"},
		{`{"agent":"b","skill":"x","timeout":0}`, "timeout: want at least 1"},
		{`{"agent":"b","skill":"x","returnTo":"agent:other:main"}`, "agent_call: returnTo: outcomes come back to the asking session, which is agent:a:s-1"},
		{`{"agent":"b","skill":"x","correlationId":"` + strings.Repeat("c", tools.ClientCorrelationMax+1) + `"}`, "agent_call: correlationId: want at most 128 bytes"},
		{`{"agent":"b","skill":"x","timeout":5000,"timeoutSeconds":6}`, "agent_call: timeoutSeconds: it is another time than that in timeout"},
		{`{"agent":"b","skill":"x","timeout_ms":5000,"timeoutSeconds":0}`, "timeoutSeconds"},
		{`{"agent":"b","skill":"x","timeout_ms":0}`, "timeout_ms: want at least 1"},
		{`{"agent":"b","skill":"x","input":{"x":"` + strings.Repeat("y", contract.SkillInputMax) + `"}}`, "exceed the maximum"},
		{`{"agent":"b","skill":"x","timeout":400000}`, "the timeout of 400000 ms is reduced to 300000 ms"},
	} {
		var refusal string
		asker := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 1 && answers[0][0].Refusal != nil {
				refusal = answers[0][0].Refusal.Reason.String() + " " + answers[0][0].Refusal.Error()
			} else if len(answers) == 1 {
				refusal = strings.Join(answers[0][0].Warnings, "")
			}
			return sending()(b, answers)
		}
		n := newNode(t, 1, agent("a", asker, func(d *actor.Definition) { d.Sends = []string{"b", "c", "nobody", "a"} }), agent("b", echo()), agent("c", echo(), only), agent("d", echo()))
		n.send("a/s-1", c.input)
		if !strings.Contains(refusal, c.want) {
			t.Errorf("%.80s: got %q, want %q", c.input, refusal, c.want)
		}
	}
	n := newNode(t, 1, agent("a", sending(), volatile), agent("b", echo()))
	n.want(n.send("a/s-1", askB), "Rejected")
}

// The time-out may have three names. The asker may give its own address and a correlation of its own, which is
// returned beside that of the server.
func TestSpellingsOfDetachedCalls(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", sleeping(9*time.Second)))
	run := n.send("a/s-1", strings.Join([]string{
		`{"agent":"b","skill":"x","timeout_ms":5000,"returnTo":"agent:a:s-1"}`,
		`{"agent":"b","skill":"x","timeoutSeconds":6,"timeout":6000,"timeout_ms":6000}`,
		`{"agent":"b","skill":"x","timeoutSeconds":0.5,"correlationId":"mine"}`,
	}, "\n"))
	n.pendingOf(run)
	if got := n.result(run); strings.Count(got, `"clientCorrelationId":"mine"`) != 1 {
		t.Errorf("the immediate answers are\n%s", got)
	}
	var times []actor.Duration
	for _, p := range n.journalOf(alice).Mail.Rows {
		times = append(times, p.Clock.Left)
	}
	if want := []actor.Duration{5 * time.Second, 6 * time.Second, 500 * time.Millisecond}; !slices.Equal(times, want) {
		t.Errorf("got the times %v, want %v", times, want)
	}
	n.restart(1)
	n.advance(time.Second)
	if got := n.conversation(alice); strings.Count(got, `"clientCorrelationId":"mine","status":"timeout"`) != 1 {
		t.Errorf("the conversation is\n%s", got)
	}
}

// A rule of the policy that names a tool of this program holds for its calls.
func TestPolicyBlocksDetachedCall(t *testing.T) {
	policy, err := tools.NewPolicy([]tools.Rule{{Tool: tools.AgentCall, When: `args.agent != "b"`, Decision: "block"}, {Tool: "*", Decision: "block"}}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for input, want := range map[string]string{askB: "pending", `{"agent":"c","skill":"look"}`: "PolicyBlocked"} {
		n := newNode(t, 1, agent("a", sending()), agent("b", echo()), agent("c", echo()))
		if n.tools, err = tools.NewRegistry().With(nil, policy); err != nil {
			t.Fatal(err)
		}
		n.restart(1)
		if got := n.result(n.send("a/s-1", input)); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", input, got, want)
		}
	}
}

// Agents that answer each other do so a bounded number of times.
func TestRoundsAreBounded(t *testing.T) {
	again := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskTool, Name: tools.AgentCall, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(askB)}}}}}, nil
		}
		return actor.Complete(actor.Text(detachedText(answers[0][0]))), nil
	}
	n := newNode(t, 1, agent("a", again), agent("b", echo()))
	n.limits.CallsPerTreeMax = 100_000
	n.restart(1)
	n.send("a/s-1", "begin")
	n.advance(time.Hour)
	if got := n.delivered(alice); len(got) != RoundsMax {
		t.Errorf("%d outcomes follow from one message, want %d", len(got), RoundsMax)
	}
	if c := n.conversation(alice); !strings.HasSuffix(c, "agent: Rejected\n") {
		t.Errorf("the last turn is not refused:\n%s", c)
	}
}

// The calls of all turns that follow from a message do not exceed its budget.
func TestBudgetCoversTurnsOfOutcomes(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", echo()))
	n.limits.CallsPerTreeMax = 33
	n.restart(1)
	n.send("a/s-1", askB+"\n"+askB)
	var budgets []uint32
	for _, e := range n.log[alice].Entries {
		if a, ok := e.Record.(store.Accepted); ok && a.Call.Kind == actor.OneWay {
			budgets = append(budgets, a.Call.Budget)
		}
		if d, ok := e.Record.(store.Detached); ok {
			budgets = append(budgets, d.Pending.Call.Budget)
		}
	}
	if want := []uint32{2, 1, 16, 15}; !slices.Equal(budgets, want) { // 33 = 1+2 + 1+1 + 14+14
		t.Errorf("got the budgets %v of two callees and the turns for their outcomes, want %v", budgets, want)
	}
}

func TestPendingCallsAreBounded(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", waiting(time.Hour)))
	n.limits.CallsPerTreeMax, n.limits.AsksPerActionMax, n.limits.MaxPendingPerActor, n.limits.MailboxBytesMax = 1<<20, 1<<12, 1<<10, 1<<20
	n.restart(1)
	lines := make([]string, 64)
	for i := range lines {
		lines[i] = askB
	}
	for range store.PendingMax / len(lines) {
		n.pendingOf(n.send("a/s-1", strings.Join(lines, "\n")))
	}
	n.want(n.send("a/s-1", askB), "Busy")
	n.want(n.send("a/s-2", "x"), "")
}
