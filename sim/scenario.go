// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/specs"
)

// A scenario is a simulation with a plan given by the caller. The caller submits
// requests and checks their replies. All specs are checked as usual.

// Request is a request submitted in a scenario.
type Request struct{ client *client }

// Reply returns the reply, if it has arrived.
func (r Request) Reply() (actor.Reply, bool) {
	if r.client.reply == nil {
		return actor.Reply{}, false
	}
	return *r.client.reply, true
}

// Held reports whether the client has to fetch the reply later, because the run waits
// for a person.
func (r Request) Held() bool { return r.client.held }

// Submit sends a message to an actor through the first cell of a running node. The
// key may be empty. With a key, the client retries if that node crashes.
func (w *Simulation) Submit(to, message string, left time.Duration, key string) Request {
	id := invariant.Must(actor.ParseID(to))
	c := &client{no: len(w.clients), to: id, text: message, left: left, lane: actor.Normal, key: key}
	w.clients = append(w.clients, c)
	w.submit(c)
	return Request{c}
}

// RunUntil runs the simulation until done returns true, for at most the given time. A
// timeout is returned as a violation.
func (w *Simulation) RunUntil(within time.Duration, done func() bool) *Violation {
	end := w.now.Add(within)
	late := false
	w.queue.schedule(end, func() { late = true })
	if v := w.runLoop(func() bool { return late || done() }); v != nil {
		return v
	}
	if !done() {
		return &Violation{Spec: specs.EveryCallEnds, At: w.now.Sub(Origin), Step: w.Stats.Steps, Detail: fmt.Sprintf("condition not met within %v", within)}
	}
	return nil
}

// RunFor runs the simulation for the given time.
func (w *Simulation) RunFor(d time.Duration) *Violation {
	end := w.now.Add(d)
	late := false
	w.queue.schedule(end, func() { late = true })
	return w.runLoop(func() bool { return late })
}

// AwaitReply runs the simulation until the request has a reply.
func (w *Simulation) AwaitReply(r Request, within time.Duration) (actor.Reply, *Violation) {
	v := w.RunUntil(within, func() bool { return r.client.reply != nil })
	reply, _ := r.Reply()
	return reply, v
}

// CrashNode crashes a node. The node restarts by itself.
func (w *Simulation) CrashNode(name string) {
	n := w.nodeByID(actor.NodeID(name))
	invariant.Check(n != nil && n.up, "node %s is not running", name)
	w.endProcess(NodeCrash, n, func() { w.crash(n, "crash") }, "%s crashes", n.id)
}

// Settle ends the fault phase and runs the simulation until it is idle.
func (w *Simulation) Settle() *Violation {
	w.startRecovery()
	return w.Run()
}

// Signal sends the signal that the run of a request waits for.
func (w *Simulation) Signal(r Request) { w.sendSignal(r.client.to, r.client.call, scriptSignal) }

// Cancel cancels the run of a request.
func (w *Simulation) Cancel(r Request) {
	for _, l := range w.pending {
		if l.client == r.client {
			w.cancelRunAs(ClientCancel, l)
			return
		}
	}
}
