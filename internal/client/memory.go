// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/memory"
)

// ChangeMemory remembers or forgets, and returns the answer as JSON. The operation is that of package
// memory, and the key the session or the agent of the scope.
func (c *Client) ChangeMemory(ctx context.Context, operation string, scope memory.Scope, key string, change memory.Change, r *Request) ([]byte, error) {
	id, err := scope.ID(c.By.Tenant, key)
	if err != nil {
		return nil, actor.Refuse(actor.Invalid, "scope: %v", err)
	}
	change.Source = memory.Source{User: r.by(c)}
	answer, err := c.Node.Invoke(ctx, command.Invoke{By: c.By, Call: actor.Call{ID: c.Node.NewCallID(), To: id, Operation: operation, Left: cmp.Or(r.Time, Timeout),
		Principal: r.by(c), Trace: r.Trace, Idempotency: r.Key, Origin: r.Origin, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: change.Encode()}}}}, nil)
	switch {
	case err != nil:
		return nil, err
	case answer.Reply.Refusal != nil:
		return nil, answer.Reply.Refusal
	case len(answer.Reply.Parts) != 1:
		return nil, actor.Refuse(actor.Unavailable, "no answer in time: repeat the request, it is performed once")
	}
	return answer.Reply.Parts[0].Bytes, nil
}

// FindMemory answers a question about what is remembered as JSON.
func (c *Client) FindMemory(ctx context.Context, q command.MemoryQuery) ([]byte, error) {
	found, err := find(ctx, c, q)
	return found.JSON, err
}
