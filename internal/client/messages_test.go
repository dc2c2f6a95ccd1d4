// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// invoked is a node that gives messages the answer of the test, and knows the owners of some runs.
type invoked struct {
	*followed
	answer func(ctx context.Context, joined func(actor.CallID)) (command.Answer, error)
	owned  actor.CallID
}

func (n *invoked) Invoke(ctx context.Context, _ command.Invoke, joined func(actor.CallID)) (command.Answer, error) {
	return n.answer(ctx, joined)
}

func (n *invoked) Lookup(_ context.Context, c command.Lookup) (command.Result, error) {
	if q := c.Query.(command.OwnerQuery); q.Run == n.owned {
		return command.Owner{Run: q.Run}, nil
	}
	return nil, actor.Refuse(actor.NotFound, "no such run")
}

// A message has begun once its run can be read. The answer of a message that was refused before belongs
// to no run that a client can read.
func TestBeginReturnsOnceRunIsVisible(t *testing.T) {
	own, first := actor.CallID{1}, actor.CallID{2}
	forever := make(chan struct{})
	defer close(forever)
	answered := func(run actor.CallID, durable bool) func(context.Context, func(actor.CallID)) (command.Answer, error) {
		return func(context.Context, func(actor.CallID)) (command.Answer, error) {
			return command.Answer{Reply: actor.Reply{Run: run}, Durable: durable}, nil
		}
	}
	for _, c := range []struct {
		name   string
		answer func(context.Context, func(actor.CallID)) (command.Answer, error)
		owned  actor.CallID
		want   Begun
	}{
		{"ended at once", answered(own, true), own, Begun{Run: own, Visible: true}},
		{"refused without an entry in the log", answered(own, false), own, Begun{Run: own}},
		{"refused before it became a run", answered(own, true), actor.CallID{}, Begun{Run: own}},
		{"repeat of a message that has ended", answered(first, true), first, Begun{Run: first, Visible: true, Repeated: true}},
		{"repeat of an open message", func(ctx context.Context, joined func(actor.CallID)) (command.Answer, error) {
			joined(first)
			<-ctx.Done()
			return command.Answer{}, ctx.Err()
		}, first, Begun{Run: first, Visible: true, Repeated: true}},
	} {
		n := &invoked{newFollowed(), c.answer, c.owned}
		b, err := (&Client{Node: n}).Begin(context.Background(), actor.Call{ID: own})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if b.Run != c.want.Run || b.Visible != c.want.Visible || b.Repeated != c.want.Repeated {
			t.Errorf("%s: %+v, want %+v", c.name, b, c.want)
		}
		b.Release()
		if len(n.stopped) != 1 {
			t.Errorf("%s: the subscription was not ended", c.name)
		}
	}
}

// A message whose run has its first event has begun. Its answer is waited for until Release.
func TestBegunMessageIsAwaitedUntilRelease(t *testing.T) {
	own := actor.CallID{1}
	n, ended := &invoked{followed: newFollowed(), owned: own}, make(chan struct{})
	n.answer = func(ctx context.Context, _ func(actor.CallID)) (command.Answer, error) {
		n.updates[Subject{Run: own}] <- struct{}{}
		<-ctx.Done()
		close(ended)
		return command.Answer{}, ctx.Err()
	}
	b, err := (&Client{Node: n}).Begin(context.Background(), actor.Call{ID: own})
	if err != nil || !b.Visible || b.Answer != nil || b.Repeated {
		t.Fatalf("%+v, %v", b, err)
	}
	select {
	case <-ended:
		t.Error("the message is not awaited")
	default:
	}
	b.Release()
	<-ended
}

// An update before the run exists, as after each new connection to a node, does not begin a message: it may repeat another run.
func TestUpdateWithoutRunBeginsNothing(t *testing.T) {
	own, first := actor.CallID{1}, actor.CallID{2}
	n := &invoked{followed: newFollowed(), owned: first}
	n.answer = func(ctx context.Context, joined func(actor.CallID)) (command.Answer, error) {
		n.updates[Subject{Run: own}] <- struct{}{}
		n.updates[Subject{Run: own}] <- struct{}{} // the first one was received
		joined(first)
		<-ctx.Done()
		return command.Answer{}, ctx.Err()
	}
	b, err := (&Client{Node: n}).Begin(context.Background(), actor.Call{ID: own})
	if err != nil || b.Run != first || !b.Repeated {
		t.Fatalf("%+v, %v", b, err)
	}
	b.Release()
}

// A client that has gone, a server that stops and a node that fails end the beginning of a message.
func TestBeginEnds(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	closed := make(chan struct{})
	close(closed)
	hangs := func(ctx context.Context, _ func(actor.CallID)) (command.Answer, error) {
		<-ctx.Done()
		return command.Answer{}, ctx.Err()
	}
	fails := func(context.Context, func(actor.CallID)) (command.Answer, error) {
		return command.Answer{}, command.ErrClosed
	}
	for _, c := range []struct {
		name     string
		ctx      context.Context
		stopping chan struct{}
		answer   func(context.Context, func(actor.CallID)) (command.Answer, error)
		want     error
	}{
		{"the client has gone", gone, nil, hangs, context.Canceled},
		{"the server stops", context.Background(), closed, hangs, command.ErrClosed},
		{"the node fails", context.Background(), nil, fails, command.ErrClosed},
	} {
		n := &invoked{followed: newFollowed(), answer: c.answer}
		if b, err := (&Client{Node: n, Stopping: c.stopping}).Begin(c.ctx, actor.Call{ID: actor.CallID{1}}); b != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", c.name, b, err, c.want)
		}
	}
}
