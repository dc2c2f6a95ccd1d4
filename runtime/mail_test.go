// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// sending returns an agent that makes a detached call for each line of its message, which is the input of
// agent_call, and completes with their immediate answers. It answers the outcome of a call with "heard".
func sending() script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		text := actor.TextOf(b.Call.Parts)
		if strings.HasPrefix(text, `{"kind":`) {
			return actor.Complete(actor.Text("heard")), nil
		}
		if len(answers) == 0 && strings.HasPrefix(text, "{") {
			var asks []actor.Ask
			for _, line := range strings.Split(text, "\n") {
				asks = append(asks, actor.Ask{Kind: actor.AskTool, Name: tools.AgentCall, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(line)}}})
			}
			return actor.Action{Asks: asks}, nil
		}
		var all []string
		if len(answers) > 0 {
			for _, a := range answers[0] {
				all = append(all, detachedText(a))
			}
		}
		return actor.Complete(actor.Text(strings.Join(all, "\n"))), nil
	}
}

// detachedText returns the immediate answer to a detached call.
func detachedText(a actor.Answer) string {
	if a.Refusal != nil {
		return answerText(a)
	}
	return string(inlineBytes(a.Parts))
}

// receives returns an agent that keeps its message and answers with text.
func receives(message *string, text string) script {
	return func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		*message = actor.TextOf(b.Call.Parts)
		return actor.Complete(actor.Text(text)), nil
	}
}

// pending is the immediate answer to a detached call.
type pending struct{ Status, CorrelationID, TaskID string }

func (n *node) pendingOf(run actor.CallID) (all []pending) {
	n.t.Helper()
	for _, line := range strings.Split(n.result(run), "\n") {
		var p pending
		if err := json.Unmarshal([]byte(line), &p, json.MatchCaseInsensitiveNames(true)); err != nil || p.Status != "pending" || p.CorrelationID == "" || p.TaskID != p.CorrelationID {
			n.t.Fatalf("got the answer %q, %v", line, err)
		}
		all = append(all, p)
	}
	return all
}

// journalOf folds the log of an actor.
func (n *node) journalOf(id actor.ID) *store.Journal {
	n.t.Helper()
	j, err := store.Fold(n.log[id])
	if err != nil {
		n.t.Fatal(err)
	}
	return &j
}

// conversation returns the transcript of an actor, one message a line: source and text.
func (n *node) conversation(id actor.ID) string {
	var b strings.Builder
	for _, m := range n.journalOf(id).Transcript.Tail {
		fmt.Fprintf(&b, "%s: %s\n", m.Source, actor.TextOf(m.Parts))
	}
	return b.String()
}

// delivered returns the outcomes in the transcript of an actor, in order: kind, status and the member output of each.
func (n *node) delivered(id actor.ID) (all []string) {
	n.t.Helper()
	for _, m := range n.journalOf(id).Transcript.Tail {
		if m.Source != actor.FromDelivered {
			continue
		}
		var v struct {
			Kind, Status, CorrelationID string
			Output                      any
			Error                       struct{ Code string }
		}
		of, ok := m.Extensions.Provenance()
		if err := json.Unmarshal([]byte(actor.TextOf(m.Parts)), &v, json.MatchCaseInsensitiveNames(true)); err != nil || !ok || of.Tool != tools.AgentCall && of.Tool != tools.DebateCall && of.Tool != tools.Remind || of.Correlation.String() != v.CorrelationID || m.Role != actor.RoleUser {
			n.t.Errorf("delivered %s %s with %+v, %v", m.Role, actor.TextOf(m.Parts), of, err)
		}
		all = append(all, strings.TrimSuffix(fmt.Sprint(v.Kind, " ", v.Status, " ", v.Output, v.Error.Code), "<nil>"))
	}
	return all
}

func (n *node) wantDelivered(want ...string) {
	n.t.Helper()
	if got := n.delivered(alice); !slices.Equal(got, want) {
		n.t.Errorf("delivered %q, want %q", got, want)
	}
	if rows := n.journalOf(alice).Mail.Rows; len(rows) > 0 && !rows[0].Late {
		n.t.Errorf("%d calls are pending", len(rows))
	}
}

var alice = actor.NewID("a", "s-1")

const askB = `{"agent":"b","skill":"look","input":{"x":1}}`

// The turn of the asker goes on at once, and the answer comes back as a message with a turn of its own.
func TestDetachedCallComesBack(t *testing.T) {
	var got string
	n := newNode(t, 1, agent("a", sending()), agent("b", receives(&got, `{"output":{"mm":3},"confidence":0.9}`)))
	p := n.pendingOf(n.send("a/s-1", askB))[0]
	if want := `{"kind":"skill_invocation","skill":"look","mode":"execute","input":{"x":1},"correlationId":"` + p.CorrelationID + `","returnTo":"agent:a:s-1","timeout":60000}`; got != want {
		t.Errorf("the callee got\n%s want\n%s", got, want)
	}
	task, err := actor.ParseCallID(p.TaskID)
	if err != nil || n.runs[task] == nil || !n.runs[task].Status.Ended() {
		t.Errorf("the taskId %s is no ended run: %v", p.TaskID, err)
	}
	n.wantDelivered("skill_response completed map[mm:3]")
	if c := n.conversation(alice); !strings.HasSuffix(c, "agent: heard\n") || strings.Count(c, "\n") != 4 {
		t.Errorf("the conversation is\n%s", c)
	}
	if at := n.expiryIndex[alice]; at != 0 {
		t.Errorf("the actor is due at %d", at)
	}
}

// Whatever is lost, doubled or restarted, each call has one outcome.
func TestDetachedCallHasOneOutcome(t *testing.T) {
	ids := func(e actor.Envelope) string { return e.Body.Name() }
	for name, c := range map[string]struct {
		callee actor.Definition
		drop   func(seen map[string]int, e actor.Envelope) bool
		want   string
	}{
		"reply lost":           {agent("b", echo()), func(seen map[string]int, e actor.Envelope) bool { return ids(e) == "answered" && seen["answered"] < 4 }, "skill_response completed"},
		"request lost":         {agent("b", echo()), func(seen map[string]int, e actor.Envelope) bool { return ids(e) == "request" && seen["request"] < 3 }, "skill_response completed"},
		"all replies lost":     {agent("b", echo()), func(_ map[string]int, e actor.Envelope) bool { return ids(e) == "answered" }, "skill_timeout timeout"},
		"answer after timeout": {agent("b", sleeping(90*time.Second)), nil, "skill_timeout timeout"},
		"failure": {agent("b", func(actor.Begin, [][]actor.Answer) (actor.Action, error) {
			return actor.Action{}, actor.Refuse(actor.Rejected, "no")
		}), nil, "skill_response error <nil>call_rejected"},
		"volatile callee": {agent("b", echo(), volatile), nil, "skill_response completed"},
	} {
		for restarts := range 8 {
			t.Run(fmt.Sprint(name, restarts), func(t *testing.T) {
				n := newNode(t, 1, agent("a", sending()), c.callee)
				seen := map[string]int{}
				n.drop = func(e actor.Envelope) bool {
					seen[ids(e)]++
					return c.drop != nil && c.drop(seen, e)
				}
				n.paused = true
				n.send("a/s-1", askB)
				for i := 0; i < restarts && len(n.inputs) > 0; i++ {
					in := n.inputs[0]
					n.inputs = n.inputs[1:]
					in()
				}
				if restarts > 0 { // at each place
					n.restart(1)
				}
				n.paused = false
				n.drain()
				if len(n.log[alice].Entries) == 0 {
					return // the message was lost before it was accepted
				}
				n.advance(10 * time.Minute)
				got := n.delivered(alice)
				if len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
					t.Errorf("delivered %q, want one %s", got, c.want)
				}
				if j := n.journalOf(alice); len(j.Mail.Rows) > 0 || len(j.Runs) > 0 {
					t.Errorf("%d calls and %d runs are open", len(j.Mail.Rows), len(j.Runs))
				}
				if c := n.conversation(alice); strings.Count(c, "agent: heard") != 1 {
					t.Errorf("the conversation is\n%s", c)
				}
			})
		}
	}
}

// An answer after the time-out is recorded and not delivered; what the callee did is in its run.
func TestLateAnswerIsRecorded(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", sleeping(50*time.Second)))
	p := n.pendingOf(n.send("a/s-1", `{"agent":"b","skill":"look","timeout":40000}`))[0]
	n.advance(39_999 * time.Millisecond)
	if got := n.delivered(alice); len(got) != 0 {
		t.Errorf("delivered %q before the time-out", got)
	}
	n.advance(time.Millisecond)
	n.wantDelivered("skill_timeout timeout ")
	if n.expiryIndex[alice] == 0 {
		t.Error("the late answer is not awaited after a restart")
	}
	n.advance(time.Minute)
	n.wantDelivered("skill_timeout timeout ")
	if n.eventCounts[history.Late] != 1 || n.expiryIndex[alice] != 0 {
		t.Errorf("%d late answers, due at %d", n.eventCounts[history.Late], n.expiryIndex[alice])
	}
	if task, err := actor.ParseCallID(p.TaskID); err != nil || n.runs[task].Outcome != actor.Succeeded {
		t.Errorf("the run of the callee is %+v, %v", n.runs[task], err)
	}
}

// The outcome of a call with timeoutSeconds 0 is not delivered, over a restart, and can be read. No other spelling does that.
func TestForgottenCallIsNotDelivered(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		n := newNode(t, 1, agent("a", sending()), agent("b", sleeping(5*time.Second)))
		run := n.send("a/s-1", `{"agent":"b","skill":"look","timeoutSeconds":0}`)
		var p pending
		if err := json.Unmarshal([]byte(n.result(run)), &p, json.MatchCaseInsensitiveNames(true)); err != nil || p.Status != "working" || p.TaskID == "" {
			t.Fatalf("got %s, %v", n.result(run), err)
		}
		if restarts {
			n.restart(1)
		}
		n.advance(time.Minute)
		n.wantDelivered()
		task, err := actor.ParseCallID(p.TaskID)
		if err != nil {
			t.Fatal(err)
		}
		if n.runs[task].Outcome != actor.Succeeded || !strings.Contains(string(n.journalOf(alice).Mail.LateTo(task)), `"output":"slept"`) {
			t.Errorf("the call was not made: %+v", n.runs[task])
		}
		if len(n.journalOf(alice).Mail.Rows) > 0 || n.expiryIndex[alice] != 0 {
			t.Error("its row is left")
		}
		for _, input := range []string{`{"agent":"b","skill":"x","timeout":0}`, `{"agent":"b","skill":"x","timeout_ms":0}`, `{"agent":"b","skill":"x","timeoutSeconds":0,"timeout":1000}`} {
			n.want(n.send("a/s-1", input), "Invalid")
		}
	}
}

// not found.
func TestPollReadsState(t *testing.T) {
	polling := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if input, ok := strings.CutPrefix(actor.TextOf(b.Call.Parts), "poll "); ok && len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskTool, Name: tools.AgentPoll, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}}}}, nil
		}
		return sending()(b, answers)
	}
	n := newNode(t, 1, agent("a", polling), agent("b", sleeping(50*time.Second)), agent("c", echo()))
	slow := n.pendingOf(n.send("a/s-1", `{"agent":"b","skill":"look","timeout":40000}`))[0].TaskID
	quick := n.pendingOf(n.send("a/s-1", `{"agent":"c","skill":"look","input":{"x":1}}`))[0].TaskID
	state := func(session, task, want string) {
		t.Helper()
		input := "{}"
		if task != "" {
			input = `{"taskId":"` + task + `"}`
		}
		if got := n.result(n.send("a/"+session, "poll "+input)); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	state("s-1", "", `{"tasks":[{"status":"working","correlationId":"`+slow+`","taskId":"`+slow+`","agent":"b","skill":"look","startTime":`)
	state("s-1", slow, `"status":"working"`)
	state("s-1", quick, `"status":"completed","output":`)
	state("s-2", slow, "NotFound")
	n.advance(45 * time.Second)
	state("s-1", slow, `"status":"timeout"`)
	n.restart(1)
	n.advance(10 * time.Second)
	state("s-1", slow, `"status":"completed","output":"slept"`)
	state("s-1", "", `{"tasks":[]}`)
	n.restart(1)
	state("s-1", slow, `"status":"completed","output":"slept"`)
	if got := n.delivered(alice); len(got) != 2 {
		t.Errorf("delivered %q", got)
	}
}

// The messages have their turns in the order of the outcomes, not in that of the calls.
func TestOutcomesAreDeliveredInOrder(t *testing.T) {
	for _, turns := range []actor.Turns{actor.Serial, actor.Interleaved} {
		n := newNode(t, 1, agent("a", sending(), func(d *actor.Definition) { d.Turns = turns }), agent("b", sleeping(9*time.Second)), agent("c", sleeping(5*time.Second)), agent("d", echo()))
		n.pendingOf(n.send("a/s-1", strings.Join([]string{askB, strings.Replace(askB, "b", "c", 1), `{"agent":"d","skill":"x"}`, `{"agent":"b/other","skill":"y","timeout":1000}`}, "\n")))
		n.advance(4 * time.Second)
		n.restart(1)
		n.drain()
		n.advance(time.Minute)
		got := n.delivered(alice)
		if len(got) != 4 || !strings.Contains(got[0], "completed d:") || !strings.HasPrefix(got[1], "skill_timeout") || got[2] != "skill_response completed slept" || got[3] != got[2] {
			t.Errorf("%v: delivered %q", turns, got)
		}
	}
}

// Outcomes that wait have one turn, which reads all of them in their order.
func TestWaitingOutcomesCoalesce(t *testing.T) {
	var turns []string
	hearing := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if text := actor.TextOf(b.Call.Parts); strings.HasPrefix(text, `{"kind":`) {
			var heard []string
			for _, m := range append(b.Transcript, actor.ChatMessage{Parts: b.Call.Parts}) {
				if _, rest, ok := strings.Cut(actor.TextOf(m.Parts), `"output":"`); ok {
					heard = append(heard, rest[:5])
				}
			}
			turns = append(turns, strings.Join(heard, " "))
		} else if text == "busy" {
			return sleeping(10*time.Second)(b, answers)
		}
		return sending()(b, answers)
	}
	n := newNode(t, 1, agent("a", hearing, func(d *actor.Definition) { d.Coalesce, d.Transcript = true, 100 }), agent("b", answersAfter(time.Second, "first")), agent("c", answersAfter(2*time.Second, "later")), agent("d", answersAfter(20*time.Second, "final")))
	n.pendingOf(n.send("a/s-1", `{"agent":"c","skill":"x"}`+"\n"+`{"agent":"b","skill":"x"}`+"\n"+`{"agent":"d","skill":"x"}`))
	n.send("a/s-1", "busy")
	n.advance(5 * time.Second)
	n.restart(1)
	n.advance(time.Minute)
	if want := []string{"first later", "first later final"}; !slices.Equal(turns, want) {
		t.Errorf("the turns have %q, want %q", turns, want)
	}
	n.wantDelivered("skill_response completed first", "skill_response completed later", "skill_response completed final")
	if j := n.journalOf(alice); len(j.Runs) > 0 {
		t.Errorf("%d runs are open", len(j.Runs))
	}
}

// answersAfter returns an agent that answers a text after a time.
func answersAfter(d time.Duration, text string) script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: d}}}, nil
		}
		return actor.Complete(actor.Text(text)), nil
	}
}

// A user's message waits for one delivered turn at most, and delivered turns wait for one message at most.
func TestMessagesAlternateWithOutcomes(t *testing.T) {
	slow := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if strings.HasPrefix(actor.TextOf(b.Call.Parts), `{"agent"`) {
			return sending()(b, answers)
		}
		return sleeping(10*time.Second)(b, answers)
	}
	n := newNode(t, 1, agent("a", slow), agent("b", echo()))
	n.limits.AgentCallDepthMax = 5
	n.send("a/s-1", strings.Join([]string{askB, askB, askB, askB, askB}, "\n"))
	n.advance(time.Second)
	user1, user2 := n.send("a/s-1", "hello"), n.send("a/s-1", "hello again")
	n.advance(25 * time.Second)
	n.want(user1, "slept")
	n.want(user2, "nothing")
	n.advance(2 * time.Minute)
	n.want(user2, "slept")
	var order []string
	for _, line := range strings.Split(n.conversation(alice), "\n") {
		switch {
		case strings.HasPrefix(line, "delivered"):
			order = append(order, "outcome")
		case strings.HasPrefix(line, "user: hello"):
			order = append(order, "user")
		}
	}
	if want := []string{"outcome", "user", "outcome", "user", "outcome", "outcome", "outcome"}; !slices.Equal(order, want) {
		t.Errorf("got the order %v, want %v", order, want)
	}
}

// A callee that waits for a person is told to the asker once. The wait goes on, and the time-out names the approval.
func TestWaitForPersonIsNotice(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", waiting(time.Hour)))
	n.pendingOf(n.send("a/s-1", askB))
	row := n.journalOf(alice).Mail.Rows[0]
	hold := actor.Hold{Reason: actor.HoldApproval, Subject: "approval-1"}
	for _, i := range []uint64{8, 8, 7, 9} {
		n.deliver(alice, actor.Held{Call: row.Call.ID, N: i, Until: n.now.Add(30 * time.Minute), For: hold})
		n.drain()
	}
	if got := n.delivered(alice); !slices.Equal(got, []string{"skill_waiting waiting "}) {
		t.Errorf("delivered %q", got)
	}
	n.advance(2 * time.Minute)
	if got := n.delivered(alice); !slices.Equal(got, []string{"skill_waiting waiting ", "skill_timeout timeout "}) || !strings.Contains(n.conversation(alice), `"waiting":{"approval":"approval-1"}`) {
		t.Errorf("delivered %q:\n%s", got, n.conversation(alice))
	}
}

// With its session, nothing is left that could have the outcomes of its calls.
func TestDeletedSessionDiscardsOutcomes(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", sleeping(5*time.Second)), agent("c", echo()))
	n.pendingOf(n.send("a/s-1", `{"agent":"b/s-2","skill":"look"}`))
	if r := n.forget("s-1"); r != nil {
		t.Fatal(r)
	}
	if n.expiryIndex[alice] != 0 || n.eventCounts[history.Late] != 1 {
		t.Errorf("the deleted actor is due at %d; %d rows were dropped", n.expiryIndex[alice], n.eventCounts[history.Late])
	}
	n.advance(time.Minute)
	n.want(n.send("a/s-1", "x"), "NotFound")
	if got := n.conversation(actor.NewID("b", "s-2")); got != "" {
		t.Errorf("the callee was no client of a conversation:\n%s", got)
	}
}

// A session that is not deleted after all keeps its pending calls.
func TestKeptSessionKeepsPendingCalls(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", sleeping(5*time.Second)))
	n.pendingOf(n.send("a/s-1", `{"agent":"b/s-2","skill":"look"}`))
	c := n.cells[0]
	n.step(c, Forget{Session{actor.DefaultTenant, "s-1"}})
	n.inputs = nil // the answer of the store
	n.step(c, ForgetChecked{Session{actor.DefaultTenant, "s-1"}, n.epoch, hasOpenRuns(actor.NewID("b", "s-1"))})
	n.drain()
	n.advance(time.Minute)
	n.wantDelivered("skill_response completed slept")
}

// An external agent makes detached calls like another one. Its run may end before the outcome.
func TestExternalAgentMakesDetachedCall(t *testing.T) {
	n := newNode(t, 1, externalAgent(true), agent("b", sleeping(5*time.Second)))
	run := n.send("worker/s-1", "hi")
	added := n.send("worker/s-1", "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpAddTool, run
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"tool_name":"agent_call","args":` + askB + `}`)}}
	})
	if got := string(inlineBytes(n.replies[added].Parts)); !strings.HasPrefix(got, `{"tool_call_id":"tc_`+run.String()) {
		t.Fatalf("got the answer %s, %v", got, n.replies[added].Refusal)
	}
	n.sendOutcome(n.external[0], completion("done"))
	n.want(run, "done")
	n.advance(6 * time.Second)
	if len(n.external) != 2 {
		t.Fatalf("the agent was invoked %d times, want once more for the outcome", len(n.external))
	}
	got := n.external[1].effect.Op.(Invoke).Call
	if of, ok := got.Extensions.Provenance(); !ok || of.Tool != tools.AgentCall || !strings.Contains(actor.TextOf(got.Parts), `"output":"slept"`) {
		t.Errorf("it was invoked with %s from %+v", actor.TextOf(got.Parts), of)
	}
}

// The outcome of a call whose asker was deleted meanwhile is a message without a turn.
func TestOutcomeForDeletedAgentIsAppended(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", sleeping(5*time.Second)))
	n.pendingOf(n.send("a/s-1", askB))
	n.setAgents(agent("b", sleeping(5*time.Second)))
	n.advance(time.Minute)
	n.wantDelivered("skill_response completed slept")
}
