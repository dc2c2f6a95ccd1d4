// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
)

// askTool is the client tool of a simulation.
const askTool = "ask.user"

// devices is the part of a simulation with the devices that perform client tools. Some of them
// vanish, give a result twice or after its time, or name another call.
type devices struct {
	a        *approvals
	taken    map[runs.ToolCallID]actor.CallID // result that was acknowledged
	results  map[actor.CallID]string          // content of the result of each signal
	answered map[runs.ToolCallID]string       // result that the run was given
}

func newDevices(a *approvals) devices {
	return devices{a, map[runs.ToolCallID]actor.CallID{}, map[actor.CallID]string{}, map[runs.ToolCallID]string{}}
}

// devicesMax is the maximum number of devices that give a result of one call.
const devicesMax = 3

// perform passes a call to devices. It ends by the result of one, or by its time.
func (d *devices) perform(h *gatedEffect, op runtime.Tool) {
	a, n, id := d.a, h.cell.n, runs.ToolCallID(h.effect.ID)
	r := n.trackEffect(h)
	n.after(op.Left, func() {
		n.completeEffect(r, op.Left, func() actor.Answer {
			return actor.Answer{Refusal: &actor.Refusal{Reason: actor.Deadline, Operation: "perform " + op.Name, Timeout: op.Left, Detail: "the device gave no result"}}
		})
	})
	to := op.Context.Call.To
	for i := range a.entropy.Int(devicesMax + 1) {
		after := a.between(time.Millisecond, 2*time.Second)
		of := id
		switch a.entropy.Int(8) {
		case 5:
			after += op.Left // too late
		case 6:
			of.Index += 7
		case 7:
			of.Step++
		}
		body := fmt.Sprintf(`{"ok":true,"result":{"device":%d,"attempt":%d}}`, i, h.effect.Attempt)
		if a.entropy.Int(6) == 5 {
			body = `{"ok":false,"error":{"code":"denied","message":"no"}}`
		}
		a.after(after, func() { d.give(to, of, of.Index == id.Index, body) })
	}
}

// give sends the result of a device for a tool call. If exists is false, the ID of the call was changed
// on purpose: the call does not exist, or belongs to the next step.
func (d *devices) give(to actor.ID, id runs.ToolCallID, exists bool, body string) {
	a := d.a
	result, refusal := ingress.DecodeToolResult([]byte(body))
	invariant.Check(refusal == nil, "sim: result of a device: %v", refusal)
	result.ToolCall = id.String()
	call := a.signal(to, id.Run, result)
	call.Principal, call.Origin = "device of "+namespaceMarker(to.Tenant), actor.Human
	d.results[call.ID] = body
	a.send(call, 1, func(reply *actor.Reply) { d.judgeReply(id, exists, &call, reply) })
}

// judgeReply judges the reply to a device. A call takes at most one result, and its run gets that one.
// A run without a journal may restart and repeat its calls.
func (d *devices) judgeReply(id runs.ToolCallID, exists bool, call *actor.Call, reply *actor.Reply) {
	namespaces{d.a.Simulation}.checkReplyApart(call.To.Tenant, "a device", reply)
	if reply.Refusal != nil {
		return
	}
	if by, ok := d.taken[id]; !exists || ok && by != call.ID && d.a.calls[id] != nil {
		d.a.fail(DeviceOnce, fmt.Sprintf("tool call %s takes the result %s of %s; before, it took %s", id, d.results[call.ID], call.ID, d.results[by]))
		return
	}
	d.taken[id] = call.ID
	d.a.Stats.Audit.DeviceOnce++
	if text, ok := d.answered[id]; ok && text != d.result(call.ID) {
		d.a.fail(DeviceOnce, fmt.Sprintf("the result %s of tool call %s was taken, but its run got %s", d.result(call.ID), id, text))
	}
}

// result returns the result of a signal as a run gets it.
func (d *devices) result(call actor.CallID) string {
	var device, attempt int
	if _, err := fmt.Sscanf(d.results[call], `{"ok":true,"result":{"device":%d,"attempt":%d}}`, &device, &attempt); err != nil {
		return "refused"
	}
	return fmt.Sprintf(`{"device":%d,"attempt":%d}`, device, attempt)
}

// observe records the answer of a call, which MUST be the result of a device.
func (d *devices) observe(id runs.ToolCallID, answer *actor.Answer) {
	text := "refused"
	if answer.Refusal == nil {
		text = string(answer.Parts[0].Bytes)
	}
	if d.answered[id] = text; answer.Refusal != nil {
		return
	}
	for _, call := range slices.SortedFunc(maps.Keys(d.results), actor.CallID.Compare) {
		if d.result(call) == text {
			return
		}
	}
	d.a.fail(DeviceOnce, fmt.Sprintf("tool call %s succeeds with %s, which no device gave", id, text))
}
