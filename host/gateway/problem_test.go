// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// The handwritten encoder agrees with the JSON package.
func TestProblemEncodingMatchesJSON(t *testing.T) {
	chain := []actor.ID{actor.NewID("a", "s"), actor.NewID("b", "s"), actor.NewID("c", "s")}
	withRun := refusalProblem(actor.Refuse(actor.Rejected, "no"))
	withRun.Run = actor.CallID{1}.String()
	for _, p := range []*problem{
		{},
		invalidKey(),
		withRun,
		eventsDropped(command.EventsDropped{Run: actor.CallID{1}, First: 7}),
		invalid(400, "content", "a \"quoted\" <word>,\na line \u2028 and \\"),
		refusalProblem(actor.RefuseBusy(actor.ScopeCallee, 1500*time.Millisecond, "full")),
		refusalProblem(actor.RefuseCycle(chain[:1], chain[0])),
		refusalProblem(actor.RefuseDepth(chain, chain[0], 3)),
	} {
		want, err := json.Marshal(p)
		if got := string(p.append(nil)); err != nil || got != string(want) {
			t.Errorf("%v\n got %s\nwant %s", err, got, want)
		}
	}
	var back problem
	if err := json.Unmarshal((&problem{Detail: "\xff", Field: "\xfe"}).append(nil), &back); err != nil || back.Detail != "\uFFFD" || back.Field != "\uFFFD" {
		t.Errorf("%v %+v", err, back)
	}
}

// A cancelled run has not failed, although records show it so.
func TestProblemOfCancelledRunIsTitledCancelled(t *testing.T) {
	if p := refusalProblem(actor.Refuse(actor.Stopped, "interrupted")); p.Title != "Cancelled" || p.Code != "cancelled" || p.Status != 409 {
		t.Errorf("%+v", p)
	}
}
