// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// explainAsk checks the events of an ask, which may have been refused or answered at once.
func (s *judgedStep) explainAsk(e *history.Event) {
	if e.What == "client" {
		return
	}
	if s.asks == nil {
		s.asks = map[stepOfRun]int{}
	}
	of := stepOfRun{e.Parent, uint64(e.Step)}
	s.asks[of] = max(s.asks[of], e.Count)
	here, refused := at(e.Step, e.Index), e.Kind == history.Refuse
	effect := s.effectOf(e)
	switch e.What {
	case "call":
		if refused {
			r := s.want(e, e.Parent, runs.AgentCallRefused, here)
			s.sameRefusal(r, e)
			return
		}
		s.checkCallee(e)
		if e.Given > s.w.plan.Limits.AgentCallTimeoutMax {
			c := s.want(e, e.Parent, runs.TimeoutClamped, here)
			same(s, c, "requested time", c.Payload.Asked, e.Given.Milliseconds())
			same(s, c, "time left", c.Payload.Left, e.Left.Milliseconds())
		}
		c := s.want(e, e.Parent, runs.AgentCalledChild, here)
		same(s, c, "child", c.Payload.Child, e.Call.String())
		same(s, c, "callee", c.Payload.Actor, e.Peer.String())
		same(s, c, "time left", c.Payload.Left, e.Left.Milliseconds())
		sameList(s, c, "chain", c.Payload.Chain, names(e.Chain))
		same(s, c, "depth", c.Payload.Depth, len(e.Chain))
		if call := s.sentCall(e.Call); call != nil {
			s.sameText(c, call.Parts)
		}
	case "tool", "work":
		c := s.want(e, e.Parent, runs.ToolCallCreated, here)
		if c.Payload.Name != askTool {
			same(s, c, "kind", c.Payload.Kind, e.What)
		} else if !refused {
			same(s, c, "kind", c.Payload.Kind, "client_tool")
		}
		if a, ok := s.admitted[e.Parent]; ok {
			sameList(s, c, "chain", c.Payload.Chain, names(a.Chain))
			same(s, c, "depth", c.Payload.Depth, len(a.Chain))
		}
		s.take(e.Parent, runs.PolicyDecision, here)
		if refused || e.Left == 0 {
			s.sameRefusal(s.want(e, e.Parent, runs.ToolResult, here), e)
			return
		}
		if e.Why == "approval" {
			w := s.want(e, e.Parent, runs.ApprovalCreated, here)
			same(s, w, "end", w.Payload.Until, shownTime(e.At.Add(e.Left)))
			if a, ok := s.admitted[e.Parent]; ok && len(a.Chain) == 0 {
				s.want(e, e.Parent, runs.ApprovalRequired, anywhere)
			}
			p := s.want(e, e.Parent, runs.RunPaused, func(p *shownPayload) bool { return p.Approval == w.Payload.Approval })
			same(s, p, "end", p.Payload.Until, w.Payload.Until)
			return
		}
		d := s.want(e, e.Parent, runs.ToolDispatched, here)
		same(s, d, "attempt", d.Payload.Attempt, 1)
		same(s, d, "time left", d.Payload.Left, e.Left.Milliseconds())
		same(s, d, "name", d.Payload.Name, c.Payload.Name)
		switch op := effect.(type) {
		case runtime.Tool:
			same(s, c, "name", c.Payload.Name, op.Name)
			s.sameText(c, []actor.Part{{Media: actor.MediaJSON, Bytes: op.Input}})
		case runtime.Work:
			same(s, c, "name", c.Payload.Name, op.Name)
		}
	case "model", "invoke":
		t := runs.LLMCallStarted
		if e.What == "invoke" {
			t = runs.AgentInvokeStarted
		}
		b := s.want(e, e.Parent, t, here)
		switch op := effect.(type) {
		case runtime.Model:
			same(s, b, "name", b.Payload.Name, op.Name)
		case runtime.Invoke:
			same(s, b, "name", b.Payload.Name, op.Name)
		}
		if refused || e.Left == 0 {
			s.sameRefusal(s.want(e, e.Parent, t+1, here), e)
			return
		}
		same(s, b, "time left", b.Payload.Left, e.Left.Milliseconds())
	case "wait":
		if !refused {
			if e.Given > s.w.plan.Limits.WaitTimeoutMax {
				c := s.want(e, e.Parent, runs.TimeoutClamped, here)
				same(s, c, "requested time", c.Payload.Asked, e.Given.Milliseconds())
				same(s, c, "time left", c.Payload.Left, e.Left.Milliseconds())
			}
			o := s.want(e, e.Parent, runs.WaitOpened, here)
			same(s, o, "end", o.Payload.Until, shownTime(e.At.Add(e.Left)))
		}
	}
}

func (s *judgedStep) sameRefusal(e *shownEvent, cause *history.Event) {
	reason, scope := "", ""
	if cause.Reason != 0 {
		reason, scope = cause.Reason.String(), cause.Scope.String()
	}
	same(s, e, "reason", e.Payload.Error.Reason, reason)
	same(s, e, "scope", e.Payload.Error.Scope, scope)
}

// effectOf returns the effect that performs an ask in this step, or nil.
func (s *judgedStep) effectOf(e *history.Event) runtime.Op {
	id := actor.EffectID{Run: e.Parent, Step: e.Step, Index: e.Index}
	for i := range s.ready.Effects {
		if f := &s.ready.Effects[i]; f.ID == id && isWork(f.Op) {
			return f.Op
		}
	}
	return nil
}

// sentCall returns the request of a call that this step sends as a message, or nil.
func (s *judgedStep) sentCall(id actor.CallID) *actor.Call {
	for i := range s.ready.Effects {
		if send, ok := s.ready.Effects[i].Op.(runtime.Send); ok {
			if r, ok := send.Envelope.Body.(actor.Request); ok && r.Call.ID == id {
				return &r.Call
			}
		}
	}
	return nil
}

func (s *judgedStep) explainAnswer(e *history.Event) {
	here, expired := at(e.Step, e.Index), s.expires(e)
	var d *shownEvent
	switch e.What {
	case "call":
		d = s.want(e, e.Parent, runs.AgentChildDone, here)
		same(s, d, "child", d.Payload.Child, e.Call.String())
		same(s, d, "callee", d.Payload.Actor, e.Peer.String())
		if held, certain := s.heldBy(e); held || !certain {
			r := s.take(e.Parent, runs.RunResumed, func(p *shownPayload) bool { return p.Child == e.Call.String() })
			if r == nil && certain && !s.isSilent(s.cell, e.Parent) {
				s.fail("publishes no run_resumed of run %s, which %s held", e.Parent, e.Call)
			}
		}
		if m, ok := delivered[actor.Answered](s.in); ok && m.Reply.Call == e.Call && !expired {
			same(s, d, "status", d.Payload.Status, m.Reply.Status.String())
			s.sameText(d, m.Reply.Parts)
			sameList(s, d, "warnings", d.Payload.Warnings, m.Reply.Warnings)
		}
	case "tool", "work":
		d = s.want(e, e.Parent, runs.ToolResult, here)
	case "model":
		d = s.want(e, e.Parent, runs.LLMCallDone, here)
	case "invoke":
		d = s.want(e, e.Parent, runs.AgentInvokeDone, here)
	case "wait":
		if e.Status != actor.Failed {
			d = s.want(e, e.Parent, runs.SignalReceived, here)
			if m, ok := delivered[actor.Request](s.in); ok && m.Call.Kind == actor.Signal {
				same(s, d, "name", d.Payload.Name, m.Call.Operation)
				same(s, d, "principal", d.Payload.Principal, m.Call.Principal)
				s.sameText(d, m.Call.Parts)
			}
			return
		}
		d = s.want(e, e.Parent, runs.WaitExpired, here)
		s.sameRefusal(d, e)
		return
	default:
		return
	}
	same(s, d, "status", d.Payload.Status, e.Status.String())
	s.sameRefusal(d, e)
	s.checkTook(d)
	if o, ok := s.in.(runtime.Outcome); ok && o.ID == (actor.EffectID{Run: e.Parent, Step: e.Step, Index: e.Index}) && !expired {
		s.checkOutcome(d, e, o.Answer)
	}
}

// delivered returns the message of this type that the step received.
func delivered[M actor.Message](in runtime.Input) (m M, ok bool) {
	if d, isDeliver := in.(runtime.Deliver); isDeliver {
		m, ok = d.Envelope.Body.(M)
	}
	return m, ok
}

// expires reports whether the step has answered an ask because its time was over, before
// the input.
func (s *judgedStep) expires(answer *history.Event) bool {
	return slices.ContainsFunc(s.ready.Events, func(e history.Event) bool {
		return e.Kind == history.Expire && e.Parent == answer.Parent && e.Step == answer.Step && e.Index == answer.Index
	})
}

// checkOutcome checks the event of an ask that an outcome has answered. An answer that no
// message can carry is refused as invalid; every other answer is shown as it is.
func (s *judgedStep) checkOutcome(d *shownEvent, e *history.Event, answer actor.Answer) {
	if !s.fits(answer.Parts) {
		same(s, d, "reason", d.Payload.Error.Reason, actor.Invalid.String())
		return
	}
	reason, scope, refusal := "", "", answer.Refusal
	if refusal != nil {
		reason, scope = refusal.Reason.String(), refusal.Scope.String()
	}
	same(s, d, "reason", d.Payload.Error.Reason, reason)
	same(s, d, "scope", d.Payload.Error.Scope, scope)
	switch {
	case e.What == "tool" || e.What == "work":
		s.sameText(d, answer.Parts)
	case refusal == nil:
		c, err := upstream.DecodeCompletion(answer.Parts[0].Bytes)
		if err != nil {
			s.fail("is given an answer of run %s that is no completion: %v", d.Run, err)
		}
		s.sameText(d, actor.Text(c.Text))
		usage := c.Usage
		if slices.ContainsFunc(s.streams[d.run], func(o *shownEvent) bool {
			return o.Type == runs.LLMCallStarted.String() && o.Payload.Request != "" && o.Payload.Step == d.Payload.Step
		}) { // its requests to models count instead
			usage = upstream.Usage{}
		}
		same(s, d, "usage", d.Payload.Tokens, shownPayload{}.withUsage(usage).Tokens)
	}
}

// fits reports whether a message can carry the parts.
func (s *judgedStep) fits(parts []actor.Part) bool {
	size, valid := 0, true
	for _, p := range parts {
		size, valid = size+len(p.Media)+len(p.Bytes), valid && utf8.ValidString(p.Media)
	}
	return valid && size <= s.w.plan.Limits.MessageBytesMax
}

func (p shownPayload) withUsage(u upstream.Usage) shownPayload {
	p.Tokens.Input, p.Tokens.Output, p.Tokens.Total = u.Input, u.Output, u.Total
	return p
}

// checkTook checks the duration of an ask. The stamp of an ask may be later than the ask,
// by the difference of two clocks. A call that a person approved lasts from the approval, or
// from its recovery by a node whose clock was behind.
func (s *judgedStep) checkTook(d *shownEvent) {
	var from actor.Time
	skew := time.Duration(0)
	for _, e := range s.streams[d.run] {
		if e.Payload.Step != d.Payload.Step || e.Payload.Index != d.Payload.Index || e.at == 0 {
			continue
		}
		if approved := e.Type == runs.ApprovalDecision.String(); approved || from == 0 {
			if from = e.at; approved {
				skew = s.w.plan.maxSkew()
			}
		}
	}
	if from == 0 {
		return
	}
	took, elapsed := time.Duration(d.Payload.Took)*time.Millisecond, d.at.Sub(from)
	if took > max(elapsed, 0)+skew+time.Millisecond || took < elapsed-s.w.plan.maxSkew()-time.Millisecond {
		s.fail("publishes %s of run %s, which took %v, want %v", d.Type, d.Run, took, elapsed)
	}
}

// explainPiece checks the event of a streamed piece.
func (s *judgedStep) explainPiece() {
	in, ok := s.in.(runtime.Streamed)
	if !ok || s.isSilent(s.cell, in.ID.Run) || slices.ContainsFunc(s.ready.Events, func(e history.Event) bool {
		return e.Kind == history.Drop && e.What == "piece" || e.Kind == history.Reply && e.Call == in.ID.Run
	}) {
		return
	}
	here, t, p := at(in.ID.Step, in.ID.Index), runs.AgentStreamDelta, in.Piece
	switch {
	case p.Retry != nil:
		t = runs.Attempt
	case p.State != "":
		t = runs.AgentStateChanged
	case p.Text == "":
		return
	}
	e := s.take(in.ID.Run, t, here)
	if e == nil {
		if t == runs.AgentStreamDelta && isInward(&s.w.plan, s.admitted[in.ID.Run].Actor.Agent) {
			return
		}
		if t != runs.Attempt { // AttemptAnnounced demands those
			s.fail("publishes no %s for a piece of run %s", t, in.ID.Run)
		}
		return
	}
	switch t {
	case runs.Attempt:
		s.checkAttempt(e)
		same(s, e, "reason", e.Payload.Error.Reason, p.Retry.Reason.String())
	case runs.AgentStateChanged:
		same(s, e, "name", e.Payload.Name, p.State)
		s.sameText(e, actor.Text(p.Detail))
		if slices.ContainsFunc(s.ready.Entries, func(e store.Entry) bool { // a volatile actor has none
			r, ok := e.Record.(store.Streamed)
			return ok && (r.State != p.State || r.Detail != p.Detail)
		}) {
			s.fail("shows the state %q of run %s, and records another one", p.State, in.ID.Run)
		}
	default:
		s.sameText(e, actor.Text(p.Text))
	}
}

// explainRepeat checks the event of an operation whose outcome makes a volatile actor repeat it, as when an agent has
// registered at another address. The actor has no
// record of that.
func (s *judgedStep) explainRepeat() {
	in, ok := s.in.(runtime.Outcome)
	if !ok || len(s.ready.Entries) > 0 {
		return
	}
	for i := range s.ready.Effects {
		if e := &s.ready.Effects[i]; e.ID == in.ID && e.Attempt > 1 {
			if a := s.take(in.ID.Run, runs.Attempt, at(in.ID.Step, in.ID.Index)); a != nil {
				s.checkAttempt(a)
			}
		}
	}
}

// checkAttempt checks the number of an attempt: the attempts of an ask count from 1.
func (s *judgedStep) checkAttempt(e *shownEvent) {
	want := uint32(1)
	for _, o := range s.streams[e.run][:e.Seq] {
		if o.Type == e.Type && o.Payload.Step == e.Payload.Step && o.Payload.Index == e.Payload.Index {
			want++
		}
	}
	same(s, e, "attempt", e.Payload.Attempt, want)
}

// explainRefused removes the events of asks that an agent's own rules refused. They follow
// the asks of the action.
func (s *judgedStep) explainRefused() {
	s.published = slices.DeleteFunc(s.published, func(e *shownEvent) bool {
		p := &e.Payload
		if s.isSilent(s.cell, e.run) || int(p.Index) < s.asks[stepOfRun{e.run, uint64(p.Step)}] {
			return false
		}
		refused := func(o *shownEvent) bool {
			return o.run == e.run && o.Payload.Step == p.Step && o.Payload.Index == p.Index && o.Type == runs.ToolResult.String() && o.Payload.Error.Reason != ""
		}
		switch e.Type {
		case runs.AgentCallRefused.String():
			return true
		case runs.ToolCallCreated.String(), runs.ToolResult.String():
			return slices.ContainsFunc(s.streams[e.run], refused)
		}
		return false
	})
}
