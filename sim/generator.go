// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// generator draws the messages of clients.
type generator struct {
	w          *Simulation
	tenant     string // namespace of the client
	singleLine bool   // the message must fit into one line of another message
}

// newGenerator draws the namespace of a client.
func newGenerator(w *Simulation) generator {
	return generator{w: w, tenant: namespaces{w}.drawNamespace()}
}

// target draws the actor that receives a message.
func (d generator) target() actor.ID {
	w := d.w
	if w.team != nil {
		to, _ := d.drawTeamAsk()
		return to
	}
	def := &w.plan.Agents[w.entropy.Int(w.plan.Targets)]
	return d.actor(def.Name, w.drawKey())
}

// actor returns an actor in the namespace of the client.
func (d generator) actor(agent, key string) actor.ID {
	return actor.ID{Tenant: d.tenant, Agent: agent, Key: key}
}

// drawKey draws the key of an actor.
func (w *Simulation) drawKey() string { return keyOf(w.entropy.Int(w.plan.Keys)) }

// keyOf returns a key of actors. Actors under the first one belong to no session, so their
// shards differ.
func keyOf(i int) string {
	if i == 0 {
		return actor.DefaultKey
	}
	return "s" + strconv.Itoa(i)
}

// script draws a script for an actor, with calls nested at most levels deep.
func (d generator) script(levels int, self string) script {
	w := d.w
	var s script
	if levels < 4 && w.faultFires(AgentPanic) && w.acts(AgentPanic) {
		return script{{{verb: "panic"}}}
	}
	for range 1 + w.entropy.Int(3) {
		n := 1
		if w.entropy.Int(4) == 3 {
			n = 2 + w.entropy.Int(2)
		}
		var st scriptStep
		for range n {
			st = append(st, d.instruction(levels, self))
		}
		s = append(s, st)
	}
	if slices.ContainsFunc(s, func(st scriptStep) bool {
		return slices.ContainsFunc(st, func(o instruction) bool { return o.verb == "send" || o.verb == "remind" || o.verb == "debate" })
	}) {
		for range w.entropy.Int(3) {
			s = append(s, scriptStep{{verb: "sleep", ms: 1 + w.entropy.Int(3000)}}, scriptStep{{verb: "poll"}})
		}
	}
	switch w.entropy.Int(24) {
	case 21: // more steps than some limits allow
		for range 12 {
			s = append(s, scriptStep{{verb: "sleep", ms: 1}})
		}
	case 22:
		s = append(s, scriptStep{{verb: "big", ms: 1 + w.entropy.Int(8)}})
	case 23:
		s = append(s, scriptStep{[...]instruction{{verb: "fail"}, {verb: "odd", ms: w.entropy.Int(len(invalidAsks))}, {verb: "end", ms: w.entropy.Int(len(invalidOutcomes))}}[w.entropy.Int(3)]})
	}
	return s
}

// instruction draws an instruction of a script. It is a call in 6 of 10 cases, and never if
// levels is 0.
func (d generator) instruction(levels int, self string) instruction {
	w := d.w
	if w.approvals.on && w.entropy.Int(6) == 5 {
		return w.approvals.instruction()
	}
	if w.detached.on && levels > 0 && w.entropy.Int(5) == 4 {
		return d.detachedCall(levels, self)
	}
	if levels > 0 && w.entropy.Int(10) >= 4 {
		return d.call(levels, self)
	}
	switch w.entropy.Int(9) {
	case 0, 1, 2:
		return instruction{verb: "sleep", ms: w.entropy.Int(200)}
	case 3:
		return instruction{verb: "tool", name: "clock"}
	case 4:
		return instruction{verb: "tool", name: "post"}
	case 5:
		return instruction{verb: "once", name: "o", ms: 1}
	case 6:
		switch w.entropy.Int(8) {
		case 5, 6:
			return instruction{verb: "wait", ms: 100 + w.entropy.Int(6000)}
		case 7:
			return instruction{verb: "bad", ms: w.entropy.Int(len(postInputs))}
		}
	}
	return instruction{verb: "work", name: "w", ms: 1}
}

// call draws a call instruction with a message for the callee. Some callees do not exist,
// and some time limits exceed the maximum.
func (d generator) call(levels int, self string) instruction {
	w := d.w
	o := instruction{verb: "call", name: w.plan.Agents[w.entropy.Int(w.plan.Targets)].Name}
	if o.name == self && w.entropy.Int(8) > 0 {
		o.name = w.plan.Agents[w.entropy.Int(w.plan.Targets)].Name
	}
	if w.entropy.Int(4) == 3 {
		o.name += "/" + w.drawKey()
	}
	switch w.entropy.Int(12) {
	case 8, 9, 10:
		o.ms = 1 + w.entropy.Int(3000)
	case 11:
		o.ms = 3_600_000 // more than any call gets
	}
	if w.entropy.Int(40) == 39 {
		o.name = [...]string{"ghost", agents.RegistryID.String()}[w.entropy.Int(2)]
	}
	o.script = d.message(levels-1, o.name)
	if agent, _, _ := strings.Cut(o.name, "/"); !d.singleLine || w.agentKind(agent) == actor.Native {
		o.script = namespaces{w}.mark(d.actor(agent, actor.DefaultKey), o.script)
	}
	return o
}
