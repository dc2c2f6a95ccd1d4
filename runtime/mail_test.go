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
	"github.com/troupe-run/troupe/contract"
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

// usingFor returns an agent like sending, whose lines are inputs of another tool.
func usingFor(tool string) script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		action, err := sending()(b, answers)
		for i := range action.Asks {
			action.Asks[i].Name = tool
		}
		return action, err
	}
}

// Each participant of a debate has a correlation, and its outcome is a message of its own.
func TestDebateAsksEachParticipant(t *testing.T) {
	var got string
	n := newNode(t, 1, agent("a", usingFor(tools.DebateCall)), agent("b", receives(&got, "yes")), agent("c", sleeping(5*time.Second)), agent("d", echo(), func(d *actor.Definition) { d.Skills = []string{"look"} }))
	run := n.send("a/s-1", `{"participants":["b","c"],"topic":"rain","rounds":2,"timeout":9000}`)
	var p struct {
		Status string
		Calls  []struct{ Agent, CorrelationID, TaskID string }
	}
	if err := json.Unmarshal([]byte(n.result(run)), &p, json.MatchCaseInsensitiveNames(true)); err != nil || p.Status != "pending" || len(p.Calls) != 2 || p.Calls[0].Agent != "b" ||
		p.Calls[1].Agent != "c" || p.Calls[0].CorrelationID == p.Calls[1].CorrelationID || p.Calls[0].TaskID != p.Calls[0].CorrelationID {
		t.Fatalf("got %s, %v", n.result(run), err)
	}
	if want := `{"kind":"skill_invocation","skill":"debate","mode":"critique","input":{"topic":"rain","participants":["b","c"],"rounds":2},"correlationId":"` + p.Calls[0].CorrelationID + `","returnTo":"agent:a:s-1","timeout":9000}`; got != want {
		t.Errorf("the participant got\n%s want\n%s", got, want)
	}
	n.advance(10 * time.Second)
	n.wantDelivered("skill_response completed yes", "skill_response completed slept")
	for input, want := range map[string]string{
		`{"participants":["b","b"],"topic":"x"}`:        "Invalid",
		`{"participants":[],"topic":"x"}`:               "Invalid",
		`{"participants":["b","nobody"],"topic":"x"}`:   "NotFound",
		`{"participants":["b","d"],"topic":"x"}`:        "Invalid", // it has no skill debate
		`{"participants":["b"],"topic":"x","rounds":9}`: "Invalid",
	} {
		n.want(n.send("a/s-1", input), want)
	}
	if got := n.delivered(alice); len(got) != 2 { // a refused debate asks nobody
		t.Errorf("delivered %q", got)
	}
}

// A debate has as many rounds as it says.
func TestRoundsOfDebate(t *testing.T) {
	again := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskTool, Name: tools.DebateCall, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"participants":["b"],"topic":"x","rounds":3}`)}}}}}, nil
		}
		return actor.Complete(actor.Text(detachedText(answers[0][0]))), nil
	}
	n := newNode(t, 1, agent("a", again), agent("b", echo()))
	n.send("a/s-1", "begin")
	n.advance(time.Hour)
	if got := n.delivered(alice); len(got) != 3 {
		t.Errorf("%d rounds, want 3", len(got))
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

// A reminder is a message with a turn at its time, over restarts, once.
func TestReminderComesBack(t *testing.T) {
	for _, restarts := range []int{0, 1, 3} {
		turns := 0
		reminded := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if strings.HasPrefix(actor.TextOf(b.Call.Parts), `{"kind":"reminder"`) {
				turns++
			}
			return usingFor(tools.Remind)(b, answers)
		}
		n := newNode(t, 1, agent("a", reminded))
		at := time.UnixMilli(int64(n.now) / 1_000_000).Add(48 * time.Hour).UTC().Format(time.RFC3339Nano)
		p := n.pendingOf(n.send("a/s-1", `{"text":"call back","after":3600000}`+"\n"+`{"text":"later","at":"`+at+`"}`))
		for range restarts {
			n.advance(10 * time.Minute)
			n.restart(1)
			n.drain()
		}
		n.advance(time.Hour - actor.Duration(restarts)*10*time.Minute - 2*time.Second)
		if got := n.conversation(alice); strings.Contains(got, "call back\"}") {
			t.Errorf("reminded too early:\n%s", got)
		}
		n.advance(3 * time.Second)
		if want := `delivered: {"kind":"reminder","correlationId":"` + p[0].CorrelationID + `","taskId":"` + p[0].TaskID + `","status":"completed","text":"call back"}`; !strings.Contains(n.conversation(alice), want) {
			t.Errorf("the conversation is\n%s", n.conversation(alice))
		}
		n.advance(72 * time.Hour)
		if got := n.delivered(alice); len(got) != 2 || turns != 2 || len(n.journalOf(alice).Mail.Rows) > 0 {
			t.Errorf("delivered %q in %d turns", got, turns)
		}
	}
	n := newNode(t, 1, agent("a", usingFor(tools.Remind)), agent("v", usingFor(tools.Remind), volatile))
	for _, input := range []string{`{"text":"x"}`, `{"text":"x","after":1,"at":"2030-01-31T09:00:00Z"}`, `{"text":"x","at":"tomorrow"}`, `{"text":"x","at":"1970-01-01T00:00:00Z"}`,
		`{"text":"x","after":40000000000}`, `{"text":"","after":5}`, `{"text":"` + strings.Repeat("x", tools.ReminderTextMax+1) + `","after":5}`} {
		n.want(n.send("a/s-1", input), "Invalid")
	}
	n.want(n.send("v/s-1", `{"text":"x","after":5}`), "Rejected")
}

// The state of a call is read by its task, also the response that came too late to be delivered. Those of others are
// A cancelled reminder does not come, over restarts too; it is readable, and cancelled as often as a client likes.
func TestReminderIsCancelled(t *testing.T) {
	n := newNode(t, 1, agent("a", usingFor(tools.Remind)), agent("p", usingFor(tools.AgentPoll)))
	remind := func(text string, after time.Duration) actor.CallID {
		id, err := actor.ParseCallID(n.pendingOf(n.send("a/s-1", fmt.Sprintf(`{"text":%q,"after":%d}`, text, after.Milliseconds())))[0].TaskID)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	cancel := func(id actor.CallID) actor.Reply {
		return n.replies[n.send("a/s-1", "", func(c *actor.Call) { c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCancelReminder, id })]
	}
	early, _, dropped := remind("early", time.Second), remind("kept", time.Hour), remind("dropped", time.Hour)
	n.advance(2 * time.Second)
	if r := cancel(early); r.Refusal == nil || r.Refusal.Reason != actor.Rejected {
		t.Errorf("a reminder that has come: %v", r.Refusal)
	}
	if r := cancel(dropped); r.Refusal != nil {
		t.Fatal(r.Refusal)
	}
	if r := cancel(actor.NewCallID(1, 2, 3)); r.Refusal == nil || r.Refusal.Reason != actor.NotFound {
		t.Errorf("an unknown reminder: %v", r.Refusal)
	}
	listed := func() (all []string) {
		rows, _ := PendingCalls(n.cells[0], alice.Tenant, "")
		for _, p := range rows {
			all = append(all, fmt.Sprint(actor.TextOf(p.Call.Parts), " ", p.Cancelled))
		}
		return all
	}
	for range 2 {
		n.restart(1)
		if r := cancel(dropped); r.Refusal != nil {
			t.Errorf("cancelled again: %v", r.Refusal)
		}
		if got := listed(); !slices.Equal(got, []string{"kept false", "dropped true"}) {
			t.Errorf("listed %q", got)
		}
	}
	n.advance(cancelledKept)
	if got := listed(); !slices.Equal(got, []string{"kept false"}) {
		t.Errorf("listed %q", got)
	}
	if r := cancel(dropped); r.Refusal != nil {
		t.Errorf("cancelled once its row is gone: %v", r.Refusal)
	}
	if answer := (mail{n.cells[0], n.cells[0].actors.find(alice)}).outcomeOf(dropped); !strings.HasSuffix(string(answer), `,"status":"cancelled","text":"dropped"}`) {
		t.Errorf("polled %s", answer)
	}
	n.advance(2 * time.Hour)
	n.wantDelivered("reminder completed ", "reminder completed ") // early and kept
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
