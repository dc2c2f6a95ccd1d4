// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/store"
)

// tasks lists the detached calls of a namespace. It waits until they are durable.
func (c *Commands) tasks(ctx context.Context, by *actor.Principal, q command.TasksQuery) (out command.Tasks, err error) {
	pending, err := c.engine.PendingCalls(ctx, by.Tenant, q.Session)
	if err == nil {
		err = c.engine.Read(ctx, func(store.Reader) error { return nil })
	}
	if err != nil {
		return out, errorOf(err)
	}
	for i := range pending {
		p := &pending[i]
		if !q.Call.IsZero() && p.Call.ID != q.Call {
			continue
		}
		task := command.Task{Call: p.Call.ID, Asker: p.Asker, Callee: p.Call.To, Skill: p.Skill, Client: p.Client, At: p.At, Left: p.Clock.Left, Late: p.Late, Silent: p.Silent, Cancelled: p.Cancelled}
		if p.Waits.Reason != 0 {
			task.Waits, task.Until = p.Waits.Reason.String(), p.Waits.Subject
		}
		out.All = append(out.All, task)
	}
	slices.SortFunc(out.All, func(a, b command.Task) int { return a.Call.Compare(b.Call) })
	if out.More = len(out.All) > command.TasksMax; out.More {
		out.All = out.All[:command.TasksMax]
	}
	return out, nil
}
