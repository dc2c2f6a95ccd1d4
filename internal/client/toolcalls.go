// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

// ToolCall returns the state of a tool call.
func (c *Client) ToolCall(ctx context.Context, id runs.ToolCallID) (command.ToolCall, error) {
	found, err := find(ctx, c, command.ToolCallQuery{ID: id})
	if isNotFound(err) {
		err = actor.ToolCallNotFound(id.String())
	}
	return found, err
}

// GiveResult ends a call of a client tool with the result of a device.
func (c *Client) GiveResult(ctx context.Context, found *command.ToolCall, device string, result signals.GiveResult, r *Request) error {
	id := found.Call.ID
	result.ToolCall = id.String()
	call := signals.New(found.Owner.Actor, id.Run, result)
	call.SetDevice(device)
	if _, err := c.signal(ctx, call, r); isNotFound(err) { // the run has ended
		refusal := actor.Refuse(actor.Rejected, "run %s has ended, and takes no result", id.Run)
		refusal.Field = "tool_call_id"
		return refusal
	} else if err != nil {
		return err
	}
	after, err := c.ToolCall(ctx, id)
	*found = after
	return err
}

// AddTool adds a tool call to the run of an external agent, and returns its ID.
func (c *Client) AddTool(ctx context.Context, of actor.ID, run actor.CallID, tool signals.AddTool, r *Request) (runs.ToolCallID, error) {
	reply, err := c.signal(ctx, signals.New(of, run, tool), r)
	if err != nil {
		return runs.ToolCallID{}, err
	}
	added, ok := signals.ReadAddedTool(reply.Parts)
	if !ok {
		return runs.ToolCallID{}, errors.New("the answer names no tool call")
	}
	return runs.ParseToolCallID(added.ID)
}
