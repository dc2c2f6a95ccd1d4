// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

var (
	runID      = actor.NewCallID(1, 1, 1)
	otherRunID = actor.NewCallID(1, 1, 2)
)

// runEvents returns the events of a run whose model call was attempted twice.
func runEvents() []string {
	to := actor.NewID(teller, "s-1")
	var all []string
	for i, e := range []runs.Event{
		{Type: runs.UserInput, Actor: to, Text: "say hello"},
		{Type: runs.RunStarted, Actor: to, Kind: "waiting", Operation: actor.HandleMessageFull, Origin: "human", Root: runID, Left: 1000},
		{Type: runs.LLMCallStarted, Step: 1, Name: "scripted", Left: 1000},
		{Type: runs.AgentStreamDelta, Step: 1, Text: "hel"},
		{Type: runs.Attempt, Step: 1, Attempt: 2, Discards: 3},
		{Type: runs.AgentStreamDelta, Step: 1, Text: "hello"},
		{Type: runs.LLMCallDone, Step: 1, Name: "scripted", Status: actor.Succeeded, Text: "hello"},
		{Type: runs.RunDone, Status: actor.Succeeded, Text: "hello"},
	} {
		e.Run, e.Seq, e.At = runID, uint64(i+1), actor.Time(i+1)
		all = append(all, string(runs.Encode(e)))
	}
	return all
}

func modifiedEvent(change func(*runs.Event)) string {
	e, err := runs.Decode([]byte(runEvents()[3]))
	if err != nil {
		panic(err)
	}
	change(&e)
	return string(runs.Encode(e))
}

// frames returns a frame for each event, numbered by its position.
func frames(bodies ...string) []frame {
	var all []frame
	for i, b := range bodies {
		all = append(all, frame{id: i + 1, data: b})
	}
	return all
}

func TestStreamFindings(t *testing.T) {
	full := runEvents()
	for _, c := range []struct {
		name   string
		before int // number of events received earlier
		sent   []frame
		want   findingKind // kinds means no finding
	}{
		{"correct", 0, frames(full...), kinds},
		{"repeated", 8, frames(full...), kinds},
		{"resumed", 3, frames(full...)[3:], kinds},
		{"read again from the start", 3, frames(full...), kinds},
		{"gap", 0, slices.Delete(frames(full...), 3, 4), lost},
		{"gap after resumption", 3, frames(full...)[4:], lost},
		{"duplicate event", 0, slices.Insert(frames(full...), 4, frames(full...)[3]), duplicated},
		{"event before the resumption", 3, frames(full...)[2:], duplicated},
		{"changed event", 8, frames(slices.Concat(full[:3], []string{modifiedEvent(func(e *runs.Event) { e.Text = "hal" })}, full[4:])...), reordered},
		{"different run", 3, frames(slices.Concat(full[:3], []string{modifiedEvent(func(e *runs.Event) { e.Run = otherRunID })})...)[3:], duplicated},
		{"wrong IDs", 0, frames(slices.Concat(full[:3], full[4:5])...), wrong},
		{"invalid event", 0, frames("{}"), wrong},
		{"event after the end", 8, []frame{{id: 9, data: modifiedEvent(func(e *runs.Event) { e.Seq = 9 })}}, wrong},
	} {
		l := newLedger(io.Discard)
		e := &exchange{scenario: tellerCall}
		early := newRecorder(e, l, 0, nil)
		for i, body := range full[:c.before] {
			early.record(i+1, body)
		}
		after := c.before
		if len(c.sent) > 0 && c.sent[0].id == 1 {
			after = 0
		}
		late := newRecorder(e, l, after, nil)
		for _, f := range c.sent {
			late.record(f.id, f.data)
		}
		checkFindings(t, c.name, l, c.want)
	}
}

// checkFindings requires findings of the kind want and of no other kind. If want is
// kinds, it requires that there are no findings.
func checkFindings(t *testing.T, name string, l *ledger, want findingKind) {
	t.Helper()
	for k, n := range l.counts {
		if (n > 0) != (findingKind(k) == want) {
			t.Errorf("%s: got findings %v (lost, duplicated, reordered, wrong)", name, l.counts)
			return
		}
	}
}

func TestResultFindings(t *testing.T) {
	full := runEvents()
	ended := func(e runs.Event) []string {
		e.Run, e.Seq, e.At = runID, 4, 4
		return append(runEvents()[:3:3], string(runs.Encode(e)))
	}
	cancelled := ended(runs.Event{Type: runs.RunCancelled, Refusal: actor.Refuse(actor.Stopped, "cancelled")})
	unknown := ended(runs.Event{Type: runs.RunFailed, Refusal: actor.Refuse(actor.Unknown, "unknown")})
	for _, c := range []struct {
		name string
		e    exchange
		want findingKind
	}{
		{"correct", exchange{scenario: tellerCall, want: "hello", events: full}, kinds},
		{"no end", exchange{scenario: tellerCall, want: "hello", events: full[:6]}, wrong},
		{"different answer", exchange{scenario: tellerCall, want: "hullo", events: full}, wrong},
		{"cancelled without a request", exchange{scenario: tellerCall, events: cancelled}, wrong},
		{"cancelled by the client", exchange{scenario: cancelledCall, cancelled: true, events: cancelled}, kinds},
		{"not cancelled", exchange{scenario: cancelledCall, cancelled: true, events: full}, lost},
		{"not signalled", exchange{scenario: signalledCall, signalled: true, events: full}, lost},
		{"permitted unknown outcome", exchange{scenario: clerkCall, events: unknown}, kinds},
		{"unknown outcome", exchange{scenario: tellerCall, events: unknown}, wrong},
		{"stream without its start", exchange{scenario: tellerCall, events: full[1:]}, wrong},
	} {
		l := newLedger(io.Discard)
		l.checkResult(&c.e)
		checkFindings(t, c.name, l, c.want)
	}
	l := newLedger(io.Discard)
	l.checkResult(&exchange{scenario: tellerCall, events: full})
	l.checkResult(&exchange{scenario: tellerCall, events: slices.Concat(full[:5], full[6:])})
	if l.streamed != 1 || l.matching != 1 {
		t.Errorf("%d of %d streams equal their answers", l.matching, l.streamed)
	}
	l = newLedger(io.Discard)
	short := full[5]
	full[5] = string(runs.Encode(runs.Event{Run: runID, Seq: 6, At: 6, Type: runs.AgentStreamDelta, Step: 1, Text: "hell"}))
	if l.checkResult(&exchange{scenario: tellerCall, events: full}); l.streamed != 1 || l.matching != 0 {
		t.Errorf("%d of %d streams equal their answers, one lacks a letter of %s", l.matching, l.streamed, short)
	}
}

func TestAnswerFindings(t *testing.T) {
	id, good := runID.String(), answer{Run: runID.String(), Content: "hello"}
	for _, c := range []struct {
		name   string
		e      exchange
		status int
		a      answer
		want   findingKind
	}{
		{"first answer", exchange{scenario: tellerCall}, http.StatusOK, good, kinds},
		{"same answer again", exchange{scenario: tellerCall, run: id, done: true, answer: "hello"}, http.StatusOK, good, kinds},
		{"different run", exchange{scenario: tellerCall, run: otherRunID.String()}, http.StatusOK, good, duplicated},
		{"different answer", exchange{scenario: tellerCall, run: id, done: true, answer: "hullo"}, http.StatusOK, good, lost},
		{"busy", exchange{scenario: tellerCall}, http.StatusTooManyRequests, answer{Code: "agent_busy"}, kinds},
		{"internal error", exchange{scenario: tellerCall}, http.StatusInternalServerError, answer{Code: "internal"}, wrong},
		{"permitted unknown outcome", exchange{scenario: clerkCall}, http.StatusBadGateway, answer{Run: id, Code: "outcome_unknown"}, kinds},
		{"unknown outcome", exchange{scenario: tellerCall}, http.StatusBadGateway, answer{Run: id, Code: "outcome_unknown"}, wrong},
	} {
		l := newLedger(io.Discard)
		l.recordAnswer(&c.e, c.status, c.a)
		checkFindings(t, c.name, l, c.want)
	}
}

func TestExternalAgentInvocations(t *testing.T) {
	for _, c := range []struct {
		name  string
		asked map[string]map[string]int
		want  findingKind
	}{
		{"once each", map[string]map[string]int{clerk: {"a": 1}, porter: {"b": 1}}, kinds},
		{"twice, permitted", map[string]map[string]int{porter: {"b": 2}}, kinds},
		{"twice, not permitted", map[string]map[string]int{clerk: {"a": 2}}, duplicated},
		{"for an unknown run", map[string]map[string]int{porter: {"c": 1}}, lost},
	} {
		l := newLedger(io.Discard)
		(&externalAgents{invocations: c.asked}).check(l, map[string]bool{"a": true, "b": true})
		checkFindings(t, c.name, l, c.want)
	}
}

// The port of the server is outside the ranges from which systems pick ports.
func TestFreePortIsNotEphemeral(t *testing.T) {
	for range 20 {
		address, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		at, err := netip.ParseAddrPort(address)
		if err != nil || !at.Addr().IsLoopback() || at.Port() < 1024 || at.Port() >= 32_768 {
			t.Errorf("%s, %v", address, err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
