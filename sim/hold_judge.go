// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/signals"
)

// explainHold checks that a run shows when a call below it begins and ends to hold it.
func (s *judgedStep) explainHold(e *history.Event) {
	if s.isSilent(s.cell, e.Parent) {
		return
	}
	s.take(e.Parent, runs.ApprovalRequired, anywhere)
	held, certain := s.heldBy(e)
	child := func(p *shownPayload) bool { return p.Child == e.Call.String() && p.Name == "held" }
	switch t := runs.RunResumed; {
	case e.Kind == history.Hold:
		if t = runs.RunPaused; held && certain {
			return
		}
		if p := s.take(e.Parent, t, child); p != nil {
			same(s, p, "end", p.Payload.Until, shownTime(e.Until))
		} else if certain {
			s.fail("publishes no run_paused of run %s, which %s holds", e.Parent, e.Call)
		}
	case held || !certain:
		if s.take(e.Parent, t, child) == nil && certain {
			s.fail("publishes no run_resumed of run %s, which %s held", e.Parent, e.Call)
		}
	}
}

// explainDecision checks the event of a decision about a tool call, or of its expiry.
func (s *judgedStep) explainDecision(e *history.Event) {
	here := at(e.Step, e.Index)
	resumed := func(d *shownEvent) {
		s.want(e, e.Parent, runs.RunResumed, func(p *shownPayload) bool { return p.Approval == d.Payload.Approval && p.Name == "approval" })
	}
	if x := s.take(e.Parent, runs.ApprovalExpired, here); x != nil {
		resumed(x)
		return
	}
	d := s.want(e, e.Parent, runs.ApprovalDecision, here)
	resumed(d)
	if m, ok := delivered[actor.Request](s.in); ok && m.Call.Operation == signals.OpDecide {
		same(s, d, "principal", d.Payload.Principal, m.Call.Principal)
	}
	if d.Payload.Kind == runs.ApprovalStatusApproved.String() {
		s.want(e, e.Parent, runs.ToolDispatched, here)
	}
}

// heldBy reports whether a call holds its run, as the events before the step show it. It
// is uncertain after a crash, which may have lost the last of them.
func (s *judgedStep) heldBy(e *history.Event) (held, certain bool) {
	first := uint64(len(s.streams[e.Parent])) + 1
	for i := range s.ready.Effects {
		if p, ok := s.ready.Effects[i].Op.(runtime.Publish); ok && p.Event.Run == e.Parent {
			first = min(first, p.Event.Seq)
		}
	}
	for _, o := range s.streams[e.Parent][:first-1] {
		if o.Payload.Child == e.Call.String() && o.Type != runs.ApprovalRequired.String() {
			held = o.Type == runs.RunPaused.String()
		}
	}
	return held, !s.reloaded[e.Actor]
}
