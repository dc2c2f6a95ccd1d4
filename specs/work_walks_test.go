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

var workWalks = flag.String("work-walks", "testdata/work_walks.json", "walks through module Work, as `go run ./tla/tlc walks` writes them")

// walk is one that TLC drew through module Work, with a defect or without, and
// whether both properties held all the way.
type walk struct {
	Bug   string
	Good  bool
	Steps []snapshot
}

// snapshot is what could be seen after a step. Tool calls, and approvals of each, count from 1.
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

// UnmarshalJSON reads the tuples that TLC prints.
func (l *snapshot) UnmarshalJSON(b []byte) error {
	var tools [][3]string
	var appr [][][2]string
	var told [][3]any
	var eff [][][2]any
	if err := json.Unmarshal(b, &[]any{&l.up, &tools, &appr, &told, &eff, &l.expired}); err != nil {
		return err
	}
	for t := range tools {
		l.tools = append(l.tools, toolSnapshot{tools[t][0], tools[t][1], tools[t][2]})
		var grants []approvalSnapshot
		for _, a := range appr[t] {
			grants = append(grants, approvalSnapshot{a[0], a[1]})
		}
		var effects []effectSnapshot
		for _, e := range eff[t] {
			effects = append(effects, effectSnapshot{int(e[0].(float64)), e[1].(string)})
		}
		l.approvals, l.effects = append(l.approvals, grants), append(l.effects, effects)
	}
	for _, m := range told {
		l.reports = append(l.reports, reportSnapshot{int(m[0].(float64)), int(m[1].(float64)), m[2].(string)})
	}
	return nil
}

// events are what must have happened between two of them.
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

// status is the state of a name; that of "none" is the zero one.
func status[S any](parse func(string) (S, error), name string) S {
	s, _ := parse(name)
	return s
}

// The twins and TLC judge the same walks. Where the design is walked, both find
// nothing; where a guard is gone, whatever a twin finds TLC has found too. Most
// defects are found so: a walk at random seldom crashes between a click and its
// sync, or asks twice, and TestWorkCatchesTheDefectsOfTheModel has those too.
func TestWorkAgreesWithTLC(t *testing.T) {
	f, err := os.Open(*workWalks)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	healthy, found, walked := 0, map[string]int{}, map[string]int{}
	for no := 1; lines.Scan(); no++ {
		var one walk
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("line %d: %v", no, err)
		}
		w := NewWork()
		var before snapshot
		for _, l := range one.Steps {
			for _, e := range l.events(before) {
				w.Observe(e)
			}
			before = l
		}
		switch walked[one.Bug]++; {
		case one.Bug == "none" && w.violation != nil:
			t.Errorf("line %d: of the design: %s", no, w.violation)
		case one.Bug == "none":
			healthy++
		case w.violation != nil && one.Good:
			t.Errorf("line %d: of %s: %s; TLC finds nothing", no, one.Bug, w.violation)
		case w.violation != nil:
			found[one.Bug]++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d walks of the design pass; of defects found %v", healthy, found)
	if healthy == 0 || len(found) < minDefectsFound {
		t.Errorf("%d walks of the design; the twins find %d of the defects in %v, want %d", healthy, len(found), walked, minDefectsFound)
	}
}

// minDefectsFound is in how many of the ten defects walks must be found to be wrong.
const minDefectsFound = 7
