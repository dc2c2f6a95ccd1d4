// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// The end of a run has the answer if its deltas have more than that.
func TestChannelSeparatesRemarksFromAnswer(t *testing.T) {
	const started, delta, remark, answer = runs.LLMCallStarted, runs.AgentStreamDelta, "Let me check. ", "It is 3."
	for _, c := range []struct {
		name   string
		events []runs.Event
		deltas string
		text   string
	}{
		{"one step", []runs.Event{{Type: started}, {Type: delta, Text: answer}}, answer, ""},
		{"not streamed", []runs.Event{{Type: started}}, answer, ""},
		{"a remark", []runs.Event{{Type: started}, {Type: delta, Text: remark}, {Type: started}, {Type: delta, Text: answer}}, remark + answer, answer},
		{"the answer is not streamed", []runs.Event{{Type: started}, {Type: delta, Text: remark}, {Type: started}, {Type: delta, Text: "It "}}, remark + answer, answer},
		{"emitted, and not in the answer", []runs.Event{{Type: delta, Text: "thinking... "}}, "thinking... " + answer, answer},
		{"with other white space", []runs.Event{{Type: delta, Text: answer + "\n"}}, answer + "\n", ""},
		{"repeated", []runs.Event{{Type: started}, {Type: delta, Text: "It i"}, {Type: runs.Attempt, Attempt: 2, Discards: 1}, {Type: started}, {Type: delta, Text: answer}}, "It i" + answer, ""},
	} {
		channel, run := NewChannel("s1", false), testRun(1)
		events := append([]runs.Event{{Type: runs.UserInput, Actor: actor.NewID("buyer", "s1")}}, c.events...)
		var deltas string
		var done ChannelMessage
		for i, e := range append(events, runs.Event{Type: runs.RunDone, Status: actor.Succeeded, Text: answer}) {
			e.Run, e.Seq = run, uint64(i+1)
			for _, m := range channel.Map(&e, "") {
				if m.Type == ChannelDelta {
					deltas += m.Text
				}
				done = m
			}
		}
		if deltas != c.deltas || done.Type != ChannelDone || done.Text != c.text {
			t.Errorf("%s: deltas %q, %s with %q", c.name, deltas, done.Type, done.Text)
		}
	}
}

// A run that is parked says so, with its reason, and not that it waits for an approval. It goes on when it is retried.
func TestChannelShowsParkedRuns(t *testing.T) {
	channel, run := NewChannel("s1", false), testRun(1)
	reason := &actor.Refusal{Reason: actor.Unknown, Detail: "agent payer makes another request than before"}
	var got []string
	for i, e := range []runs.Event{{Type: runs.UserInput, Actor: actor.NewID("buyer", "s1")}, {Type: runs.RunPaused, Name: "parked", Refusal: reason}, {Type: runs.RunResumed, Name: "parked"},
		{Type: runs.RunPaused, Name: "held", Child: testRun(2), Until: 7}} {
		e.Run, e.Seq = run, uint64(i+1)
		for _, m := range channel.Map(&e, "") {
			d, _ := json.Marshal(m.Detail)
			got = append(got, m.Type+" "+m.State+" "+m.RunState+" "+string(d))
		}
	}
	want := []string{"run_started   null", `state PARKED PAUSED_WAITING_APPROVAL {"code":"outcome_unknown","text":"agent payer makes another request than before"}`, "state RUNNING RUNNING null"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Sessions that keys with a time begin are listed in the order of these.
func TestSessionsHaveTheTimeOfTheirKey(t *testing.T) {
	to, at := actor.NewID("helper", ""), actor.Time(1_796_000_000_000_000_000)
	session := func(key string) string {
		return SessionOf(to, actor.Idempotency{Principal: "ann", Key: key}, actor.CallID{})
	}
	first, second := session(actor.NewCallID(at, 1, 2).String()), session(actor.NewCallID(at.Add(1e6), 0, 0).String())
	if prefix := actor.FirstCallID(at).String()[:13]; first[:13] != prefix || first >= second || first != session(actor.NewCallID(at, 1, 2).String()) {
		t.Errorf("%s and %s, want names from %s on", first, second, prefix)
	}
	if first == session(actor.NewCallID(at, 1, 3).String()) || session("a") == session("b") {
		t.Error("two keys begin one session")
	}
}

// What an orchestrator records of its decisions is no tool that it uses.
func TestChannelHidesRecords(t *testing.T) {
	for name, want := range map[string]int{"troupe.route": 0, "troupe.join": 0, "troupes": 2, "mail.send": 2} {
		channel, run, got := NewChannel("s1", false), testRun(1), 0
		for i, e := range []runs.Event{{Type: runs.UserInput, Actor: actor.NewID("desk", "s1")}, {Type: runs.ToolCallCreated, Kind: runs.KindTool, Step: 1, Name: name}, {Type: runs.ToolResult, Step: 1, Name: name}} {
			e.Run, e.Seq = run, uint64(i+1)
			for _, m := range channel.Map(&e, "") {
				if m.Type == ChannelState {
					got++
				}
			}
		}
		if got != want {
			t.Errorf("%s: %d states, want %d", name, got, want)
		}
	}
}

// A customer learns the end of a call that a device of the user performs, and of no other call.
func TestCustomerCountsNoToolCalls(t *testing.T) {
	for _, replay := range []bool{false, true} {
		channel, run := NewChannel("s1", replay), testRun(1)
		var got []string
		for i, e := range []runs.Event{{Type: runs.UserInput, Actor: actor.NewID("desk", "s1")},
			{Type: runs.ToolCallCreated, Kind: runs.KindTool, Step: 1, Name: "pay"}, {Type: runs.ToolCallCreated, Kind: runs.KindClient, Step: 1, Index: 1, Name: "user.ask"},
			{Type: runs.ToolResult, Step: 1, Name: "pay", Status: actor.Failed}, {Type: runs.ToolResult, Step: 1, Index: 1, Name: "user.ask", Status: actor.Succeeded},
			{Type: runs.AgentCalledChild, Child: testRun(2), Actor: actor.NewID("buyer", "s1")}, {Type: runs.AgentChildDone, Child: testRun(2), Actor: actor.NewID("buyer", "s1"), Status: actor.Failed}} {
			e.Run, e.Seq = run, uint64(i+1)
			for _, m := range channel.Map(&e, "") {
				if m.forCustomer(); m.Type == ChannelState {
					got = append(got, m.State+" "+string(detailValue(m.Detail)))
				}
			}
		}
		asked := `RUNNING {"tool_call_id":"` + runs.ToolCallID{Run: run, Step: 1, Index: 1}.String() + `","status":"` + actor.Succeeded.String() + `"}`
		if want := []string{"RUNNING ", "RUNNING ", asked, "RUNNING ", "RUNNING "}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The runs of detached calls have messages if the channel shows them, and never those of other calls.
func TestChannelShowsDetachedRuns(t *testing.T) {
	for _, c := range []struct {
		name string
		on   bool
		call string // of the asker
		kind actor.Kind
		want string
	}{
		{"off", false, "", actor.Detached, ""},
		{"on", true, "", actor.Detached, "run_started prices, state, delta 42, done"},
		{"on for the asker", false, runs.ChannelOn, actor.Detached, "run_started prices, state, delta 42, done"},
		{"off for the asker", true, runs.ChannelOff, actor.Detached, ""},
		{"a customer", true, runs.ChannelOn, actor.Detached, ""},
		{"a call that is waited for", true, runs.ChannelOn, actor.Waiting, ""},
	} {
		channel, run, root := NewChannel("s1", false), testRun(2), testRun(1)
		channel.detached, channel.customer = c.on, c.name == "a customer"
		var got []string
		for i, e := range []runs.Event{{Type: runs.RunStarted, Actor: actor.NewID("prices", "s1"), Kind: c.kind.String(), Root: root, Channel: c.call}, {Type: runs.RunDone, Status: actor.Succeeded, Text: "42"}} {
			e.Run, e.Seq = run, uint64(i+1)
			for _, m := range channel.Map(&e, "") {
				if m.Run != run.String() || m.Message != nil {
					t.Errorf("%s: message %+v", c.name, m)
				}
				got = append(got, strings.TrimSpace(m.Type+" "+m.Agent+m.Text))
			}
		}
		if all := strings.Join(got, ", "); all != c.want {
			t.Errorf("%s: %s, want %s", c.name, all, c.want)
		}
	}
}
