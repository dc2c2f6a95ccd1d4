// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

var workWalks = flag.String("work-walks", "testdata/work_walks.json", "walks through module Work, as written by `go run ./tla/tlc walks`")

// walk is a random walk of TLC through module Work, with or without a defect. Good reports
// whether every step of the walk satisfies OnlySucceededAdvances and ApprovalOnce.
type walk struct {
	Bug   string
	Good  bool
	Steps []snapshot
}

// snapshot is the visible state after a step. Tool calls, and the approvals of each, are numbered
// from 1.
type snapshot struct {
	up        bool
	tools     []toolSnapshot
	approvals [][]approvalSnapshot
	reports   []reportSnapshot
	effects   [][]effectSnapshot
	expired   [][2]int
}

type (
	toolSnapshot     struct{ state, advanced, policy string }
	approvalSnapshot struct{ state, args string }
	effectSnapshot   struct {
		number int
		args   string
	}
	reportSnapshot struct {
		tool, number int
		status       string
	}
)

// UnmarshalJSON decodes a tuple printed by TLC.
func (l *snapshot) UnmarshalJSON(b []byte) error {
	var tools [][3]string
	var approvals [][][2]string
	var reports [][3]any
	var effectLists [][][2]any
	if err := json.Unmarshal(b, &[]any{&l.up, &tools, &approvals, &reports, &effectLists, &l.expired}); err != nil {
		return err
	}
	for t := range tools {
		l.tools = append(l.tools, toolSnapshot{tools[t][0], tools[t][1], tools[t][2]})
		var grants []approvalSnapshot
		for _, a := range approvals[t] {
			grants = append(grants, approvalSnapshot{a[0], a[1]})
		}
		var effects []effectSnapshot
		for _, e := range effectLists[t] {
			effects = append(effects, effectSnapshot{int(e[0].(float64)), e[1].(string)})
		}
		l.approvals, l.effects = append(l.approvals, grants), append(l.effects, effects)
	}
	for _, m := range reports {
		l.reports = append(l.reports, reportSnapshot{int(m[0].(float64)), int(m[1].(float64)), m[2].(string)})
	}
	return nil
}

// events returns the events that lead from the snapshot before to the snapshot l.
func (l *snapshot) events(before snapshot) []WorkEvent {
	var all []WorkEvent
	crash := before.up && !l.up
	for i, tool := range l.tools {
		var old toolSnapshot
		var grants []approvalSnapshot
		effects := 0
		if i < len(before.tools) {
			old, grants, effects = before.tools[i], before.approvals[i], len(before.effects[i])
		}
		of := func(e WorkEvent) { e.Run, e.Step = root, uint32(i+1); all = append(all, e) }
		for n := range max(len(grants), len(l.approvals[i])) {
			e := WorkEvent{Kind: WorkApproval, Number: uint32(n + 1)}
			if crash {
				e.Kind = WorkRolledBack
			}
			if n < len(l.approvals[i]) {
				e.Approval, e.Args = status(runs.ParseApprovalStatus, l.approvals[i][n].state), actor.HashOf([]byte(l.approvals[i][n].args))
			}
			if n >= len(grants) || n >= len(l.approvals[i]) || grants[n].state != l.approvals[i][n].state {
				of(e)
			}
		}
		if tool.state != old.state {
			e := WorkEvent{Kind: WorkTool, Tool: status(runs.ParseToolStatus, tool.state)}
			if crash {
				e.Kind = WorkRolledBack
			}
			of(e)
		}
		for _, e := range l.effects[i][effects:] {
			of(WorkEvent{Kind: WorkPerformed, Number: uint32(e.number), Args: actor.HashOf([]byte(e.args)), NeedsApproval: tool.policy == "ask"})
		}
		if tool.advanced != old.advanced && !crash {
			of(WorkEvent{Kind: WorkAdvanced, Result: tool.advanced == "result"})
		}
	}
	for _, m := range l.reports {
		if !slices.Contains(before.reports, m) {
			all = append(all, WorkEvent{Kind: WorkReported, Run: root, Step: uint32(m.tool), Number: uint32(m.number), Approval: status(runs.ParseApprovalStatus, m.status)})
		}
	}
	for _, d := range l.expired {
		if !slices.Contains(before.expired, d) {
			all = append(all, WorkEvent{Kind: WorkExpired, Run: root, Step: uint32(d[0]), Number: uint32(d[1])})
		}
	}
	return all
}

// status parses the name of a state. It returns the zero state for "none".
func status[S any](parse func(string) (S, error), name string) S {
	s, _ := parse(name)
	return s
}

// Go and TLC check the same walks. Both must accept every walk of the design. Go must accept a
// walk of a defect if TLC accepts it. For most defects, Go must reject at least one walk. Some
// defects need an event that a random walk seldom contains: a crash between a decision and its
// sync, or a second request for approval. TestWorkDetectsModelDefects covers those defects.
func TestWorkAgreesWithTLC(t *testing.T) {
	f, err := os.Open(*workWalks)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	passed, detected, walked := 0, map[string]int{}, map[string]int{}
	for number := 1; lines.Scan(); number++ {
		var current walk
		if err := json.Unmarshal(lines.Bytes(), &current); err != nil {
			t.Fatalf("line %d: %v", number, err)
		}
		w := NewWork()
		var before snapshot
		for _, l := range current.Steps {
			for _, e := range l.events(before) {
				w.Observe(e)
			}
			before = l
		}
		switch walked[current.Bug]++; {
		case current.Bug == "none" && w.violation != nil:
			t.Errorf("line %d: design: %s", number, w.violation)
		case current.Bug == "none":
			passed++
		case w.violation != nil && current.Good:
			t.Errorf("line %d: %s: %s; TLC finds no violation", number, current.Bug, w.violation)
		case w.violation != nil:
			detected[current.Bug]++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d walks of the design pass; defects detected: %v", passed, detected)
	if passed == 0 || len(detected) < minDefectsFound {
		t.Errorf("%d walks of the design; detected %d of the defects in %v, want %d", passed, len(detected), walked, minDefectsFound)
	}
}

// minDefectsFound is the minimum number of the ten defects that the walks must reveal.
const minDefectsFound = 7
