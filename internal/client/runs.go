// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

// RunToChange returns the owner of a run that the client may signal or cancel. Those of the registry
// cannot be: an interrupted change would be stored but not announced.
func (c *Client) RunToChange(ctx context.Context, run actor.CallID) (command.Owner, error) {
	owner, err := find(ctx, c, command.OwnerQuery{Run: run})
	if err == nil && owner.Actor == agents.RegistryID {
		err = actor.Refuse(actor.Rejected, "runs of the registry can be neither signalled nor cancelled")
	}
	return owner, err
}

// Ask lets the external agent that works on a run call another agent on behalf of the run, and waits
// for the answer. The call has the chain, the depth and the time of the run.
func (c *Client) Ask(ctx context.Context, call actor.Call, r *Request) (command.Answer, error) {
	return c.deliver(ctx, call, r)
}

// Signal delivers a signal with a name to a run that waits for it.
func (c *Client) Signal(ctx context.Context, run actor.CallID, name string, payload []actor.Part, r *Request) error {
	owner, err := c.RunToChange(ctx, run)
	if err != nil {
		return err
	}
	_, err = c.signal(ctx, actor.Call{Kind: actor.Signal, To: owner.Actor, Parent: run, Operation: name, Parts: payload}, r)
	if !isNotFound(err) {
		return err
	}
	record, err := c.record(ctx, run) // the run has no open turn
	switch {
	case err != nil:
		return err
	case record.Status.Ended():
		return actor.Refuse(actor.Rejected, "run %s has ended with status %s, so it takes no signal; send a new message", run, record.Status)
	}
	return actor.Refuse(actor.Rejected, "run %s has the status %s and waits for no signal", run, record.Status)
}

// Retry replays a parked run of an owner, and returns its record. A run that still diverges is
// refused with the place.
func (c *Client) Retry(ctx context.Context, owner command.Owner, r *Request) (record runs.Record, err error) {
	_, refused := c.signal(ctx, signals.New(owner.Actor, owner.Run, signals.Retry{}), r)
	if r := (*actor.Refusal)(nil); refused != nil && !errors.As(refused, &r) {
		return record, refused
	}
	if record, err = c.record(ctx, owner.Run); err != nil {
		return record, err
	}
	if isNotFound(refused) { // the run has no open turn
		refused = actor.Refuse(actor.Rejected, "run %s has the status %s: only a parked run can be retried", owner.Run, record.Status)
	}
	return record, refused
}

// Cancel requests the cancellation of a run and of everything it waits for. A run that has ended
// keeps its outcome.
func (c *Client) Cancel(ctx context.Context, owner command.Owner) error {
	return c.Node.Cancel(ctx, command.Cancel{By: c.By, Run: owner.Run, Actor: owner.Actor})
}

// AwaitEnd waits for the end of a run, and returns its state. It calls begin once it observes the run,
// and each for every state that is not the end; an error of theirs ends the wait. A nil function is
// not called. The error is that of Watch.Wait too, with the last state.
func (c *Client) AwaitEnd(ctx context.Context, run actor.CallID, ends <-chan struct{}, begin func() error, each func(*command.Run) error) (found command.Run, err error) {
	w := c.Watch(ends)
	defer w.Close()
	if err = w.FollowOrPoll(Subject{Run: run}); err == nil && begin != nil {
		err = begin()
	}
	for err == nil {
		var now command.Run
		switch now, err = find(ctx, c, command.RunQuery{Run: run}); {
		case w.Away(err):
			err = nil
		case err != nil:
			return found, err
		default:
			if found = now; found.Record.Status.Ended() {
				return found, nil
			}
			if each != nil {
				err = each(&found)
			}
		}
		if err == nil {
			err = w.Await(ctx)
		}
	}
	return found, err
}

// CancelAndWait requests the cancellation of a run, and returns its status once it has ended or ctx
// has. A run that has ended is unchanged.
func (c *Client) CancelAndWait(ctx context.Context, owner command.Owner) (runs.Status, error) {
	requested := false
	found, err := c.AwaitEnd(ctx, owner.Run, nil, nil, func(*command.Run) error {
		if requested {
			return nil
		}
		requested = true
		return c.Cancel(ctx, owner)
	})
	if !found.Owner.Run.IsZero() && ctx.Err() != nil { // the run ends once its agent reacts
		err = nil
	}
	return found.Current().Status, err
}

// Steps returns steps of a run.
func (c *Client) Steps(ctx context.Context, q command.StepsQuery) (command.Steps, error) {
	return find(ctx, c, q)
}

// record returns the record of a run.
func (c *Client) record(ctx context.Context, run actor.CallID) (runs.Record, error) {
	found, err := find(ctx, c, command.RunQuery{Run: run})
	return found.Current(), err
}
