// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

func drawSummary(t *rapid.T) runs.Summary {
	s := runs.Summary{Run: drawRun(t), Root: drawRun(t), Parent: drawRun(t), Actor: drawID(t), User: drawName(t), Depth: rapid.IntRange(0, actor.ChainMax).Draw(t, "depth"),
		Workflow: drawName(t), Project: drawName(t), Priority: drawName(t), Status: runs.Status(rapid.IntRange(1, int(runs.Cancelled)).Draw(t, "status")),
		Created: drawTime(t), Started: drawTime(t), Ended: drawTime(t), Waits: drawName(t), Until: drawTime(t), Outcome: actor.Partial,
		Text: drawName(t), Truncated: true, Usage: drawUsage(t), Tree: drawUsage(t)}
	for range rapid.IntRange(0, 3).Draw(t, "spent") {
		s.Spent = s.Spent.Add(drawName(t), drawUsage(t))
	}
	if rapid.Bool().Draw(t, "refused") {
		s.Refusal = actor.Refuse(actor.Unavailable, "%s", drawName(t))
	}
	return s
}

func TestSummaryRoundTrip(t *testing.T) {
	seen := map[string]bool{}
	rapid.Check(t, func(t *rapid.T) {
		want := drawSummary(t)
		row := appendSummary(nil, &want)
		got, err := decodeSummary(want.Run, row)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("encoded %+v\ndecoded %+v, error %v", want, got, err)
		}
		nonZero(reflect.ValueOf(got), seen)
		row[rapid.IntRange(1, len(row)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if got, err := decodeSummary(want.Run, row); err == nil {
			t.Fatalf("row with another bit decoded as %+v", got)
		}
		if got, err := decodeSummary(drawRun(t), appendSummary(nil, &want)); err == nil && got.Run != want.Run {
			t.Fatalf("the row of another run decoded as %+v", got)
		}
	})
	for i := range reflect.TypeFor[runs.Summary]().NumField() {
		if name := "runs.Summary." + reflect.TypeFor[runs.Summary]().Field(i).Name; !seen[name] {
			t.Errorf("%s is always zero after decoding", name)
		}
	}
}

// Each record that changes the status of its run has a summary, and no other has one.
func TestSummaryPerRecord(t *testing.T) {
	id, root, run, child := actor.NewID("alice", "s-1"), actor.CallID{6}, actor.CallID{7}, actor.CallID{8}
	call := actor.Call{ID: run, Root: root, Parent: root, To: id, Chain: []actor.ID{actor.NewID("bob", "s-1")}, Lane: actor.High, Left: 1 << 40, Workflow: "w", Project: "p"}
	tokens := actor.Usage{Input: 3, Output: 4, Total: 7}
	ask := func(kind actor.AskKind) Asked {
		return Asked{Ask: actor.Ask{Kind: kind, Name: "go"}, Clock: actor.NewClock(20, 100), Stamp: 21}
	}
	called := ask(actor.AskCall)
	called.Call, called.To = child, actor.NewID("carol", "s-1")
	var got []string
	var j Journal
	seq := uint64(0)
	apply := func(records ...Record) {
		for _, r := range records {
			e := Entry{Actor: id, N: j.N + 1, Record: r}
			if _, ended := r.(Ended); ended || seq == 0 {
				seq++
				e.Events = []RunEvent{{Run: run, Seq: seq}}
			}
			s, changed, err := j.ApplyEntrySummarized(e)
			if err != nil {
				t.Fatal(err)
			}
			line := fmt.Sprintf("%T", r)[len("store."):]
			if changed {
				line += fmt.Sprintf(": %s, started %d, ended %d, waits %q, %q, used %d of %d", s.Status, s.Started, s.Ended, s.Waits, s.Text, s.Usage.Total, s.Tree.Total)
				if s.Run != run || s.Root != root || s.Parent != root || s.Actor != id || s.Depth != 1 || s.Workflow != "w" || s.Project != "p" || s.Priority != "high" || s.Created != 10 {
					t.Errorf("%s: got %+v", line, s)
				}
			}
			got = append(got, line)
		}
	}
	apply(Accepted{Call: call, At: 10},
		Asking{Run: run, At: 20, Asks: []Asked{ask(actor.AskModel)}},
		Answered{Run: run, Step: 1, At: 30, Answer: actor.Answer{Usage: tokens}},
		Asking{Run: run, At: 40, Asks: []Asked{called, ask(actor.AskTool), ask(actor.AskWait)}},
		Held{Run: run, Step: 2, At: 41, N: 1, Until: 99},
		Answered{Run: run, Step: 2, Index: 2, At: 42},
		Resumed{Run: run, Step: 2, At: 43, N: 2},
		Answered{Run: run, Step: 2, At: 44, Answer: actor.Answer{Usage: tokens}},
		Answered{Run: run, Step: 2, Index: 1, At: 45},
		Ended{Call: actor.CallID{9}, At: 46, Reply: actor.Fail(actor.CallID{9}, actor.Refuse(actor.Busy, "full"))},
		Ended{Call: run, At: 47, Reply: actor.Reply{Call: run, Status: actor.Succeeded, Parts: actor.Text(strings.Repeat("x", 3))}})
	want := []string{
		`Accepted: RUNNING, started 0, ended 0, waits "", "", used 0 of 0`,
		`Asking: RUNNING, started 20, ended 0, waits "", "", used 0 of 0`,
		`Answered`,
		`Asking: PAUSED_WAITING_APPROVAL, started 20, ended 0, waits "go", "", used 7 of 7`,
		`Held`,
		`Answered: PAUSED_WAITING_APPROVAL, started 20, ended 0, waits "", "", used 7 of 7`,
		`Resumed: PAUSED_WAITING_TOOL, started 20, ended 0, waits "", "", used 7 of 7`,
		`Answered`,
		`Answered: RUNNING, started 20, ended 0, waits "", "", used 7 of 14`,
		`Ended`,
		`Ended: DONE, started 20, ended 47, waits "", "xxx", used 7 of 14`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A run that ends without a step has started if it has an event between its first one
// and its last one.
func TestSummaryOfRunWithoutSteps(t *testing.T) {
	id, run := actor.NewID("alice", "s-1"), actor.CallID{7}
	for _, c := range []struct {
		root    bool
		events  uint64
		started actor.Time
	}{{true, 2, 0}, {true, 3, 20}, {false, 1, 0}, {false, 2, 20}} {
		call := actor.Call{ID: run, Root: run, To: id, Left: 5}
		if !c.root {
			call.Root, call.Parent, call.Chain = actor.CallID{6}, actor.CallID{6}, []actor.ID{actor.NewID("bob", "")}
		}
		var j Journal
		_, _, err := j.ApplyEntrySummarized(Entry{N: 1, Record: Accepted{Call: call, At: 10}})
		if err != nil {
			t.Fatal(err)
		}
		s, _, err := j.ApplyEntrySummarized(Entry{N: 2, Record: Ended{Call: run, At: 20, Reply: actor.Fail(run, actor.Refuse(actor.Stopped, "no"))}, Events: []RunEvent{{run, c.events, nil}}})
		if err != nil || s.Started != c.started || s.Status != runs.Cancelled || s.Refusal == nil {
			t.Errorf("%+v: got %+v, error %v", c, s, err)
		}
	}
}
