// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// ErrClosed is the error of a command to a node that has stopped.
var ErrClosed = errors.New("the node has stopped")

// AwayError is the error of a command to a node that is not connected now and will be again.
// It is ErrClosed, and a refusal too.
type AwayError struct {
	Back    <-chan struct{} // closed once the node is connected
	Refusal *actor.Refusal
}

// Error implements error.
func (e *AwayError) Error() string { return e.Refusal.Error() }

// Unwrap returns the refusal.
func (e *AwayError) Unwrap() error { return e.Refusal }

// Is reports whether target is ErrClosed.
func (e *AwayError) Is(target error) bool { return target == ErrClosed }

// EventsDropped is the error of a query for events of a run that the node has deleted.
type EventsDropped struct {
	Run   actor.CallID
	First uint64 // number of the first event that is left, or of the next one if none is
}

// Error implements error.
func (e EventsDropped) Error() string {
	return fmt.Sprintf("events of run %s before event %d were dropped", e.Run, e.First)
}

// Node accepts commands. All methods are safe for concurrent use.
//
// An error is ErrClosed, the error of ctx, a *actor.Refusal, or an internal
// error. A refused call is not an error: its Answer holds the refusal.
type Node interface {
	// NewCallID returns an ID for a call, according to the node's clock.
	NewCallID() actor.CallID
	// Invoke delivers a call to its actor and waits for the outcome. If ctx
	// ends first, the run continues and can be looked up by the call's ID. If
	// joined is not nil and the call repeats one whose run is open, joined is
	// called once, before Invoke returns, with the ID of that run. It MUST
	// return without delay.
	Invoke(ctx context.Context, c Invoke, joined func(run actor.CallID)) (Answer, error)
	// Signal delivers a signal to an open run and waits until the run has
	// received it or refused it.
	Signal(ctx context.Context, c Signal) (Answer, error)
	// Cancel requests the cancellation of a run and returns without waiting for
	// its end. It has no effect on a run that has ended.
	Cancel(ctx context.Context, c Cancel) error
	// Forget deletes a session. Once it returns nil, nothing of the session can be read,
	// and a restart does not bring it back.
	Forget(ctx context.Context, c Forget) error
	// Follow subscribes to a run until stop is called. The run need not exist
	// yet. updates receives a value when the run has new events to look up; one
	// value may cover several events. updates is closed if the connection to
	// the node has failed. The next command then returns the reason.
	Follow(ctx context.Context, c Follow) (updates <-chan struct{}, stop func(), err error)
	// Lookup returns the result of a query: see the type of the query. It changes nothing. Find
	// returns it with its own type.
	Lookup(ctx context.Context, c Lookup) (Result, error)
	// Do performs an action: see the type of the action. Perform returns the result with its own type.
	Do(ctx context.Context, c Do) (Result, error)
}

// Invoke calls an actor. The node fills in unset fields of the call, except its
// ID. The caller MUST NOT change the content of the call afterwards.
// Call.Principal names the user. A change of the registry has the rights of By.
type Invoke struct {
	By   actor.Principal
	Call actor.Call // Kind is not actor.Signal
}

// Signal delivers a signal to the run Call.Parent of the actor Call.To. A call made by an external agent on behalf of its
// run is such a signal too; its answer is the answer of the called agent.
type Signal struct {
	By   actor.Principal
	Call actor.Call // Kind is actor.Signal
}

// Cancel cancels a run.
type Cancel struct {
	By    actor.Principal
	Run   actor.CallID
	Actor actor.ID // owner of the run
}

// Follow subscribes to the new events of a run, or of all runs of a session. The runs below a
// run are followed one by one, as their events name them.
type Follow struct {
	By      actor.Principal
	Run     actor.CallID
	Session string   // if it is not empty, Run is ignored
	Device  string   // if it is not empty: announces a device of the user, and subscribes to its calls
	Agents  []string // the device performs only calls in trees of runs of these agents; all if empty
}

// Lookup asks the node a query.
type Lookup struct {
	By    actor.Principal
	Query Query
}

// Do performs an action.
type Do struct {
	By     actor.Principal
	Action Action
}

// Answer is the outcome of a call.
type Answer struct {
	Reply     actor.Reply
	HeldUntil actor.Time // time until which the run is held for a person; Reply then holds only its ID. 0: not held
	Durable   bool       // the run may have entries in the log and can be read; false: nothing was written
}
