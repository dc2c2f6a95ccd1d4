// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// client is somebody outside who asks one thing of an actor, through a node of
// their choice, and asks again if that node goes away.
type client struct {
	no     int
	to     actor.ID
	text   string
	lane   actor.Lane
	left   actor.Duration
	key    string // Idempotency-Key, if any
	tries  int
	at     *cell // at which it waits
	call   actor.CallID
	reply  *actor.Reply
	held   bool
	gaveUp bool
}

// drawClients puts the workload into the world.
func (w *World) drawClients() {
	at := time.Duration(0)
	for i := range w.plan.Roots {
		at += time.Duration(1+w.choose.Int(100)) * w.plan.Span / 50 / time.Duration(w.plan.Roots)
		w.after(at, func() { w.newClient(i) })
	}
}

func (w *World) newClient(no int) {
	d := drawer{w}
	c := &client{no: no, to: d.target(), lane: actor.Normal}
	c.text = d.script(4, c.to.Agent).String()
	c.left = time.Duration(1+w.choose.Int(20)) * time.Second
	if w.choose.Int(3) > 0 {
		c.key = "key-" + strconv.Itoa(no)
	}
	c.lane = [...]actor.Lane{actor.Normal, actor.High, actor.Low}[w.choose.Int(3)]
	w.clients = append(w.clients, c)
	w.ask(c)
}

// ask brings the client's request to some node.
func (w *World) ask(c *client) {
	n := w.someNode()
	if n == nil {
		w.after(time.Second, func() { w.ask(c) })
		return
	}
	c.tries++
	c.at = n.cells[w.choose.Int(len(n.cells))]
	c.call = w.newCallID()
	call := actor.Call{ID: c.call, Root: c.call, To: c.to, Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: c.lane,
		Left: c.left, Attempt: 1, Principal: "client-" + strconv.Itoa(c.no), Origin: actor.Human, Parts: actor.Text(c.text)}
	if c.key != "" {
		call.Idempotency = actor.Idempotency{Principal: call.Principal, Route: "messages", Key: c.key, Body: actor.HashOf([]byte(c.text))}
	}
	w.waiting[c.call] = c
	w.log.world(w.now, "client %d asks %s through %s: %s", c.no, c.to, c.at.self, c.text)
	c.at.put(input{anyOrder, runtime.Deliver{Envelope: actor.Envelope{To: c.to, Body: actor.Request{Call: call}}}, nil})
}

// respond gives a client its answer, if it still waits for it.
func (w *World) respond(_ *node, op runtime.Respond) {
	c := w.waiting[op.Call]
	if c == nil {
		return
	}
	delete(w.waiting, op.Call)
	c.at = nil
	if op.HeldUntil != 0 {
		c.held = true
		return
	}
	reply := op.Reply
	c.reply = &reply
	w.Stats.Replies++
}

// published shows a run's event to who watches: somebody answers a wait.
func (w *World) published(_ *node, e store.RunEvent) {
	if !bytes.Contains(e.Body, []byte(`"wait_opened"`)) {
		return
	}
	event, err := runs.Decode(e.Body)
	if err != nil || event.Type != runs.WaitOpened {
		return
	}
	to, ok, err := store.ActorOf(w.kv, actor.DefaultTenant, e.Run)
	if !ok || err != nil {
		return
	}
	if w.choose.Int(8) == 7 {
		return // nobody is there
	}
	w.after(w.between(time.Millisecond, 8*time.Second), func() { w.signal(to.Actor, e.Run) })
}

func (w *World) signal(to actor.ID, run actor.CallID) {
	n := w.someNode()
	if n == nil {
		return
	}
	id := w.newCallID()
	call := actor.Call{ID: id, Root: id, Parent: run, To: to, Operation: signalName, Kind: actor.Signal, Lane: actor.Normal,
		Left: 10 * time.Second, Attempt: 1, Principal: "person", Origin: actor.Human, Parts: actor.Text("go on")}
	w.log.world(w.now, "signal %s for run %s of %s", signalName, run.Short(), to)
	n.cells[w.choose.Int(len(n.cells))].put(input{anyOrder, runtime.Deliver{Envelope: actor.Envelope{To: to, Body: actor.Request{Call: call}}}, nil})
}

// drawer draws scripts.
type drawer struct{ w *World }

func (d drawer) target() actor.ID {
	w := d.w
	def := &w.plan.Agents[w.choose.Int(len(w.plan.Agents))]
	return actor.NewID(def.Name, "s"+strconv.Itoa(w.choose.Int(w.plan.Keys)))
}

// script draws what an actor is told, with at most so many levels of calls below.
func (d drawer) script(levels int, self string) script {
	w := d.w
	var s script
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
		s = append(s, step{{verb: "fail"}})
	}
	return s
}

func (d drawer) one(levels int, self string) one {
	w := d.w
	if levels > 0 && w.choose.Int(10) < 6 {
		return d.call(levels, self)
	}
	switch w.choose.Int(8) {
	case 0, 1, 2:
		return one{verb: "sleep", ms: w.choose.Int(200)}
	case 3:
		return one{verb: "tool", name: "clock"}
	case 4:
		return one{verb: "once", name: "o", ms: 1}
	case 5:
		if w.choose.Int(3) == 2 {
			return one{verb: "wait", ms: 100 + w.choose.Int(6000)}
		}
	}
	return one{verb: "work", name: "w", ms: 1}
}

func (d drawer) call(levels int, self string) one {
	w := d.w
	o := one{verb: "call", name: w.plan.Agents[w.choose.Int(len(w.plan.Agents))].Name}
	if o.name == self && w.choose.Int(8) > 0 {
		o.name = w.plan.Agents[w.choose.Int(len(w.plan.Agents))].Name
	}
	if w.choose.Int(4) == 3 {
		o.name += "/s" + strconv.Itoa(w.choose.Int(w.plan.Keys))
	}
	if w.choose.Int(3) == 2 {
		o.ms = 1 + w.choose.Int(3000)
	}
	if w.choose.Int(40) == 39 {
		o.name = "ghost"
	}
	o.script = d.script(levels-1, o.name).String()
	return o
}
