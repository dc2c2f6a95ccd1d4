// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// Action is an operation of a node that changes something besides runs and sessions: StartChat,
// ReadChat, CancelChat, Heartbeat or MakeBackup.
type Action interface{ action() }

// ActionFor is an action whose result has type R.
type ActionFor[R Result] interface {
	Action
	returns(R)
}

// Perform performs an action and returns its result.
func Perform[R Result](ctx context.Context, n Node, by actor.Principal, a ActionFor[R]) (R, error) {
	found, err := n.Do(ctx, Do{by, a})
	return resultOf[R](a, found, err)
}

// resultOf returns the result of a query or an action with its type.
func resultOf[R Result](asked any, found Result, err error) (r R, _ error) {
	if err != nil {
		return r, err
	}
	r, ok := found.(R)
	if !ok {
		return r, fmt.Errorf("the result of %T is a %T, want a %T", asked, found, r)
	}
	return r, nil
}
