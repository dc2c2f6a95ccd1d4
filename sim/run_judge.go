// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
)

func (s *judgedStep) explainAdmit(e *history.Event) {
	s.admitted[e.Call] = *e
	if len(e.Chain) > 0 {
		return
	}
	u := s.want(e, e.Call, runs.UserInput, anywhere)
	same(s, u, "number", u.Seq, 1)
	same(s, u, "actor", u.Payload.Actor, e.Actor.String())
	same(s, u, "priority", u.Payload.Priority, lanePriority(e.Lane))
	if e.What == history.Delivered {
		s.explainDelivered(e, u)
	}
	if call := s.requests[e.Call]; call != nil {
		s.sameText(u, call.Parts)
		same(s, u, "principal", u.Payload.Principal, call.Principal)
		key, _ := call.Authority()
		same(s, u, "key", u.Payload.Key, key)
		same(s, u, "origin", u.Payload.Origin, call.Origin.String())
		same(s, u, "project", u.Payload.Project, call.Project)
		trace := ""
		if parts := strings.Split(call.Trace, "-"); len(parts) > 1 {
			trace = parts[1]
		}
		same(s, u, "trace", u.Payload.Trace, trace)
	}
}

// starts reports whether the turn of a run begins in this step.
func (s *judgedStep) starts(run actor.CallID) bool {
	return slices.ContainsFunc(s.ready.Events, func(e history.Event) bool { return e.Kind == history.Start && e.Call == run })
}

func (s *judgedStep) explainStart(e *history.Event) {
	if !slices.ContainsFunc(s.ready.Events, func(o history.Event) bool {
		return o.Parent == e.Call && (o.Kind == history.Ask || o.Kind == history.Refuse) || o.Call == e.Call && o.Kind == history.Reply
	}) { // its agent is absent: the turn makes no step, and the run is shown as queued
		s.absent[e.Call] = true
		return
	}
	delete(s.absent, e.Call)
	r := s.want(e, e.Call, runs.RunStarted, anywhere)
	p := &r.Payload
	same(s, r, "actor", p.Actor, e.Actor.String())
	same(s, r, "kind", p.Kind, s.w.detached.kind(e.Call).String())
	same(s, r, "root", p.Root, e.Root.String())
	same(s, r, "time left", p.Left, e.Left.Milliseconds())
	a, ok := s.admitted[e.Call]
	if !ok {
		return
	}
	sameList(s, r, "chain", p.Chain, names(a.Chain))
	same(s, r, "depth", p.Depth, len(a.Chain))
	same(s, r, "attempt", p.Attempt, a.Attempt)
	same(s, r, "priority", p.Priority, lanePriority(a.Lane))
	parent, origin := "", actor.Human.String()
	if len(a.Chain) > 0 {
		parent, origin = a.Parent.String(), actor.Agent.String()
	}
	same(s, r, "parent", p.Parent, parent)
	if call := s.requests[e.Root]; call != nil {
		if len(a.Chain) == 0 {
			origin = call.Origin.String()
		}
		same(s, r, "principal", p.Principal, call.Principal)
		same(s, r, "project", p.Project, call.Project)
		same(s, r, "origin", p.Origin, origin)
	}
}

func (s *judgedStep) explainReply(e *history.Event) {
	t := runs.RunDone
	switch {
	case e.Status == actor.Failed && e.Reason == actor.Stopped:
		t = runs.RunCancelled
	case e.Status == actor.Failed:
		t = runs.RunFailed
	}
	if s.absent[e.Call] {
		delete(s.absent, e.Call)
		s.take(e.Call, runs.RunStarted, anywhere)
	}
	d := s.want(e, e.Call, t, anywhere)
	if t != runs.RunDone {
		s.sameRefusal(d, e)
		same(s, d, "detail", d.Payload.Error.Detail, strings.ToValidUTF8(e.Detail, "\uFFFD"))
		return
	}
	same(s, d, "status", d.Payload.Status, e.Status.String())
	var sum shownPayload
	for _, o := range s.streams[e.Call] {
		if o.Type == runs.LLMCallDone.String() || o.Type == runs.AgentInvokeDone.String() {
			sum.Tokens.Input += o.Payload.Tokens.Input
			sum.Tokens.Output += o.Payload.Tokens.Output
			sum.Tokens.Total += o.Payload.Tokens.Total
		}
	}
	same(s, d, "usage", d.Payload.Tokens, sum.Tokens)
	for i := range s.ready.Effects {
		if r, ok := replyIn(s.ready.Effects[i].Op); ok && r.Call == e.Call && r.Refusal == nil { // another copy of the call may be refused in the same step
			s.sameText(d, r.Parts)
			sameList(s, d, "warnings", d.Payload.Warnings, r.Warnings)
		}
	}
}

// replyIn returns the reply that an effect sends to a caller or a client.
func replyIn(op runtime.Op) (actor.Reply, bool) {
	switch op := op.(type) {
	case runtime.Respond:
		return op.Reply, op.HeldUntil == 0
	case runtime.Send:
		m, ok := op.Envelope.Body.(actor.Answered)
		return m.Reply, ok
	}
	return actor.Reply{}, false
}

// checkRefusals checks that a message refused as Busy, which was never admitted, has a
// history event with the same reason.
func (s *judgedStep) checkRefusals() {
	if _, forwarded := delivered[actor.Answered](s.in); forwarded {
		return
	}
	for i := range s.ready.Effects {
		r, ok := replyIn(s.ready.Effects[i].Op)
		if !ok || r.Refusal == nil || r.Refusal.Reason != actor.Busy || r.Run != r.Call || s.admitted[r.Call].Kind != 0 {
			continue
		}
		if !slices.ContainsFunc(s.ready.Events, func(e history.Event) bool {
			return e.Kind == history.Refuse && e.Call == r.Call && e.Reason == r.Refusal.Reason && e.Scope == r.Refusal.Scope
		}) {
			s.fail("refuses call %s as %s, and records no refusal", r.Call, r.Refusal.Reason)
		}
	}
}

// checkLocal checks that each message that the step delivers was its input or was sent in
// this step before.
func (s *judgedStep) checkLocal() {
	sent := map[sentMessage]int{}
	switch in := s.in.(type) {
	case runtime.Deliver:
		sent[sentMessage{in.Envelope.Body.Subject(), in.Envelope.Body.Name()}]++
	case *runtime.Visit:
		sent[sentMessage{in.Call.ID, "request"}]++
	}
	for i := range s.ready.Events {
		e := &s.ready.Events[i]
		m := sentMessage{e.Call, e.What}
		switch e.Kind {
		case history.Send:
			sent[m]++
		case history.Deliver:
			if sent[m]--; sent[m] < 0 {
				s.fail("delivers the %s of call %s, which was not sent", e.What, e.Call)
			}
		}
	}
}
