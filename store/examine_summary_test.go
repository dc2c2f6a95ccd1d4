// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// A summary that differs from the entries of its run is one finding.
func TestExamineComparesSummaries(t *testing.T) {
	open, ended := newEntryBuilder(t, "alice").run(2), newEntryBuilder(t, "bob").run(1)
	for _, c := range []struct {
		run    actor.CallID
		change func(*runs.Summary)
		what   string
	}{
		{open, func(s *runs.Summary) { s.Status = runs.PausedWaitingTool }, `shows status PAUSED_WAITING_TOOL, waiting for "", want RUNNING, waiting for ""`},
		{open, func(s *runs.Summary) { s.Waits = "go" }, `shows status RUNNING, waiting for "go", want RUNNING, waiting for ""`},
		{ended, func(s *runs.Summary) { s.Status = runs.Failed }, `shows status FAILED, waiting for "", want DONE, waiting for ""`},
		{ended, func(s *runs.Summary) { s.Waits = "go" }, `shows status DONE, waiting for "go", want DONE, waiting for ""`},
		{ended, func(s *runs.Summary) { s.Ended++ }, "shows the end succeeded at 1970-01-01T00:00:01.000000002Z, want succeeded at 1970-01-01T00:00:01.000000001Z"},
		{ended, func(s *runs.Summary) { s.Text = "small" }, `shows the text "small", want "large large large large large large large large large large large large large la"`},
		{ended, func(s *runs.Summary) { s.Tree.Input++ }, `"tree_usage":{`},
		{open, func(s *runs.Summary) { s.Project = "p" }, `"project_id":"p"`},
		{ended, func(s *runs.Summary) { s.Outcome = actor.Partial }, "shows the end partial at 1970-01-01T00:00:01.000000001Z, want succeeded at 1970-01-01T00:00:01.000000001Z"},
	} {
		l, end := examinedStore(t)
		page, err := l.Rows.Runs("default", runs.Filter{}, actor.CallID{}, 20)
		at := slices.IndexFunc(page.All, func(s runs.Summary) bool { return s.Run == c.run })
		if err != nil || at < 0 {
			t.Fatal(page, err)
		}
		s := page.All[at]
		c.change(&s)
		l.flush()
		if err := l.m.Apply([]Row{{Key: runKey("default", c.run), Value: appendSummary(nil, &s)}}); err != nil {
			t.Fatal(err)
		}
		x, err := Examine(l.m, logAt(end), nil, nil)
		if got := fmt.Sprint(x.Findings); err != nil || x.Wrong != 1 || !strings.Contains(x.Findings[0].What, c.what) || x.Findings[0].Where != string(runKey("default", c.run)) {
			t.Errorf("%s: got %s, error %v", c.what, got, err)
		}
	}
}
