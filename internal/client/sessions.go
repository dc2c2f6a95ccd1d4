// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// OpenRunError is the error of the deletion of a session that has an open run.
type OpenRunError struct{ Run actor.CallID }

// Error implements error.
func (e *OpenRunError) Error() string { return "the session has the open run " + e.Run.String() }

// ForgetSession deletes a session. If it has open runs, they are cancelled and waited for, or else
// the error is an OpenRunError.
func (c *Client) ForgetSession(ctx context.Context, session string, cancel bool) error {
	if err := c.checkForget(ctx, session); err != nil { // before it cancels anything
		return err
	}
	for {
		found, err := find(ctx, c, command.SessionQuery{Session: session})
		if err != nil {
			return err
		}
		owner, open := openRun(&found)
		if open && !cancel {
			return &OpenRunError{owner.Run}
		}
		if open {
			owner.Actor = c.By.ID(owner.Actor.Agent, session)
			if _, err := c.CancelAndWait(ctx, owner); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		err = c.Node.Forget(ctx, command.Forget{By: c.By, Session: session})
		var r *actor.Refusal
		if cancel && errors.As(err, &r) && r.Reason == actor.Rejected && ctx.Err() == nil { // a run began in the meantime
			continue
		}
		return err
	}
}

// openRun returns an open run of a session, with the agent of its owner only.
func openRun(s *command.Session) (owner command.Owner, open bool) {
	for i := range s.Agents {
		if a := &s.Agents[i]; len(a.Open) > 0 {
			owner.Run, owner.Actor.Agent = a.Open[0], a.Agent
			return owner, true
		}
	}
	return owner, false
}
