// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/signals"
)

// conversations is the part of a simulation that holds conversations.
type conversations struct{ *Simulation }

// conversation is a person who sends several messages to one actor, sometimes two at once,
// while an operator appends others to its transcript.
type conversation struct {
	generator
	to       actor.ID
	messages int // still to be sent
	text     func() string
	gapMax   time.Duration // between two messages
}

// Lengths of conversations. A long one fills a page with the number of its messages, a large
// one with the size of their answers.
const (
	longConversation  = 36
	largeConversation = 6
	largeAnswerKiB    = 60
)

// startConversation starts a conversation. Two of eight are long, and one is large.
func (w conversations) startConversation() {
	if w.plan.Plain || w.team != nil {
		return
	}
	d := newGenerator(w.Simulation)
	c := &conversation{generator: d, to: d.target(), messages: 2 + w.entropy.Int(6), gapMax: 2 * time.Second}
	c.text = func() string { return d.message(2, c.to.Agent) }
	if w.hasRegistry() && w.entropy.Int(8) == 7 {
		c.to.Agent = registeredAgents[w.entropy.Int(len(registeredAgents))].name
	}
	switch w.entropy.Int(8) {
	case 5, 6:
		if w.entropy.Int(4) < 3 { // the messages of others need many steps
			c.useNative()
		}
		c.messages, c.gapMax = longConversation+w.entropy.Int(8), 100*time.Millisecond
		c.text = func() string { return w.trivialMessage(c.to.Agent) }
	case 7:
		c.useNative()
		c.messages = largeConversation
		c.text = func() string { return instruction{verb: "big", ms: largeAnswerKiB}.String() }
	}
	c.next()
}

// useNative replaces the actor by one with a journal whose agent runs scripts, if there is one.
func (c *conversation) useNative() {
	for _, name := range agentNames {
		if slices.ContainsFunc(c.w.plan.Agents, func(d actor.Definition) bool { return d.Name == name && d.Durability == actor.Journaled }) {
			c.to.Agent = name
			return
		}
	}
}

// next sends the next message, and schedules the one after it.
func (c *conversation) next() {
	w := conversations{c.w}
	if w.recovering || c.messages == 0 {
		return
	}
	c.messages--
	if w.entropy.Int(3) == 2 {
		w.appendMessage(c.to)
	}
	message := w.addClient(c.to, c.text(), time.Duration(2+w.entropy.Int(10))*time.Second)
	message.busy = w.drawBusyPolicy(8)
	w.submit(message)
	gap := w.between(0, c.gapMax)
	if w.entropy.Int(4) == 3 {
		gap = 0
	}
	w.after(gap, c.next)
}

// drawBusyPolicy draws the effect of a message on open runs: in two of n cases, they refuse it
// or are interrupted.
func (w conversations) drawBusyPolicy(n int) actor.BusyPolicy {
	return [...]actor.BusyPolicy{actor.BusyInterrupt, actor.BusyReject, actor.BusyQueue}[min(n-1-w.entropy.Int(n), 2)]
}

// judgeBusyReply checks the refusal of a message because a run is open.
func (w conversations) judgeBusyReply(c *client, reply *actor.Reply) {
	if reply.Refusal == nil || reply.Refusal.Field != actor.BusyField {
		return
	}
	w.Stats.Points[BusyRejected]++
	if c.busy != actor.BusyReject || reply.Refusal.Reason != actor.Rejected {
		w.transcripts.fail("message of client %d to %s with if_busy %s is refused: %v", c.no, c.to, c.busy, reply.Refusal)
	}
}

// appendTriesMax is the maximum number of attempts to append a message.
const appendTriesMax = 4

// appendMessage appends a message to the transcript of an actor, as an operator does. One in
// eight has no role, and MUST be refused.
func (w conversations) appendMessage(to actor.ID) {
	call := actor.Call{ID: w.newCallID(), To: to, Kind: actor.Signal, Operation: signals.OpAppend, Lane: actor.Normal, Left: 10 * time.Second,
		Attempt: 1, Principal: "operator", Origin: actor.Human}
	call.Root = call.ID
	call.Parts = actor.Text(fmt.Sprintf("note %s for %s", call.ID.Short(), namespaceMarker(to.Tenant)))
	if role := w.entropy.Int(8); role < 7 {
		call.SetRole([...]actor.Role{actor.RoleSystem, actor.RoleUser, actor.RoleAssistant, actor.RoleTool}[role%4])
	}
	w.sendAppend(call, 1)
}

// sendAppend sends a message to be appended. It is sent again if the reply is lost, and
// sometimes twice: it MUST be appended once.
func (w conversations) sendAppend(call actor.Call, try int) {
	n := w.drawNode()
	if n == nil {
		return
	}
	w.log.note(w.now, "operator appends to %s through %s: %s", call.To, n.id, actor.TextOf(call.Parts))
	w.submitCall(n, call, func(reply *actor.Reply) {
		switch {
		case reply != nil:
			w.judgeAppended(&call, reply)
		case try < appendTriesMax && !w.recovering:
			w.after(w.between(time.Millisecond, time.Second), func() { w.sendAppend(call, try+1) })
		}
	})
	if other := w.drawNode(); other != nil && other != n && w.entropy.Int(4) == 3 { // a node has at most one waiter per call
		w.submitCall(other, call, func(reply *actor.Reply) {
			if reply != nil {
				w.judgeAppended(&call, reply)
			}
		})
	}
}

// judgeAppended checks the reply to an operator.
func (w conversations) judgeAppended(call *actor.Call, reply *actor.Reply) {
	namespaces(w).checkReplyApart(call.To.Tenant, "an operator", reply)
	switch r := reply.Refusal; {
	case r == nil && call.AppendedRole() == 0:
		w.transcripts.fail("message %s without a role is appended to %s", call.ID, call.To)
	case r == nil:
		w.transcripts.acknowledged(call.To, reply)
	case r.Reason == actor.Rejected && !w.isVolatile(call.To.Agent):
		w.transcripts.fail("message %s is not appended to %s: %v", call.ID, call.To, r)
	}
}
