// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/signals"
)

// Address completes a message to an agent: with the ID of its run and, unless it names a session, with
// a new one. An agent that has one session for all has no others.
func (c *Client) Address(call *actor.Call, to *command.Agent, named bool) {
	call.To.Agent = to.Name
	if !named && !to.OneSession {
		call.To.Key = ingress.SessionOf(call.To, call.Idempotency, c.Node.NewCallID())
	}
	call.ID = c.Node.NewCallID()
}

// Send sends a message that begins a run, and waits for the outcome: see command.Node.Invoke.
func (c *Client) Send(ctx context.Context, call actor.Call, joined func(run actor.CallID)) (command.Answer, error) {
	return c.Node.Invoke(ctx, command.Invoke{By: c.By, Call: call}, joined)
}

// Begun is a message whose outcome is not waited for.
type Begun struct {
	Run      actor.CallID
	Repeated bool            // the run is that of an earlier message with the same key
	Visible  bool            // the run can be read; otherwise Answer is the refusal of the message
	Answer   *command.Answer // the outcome, if it has come first

	abandon context.CancelFunc
}

// Release ends the wait for the outcome, which is of no interest any longer. The run continues.
func (b *Begun) Release() { b.abandon() }

// Begin sends a message, and returns once its run can be read or the message was refused. If ctx
// ends first, the message may have been accepted. The caller MUST call Release if there is no error.
// Until then a client counts as waiting for the outcome, and a node that is stopping waits for the run.
func (c *Client) Begin(ctx context.Context, call actor.Call) (*Begun, error) {
	following, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	updates, unfollow, err := c.Node.Follow(following, command.Follow{By: c.By, Run: call.ID})
	cancel()
	if err != nil {
		return nil, err
	}
	defer unfollow()
	type outcome struct {
		answer command.Answer
		err    error
	}
	joined, ended := make(chan actor.CallID, 1), make(chan outcome, 1)
	asking, abandon := context.WithCancel(context.Background())
	go func() {
		answer, err := c.Send(asking, call, func(run actor.CallID) { joined <- run })
		ended <- outcome{answer, err}
	}()
	b := &Begun{Run: call.ID, Visible: true, abandon: abandon}
	for {
		select {
		case _, open := <-updates:
			if !open { // the outcome has the reason
				updates = nil
				continue
			}
			if !c.isReadable(ctx, call.ID) { // an update may say that events may have been missed
				continue
			}
		case b.Run = <-joined:
		case o := <-ended:
			if o.err == nil {
				b.Answer, b.Run = &o.answer, o.answer.Reply.Run
				b.Visible = c.isVisible(ctx, &o.answer)
			}
			err = o.err
		case <-ctx.Done():
			err = ctx.Err()
		case <-c.Stopping:
			err = command.ErrClosed
		}
		if err != nil {
			abandon()
			return nil, err
		}
		b.Repeated = b.Run != call.ID
		return b, nil
	}
}

// isVisible reports whether an answer belongs to a run that the client can read. A refusal because of
// overload is not durable: it belongs to no such run and MUST NOT wait for the disk here.
func (c *Client) isVisible(ctx context.Context, answer *command.Answer) bool {
	return answer.Durable && c.isReadable(ctx, answer.Reply.Run)
}

// isReadable reports whether a run exists that the client can read.
func (c *Client) isReadable(ctx context.Context, run actor.CallID) bool {
	_, err := find(ctx, c, command.OwnerQuery{Run: run})
	return err == nil
}

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
