// SPDX-License-Identifier: Apache-2.0

package command

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

type (
	// DeviceCallsQuery asks for the open calls of client tools that a device performs.
	DeviceCallsQuery struct{ Device string }
	// DeviceCalls lists them in the order of their calls.
	DeviceCalls struct{ All []DeviceCall }
	// DeviceCall is a call of a client tool.
	DeviceCall struct {
		ID       runs.ToolCallID
		Root     actor.CallID
		Session  string
		Tool     string
		Args     []byte // JSON
		Deadline actor.Time
	}
)

func (DeviceCallsQuery) query()              {}
func (DeviceCallsQuery) returns(DeviceCalls) {}
func (DeviceCalls) result()                  {}
