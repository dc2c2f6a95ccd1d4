// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

var (
	run   = actor.NewCallID(1, 1, 1)
	other = actor.NewCallID(1, 1, 2)
)

// story is a run whose model began twice.
func story() []string {
	to := actor.NewID(teller, "s-1")
	var all []string
	for i, e := range []runs.Event{
		{Type: runs.UserInput, Actor: to, Text: "say hello"},
		{Type: runs.RunStarted, Actor: to, Kind: "waiting", Operation: actor.HandleMessageFull, Origin: "human", Root: run, Left: 1000},
		{Type: runs.LLMCallStarted, Step: 1, Name: "scripted", Left: 1000},
		{Type: runs.AgentStreamDelta, Step: 1, Text: "hel"},
		{Type: runs.Attempt, Step: 1, Attempt: 2, Discards: 3},
		{Type: runs.AgentStreamDelta, Step: 1, Text: "hello"},
		{Type: runs.LLMCallDone, Step: 1, Name: "scripted", Status: actor.Succeeded, Text: "hello"},
		{Type: runs.RunDone, Status: actor.Succeeded, Text: "hello"},
	} {
		e.Run, e.Seq, e.At = run, uint64(i+1), actor.Time(i+1)
		all = append(all, string(runs.Encode(e)))
	}
	return all
}

func encoded(change func(*runs.Event)) string {
	e, err := runs.Decode([]byte(story()[3]))
	if err != nil {
		panic(err)
	}
	change(&e)
	return string(runs.Encode(e))
}

// frames are events under the numbers of their places.
func frames(bodies ...string) []frame {
	var all []frame
	for i, b := range bodies {
		all = append(all, frame{id: i + 1, data: b})
	}
	return all
}

func TestTheLedgerFindsWhatAStreamDoesWrong(t *testing.T) {
	whole := story()
	for _, c := range []struct {
		name   string
		before int // events told earlier
		told   []frame
		want   kind // kinds: nothing is wrong
	}{
		{"as it should be", 0, frames(whole...), kinds},
		{"once more", 8, frames(whole...), kinds},
		{"the rest", 3, frames(whole...)[3:], kinds},
		{"from the beginning again", 3, frames(whole...), kinds},
		{"a gap", 0, slices.Delete(frames(whole...), 3, 4), lost},
		{"a gap where it goes on", 3, frames(whole...)[4:], lost},
		{"an event twice", 0, slices.Insert(frames(whole...), 4, frames(whole...)[3]), duplicated},
		{"one that was told before", 3, frames(whole...)[2:], duplicated},
		{"another event in its place", 8, frames(slices.Concat(whole[:3], []string{encoded(func(e *runs.Event) { e.Text = "hal" })}, whole[4:])...), reordered},
		{"another run", 3, frames(slices.Concat(whole[:3], []string{encoded(func(e *runs.Event) { e.Run = other })})...)[3:], duplicated},
		{"numbers that are not its own", 0, frames(slices.Concat(whole[:3], whole[4:5])...), wrong},
		{"no event", 0, frames("{}"), wrong},
		{"more after the end", 8, []frame{{id: 9, data: encoded(func(e *runs.Event) { e.Seq = 9 })}}, wrong},
	} {
		l := newLedger(io.Discard)
		e := &errand{job: told}
		early := newTake(e, l, 0, nil)
		for i, body := range whole[:c.before] {
			early.event(i+1, body)
		}
		after := c.before
		if len(c.told) > 0 && c.told[0].id == 1 {
			after = 0
		}
		late := newTake(e, l, after, nil)
		for _, f := range c.told {
			late.event(f.id, f.data)
		}
		check(t, c.name, l, c.want)
	}
}

// check sees that the ledger found that, and nothing else.
func check(t *testing.T, name string, l *ledger, want kind) {
	t.Helper()
	for k, n := range l.counts {
		if (n > 0) != (kind(k) == want) {
			t.Errorf("%s: found %v (lost, duplicated, reordered, wrong)", name, l.counts)
			return
		}
	}
}

func TestTheLedgerJudgesHowARunEnds(t *testing.T) {
	whole := story()
	ended := func(e runs.Event) []string {
		e.Run, e.Seq, e.At = run, 4, 4
		return append(story()[:3:3], string(runs.Encode(e)))
	}
	cancelled := ended(runs.Event{Type: runs.RunCancelled, Refusal: actor.Refuse(actor.Stopped, "cancelled")})
	unknown := ended(runs.Event{Type: runs.RunFailed, Refusal: actor.Refuse(actor.Unknown, "who knows")})
	for _, c := range []struct {
		name string
		e    errand
		want kind
	}{
		{"as it should be", errand{job: told, want: "hello", events: whole}, kinds},
		{"it never ends", errand{job: told, want: "hello", events: whole[:6]}, wrong},
		{"another answer", errand{job: told, want: "hullo", events: whole}, wrong},
		{"cancelled by nobody", errand{job: told, events: cancelled}, wrong},
		{"cancelled by its client", errand{job: dropped, cancelled: true, events: cancelled}, kinds},
		{"not cancelled", errand{job: dropped, cancelled: true, events: whole}, lost},
		{"not signalled", errand{job: held, signalled: true, events: whole}, lost},
		{"nobody knows, nor can", errand{job: noted, events: unknown}, kinds},
		{"nobody knows", errand{job: told, events: unknown}, wrong},
		{"a legal stream's middle", errand{job: told, events: whole[1:]}, wrong},
	} {
		l := newLedger(io.Discard)
		l.judge(&c.e)
		check(t, c.name, l, c.want)
	}
	l := newLedger(io.Discard)
	l.judge(&errand{job: told, events: whole})
	l.judge(&errand{job: told, events: slices.Concat(whole[:5], whole[6:])})
	if l.streamed != 1 || l.same != 1 {
		t.Errorf("%d of %d streams come to their answers", l.same, l.streamed)
	}
	l = newLedger(io.Discard)
	short := whole[5]
	whole[5] = string(runs.Encode(runs.Event{Run: run, Seq: 6, At: 6, Type: runs.AgentStreamDelta, Step: 1, Text: "hell"}))
	if l.judge(&errand{job: told, events: whole}); l.streamed != 1 || l.same != 0 {
		t.Errorf("%d of %d streams come to their answers, one lacks a letter of %s", l.same, l.streamed, short)
	}
}

func TestTheLedgerJudgesAnswers(t *testing.T) {
	id, good := run.String(), answer{Run: run.String(), Content: "hello"}
	for _, c := range []struct {
		name   string
		e      errand
		status int
		a      answer
		want   kind
	}{
		{"the first", errand{job: told}, http.StatusOK, good, kinds},
		{"the same again", errand{job: told, run: id, done: true, answer: "hello"}, http.StatusOK, good, kinds},
		{"another run", errand{job: told, run: other.String()}, http.StatusOK, good, duplicated},
		{"another answer", errand{job: told, run: id, done: true, answer: "hullo"}, http.StatusOK, good, lost},
		{"no room", errand{job: told}, http.StatusTooManyRequests, answer{Code: "agent_busy"}, kinds},
		{"our fault", errand{job: told}, http.StatusInternalServerError, answer{Code: "internal"}, wrong},
		{"nobody knows, nor can", errand{job: noted}, http.StatusBadGateway, answer{Run: id, Code: "outcome_unknown"}, kinds},
		{"nobody knows", errand{job: told}, http.StatusBadGateway, answer{Run: id, Code: "outcome_unknown"}, wrong},
	} {
		l := newLedger(io.Discard)
		l.answered(&c.e, c.status, c.a)
		check(t, c.name, l, c.want)
	}
}

func TestAgentsOutsideAreAskedOnceUnlessTheySaySo(t *testing.T) {
	for _, c := range []struct {
		name  string
		asked map[string]map[string]int
		want  kind
	}{
		{"once each", map[string]map[string]int{clerk: {"a": 1}, porter: {"b": 1}}, kinds},
		{"twice, and it may be", map[string]map[string]int{porter: {"b": 2}}, kinds},
		{"twice, and it may not be", map[string]map[string]int{clerk: {"a": 2}}, duplicated},
		{"for nobody", map[string]map[string]int{porter: {"c": 1}}, lost},
	} {
		l := newLedger(io.Discard)
		(&outside{asked: c.asked}).hold(l, map[string]bool{"a": true, "b": true})
		check(t, c.name, l, c.want)
	}
}
