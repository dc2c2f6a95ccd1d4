// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/events.txt; only allowed while no release has written that version")

// testdata/events.txt holds entries in hexadecimal, each followed by its events.
// A client that resumes a stream reads events before and after an upgrade, so every later
// program MUST derive the same events from these entries.
func TestDerivedEventsNeverChange(t *testing.T) {
	const file = "testdata/events.txt"
	if *rewrite {
		var b strings.Builder
		for _, e := range shownEntries() {
			fmt.Fprintf(&b, "entry %x\n%s", EncodeEntry(e), eventsText(t, &e))
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[runs.Type]bool{}
	for _, group := range strings.Split(string(text), "entry ")[1:] {
		line, want, _ := strings.Cut(group, "\n")
		b, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		e, err := DecodeEntry(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := eventsText(t, &e); got != want {
			t.Errorf("entry %d, %T: got events\n%swant\n%s", e.N, e.Record, got, want)
		}
		for _, v := range e.RunEvents() {
			seen[v.Type] = true
		}
	}
	for _, v := range runs.Types() {
		if !seen[v] {
			t.Errorf("no entry has an event of type %s", v)
		}
	}
}

func eventsText(t *testing.T, e *Entry) string {
	t.Helper()
	events, err := e.AllEvents()
	if err != nil {
		t.Fatalf("entry %d: %v", e.N, err)
	}
	var b strings.Builder
	for _, ev := range events {
		fmt.Fprintf(&b, "%s\n", ev.Body)
	}
	return b.String()
}

// shownEntries returns the entries of one actor with all types of events.
func shownEntries() []Entry {
	id, callee := actor.NewID("alice", "s-1"), actor.NewID("bob", "s-1")
	root, run, child, sender := actor.NewCallID(1, 2, 3), actor.NewCallID(4, 5, 6), actor.NewCallID(7, 8, 9), actor.NewCallID(10, 11, 12)
	const second, at = 1_000_000_000, 1_700_000_000_000_000_000
	client := actor.Call{ID: root, Root: root, To: id, Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Low, Left: 30 * second, Attempt: 1,
		Principal: "p", Origin: actor.Human, Project: "x", Trace: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", Claimed: child, Parts: actor.Text("hello")}
	call := actor.Call{ID: run, Root: root, Parent: root, To: id, Operation: "o", Chain: []actor.ID{actor.NewID("carol", "s-1")}, Kind: actor.Waiting, Lane: actor.High,
		Left: 20 * second, Attempt: 2, Principal: "p", Origin: actor.Agent, Project: "x", Parts: actor.Text("task")}
	answer := upstream.Completion{Text: "thought", Finish: upstream.FinishStop}
	completion := actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: answer.Encode()}}, Usage: actor.Usage{Input: 1, Output: 2, Total: 3}}
	clock := actor.NewClock(at, 5*second)
	ask := func(kind actor.AskKind, name string) Asked {
		return Asked{Ask: actor.Ask{Kind: kind, Name: name, Parts: actor.Text("in " + name), Timeout: 60 * second}, Stamp: at, Clock: clock, Attempt: 1}
	}
	calls := ask(actor.AskCall, "bob")
	calls.Call, calls.To = child, callee
	refused := ask(actor.AskCall, "nobody")
	refused.Answer = &actor.Answer{Refusal: actor.Refuse(actor.NotFound, "no agent is named nobody")}
	invalid := ask(actor.AskTool, "broken")
	invalid.Answer = &actor.Answer{Refusal: actor.Refuse(actor.Invalid, "no such tool")}
	waits, blocked := ask(actor.AskTool, "pay"), ask(actor.AskTool, "erase")
	waits.Verdict, waits.Await = Verdict{runs.RequireApproval, "rule 1"}, &Await{Summary: "pays 5", Status: runs.ApprovalStatusPending}
	blocked.Verdict, blocked.Answer = Verdict{runs.Block, "rule 2"}, &actor.Answer{Refusal: actor.Refuse(actor.PolicyBlocked, "the policy blocks this call")}
	budget := ask(actor.AskModel, "m")
	budget.Await = &Await{Summary: "up to 50 tokens, and 30 are left", Status: runs.ApprovalStatusPending}
	added := calls
	added.Added, added.Callback = true, sender
	failed := actor.Fail(run, actor.Refuse(actor.Deadline, "late"))
	stopped := actor.Fail(run, actor.Refuse(actor.Stopped, "cancelled"))
	leftOut := actor.Fail(run, &actor.Refusal{Reason: actor.ModelRejected, Field: actor.ContentField, Detail: "too long"})
	leftOut.Extensions = leftOut.Extensions.WithLeftOut()
	done := actor.Reply{Call: root, Run: root, Status: actor.Partial, Parts: []actor.Part{{Media: actor.MediaText, Bytes: []byte("bye")}, {Media: "image/png", Bytes: []byte{1}}},
		Warnings: []string{"slow"}, Usage: actor.Usage{Input: 4, Output: 5, Total: 9}}
	entries := []Entry{
		{Record: Accepted{Call: client, At: at}},
		{Record: Accepted{Call: call, At: at}},
		{Record: Asking{Run: run, At: at + second, Asks: []Asked{calls, refused, ask(actor.AskTool, "look"), ask(actor.AskWork, "work"), invalid,
			ask(actor.AskModel, "m"), ask(actor.AskInvoke, "ext"), ask(actor.AskWait, "go"), ask(actor.AskSleep, ""), waits, blocked}},
			Shown: Shown{Began: true, Left: 19 * second, Call: &call, Step: 1, Clamped: []uint16{0}, Refused: []Asked{RefusedAsk(&invalid.Ask, invalid.Answer.Refusal, at+second)}}},
		{Record: Added{Run: run, At: at + second, Ask: added}, Shown: Shown{Call: &call, Step: 1, Index: 11}},
		{Record: Streamed{Run: run, Step: 1, Index: 5, At: at + 2*second}, Shown: Shown{Ask: &ShownAsk{Piece: actor.Piece{Text: "tho"}}}},
		{Record: Streamed{Run: run, Step: 1, Index: 6, At: at + 2*second}, Shown: Shown{Ask: &ShownAsk{Piece: actor.Piece{State: "thinking", Detail: `{"n":1}`}}}},
		{Record: Streamed{Run: run, Step: 1, Index: 5, At: at + 2*second, Retry: true}, Shown: Shown{Ask: &ShownAsk{Attempt: 2, Discards: 3, Piece: actor.Piece{Retry: actor.Refuse(actor.Busy, "full")}}}},
		{Record: Held{Run: run, Step: 1, At: at + 3*second, N: 1, Until: at + 9*second}, Shown: Shown{Ask: &ShownAsk{Child: child, To: callee}}},
		{Record: Resolved{Run: run, Step: 1, Index: 9, At: at + 3*second, Status: runs.ApprovalStatusApproved, Left: 4 * second, Detail: "fine"}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskTool, Name: "pay", Principal: "q", Origin: actor.Human}}},
		{Record: Resolved{Run: run, Step: 1, Index: 9, At: at + 3*second, Status: runs.ApprovalStatusRejected, Detail: "no"}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskTool, Name: "pay", Principal: "q", Origin: actor.Human}}},
		{Record: Resolved{Run: run, Step: 1, Index: 9, At: at + 3*second, Status: runs.ApprovalStatusExpired, Detail: "nobody decided"}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskTool, Name: "pay"}}},
		{Record: Held{Run: root, Step: 1, At: at + 3*second, N: 1, Until: at + 9*second, For: actor.Hold{Reason: actor.HoldApproval, Subject: "ap_x", Name: "pay", Text: "pays 5"}}, Shown: Shown{Call: &client, Ask: &ShownAsk{Child: child, To: callee}}},
		{Record: Resumed{Run: run, Step: 1, At: at + 4*second, N: 2}, Shown: Shown{Ask: &ShownAsk{Child: child, To: callee}}},
		{Record: Retried{Run: run, Step: 1, Index: 2, At: at + 4*second, Attempt: 2}, Shown: Shown{Ask: &ShownAsk{Attempt: 2, Discards: 4}}},
		{Record: Answered{Run: run, Step: 1, At: at + 5*second, Answer: actor.Answer{Parts: actor.Text("from bob"), Warnings: []string{"w"}, Usage: actor.Usage{Input: 1, Output: 1, Total: 2}}},
			Shown: Shown{Ask: &ShownAsk{Kind: actor.AskCall, Child: child, To: callee, Status: actor.Partial, Took: 4 * second, Held: true}}},
		{Record: Answered{Run: run, Step: 1, Index: 2, At: at + 5*second, Answer: actor.Answer{Parts: actor.Text("found")}}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskTool, Name: "look", Took: 4 * second}}},
		{Record: Answered{Run: run, Step: 1, Index: 5, At: at + 5*second, Answer: completion}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskModel, Name: "m", Took: 4 * second}}},
		{Record: Answered{Run: run, Step: 1, Index: 6, At: at + 5*second, Answer: *invalid.Answer}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskInvoke, Name: "ext", Took: 4 * second}}},
		{Record: Answered{Run: run, Step: 1, Index: 7, At: at + 5*second, Answer: actor.Answer{Parts: actor.Text("yes")}}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskWait, Name: "go", Principal: "q", Origin: actor.Human}}},
		{Record: Answered{Run: run, Step: 1, Index: 7, At: at + 5*second, Answer: *invalid.Answer}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskWait, Name: "go"}}},
		{Record: Answered{Run: run, Step: 1, Index: 8, At: at + 5*second}},
		{Record: Parked{Run: run, At: at + 6*second, Detail: "step 1: replay diverged"}},
		{Record: Ended{Call: run, At: at + 7*second, Reply: failed}, Shown: Shown{Call: &call}},
		{Record: Ended{Call: run, At: at + 7*second, Reply: stopped}, Shown: Shown{Call: &call}},
		{Record: Ended{Call: root, At: at + 8*second, Reply: done}, Shown: Shown{Call: &client, Began: true, Left: 22 * second, Step: 1, Refused: []Asked{RefusedAsk(&refused.Ask, refused.Answer.Refusal, at+8*second)}}},
		{Record: Ended{Call: sender, At: at + 8*second, Reply: done}},
		{Record: Buried{Call: child, At: at}},
		{Record: Parked{Run: run, At: at + 6*second}},
		{Record: Ended{Call: run, At: at + 9*second, Reply: leftOut}, Shown: Shown{Call: &client}},
		{Record: Asking{Run: root, At: at + second, Asks: []Asked{budget}}, Shown: Shown{Call: &client, Step: 2}},
		{Record: Held{Run: root, Step: 1, At: at + 3*second, N: 3, Until: at + 9*second, For: actor.Hold{Reason: actor.HoldBudget, Subject: "ap_y", Name: "m", Text: "up to 50 tokens, and 30 are left"}}, Shown: Shown{Call: &client, Ask: &ShownAsk{Child: child, To: callee, Held: true}}},
		{Record: Resolved{Run: root, Step: 2, At: at + 9*second, Status: runs.ApprovalStatusExpired, Detail: "nobody decided"}, Shown: Shown{Ask: &ShownAsk{Kind: actor.AskModel, Name: "m"}}},
	}
	seq := map[actor.CallID]uint64{}
	for i := range entries {
		e := &entries[i]
		e.Actor, e.Shard, e.Epoch, e.N, e.First = id, 5, 6, uint64(i+1), i%2 == 0
		seq[e.EventRun()] = e.NumberEvents(seq[e.EventRun()])
	}
	return entries
}

// A page of derived events is the same wherever it begins.
func TestDerivationBeginsAtAnyEvent(t *testing.T) {
	l := newTestLog(t)
	entries := shownEntries()
	byRun := map[actor.CallID][]string{}
	for _, e := range entries {
		events, err := e.AllEvents()
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range events {
			byRun[ev.Run] = append(byRun[ev.Run], string(ev.Body))
		}
		l.write(e)
		if e.N == 9 {
			l.flush()
		}
	}
	if len(byRun) != 2 {
		t.Fatalf("got events of %d runs, want 2", len(byRun))
	}
	for run, want := range byRun {
		for after := range len(want) + 1 {
			for _, limit := range []int{1, 4, 100} {
				page, err := l.Events("default", run, uint64(after), limit)
				var got []string
				for i, ev := range page {
					if got = append(got, string(ev.Body)); ev.Seq != uint64(after+i+1) || !strings.Contains(got[i], fmt.Sprintf(`"seq":%d,`, ev.Seq)) {
						t.Errorf("after event %d of run %s: got event %d: %s", after, run, ev.Seq, got[i])
					}
				}
				if rest := want[after:]; err != nil || !slices.Equal(got, rest[:min(limit, len(rest))]) {
					t.Errorf("after event %d of run %s: got %d events, error %v, want %d", after, run, len(got), err, min(limit, len(rest)))
				}
			}
		}
	}
}

// An entry whose events cannot be derived is damaged: reading it is an error, not a panic.
func TestUnderivableEventsAreAnError(t *testing.T) {
	e := shownEntries()[0]
	for name, damage := range map[string]func(*Entry){
		"more events":    func(e *Entry) { e.Shown.N++ },
		"invalid origin": func(e *Entry) { e.Record = Parked{Run: e.EventRun()}; e.Shown.N = 1; e.Shown.Seq = 0 },
	} {
		damaged := e
		damage(&damaged)
		if events, err := damaged.AllEvents(); err == nil {
			t.Errorf("%s: got events %v, want an error", name, events)
		}
	}
}
