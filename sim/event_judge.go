// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// eventJudge checks the run events that a step publishes against the history events, the
// input, the entries and the effects of the step: each operation of a run has its events,
// and each event has its operation. It decodes the events as their readers do.
type eventJudge struct {
	w        *Simulation
	streams  map[actor.CallID][]shownEvent  // events of each run so far
	admitted map[actor.CallID]history.Event // by call
	requests map[actor.CallID]*actor.Call   // requests of clients
	reloaded map[actor.ID]bool              // actors that were activated before: a crash may have lost events of their runs
}

func newEventJudge(w *Simulation) *eventJudge {
	return &eventJudge{w, map[actor.CallID][]shownEvent{}, map[actor.CallID]history.Event{}, map[actor.CallID]*actor.Call{}, map[actor.ID]bool{}}
}

// shownEvent is a run event as its readers see it.
type shownEvent struct {
	Run     string       `json:"run_id"`
	Seq     uint64       `json:"seq"`
	At      string       `json:"ts"`
	Type    string       `json:"type"`
	Payload shownPayload `json:"payload"`
	run     actor.CallID
	at      actor.Time
}

type shownPayload struct {
	Actor     string   `json:"actor"`
	Kind      string   `json:"kind"`
	Operation string   `json:"operation"`
	Principal string   `json:"principal"`
	Origin    string   `json:"origin"`
	Project   string   `json:"project_id"`
	Root      string   `json:"root_run_id"`
	Parent    string   `json:"parent_run_id"`
	Depth     int      `json:"call_depth"`
	Chain     []string `json:"call_chain"`
	Left      int64    `json:"time_left_ms"`
	Asked     int64    `json:"asked_ms"`
	Step      uint32   `json:"step"`
	Index     uint16   `json:"index"`
	Name      string   `json:"name"`
	Child     string   `json:"child_run_id"`
	Until     string   `json:"until"`
	Attempt   uint32   `json:"attempt"`
	Status    string   `json:"status"`
	Text      string   `json:"text"`
	Truncated bool     `json:"truncated"`
	Warnings  []string `json:"warnings"`
	Error     struct {
		Reason string `json:"reason"`
		Detail string `json:"detail"`
		Scope  string `json:"scope"`
	} `json:"error"`
	Discards uint64 `json:"discards_after"`
	Took     int64  `json:"took_ms"`
	Tokens   struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
		Total  int64 `json:"total_tokens"`
	} `json:"usage"`
	Priority string `json:"priority"`
	Trace    string `json:"trace_id"`
	Claimed  string `json:"claimed_run_id"`
}

// judgedStep is one step, with the run events that no operation has explained yet.
type judgedStep struct {
	*eventJudge
	cell      *cell
	in        runtime.Input
	ready     *runtime.Ready
	published []shownEvent
	asks      map[actor.CallID]int // number of asks that each run makes in this step
}

// step checks one step.
func (j *eventJudge) step(c *cell, in runtime.Input, ready *runtime.Ready) {
	s := &judgedStep{eventJudge: j, cell: c, in: in, ready: ready}
	for i := range ready.Effects {
		if p, ok := ready.Effects[i].Op.(runtime.Publish); ok {
			s.read(p.Event)
		}
	}
	for i := range ready.Events {
		s.explain(&ready.Events[i])
	}
	s.explainPiece()
	for i := range ready.Entries {
		s.explainEntry(&ready.Entries[i])
	}
	s.explainRefused()
	for i := range s.published {
		e := &s.published[i]
		s.fail("publishes %s of run %s, event %d, and does nothing like it", e.Type, e.Run, e.Seq)
	}
	s.checkRefusals()
	s.checkMeasures()
}

func (s *judgedStep) fail(format string, args ...any) {
	s.w.fail(EventsMatchSteps, fmt.Sprintf("%s, on %T, ", s.cell.self, s.in)+fmt.Sprintf(format, args...))
}

// read adds an event to the stream of its run. A number that was used before is that of an
// event that a crash has lost.
func (s *judgedStep) read(published store.RunEvent) {
	var e shownEvent
	if err := json.Unmarshal(published.Body, &e); err != nil {
		s.fail("publishes an event that is no JSON: %v", err)
		return
	}
	stream := s.streams[published.Run]
	if e.Run != published.Run.String() || e.Seq != published.Seq || e.Seq == 0 || e.Seq > uint64(len(stream))+1 {
		s.fail("publishes event %d of run %s as event %d of run %s, after event %d", e.Seq, e.Run, published.Seq, published.Run, len(stream))
		return
	}
	if len(s.ready.Events) > 0 && e.At != shownTime(s.ready.Events[0].At) {
		s.fail("publishes event %d of run %s with the time %s, want %s", e.Seq, e.Run, e.At, shownTime(s.ready.Events[0].At))
	}
	if e.run = published.Run; len(s.ready.Events) > 0 {
		e.at = s.ready.Events[0].At
	}
	s.streams[e.run] = append(stream[:e.Seq-1], e)
	s.published = append(s.published, e)
}

func shownTime(t actor.Time) string {
	return time.Unix(0, int64(t)).UTC().Format("2006-01-02T15:04:05.000000000Z")
}

// take removes an event from those to be explained. It returns nil if there is none.
func (s *judgedStep) take(run actor.CallID, t runs.Type, fits func(p *shownPayload) bool) *shownEvent {
	i := slices.IndexFunc(s.published, func(e shownEvent) bool { return e.run == run && e.Type == t.String() && fits(&e.Payload) })
	if i < 0 {
		return nil
	}
	e := s.published[i]
	s.published = slices.Delete(s.published, i, i+1)
	return &e
}

// want is take for an event that the step must publish because of the history event
// cause.
func (s *judgedStep) want(cause *history.Event, run actor.CallID, t runs.Type, fits func(p *shownPayload) bool) *shownEvent {
	e := s.take(run, t, fits)
	if e == nil {
		s.fail("publishes no %s of run %s for\n  %s", t, run, cause)
		return &shownEvent{Type: t.String()}
	}
	return e
}

func anywhere(*shownPayload) bool { return true }

// at selects the events of one ask.
func at(step uint32, index uint16) func(*shownPayload) bool {
	return func(p *shownPayload) bool { return p.Step == step && p.Index == index }
}

// same checks one field of an event.
func (s *judgedStep) same(e *shownEvent, field string, got, want any) {
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w && e.Run != "" {
		s.fail("publishes %s of run %s with the %s %.200q, want %.200q", e.Type, e.Run, field, g, w)
	}
}

// sameText checks the text of an event against the content that it shows. A text over its
// bound is truncated.
func (s *judgedStep) sameText(e *shownEvent, parts []actor.Part) {
	var b strings.Builder
	omitted, limit := false, 4<<10
	for _, p := range parts {
		if p.Blob.IsZero() && (p.Media == "text/plain" || p.Media == "application/json") {
			b.Write(p.Bytes)
		} else {
			omitted = true
		}
	}
	if e.Type == "run_done" {
		limit = 1 << 20
	}
	text, got := strings.ToValidUTF8(b.String(), "\uFFFD"), e.Payload.Text
	if b.Len() > 0 && len(text) > limit {
		if s.same(e, "truncation", e.Payload.Truncated, true); len(got) > limit-4 && len(got) <= limit && strings.HasPrefix(text, got) {
			return
		}
	} else {
		s.same(e, "truncation", e.Payload.Truncated, omitted)
	}
	s.same(e, "text", got, text)
}

func names(ids []actor.ID) (all []string) {
	for _, id := range ids {
		all = append(all, id.String())
	}
	return all
}

func lanePriority(l actor.Lane) string {
	return map[actor.Lane]string{actor.High: "high", actor.Low: "low"}[l]
}

// explain checks the run events of one history event.
func (s *judgedStep) explain(e *history.Event) {
	switch e.Kind {
	case history.Activate:
		_, before := s.reloaded[e.Actor]
		s.reloaded[e.Actor] = before
	case history.Admit:
		s.explainAdmit(e)
	case history.Start:
		s.explainStart(e)
	case history.Ask:
		s.explainAsk(e)
	case history.Refuse:
		if e.Why == "caller" {
			s.explainAsk(e)
		}
	case history.Answer:
		s.explainAnswer(e)
	case history.Reply:
		s.explainReply(e)
	case history.Hold, history.Resume:
		if e.What == "ask" {
			s.explainHold(e)
		}
	}
}

func (s *judgedStep) explainAdmit(e *history.Event) {
	s.admitted[e.Call] = *e
	if len(e.Chain) > 0 {
		return
	}
	u := s.want(e, e.Call, runs.UserInput, anywhere)
	s.same(u, "number", u.Seq, 1)
	s.same(u, "actor", u.Payload.Actor, e.Actor)
	s.same(u, "priority", u.Payload.Priority, lanePriority(e.Lane))
	if call := s.requests[e.Call]; call != nil {
		s.sameText(u, call.Parts)
		s.same(u, "principal", u.Payload.Principal, call.Principal)
		s.same(u, "origin", u.Payload.Origin, call.Origin)
		s.same(u, "project", u.Payload.Project, call.Project)
		trace := ""
		if parts := strings.Split(call.Trace, "-"); len(parts) > 1 {
			trace = parts[1]
		}
		s.same(u, "trace", u.Payload.Trace, trace)
	}
}

func (s *judgedStep) explainStart(e *history.Event) {
	r := s.want(e, e.Call, runs.RunStarted, anywhere)
	p := &r.Payload
	s.same(r, "actor", p.Actor, e.Actor)
	s.same(r, "kind", p.Kind, "waiting")
	s.same(r, "root", p.Root, e.Root)
	s.same(r, "time left", p.Left, e.Left.Milliseconds())
	a, ok := s.admitted[e.Call]
	if !ok {
		return
	}
	s.same(r, "chain", p.Chain, names(a.Chain))
	s.same(r, "depth", p.Depth, len(a.Chain))
	s.same(r, "attempt", p.Attempt, a.Attempt)
	s.same(r, "priority", p.Priority, lanePriority(a.Lane))
	parent, origin := "", actor.Human.String()
	if len(a.Chain) > 0 {
		parent, origin = a.Parent.String(), actor.Agent.String()
	}
	s.same(r, "parent", p.Parent, parent)
	if call := s.requests[e.Root]; call != nil {
		if len(a.Chain) == 0 {
			origin = call.Origin.String()
		}
		s.same(r, "principal", p.Principal, call.Principal)
		s.same(r, "project", p.Project, call.Project)
		s.same(r, "origin", p.Origin, origin)
	}
}

// explainAsk checks the events of an ask, which may have been refused or answered at once.
func (s *judgedStep) explainAsk(e *history.Event) {
	if e.What == "client" {
		return
	}
	if s.asks == nil {
		s.asks = map[actor.CallID]int{}
	}
	s.asks[e.Parent] = max(s.asks[e.Parent], e.Count)
	here, refused := at(e.Step, e.Index), e.Kind == history.Refuse
	effect := s.effectOf(e)
	switch e.What {
	case "call":
		if refused {
			r := s.want(e, e.Parent, runs.AgentCallRefused, here)
			s.sameRefusal(r, e)
			return
		}
		if e.Given > s.w.plan.Limits.AgentCallTimeoutMax {
			c := s.want(e, e.Parent, runs.TimeoutClamped, here)
			s.same(c, "requested time", c.Payload.Asked, e.Given.Milliseconds())
			s.same(c, "time left", c.Payload.Left, e.Left.Milliseconds())
		}
		c := s.want(e, e.Parent, runs.AgentCalledChild, here)
		s.same(c, "child", c.Payload.Child, e.Call)
		s.same(c, "callee", c.Payload.Actor, e.Peer)
		s.same(c, "time left", c.Payload.Left, e.Left.Milliseconds())
		s.same(c, "chain", c.Payload.Chain, names(e.Chain))
		s.same(c, "depth", c.Payload.Depth, len(e.Chain))
		if call := s.sentCall(e.Call); call != nil {
			s.sameText(c, call.Parts)
		}
	case "tool", "work":
		c := s.want(e, e.Parent, runs.ToolCallCreated, here)
		s.same(c, "kind", c.Payload.Kind, e.What)
		if a, ok := s.admitted[e.Parent]; ok {
			s.same(c, "chain", c.Payload.Chain, names(a.Chain))
			s.same(c, "depth", c.Payload.Depth, len(a.Chain))
		}
		if refused || e.Left == 0 {
			s.sameRefusal(s.want(e, e.Parent, runs.ToolResult, here), e)
			return
		}
		d := s.want(e, e.Parent, runs.ToolDispatched, here)
		s.same(d, "attempt", d.Payload.Attempt, 1)
		s.same(d, "time left", d.Payload.Left, e.Left.Milliseconds())
		s.same(d, "name", d.Payload.Name, c.Payload.Name)
		switch op := effect.(type) {
		case runtime.Tool:
			s.same(c, "name", c.Payload.Name, op.Name)
			s.sameText(c, []actor.Part{{Media: actor.MediaJSON, Bytes: op.Input}})
		case runtime.Work:
			s.same(c, "name", c.Payload.Name, op.Name)
		}
	case "model", "invoke":
		t := runs.LLMCallStarted
		if e.What == "invoke" {
			t = runs.AgentInvokeStarted
		}
		b := s.want(e, e.Parent, t, here)
		switch op := effect.(type) {
		case runtime.Model:
			s.same(b, "name", b.Payload.Name, op.Name)
		case runtime.Invoke:
			s.same(b, "name", b.Payload.Name, op.Name)
		}
		if refused || e.Left == 0 {
			s.sameRefusal(s.want(e, e.Parent, t+1, here), e)
			return
		}
		s.same(b, "time left", b.Payload.Left, e.Left.Milliseconds())
	case "wait":
		if !refused {
			o := s.want(e, e.Parent, runs.WaitOpened, here)
			s.same(o, "end", o.Payload.Until, shownTime(e.At.Add(e.Left)))
		}
	}
}

func (s *judgedStep) sameRefusal(e *shownEvent, cause *history.Event) {
	reason, scope := "", ""
	if cause.Reason != 0 {
		reason, scope = cause.Reason.String(), cause.Scope.String()
	}
	s.same(e, "reason", e.Payload.Error.Reason, reason)
	s.same(e, "scope", e.Payload.Error.Scope, scope)
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
		s.same(d, "child", d.Payload.Child, e.Call)
		s.same(d, "callee", d.Payload.Actor, e.Peer)
		if held, certain := s.heldBy(e); held || !certain {
			r := s.take(e.Parent, runs.RunResumed, func(p *shownPayload) bool { return p.Child == e.Call.String() })
			if r == nil && certain {
				s.fail("publishes no run_resumed of run %s, which %s held", e.Parent, e.Call)
			}
		}
		if m, ok := deliveredReply(s.in); ok && m.Call == e.Call && !expired {
			s.same(d, "failure", d.Payload.Status == "failed", m.Status == actor.Failed)
			s.sameText(d, m.Parts)
			s.same(d, "warnings", d.Payload.Warnings, m.Warnings)
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
			if call, ok := deliveredRequest(s.in); ok && call.Kind == actor.Signal {
				s.same(d, "name", d.Payload.Name, call.Operation)
				s.same(d, "principal", d.Payload.Principal, call.Principal)
				s.sameText(d, call.Parts)
			}
			return
		}
		d = s.want(e, e.Parent, runs.WaitExpired, here)
		s.sameRefusal(d, e)
		return
	default:
		return
	}
	s.same(d, "status", d.Payload.Status, e.Status)
	s.sameRefusal(d, e)
	s.checkTook(d)
	if o, ok := s.in.(runtime.Outcome); ok && o.ID == (actor.EffectID{Run: e.Parent, Step: e.Step, Index: e.Index}) && !expired {
		s.checkOutcome(d, e, o.Answer)
	}
}

// expires reports whether the step has answered an ask because its time was over, before
// the input.
func (s *judgedStep) expires(answer *history.Event) bool {
	return slices.ContainsFunc(s.ready.Events, func(e history.Event) bool {
		return e.Kind == history.Expire && e.Parent == answer.Parent && e.Step == answer.Step && e.Index == answer.Index
	})
}

// checkOutcome checks the event of an ask that an outcome has answered.
func (s *judgedStep) checkOutcome(d *shownEvent, e *history.Event, answer actor.Answer) {
	if e.Reason == actor.Invalid {
		return // refused: the answer is too large or not valid
	}
	var reason actor.Reason
	if answer.Refusal != nil {
		reason = answer.Refusal.Reason
	}
	if e.What == "tool" || e.What == "work" {
		s.same(d, "reason", e.Reason, reason)
		s.sameText(d, answer.Parts)
		return
	}
	if reason != 0 {
		s.same(d, "reason", e.Reason, reason)
		return
	}
	c, err := upstream.DecodeCompletion(answer.Parts[0].Bytes)
	if err != nil {
		return
	}
	s.sameText(d, actor.Text(c.Text))
	s.same(d, "usage", d.Payload.Tokens, shownPayload{}.withUsage(c.Usage).Tokens)
}

func (p shownPayload) withUsage(u upstream.Usage) shownPayload {
	p.Tokens.Input, p.Tokens.Output, p.Tokens.Total = u.Input, u.Output, u.Total
	return p
}

// checkTook checks the duration of an ask. The stamp of an ask may be later than the ask,
// by the difference of two clocks.
func (s *judgedStep) checkTook(d *shownEvent) {
	for _, e := range s.streams[d.run] {
		if e.Payload.Step == d.Payload.Step && e.Payload.Index == d.Payload.Index && e.at != 0 {
			took, elapsed := time.Duration(d.Payload.Took)*time.Millisecond, d.at.Sub(e.at)
			if took > max(elapsed, 0)+time.Millisecond || took < elapsed-s.w.plan.maxSkew()-time.Millisecond {
				s.fail("publishes %s of run %s, which took %v, want %v", d.Type, d.Run, took, elapsed)
			}
			return
		}
	}
}

func deliveredReply(in runtime.Input) (actor.Reply, bool) {
	d, ok := in.(runtime.Deliver)
	if !ok {
		return actor.Reply{}, false
	}
	m, ok := d.Envelope.Body.(actor.Answered)
	return m.Reply, ok
}

func deliveredRequest(in runtime.Input) (actor.Call, bool) {
	d, ok := in.(runtime.Deliver)
	if !ok {
		return actor.Call{}, false
	}
	m, ok := d.Envelope.Body.(actor.Request)
	return m.Call, ok
}

func (s *judgedStep) explainReply(e *history.Event) {
	t := runs.RunDone
	switch {
	case e.Status == actor.Failed && e.Reason == actor.Stopped:
		t = runs.RunCancelled
	case e.Status == actor.Failed:
		t = runs.RunFailed
	}
	d := s.want(e, e.Call, t, anywhere)
	if t != runs.RunDone {
		s.sameRefusal(d, e)
		s.same(d, "detail", d.Payload.Error.Detail, strings.ToValidUTF8(e.Detail, "\uFFFD"))
		return
	}
	s.same(d, "status", d.Payload.Status, e.Status)
	var sum shownPayload
	for _, o := range s.streams[e.Call] {
		if o.Type == runs.LLMCallDone.String() || o.Type == runs.AgentInvokeDone.String() {
			sum.Tokens.Input += o.Payload.Tokens.Input
			sum.Tokens.Output += o.Payload.Tokens.Output
			sum.Tokens.Total += o.Payload.Tokens.Total
		}
	}
	s.same(d, "usage", d.Payload.Tokens, sum.Tokens)
	for i := range s.ready.Effects {
		if r, ok := replyIn(s.ready.Effects[i].Op); ok && r.Call == e.Call && r.Refusal == nil { // another copy of the call may be refused in the same step
			s.sameText(d, r.Parts)
			s.same(d, "warnings", d.Payload.Warnings, r.Warnings)
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

// explainHold checks that a run shows when a call below it begins and ends to hold it.
func (s *judgedStep) explainHold(e *history.Event) {
	held, certain := s.heldBy(e)
	child := func(p *shownPayload) bool { return p.Child == e.Call.String() && p.Name == "held" }
	switch t := runs.RunResumed; {
	case e.Kind == history.Hold:
		if t = runs.RunPaused; held && certain {
			return
		}
		if p := s.take(e.Parent, t, child); p != nil {
			s.same(p, "end", p.Payload.Until, shownTime(e.Until))
		} else if certain {
			s.fail("publishes no run_paused of run %s, which %s holds", e.Parent, e.Call)
		}
	case held || !certain:
		if s.take(e.Parent, t, child) == nil && certain {
			s.fail("publishes no run_resumed of run %s, which %s held", e.Parent, e.Call)
		}
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
		if o.Payload.Child == e.Call.String() {
			held = o.Type == runs.RunPaused.String()
		}
	}
	return held, !s.reloaded[e.Actor]
}

// explainPiece checks the event of a streamed piece.
func (s *judgedStep) explainPiece() {
	in, ok := s.in.(runtime.Streamed)
	if !ok || slices.ContainsFunc(s.ready.Events, func(e history.Event) bool {
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
		if t != runs.Attempt { // AttemptAnnounced demands those
			s.fail("publishes no %s for a piece of run %s", t, in.ID.Run)
		}
		return
	}
	switch t {
	case runs.Attempt:
		s.checkAttempt(e)
		s.same(e, "reason", e.Payload.Error.Reason, p.Retry.Reason)
	case runs.AgentStateChanged:
		s.same(e, "name", e.Payload.Name, p.State)
		s.sameText(e, actor.Text(p.Detail))
	default:
		s.sameText(e, actor.Text(p.Text))
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
	s.same(e, "attempt", e.Payload.Attempt, want)
}

func (s *judgedStep) explainEntry(e *store.Entry) {
	switch r := e.Record.(type) {
	case store.Retried:
		if a := s.take(r.Run, runs.Attempt, at(r.Step, r.Index)); a != nil { // AttemptAnnounced demands it
			s.checkAttempt(a)
		}
	case store.Parked:
		if s.take(r.Run, runs.RunPaused, func(p *shownPayload) bool { return p.Name == "parked" && p.Child == "" }) == nil {
			s.fail("publishes no run_paused of run %s, which it parks", r.Run)
		}
	}
}

// explainRefused removes the events of asks that an agent's own rules refused. They follow
// the asks of the action.
func (s *judgedStep) explainRefused() {
	s.published = slices.DeleteFunc(s.published, func(e shownEvent) bool {
		p := &e.Payload
		if int(p.Index) < s.asks[e.run] {
			return false
		}
		refused := func(o shownEvent) bool {
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

// checkRefusals checks that a message refused as Busy, which was never admitted, has a
// history event with the same reason.
func (s *judgedStep) checkRefusals() {
	if _, forwarded := deliveredReply(s.in); forwarded {
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

// checkMeasures compares the figures for statistics with the operations of the step.
func (s *judgedStep) checkMeasures() {
	var got, want [runtime.MeasureOutstanding + 1]int
	var gotRuns, wantRuns []string
	for i := range s.ready.Measures {
		m := &s.ready.Measures[i]
		if got[m.Kind]++; m.Kind == runtime.MeasureRun {
			gotRuns = append(gotRuns, fmt.Sprint(m.Name, " ", m.Reason))
		}
		if m.Took < 0 {
			s.fail("measures a duration of %v", m.Took)
		}
	}
	for i := range s.ready.Events {
		switch e := &s.ready.Events[i]; {
		case e.Kind == history.Reply:
			want[runtime.MeasureRun]++
			wantRuns = append(wantRuns, fmt.Sprint(e.Actor.Agent, " ", e.Reason))
		case e.Kind == history.Cancel, e.Kind == history.Answer && e.What == "call":
			want[runtime.MeasureCall]++
		case e.Kind == history.Answer && e.What == "model":
			want[runtime.MeasureModel]++
		case e.Kind == history.Answer && e.What == "wait":
			want[runtime.MeasureWait]++
		}
	}
	got[runtime.MeasureTool], got[runtime.MeasureOutstanding] = 0, 0 // a tool may be measured as a call too
	if got != want || !slices.Equal(gotRuns, wantRuns) {
		s.fail("measures %v %v, want %v %v", got, gotRuns, want, wantRuns)
	}
}
