// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/signals"
)

// Message is a message of a transcript.
type Message struct {
	Role     actor.Role
	Text     string
	FromUser bool // the client shows it as a message of its user, not as one that it added itself
}

// Append adds a message to the transcript of an agent in a session, and returns its ID. It starts
// no run.
func (c *Client) Append(ctx context.Context, to actor.ID, m Message, r *Request) (actor.MessageID, error) {
	call := actor.Call{Kind: actor.Signal, To: to, Operation: signals.OpAppend, Parts: actor.Text(m.Text)}
	call.SetRole(m.Role)
	if m.FromUser {
		call.SetSource(actor.FromUser)
	}
	reply, err := c.signal(ctx, call, r)
	return actor.MessageID{Call: reply.Run}, err
}
