// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/specs"
)

// A story is a world with a plan made by hand, in which somebody asks for one
// thing after the other and looks what comes of it. Specs are asked all the same.

// Request is what somebody asked.
type Request struct{ client *client }

// Reply is the answer, if it has come.
func (r Request) Reply() (actor.Reply, bool) {
	if r.client.reply == nil {
		return actor.Reply{}, false
	}
	return *r.client.reply, true
}

// Held tells whether the client was told to come back later: the run waits for a person.
func (r Request) Held() bool { return r.client.held }

// Submit sends a message to an actor, through the first cell of a node that is up.
// The key may be empty; with one, the client asks again if that node dies.
func (w *Simulation) Submit(to, message string, left time.Duration, key string) Request {
	id := invariant.Must(actor.ParseID(to))
	c := &client{no: len(w.clients), to: id, text: message, left: left, lane: actor.Normal, key: key}
	w.clients = append(w.clients, c)
	w.submit(c)
	return Request{c}
}

// RunUntil lets the world go on until something is so, at most for so long. That
// it did not become so is a violation too.
func (w *Simulation) RunUntil(within time.Duration, done func() bool) *Violation {
	end := w.now.Add(within)
	late := false
	w.queue.schedule(end, func() { late = true })
	if v := w.runLoop(func() bool { return late || done() }); v != nil {
		return v
	}
	if !done() {
		return &Violation{Spec: specs.EveryCallEnds, At: w.now.Sub(Origin), Step: w.Stats.Steps, Detail: fmt.Sprintf("it has not come about within %v", within)}
	}
	return nil
}

// RunFor lets the world go on for so long.
func (w *Simulation) RunFor(d time.Duration) *Violation {
	end := w.now.Add(d)
	late := false
	w.queue.schedule(end, func() { late = true })
	return w.runLoop(func() bool { return late })
}

// AwaitReply lets the world go on until a request has its answer.
func (w *Simulation) AwaitReply(r Request, within time.Duration) (actor.Reply, *Violation) {
	v := w.RunUntil(within, func() bool { return r.client.reply != nil })
	reply, _ := r.Reply()
	return reply, v
}

// CrashNode kills a node; it comes back by itself.
func (w *Simulation) CrashNode(name string) {
	n := w.nodeByID(actor.NodeID(name))
	invariant.Check(n != nil && n.up, "node %s is not up", name)
	w.recordFault(NodeCrash, "%s dies", n.id)
	w.crash(n, "crash")
}

// Settle ends the faults, and the world once it is at rest.
func (w *Simulation) Settle() *Violation {
	w.startRecovery()
	return w.Run()
}

// Signal answers a wait of a request's own run.
func (w *Simulation) Signal(r Request) { w.sendSignal(r.client.to, r.client.call, scriptSignal) }

// Cancel gives a request's run up.
func (w *Simulation) Cancel(r Request) {
	for _, l := range w.pending {
		if l.client == r.client {
			w.cancelRun(l)
			return
		}
	}
}
