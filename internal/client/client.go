// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// Timeout is the time that a node has to answer a request that starts no run.
const Timeout = 30 * time.Second

// Client is a client of a node. It may do what its principal may do.
type Client struct {
	Node command.Node
	By   actor.Principal
	// Share is the principal under which the client takes shares: its user, or the one that named it.
	Share string
	// Key is the ID of its API key, which Keys knows while it is valid. A client without a key has none.
	Key  string
	Keys Keys
	// Agents are the only agents that the client may call itself; all if empty.
	Agents []string
	// DecisionScope is the scope needed to decide about tool calls whose policy names no approver; "": none.
	DecisionScope ingress.Scope
	// NamesUsers is set for a key that speaks for any user: it is no other person than the one who asked.
	NamesUsers bool
	// Trusted is set for a program that embeds the node and decides itself who may approve tool calls.
	Trusted bool
	// Stopping is closed when the face of the client stops, which ends every wait.
	Stopping <-chan struct{}
}

// Finds reports whether the client may call an agent itself.
func (c *Client) Finds(agent string) bool {
	return len(c.Agents) == 0 || slices.Contains(c.Agents, agent)
}

// Keys are the API keys of a server.
type Keys interface{ Valid(id string) bool }

// Request is a request without its content: who makes it, and under which key. The zero value is a
// request of the client itself that is not repeated.
type Request struct {
	Key        actor.Idempotency
	Trace      string
	User       string // recorded as the one who acted; the client's if empty
	Origin     actor.Origin
	Invocation uint32         // of the external agent that makes the request; 0 if unknown
	Time       actor.Duration // limit of the operation; Timeout if 0
}

// by returns the user that is recorded as the one who acted.
func (r *Request) by(c *Client) string { return cmp.Or(r.User, c.By.User) }

// Forbidden is the error of a request that the client may not make.
type Forbidden struct {
	Scope  string // that it lacks; empty if no scope would do
	Detail string
}

// Error implements error.
func (f *Forbidden) Error() string { return f.Detail }

// deliver sends a signal, and returns the answer of its run.
func (c *Client) deliver(ctx context.Context, call actor.Call, r *Request) (command.Answer, error) {
	call.ID, call.Left = c.Node.NewCallID(), cmp.Or(r.Time, Timeout)
	call.Principal, call.Trace, call.Idempotency = r.by(c), r.Trace, r.Key
	call.Origin = r.Origin
	call.Extensions = call.Extensions.WithInvocation(r.Invocation)
	return c.Node.Signal(ctx, command.Signal{By: c.By, Call: call})
}

// signal sends a signal, and returns the reply of its run. A refusal is an error.
func (c *Client) signal(ctx context.Context, call actor.Call, r *Request) (actor.Reply, error) {
	answer, err := c.deliver(ctx, call, r)
	if err == nil && answer.Reply.Refusal != nil {
		err = answer.Reply.Refusal
	}
	return answer.Reply, err
}

// find looks up the result of a query.
func find[R command.Result](ctx context.Context, c *Client, q command.QueryFor[R]) (R, error) {
	return command.Find(ctx, c.Node, c.By, q)
}

// isNotFound reports whether an error is a refusal because something does not exist.
func isNotFound(err error) bool {
	var r *actor.Refusal
	return errors.As(err, &r) && r.Reason == actor.NotFound
}
