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
)

// eventJudge checks the run events that a step publishes against the history events, the
// input, the entries and the effects of the step: each operation of a run has its events,
// and each event has its operation. It decodes the events as their readers do.
type eventJudge struct {
	w        *Simulation
	streams  map[actor.CallID][]*shownEvent // events of each run so far
	admitted map[actor.CallID]history.Event // by call
	requests map[actor.CallID]*actor.Call   // requests of clients
	reloaded map[actor.ID]bool              // actors that were activated before: a crash may have lost events of their runs
	silent   map[cellRun]bool               // admitted runs of volatile actors without a subscriber: they publish nothing
	history  historyJudge
	absent   map[actor.CallID]bool // runs whose turns have begun without a step, because their agent is absent
}

func newEventJudge(w *Simulation) *eventJudge {
	return &eventJudge{w, map[actor.CallID][]*shownEvent{}, map[actor.CallID]history.Event{}, map[actor.CallID]*actor.Call{}, map[actor.ID]bool{}, map[cellRun]bool{}, newHistoryJudge(), map[actor.CallID]bool{}}
}

// cellRun is a run in one incarnation of a cell.
type cellRun struct {
	cell actor.Address
	run  actor.CallID
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
	Approval  string   `json:"approval_id"`
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
	Key      string `json:"key_id"`
	Request  string `json:"request_id"`
}

// judgedStep is one step, with the run events that no operation has explained yet.
type judgedStep struct {
	*eventJudge
	cell      *cell
	in        runtime.Input
	ready     *runtime.Ready
	now       string // time of the step as its readers see it; "": the step has no events
	published []*shownEvent
	asks      map[stepOfRun]int // number of asks of each step that runs take now; a refused step is followed by the next one at once
}

// deriveEvents replaces the events that a step publishes by number with those that their
// readers derive from its entries.
func (w *Simulation) deriveEvents(ready *runtime.Ready) {
	if len(ready.Entries) == 0 || !slices.ContainsFunc(ready.Effects, isNumbered) {
		return
	}
	effects := make([]runtime.Effect, 0, len(ready.Effects))
	last := map[actor.CallID]uint64{} // first number of the last entry of each run
	for _, effect := range ready.Effects {
		if !isNumbered(effect) {
			effects = append(effects, effect)
			continue
		}
		p := effect.Op.(runtime.Publish)
		for i := range ready.Entries {
			e := &ready.Entries[i]
			if e.Shown.N == 0 || e.EventRun() != p.Event.Run || e.Shown.Seq > p.Event.Seq || e.Shown.Seq <= last[p.Event.Run] {
				continue
			}
			last[p.Event.Run] = e.Shown.Seq
			stored, err := *e, error(nil)
			if w.auditEnabled() {
				stored, err = store.DecodeEntry(store.EncodeEntry(*e))
			}
			events, _ := stored.AllEvents()
			if err != nil || len(events) == 0 {
				w.fail(EventsMatchSteps, fmt.Sprintf("entry %d of %s has no events: %v", e.N, e.Actor, err))
			}
			for _, event := range events {
				effect.Op = runtime.Publish{Event: event}
				effects = append(effects, effect)
			}
		}
	}
	ready.Effects = effects
}

// isNumbered reports whether an effect publishes events of an entry by their number.
func isNumbered(e runtime.Effect) bool {
	p, ok := e.Op.(runtime.Publish)
	return ok && p.Event.Body == nil
}

// stepOfRun names a step of a run.
type stepOfRun struct {
	run  actor.CallID
	step uint64
}

// step checks one step.
func (j *eventJudge) step(c *cell, in runtime.Input, ready *runtime.Ready) {
	s := &judgedStep{eventJudge: j, cell: c, in: in, ready: ready}
	for i := range ready.Effects {
		if p, ok := ready.Effects[i].Op.(runtime.Publish); ok {
			s.read(p.Event)
		}
	}
	if len(s.published) > 0 {
		j.w.Stats.Audit.EventsMatchSteps++
	}
	for i := range ready.Events {
		s.explain(&ready.Events[i])
	}
	s.explainPiece()
	s.explainRepeat()
	for i := range ready.Entries {
		s.explainEntry(&ready.Entries[i])
	}
	s.explainRefused()
	for _, e := range s.published {
		s.fail("publishes %s of run %s, event %d, and does nothing like it", e.Type, e.Run, e.Seq)
	}
	s.checkRefusals()
	s.checkLocal()
	s.checkHistory()
	s.checkMeasures()
}

func (s *judgedStep) fail(format string, args ...any) {
	s.w.fail(EventsMatchSteps, fmt.Sprintf("%s, on %T, ", s.cell.self, s.in)+fmt.Sprintf(format, args...))
}

// read adds an event to the stream of its run. A number that was used before is that of an
// event that a crash has lost.
func (s *judgedStep) read(published store.RunEvent) {
	e := new(shownEvent)
	if err := json.Unmarshal(published.Body, e); err != nil {
		s.fail("publishes an event that is no JSON: %v", err)
		return
	}
	stream := s.streams[published.Run]
	if e.Run != published.Run.String() || e.Seq != published.Seq || e.Seq == 0 || e.Seq > uint64(len(stream))+1 {
		s.fail("publishes event %d of run %s as event %d of run %s, after event %d", e.Seq, e.Run, published.Seq, published.Run, len(stream))
		return
	}
	if s.now == "" && len(s.ready.Events) > 0 {
		s.now = shownTime(s.ready.Events[0].At)
	}
	if s.now != "" && e.At != s.now {
		s.fail("publishes event %d of run %s with the time %s, want %s", e.Seq, e.Run, e.At, s.now)
	}
	if e.run = published.Run; len(s.ready.Events) > 0 {
		e.at = s.ready.Events[0].At
	}
	s.streams[e.run] = append(stream[:e.Seq-1], e)
	s.published = append(s.published, e)
	s.checkWorkflow(e)
}

func shownTime(t actor.Time) string {
	return time.Unix(0, int64(t)).UTC().Format("2006-01-02T15:04:05.000000000Z")
}

// recordSubscriptions records which of the runs admitted in a step publish their events. If
// events are published on demand, a run of a volatile actor does so only if its client
// subscribed before the call arrived, and the cell of that client admits it.
func (j *eventJudge) recordSubscriptions(c *cell, in runtime.Input, events []history.Event) {
	if !j.w.plan.OnDemand {
		return
	}
	for i := range events {
		e := &events[i]
		if e.Kind != history.Admit {
			continue
		}
		if e.Durable { // admitted again, after the agent became journaled
			delete(j.silent, cellRun{c.self, e.Call})
			continue
		}
		v, ok := in.(*runtime.Visit)
		subscribed := ok && v.Subscribed && v.Call.ID == e.Call
		j.w.Stats.Points[[...]Point{NothingPublished, PublishedOnDemand}[boolIndex(subscribed)]]++
		j.silent[cellRun{c.self, e.Call}] = !subscribed
	}
}

// isSilent reports whether a run in a cell publishes nothing.
func (j *eventJudge) isSilent(c *cell, run actor.CallID) bool { return j.silent[cellRun{c.self, run}] }

// take removes an event from those to be explained. It returns nil if there is none.
func (s *judgedStep) take(run actor.CallID, t runs.Type, fits func(p *shownPayload) bool) *shownEvent {
	if s.isSilent(s.cell, run) {
		return nil
	}
	i := slices.IndexFunc(s.published, func(e *shownEvent) bool { return e.run == run && e.Type == t.String() && fits(&e.Payload) })
	if i < 0 {
		return nil
	}
	e := s.published[i]
	s.published = slices.Delete(s.published, i, i+1)
	return e
}

// want is take for an event that the step must publish because of the history event
// cause, unless the run publishes nothing.
func (s *judgedStep) want(cause *history.Event, run actor.CallID, t runs.Type, fits func(p *shownPayload) bool) *shownEvent {
	e := s.take(run, t, fits)
	if e == nil && s.isSilent(s.cell, run) {
		return &shownEvent{Type: t.String()}
	}
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
func same[T comparable](s *judgedStep, e *shownEvent, field string, got, want T) {
	if got != want && e.Run != "" {
		s.fail("publishes %s of run %s with the %s %.200q, want %.200q", e.Type, e.Run, field, fmt.Sprint(got), fmt.Sprint(want))
	}
}

// sameList checks a field that is a list.
func sameList(s *judgedStep, e *shownEvent, field string, got, want []string) {
	if !slices.Equal(got, want) {
		same(s, e, field, fmt.Sprint(got), fmt.Sprint(want))
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
		if same(s, e, "truncation", e.Payload.Truncated, true); len(got) > limit-4 && len(got) <= limit && strings.HasPrefix(text, got) {
			return
		}
	} else {
		same(s, e, "truncation", e.Payload.Truncated, omitted)
	}
	same(s, e, "text", got, text)
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
		switch e.What {
		case "ask":
			s.explainHold(e)
		case "approval":
			s.explainDecision(e)
		case history.Parked:
			if e.Why == history.Queued {
				if e.Kind == history.Resume && s.absent[e.Call] && !s.starts(e.Call) {
					s.take(e.Call, runs.RunStarted, anywhere)
				}
				break
			}
			t := runs.RunPaused
			if e.Kind == history.Resume {
				t = runs.RunResumed
			}
			s.want(e, e.Call, t, func(p *shownPayload) bool { return p.Name == history.Parked && p.Child == "" })
			if e.Kind == history.Resume && len(s.ready.Entries) == 0 { // a volatile actor repeats its effects without a record
				for s.take(e.Call, runs.Attempt, anywhere) != nil {
				}
			}
		}
	}
}

func (s *judgedStep) explainEntry(e *store.Entry) {
	if r, ok := e.Record.(store.Retried); ok {
		if a := s.take(r.Run, runs.Attempt, at(r.Step, r.Index)); a != nil { // AttemptAnnounced demands it
			s.checkAttempt(a)
		}
	}
	if r, ok := e.Record.(store.Ended); ok && r.Reply.Extensions.LeftOut() && !s.isSilent(s.cell, r.Call) {
		if s.take(r.Call, runs.MessageLeftOut, func(p *shownPayload) bool { return p.Name == r.Call.String()+".0" }) == nil {
			s.fail("publishes no %s of run %s", runs.MessageLeftOut, r.Call)
		}
	}
}
