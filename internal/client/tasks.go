// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

// Task returns a detached call or a reminder that is pending, or that lists still have; false if there is none.
func (c *Client) Task(ctx context.Context, id actor.CallID) (command.Task, bool, error) {
	found, err := find(ctx, c, command.TasksQuery{Call: id})
	if err != nil || len(found.All) == 0 {
		return command.Task{}, false, err
	}
	return found.All[0], true, nil
}

// CancelTask cancels the run of the agent that was asked, as CancelAndWait does, or drops a pending reminder. Nothing of
// a reminder is delivered once it has returned. A task that has ended is unchanged.
func (c *Client) CancelTask(ctx context.Context, id actor.CallID, r *Request) (runs.Status, error) {
	task, pending, err := c.Task(ctx, id)
	switch {
	case err != nil:
		return 0, err
	case pending && task.IsReminder():
		_, err = c.signal(ctx, actor.Call{Kind: actor.Signal, To: task.Asker, Parent: id, Operation: signals.OpCancelReminder}, r)
		return runs.Cancelled, err
	}
	owner, err := c.RunToChange(ctx, id)
	if err != nil {
		return 0, err
	}
	return c.CancelAndWait(ctx, owner)
}
