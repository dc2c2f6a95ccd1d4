// SPDX-License-Identifier: Apache-2.0

// Package devices passes the calls of client tools to the devices of users.
//
// A call goes to the device whose message began the run, if it is connected; otherwise to the one
// of the user that connected last. A device that reconnects gets its open calls again, also after a
// restart of the node. It has ReconnectTime to do so before its calls go to another device.
// Presence is in memory only: each connection announces its device.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package devices

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
)

// PerUserMax is the maximum number of connections of one user's devices.
const PerUserMax = 256

// ReconnectTime is the time that the device of a call has to reconnect after a restart.
const ReconnectTime = 15 * time.Second

// Call is a call of a client tool.
type Call struct {
	ID       runs.ToolCallID
	Root     actor.CallID
	Session  string
	Tool     string
	Args     []byte // JSON
	Deadline actor.Time
}

// Devices knows which devices are connected. Its methods are safe for concurrent use.
type Devices struct {
	now   func() actor.Time
	mu    sync.Mutex
	users map[string]*user // by namespace
}

// user holds the devices of a namespace, the one that connected last at the end.
type user struct {
	connections []*connection
	open        []*openCall // in the order of their calls
}

type connection struct {
	device  string
	agents  []string      // it performs only calls in trees of these agents; all if empty
	updates chan struct{} // capacity 1: its calls have changed
}

// performs reports whether the device performs calls in trees of an agent.
func (c *connection) performs(agent string) bool {
	return len(c.agents) == 0 || slices.Contains(c.agents, agent)
}

type openCall struct {
	Call
	agent  string // at the root of the tree of its run
	wanted string // device that began the run
	device string // that performs the call; "": none is connected
	held   bool   // only wanted may perform it
}

// New returns an empty Devices.
func New(now func() actor.Time) *Devices { return &Devices{now: now, users: map[string]*user{}} }

// Connect announces a device until stop is called. updates receives a value when its calls
// have changed, and one at once. The device performs only calls in trees of runs that are of one of the
// agents, or all without agents.
func (d *Devices) Connect(namespace, device string, agents []string) (updates <-chan struct{}, stop func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.user(namespace)
	if len(u.connections) >= PerUserMax {
		return nil, nil, actor.RefuseBusy(actor.ScopeNode, 0, "%d connections of this user are open, which is the limit: close some", PerUserMax)
	}
	c := &connection{device, agents, make(chan struct{}, 1)}
	u.connections = append(u.connections, c)
	for _, call := range u.open {
		if call.device == "" && (!call.held || call.wanted == device) && c.performs(call.agent) {
			call.device = device
		}
	}
	c.notify()
	return c.updates, sync.OnceFunc(func() { d.disconnect(namespace, c) }), nil
}

func (c *connection) notify() {
	select {
	case c.updates <- struct{}{}:
	default: // an unread update is pending
	}
}

func (d *Devices) disconnect(namespace string, c *connection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.user(namespace)
	u.connections = slices.DeleteFunc(u.connections, func(o *connection) bool { return o == c })
	d.clean(namespace, u)
}

func (d *Devices) user(namespace string) *user {
	u := d.users[namespace]
	if u == nil {
		u = &user{}
		d.users[namespace] = u
	}
	return u
}

func (d *Devices) clean(namespace string, u *user) {
	if len(u.connections)+len(u.open) == 0 {
		delete(d.users, namespace)
	}
}

// choose returns the connected device that performs a call, or "".
func (u *user) choose(call *openCall) (device string) {
	for _, c := range u.connections {
		if !c.performs(call.agent) {
			continue
		}
		if device = c.device; device == call.wanted {
			return device
		}
	}
	return device
}

func (u *user) notify(device string) {
	for _, c := range u.connections {
		if c.device == device {
			c.notify()
		}
	}
}

// Calls returns the open calls of a device.
func (d *Devices) Calls(namespace, device string) (all []Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.users[namespace]; u != nil {
		for _, c := range u.open {
			if c.device == device {
				all = append(all, c.Call)
			}
		}
	}
	return all
}

// Check returns a refusal unless the open call was given to this device. After a restart a device
// may give its result before it has connected again.
func (d *Devices) Check(namespace, device string, id runs.ToolCallID) *actor.Refusal {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.users[namespace]; u != nil {
		for _, c := range u.open {
			if c.ID == id && c.device == "" && (!c.held || c.wanted == device) {
				c.device = device
			}
			if c.ID == id && c.device != device {
				r := actor.Refuse(actor.Rejected, "another device performs this call: only its result is taken")
				r.Field = runtime.ToolCallField
				return r
			}
		}
	}
	return nil
}

// Perform passes a call to a device and waits until ctx ends, which happens once the run has the
// result. If no device is connected, the first attempt is refused at once. A later attempt follows
// a restart, after which devices need time to reconnect, so it waits.
func (d *Devices) Perform(ctx context.Context, id actor.EffectID, attempt uint32, op runtime.Tool) actor.Answer {
	of := &op.Context.Call
	session, _ := of.To.Session()
	c := &openCall{Call: Call{ID: runs.ToolCallID{Run: id.Run, Step: id.Step, Index: id.Index}, Root: of.Root, Session: session, Tool: op.Name, Args: op.Input,
		Deadline: d.now().Add(op.Left)}, wanted: of.Device(), agent: of.To.Agent}
	if len(of.Chain) > 0 {
		c.agent = of.Chain[0].Agent
	}
	namespace := of.To.Tenant
	if !d.begin(namespace, c, attempt > 1) {
		return actor.Answer{Refusal: actor.Refuse(actor.NoDevice, "no active client")}
	}
	defer d.end(namespace, c)
	defer time.AfterFunc(ReconnectTime, func() { d.offer(namespace, c) }).Stop()
	<-ctx.Done()
	return actor.Answer{Refusal: &actor.Refusal{Reason: actor.Deadline, Operation: "perform " + op.Name, Timeout: op.Left,
		Detail: "the device gave no result of " + op.Name + " in " + op.Left.String()}}
}

func (d *Devices) begin(namespace string, c *openCall, waits bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.user(namespace)
	c.device = u.choose(c)
	if waits && c.wanted != "" && c.device != c.wanted {
		c.device, c.held = "", true
	}
	if c.device == "" && !waits {
		d.clean(namespace, u)
		return false
	}
	u.open = append(u.open, c)
	u.notify(c.device)
	return true
}

// offer gives a call to any device if the device that it was held for has not connected.
func (d *Devices) offer(namespace string, c *openCall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.users[namespace]
	if u != nil && c.held && c.device == "" && slices.Contains(u.open, c) {
		c.held, c.device = false, u.choose(c)
		u.notify(c.device)
	}
}

func (d *Devices) end(namespace string, c *openCall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.user(namespace)
	u.open = slices.DeleteFunc(u.open, func(o *openCall) bool { return o == c })
	d.clean(namespace, u)
}
