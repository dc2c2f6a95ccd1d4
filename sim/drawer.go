// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"

	"github.com/troupe-run/troupe/actor"
)

// drawer draws what clients ask.
type drawer struct {
	w      *World
	inLine bool // it has to fit into one line of another message
}

func (d drawer) target() actor.ID {
	w := d.w
	if w.team != nil {
		to, _ := d.teamAsk()
		return to
	}
	def := &w.plan.Agents[w.choose.Int(w.plan.Targets)]
	return actor.NewID(def.Name, "s"+strconv.Itoa(w.choose.Int(w.plan.Keys)))
}

// script draws what an actor is told, with at most so many levels of calls below.
func (d drawer) script(levels int, self string) script {
	w := d.w
	var s script
	if levels < 4 && w.fault(AgentPanic) {
		return script{{{verb: "panic"}}}
	}
	for range 1 + w.choose.Int(3) {
		n := 1
		if w.choose.Int(4) == 3 {
			n = 2 + w.choose.Int(2)
		}
		var st step
		for range n {
			st = append(st, d.one(levels, self))
		}
		s = append(s, st)
	}
	switch w.choose.Int(24) {
	case 22:
		s = append(s, step{{verb: "big", ms: 1 + w.choose.Int(8)}})
	case 23:
		s = append(s, step{[...]one{{verb: "fail"}, {verb: "odd", ms: w.choose.Int(len(oddAsks))}, {verb: "end", ms: w.choose.Int(len(oddEnds))}}[w.choose.Int(3)]})
	}
	return s
}

func (d drawer) one(levels int, self string) one {
	w := d.w
	if levels > 0 && w.choose.Int(10) >= 4 {
		return d.call(levels, self)
	}
	switch w.choose.Int(9) {
	case 0, 1, 2:
		return one{verb: "sleep", ms: w.choose.Int(200)}
	case 3:
		return one{verb: "tool", name: "clock"}
	case 4:
		return one{verb: "tool", name: "post"}
	case 5:
		return one{verb: "once", name: "o", ms: 1}
	case 6:
		switch w.choose.Int(8) {
		case 5, 6:
			return one{verb: "wait", ms: 100 + w.choose.Int(6000)}
		case 7:
			return one{verb: "bad", ms: w.choose.Int(len(letters))}
		}
	}
	return one{verb: "work", name: "w", ms: 1}
}

func (d drawer) call(levels int, self string) one {
	w := d.w
	o := one{verb: "call", name: w.plan.Agents[w.choose.Int(w.plan.Targets)].Name}
	if o.name == self && w.choose.Int(8) > 0 {
		o.name = w.plan.Agents[w.choose.Int(w.plan.Targets)].Name
	}
	if w.choose.Int(4) == 3 {
		o.name += "/s" + strconv.Itoa(w.choose.Int(w.plan.Keys))
	}
	switch w.choose.Int(12) {
	case 8, 9, 10:
		o.ms = 1 + w.choose.Int(3000)
	case 11:
		o.ms = 3_600_000 // more than anybody gets
	}
	if w.choose.Int(40) == 39 {
		o.name = "ghost"
	}
	o.script = d.message(levels-1, o.name)
	return o
}
