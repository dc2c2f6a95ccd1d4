// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
)

// historyJudge checks the fields of history events. The first event of a call or an ask
// determines its caller, callee, tree and kind, and all later ones have the same. Specs use
// a few of these fields only; the others are read by people and by tla/Trace.tla.
type historyJudge struct {
	calls    map[actor.CallID]madeCall
	asks     map[actor.EffectID]madeAsk
	steps    map[activeRun]uint32 // number of steps with asks of a turn that began in this activation
	answered map[cellRun]bool     // calls of clients that have their reply
}

// activeRun is a run in one activation of its actor.
type activeRun struct {
	cellRun
	epoch actor.Epoch
}

// madeCall is a call as it was made.
type madeCall struct {
	caller, callee actor.ID // caller is zero if a client made the call
	parent, root   actor.CallID
}

// madeAsk is an ask as it was made.
type madeAsk struct {
	actor, peer actor.ID
	call, root  actor.CallID
	what        string
}

func newHistoryJudge() historyJudge {
	return historyJudge{map[actor.CallID]madeCall{}, map[actor.EffectID]madeAsk{}, map[activeRun]uint32{}, map[cellRun]bool{}}
}

// checkHistory checks the events of the step. An event that ends a sleep follows the
// expiry of its ask in the same step.
func (s *judgedStep) checkHistory() {
	var expired []actor.EffectID
	delivered := false
	sent := map[sentMessage]bool{} // by an actor of the cell in this step
	for i := range s.ready.Events {
		e := &s.ready.Events[i]
		if e.Kind == history.Append {
			continue
		}
		ask := actor.EffectID{Run: e.Parent, Step: e.Step, Index: e.Index}
		field(s, e, "cell", e.From, s.cell.self)
		switch e.Kind {
		case history.Activate, history.Deactivate, history.Queue, history.Probe, history.ProbeHome, history.Confirm, history.RefuseWaitCycle,
			history.Reprobe, history.Admit, history.Start, history.Reply, history.Expire, history.Cancel, history.Answer, history.Hold, history.Resume:
			s.present(e, "actor and epoch", e.Actor != (actor.ID{}) && e.Epoch != 0)
		}
		switch e.Kind {
		case history.Ask:
			if e.What == "client" {
				c := madeCall{callee: e.Peer, root: e.Call}
				if call := s.arrivingCall(); call != nil && call.ID == e.Call {
					c.parent = call.Parent // the run to which a signal is addressed
				}
				s.history.calls[e.Call] = c
				delete(s.history.answered, cellRun{s.cell.self, e.Call})
				s.present(e, "callee, root and time left", e.Peer != (actor.ID{}) && e.Root == e.Call && e.Left > 0)
				break
			}
			s.history.asks[ask] = madeAsk{e.Actor, e.Peer, e.Call, e.Root, e.What}
			s.recordAsk(e)
			if e.What == "call" {
				s.history.calls[e.Call] = madeCall{caller: e.Actor, callee: e.Peer, parent: e.Parent, root: e.Root}
			}
			s.present(e, "call and callee, if it is one", (e.What == "call") == !e.Call.IsZero() && (e.What == "call") == (e.Peer != (actor.ID{})))
		case history.Detach:
			s.history.calls[e.Call] = madeCall{caller: e.Actor, callee: e.Peer, parent: e.Parent, root: e.Root}
			s.present(e, "call, callee and time left", !e.Call.IsZero() && e.Peer != (actor.ID{}) && e.Left > 0)
		case history.Settle:
			s.present(e, "call, run and outcome", !e.Call.IsZero() && !e.Root.IsZero() && e.What != "")
		case history.Late:
			s.present(e, "call and outcome", !e.Call.IsZero() && e.What != "")
		case history.Refuse:
			s.checkRefuse(e)
		case history.Send:
			s.checkSend(e)
			sent[sentMessage{e.Call, e.What}] = true
		case history.Deliver:
			input := !delivered && !sent[sentMessage{e.Call, e.What}] // a timer fires before the input is handled, and may end a call within the cell
			s.checkDelivered(e, input)
			delivered = delivered || input
		case history.Drop:
			s.present(e, "call, message and cause", !e.Call.IsZero() && e.What != "" && e.Why != "")
		case history.Admit:
			delete(s.history.steps, activeRun{cellRun{s.cell.self, e.Call}, e.Epoch}) // a volatile actor may admit a call again
			s.checkArrival(e)
			s.checkMade(e, true)
			s.present(e, "time left and lane", e.Left > 0 && e.Lane != 0)
		case history.Queue, history.RefuseWaitCycle:
			s.present(e, "call and the run above or before it", !e.Call.IsZero() && !e.Parent.IsZero())
		case history.Start, history.Reply:
			if a, ok := s.admitted[e.Call]; ok {
				field(s, e, "actor", e.Actor, a.Actor)
				field(s, e, "parent", e.Parent, a.Parent)
				field(s, e, "root", e.Root, a.Root)
			}
			run := activeRun{cellRun{s.cell.self, e.Call}, e.Epoch}
			if e.Kind == history.Start {
				s.history.steps[run] = 0
			} else if steps, ok := s.history.steps[run]; ok {
				field(s, e, "number of steps", e.Step, steps)
			}
		case history.Answer:
			s.checkOfAsk(e, ask)
			if e.What == "sleep" && !slices.Contains(expired, ask) {
				s.fail("answers a sleep that has not expired\n  %s", e)
			}
		case history.Expire:
			if e.What == "run" {
				field(s, e, "initial time left", e.Given, s.admitted[e.Call].Left)
				break
			}
			expired = append(expired, ask)
			s.checkOfAsk(e, ask)
		case history.Cancel:
			s.checkMade(e, false)
			field(s, e, "callee", e.Peer, s.history.calls[e.Call].callee)
		case history.Hold, history.Resume:
			s.present(e, "call and ordinal", !e.Call.IsZero() && e.N > 0 && (e.Kind == history.Hold) == (e.Until > 0))
			if e.What == "ask" {
				s.checkMade(e, false)
			}
		}
	}
	for i := range s.ready.Effects {
		if r, ok := s.ready.Effects[i].Op.(runtime.Respond); ok && r.HeldUntil == 0 {
			s.history.answered[cellRun{s.cell.self, r.Reply.Call}] = true
		}
	}
}

// field checks one field of a history event.
func field[T comparable](s *judgedStep, e *history.Event, name string, got, want T) {
	if got != want {
		s.fail("records an event with the %s %.200q, want %.200q\n  %s", name, fmt.Sprint(got), fmt.Sprint(want), e)
	}
}

// present checks fields of a history event that the judge cannot compute.
func (s *judgedStep) present(e *history.Event, names string, ok bool) {
	if !ok {
		s.fail("records an event without valid %s\n  %s", names, e)
	}
}

// recordAsk checks the position of an ask and counts the steps of its run.
func (s *judgedStep) recordAsk(e *history.Event) {
	s.present(e, "position", !e.Parent.IsZero() && int(e.Index) < e.Count)
	run := activeRun{cellRun{s.cell.self, e.Parent}, e.Epoch}
	if _, ok := s.history.steps[run]; ok {
		s.history.steps[run] = e.Step
	}
	if a, ok := s.admitted[e.Parent]; ok {
		field(s, e, "actor", e.Actor, a.Actor)
		field(s, e, "root", e.Root, a.Root)
	}
}

// checkMade checks an event at the callee or at the caller of a call.
func (s *judgedStep) checkMade(e *history.Event, atCallee bool) {
	c, ok := s.history.calls[e.Call]
	if !ok {
		return
	}
	at := c.caller
	if atCallee {
		at = c.callee
		field(s, e, "root", e.Root, c.root)
	}
	field(s, e, "actor", e.Actor, at)
	field(s, e, "parent", e.Parent, c.parent)
}

// checkOfAsk checks an event of an ask that was made before.
func (s *judgedStep) checkOfAsk(e *history.Event, id actor.EffectID) {
	a, ok := s.history.asks[id]
	if !ok {
		s.fail("records an event of an ask that was not made\n  %s", e)
		return
	}
	field(s, e, "actor", e.Actor, a.actor)
	field(s, e, "call", e.Call, a.call)
	field(s, e, "kind of ask", e.What, a.what)
	if e.Kind == history.Answer {
		field(s, e, "callee", e.Peer, a.peer)
		field(s, e, "root", e.Root, a.root)
	}
}

// checkArrival checks the attempt of a call. A call that waited for its actor to load
// arrived in an earlier step.
func (s *judgedStep) checkArrival(e *history.Event) {
	s.present(e, "attempt", e.Attempt > 0)
	if call := s.arrivingCall(); call != nil && call.ID == e.Call {
		field(s, e, "attempt", e.Attempt, max(call.Attempt, 1))
	}
}

// arrivingCall returns the call in the input of the step, or nil.
func (s *judgedStep) arrivingCall() *actor.Call {
	switch in := s.in.(type) {
	case *runtime.Visit:
		return &in.Call
	case runtime.Deliver:
		if r, ok := in.Envelope.Body.(actor.Request); ok {
			return &r.Call
		}
	}
	return nil
}

// checkRefuse checks a refusal by a caller, by a callee or of a client. The latter two
// leave the step as a reply, unless the client has one: its deadline has passed.
func (s *judgedStep) checkRefuse(e *history.Event) {
	s.present(e, "reason and detail", e.Reason != 0 && e.Detail != "" && (e.Reason == actor.Busy || e.Scope == 0))
	switch e.Why {
	case "caller":
		s.recordAsk(e)
		return
	case "callee":
		s.checkArrival(e)
		if c, ok := s.history.calls[e.Call]; ok && !c.parent.IsZero() {
			field(s, e, "parent", e.Parent, c.parent)
			s.present(e, "chain", (len(e.Chain) > 0) == (c.caller != actor.ID{}))
		}
	}
	sent := s.history.answered[cellRun{s.cell.self, e.Call}] || slices.ContainsFunc(s.ready.Events, func(o history.Event) bool {
		return o.Kind == history.Send && o.What == "answered" && o.Call == e.Call
	})
	for i := range s.ready.Effects {
		r, ok := replyIn(s.ready.Effects[i].Op)
		sent = sent || ok && r.Call == e.Call && r.Refusal != nil
	}
	ofCell := !s.history.calls[e.Call].parent.IsZero() || e.Actor.Agent == actor.AccountAgent // no turn makes the calls of an account
	s.present(e, "reply", sent || e.Why == "callee" && ofCell)
}

// checkSend checks the sender and the addressee of a message.
func (s *judgedStep) checkSend(e *history.Event) {
	s.present(e, "call and message", !e.Call.IsZero() && e.What != "")
	c, ok := s.history.calls[e.Call]
	if !ok {
		return
	}
	switch e.What {
	case "request":
		s.present(e, "attempt and time left", e.Attempt > 0 && e.Left > 0)
		field(s, e, "addressee", e.Peer, c.callee)
		field(s, e, "parent", e.Parent, c.parent)
		field(s, e, "sender", e.Actor, c.caller)
	case "cancel":
		field(s, e, "addressee", e.Peer, c.callee)
	case "answered":
		field(s, e, "addressee", e.Peer, c.caller)
		field(s, e, "sender", e.Actor, c.callee)
	}
}

// deliveredMessage is what an event says of a message.
type deliveredMessage struct {
	call    actor.CallID
	name    string
	to      actor.ID
	epoch   actor.Epoch
	durable bool
}

// sentMessage identifies a message within a step.
type sentMessage struct {
	call actor.CallID
	name string
}

// checkDelivered checks the delivery of a message, which is the input of the step or was sent in it.
func (s *judgedStep) checkDelivered(e *history.Event, input bool) {
	s.present(e, "call and message", !e.Call.IsZero() && e.What != "")
	switch in := s.in.(type) {
	case runtime.Deliver:
		if m := &in.Envelope; input {
			field(s, e, "message", deliveredMessage{e.Call, e.What, e.Actor, e.Epoch, e.Durable}, deliveredMessage{m.Body.Subject(), m.Body.Name(), m.To, m.Epoch, m.Durable})
			return
		}
	case *runtime.Visit:
		if input {
			field(s, e, "message", deliveredMessage{call: e.Call, name: e.What, to: e.Actor}, deliveredMessage{call: in.Call.ID, name: "request", to: in.Call.To})
			return
		}
	}
	s.present(e, "actor and epoch", e.Actor != (actor.ID{}) && e.Epoch != 0)
}
