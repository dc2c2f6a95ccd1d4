// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// followed is a node of which only subscriptions are used.
type followed struct {
	command.Node
	updates map[Subject]chan struct{}
	stopped chan Subject
	err     error
}

func newFollowed() *followed {
	return &followed{updates: map[Subject]chan struct{}{}, stopped: make(chan Subject, 10)}
}

func (n *followed) Follow(_ context.Context, in command.Follow) (<-chan struct{}, func(), error) {
	if n.err != nil {
		return nil, nil, n.err
	}
	s := Subject{in.Run, in.Session}
	updates := make(chan struct{}, 1)
	n.updates[s] = updates
	return updates, func() { n.stopped <- s }, nil
}

// validKeys are the keys that are valid.
type validKeys map[string]bool

func (k validKeys) Valid(id string) bool { return k[id] }

var run1, run2 = Subject{Run: actor.CallID{1}}, Subject{Run: actor.CallID{2}}

func TestWatchEnds(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	live := context.Background()
	for _, c := range []struct {
		name string
		ctx  context.Context
		by   Client
		ends <-chan struct{}
		want error
	}{
		{"the client has gone", gone, Client{}, nil, context.Canceled},
		{"the client has gone from a server that stops", gone, Client{}, closed, context.Canceled},
		{"the server stops", live, Client{}, closed, command.ErrClosed},
		{"a revoked key", live, Client{Key: "k", Keys: validKeys{}}, nil, ErrRevoked},
	} {
		w := c.by.Watch(c.ends)
		if err := w.Check(c.ctx); !errors.Is(err, c.want) {
			t.Errorf("%s: Check returns %v, want %v", c.name, err, c.want)
		}
		w.checked = time.Time{}
		if news, err := w.Wait(c.ctx, forever); news || !errors.Is(err, c.want) {
			t.Errorf("%s: Wait returns %t, %v, want %v", c.name, news, err, c.want)
		}
	}
	valid := (&Client{Key: "k", Keys: validKeys{"k": true}}).Watch(nil)
	if news, err := valid.Wait(live, time.Nanosecond); news || err != nil {
		t.Errorf("a wait that ends by its time returns %t, %v", news, err)
	}
}

// A key that is revoked while a client waits ends the wait, however long it would last.
func TestWatchSeesKeyRevokedWhileItWaits(t *testing.T) {
	asked := make(chan struct{}, 10)
	w := (&Client{Key: "k", Keys: revokedLater(asked)}).Watch(nil)
	if _, err := w.Wait(context.Background(), forever); !errors.Is(err, ErrRevoked) {
		t.Error(err)
	}
	if len(asked) != 2 {
		t.Errorf("the key was looked at %d times, want 2", len(asked))
	}
}

// revokedLater is a key that is valid at the first look.
type revokedLater chan struct{}

func (k revokedLater) Valid(string) bool {
	k <- struct{}{}
	return len(k) == 1
}

func TestWatchTellsNews(t *testing.T) {
	ctx, n := context.Background(), newFollowed()
	w := (&Client{Node: n}).Watch(nil)
	if err := errors.Join(w.Follow(run1), w.Forward(run2), w.Forward(Subject{Session: "s"})); err != nil {
		t.Fatal(err)
	}
	n.updates[run1] <- struct{}{}
	if news, err := w.Wait(ctx, forever); !news || err != nil || !w.appended || w.News() != nil {
		t.Errorf("news of the main subject: %t, %v", news, err)
	}
	n.updates[run2] <- struct{}{}
	if err := w.Await(ctx); err != nil {
		t.Fatal(err)
	}
	if news := w.News(); !slices.Equal(news, []Subject{run2}) || w.News() != nil {
		t.Errorf("news of a further subject: %v", news)
	}
	w.announce(run2) // twice before they are read
	w.announce(run2)
	w.announce(Subject{Session: "s"})
	if <-w.Wake(); len(w.News()) != 2 {
		t.Error("a subject is named twice, or lost")
	}

	// A subscription that has failed is news once: the next read returns the reason.
	close(n.updates[run1])
	if news, err := w.Wait(ctx, forever); !news || err != nil {
		t.Errorf("a failed subscription: %t, %v", news, err)
	}
	if news, err := w.Wait(ctx, time.Nanosecond); news || err != nil {
		t.Errorf("it is news again: %t, %v", news, err)
	}

	w.Unfollow(run2)
	if got := <-n.stopped; got != run2 {
		t.Errorf("Unfollow ends the subscription to %v", got)
	}
	w.Close()
	w.Close()
	if len(n.stopped) != 2 {
		t.Errorf("Close ends %d subscriptions, want 2", len(n.stopped))
	}
	if err := w.Forward(run2); err != nil || len(n.stopped) != 3 {
		t.Error("a subscription outlives Close")
	}
}

func TestWatchWaitsForNodeThatIsAway(t *testing.T) {
	w := (&Client{Node: newFollowed()}).Watch(nil)
	if w.Away(nil) || w.Away(command.ErrClosed) || w.IsAway() {
		t.Error("a node is away that is not")
	}
	back := make(chan struct{})
	if !w.Away(&command.AwayError{Back: back, Refusal: actor.RefuseUnavailable(time.Second, "away")}) || !w.IsAway() {
		t.Fatal("the node is not away")
	}
	if news, err := w.Wait(context.Background(), time.Nanosecond); news || err != nil || !w.IsAway() {
		t.Errorf("before it is back: %t, %v", news, err)
	}
	close(back)
	if news, err := w.Wait(context.Background(), forever); !news || err != nil || w.IsAway() {
		t.Errorf("once it is back: %t, %v", news, err)
	}
}

func TestWatchPollsWhatCannotBeFollowed(t *testing.T) {
	n := newFollowed()
	w := (&Client{Node: n}).Watch(nil)
	n.err = actor.Refuse(actor.Rejected, "no")
	if err := w.FollowOrPoll(run1); err == nil || w.poll {
		t.Errorf("another refusal is no reason to poll: %v", err)
	}
	n.err = actor.RefuseBusy(actor.ScopeNode, time.Second, "too many subscriptions")
	if err := w.FollowOrPoll(run1); err != nil {
		t.Fatal(err)
	}
	if news, err := w.Wait(context.Background(), forever); !news || err != nil {
		t.Errorf("%t, %v", news, err)
	}
}
