// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/troupe-run/troupe/actor"
)

// queueOrder records the requests that a queue admits.
type queueOrder struct {
	*testing.T
	Queue
	bounds   QueueBounds
	admitted chan string
}

func newQueueOrder(t *testing.T, b QueueBounds) *queueOrder {
	q := &queueOrder{T: t, bounds: b, admitted: make(chan string, b.Waiting)}
	for range b.Open {
		if err := q.Acquire(t.Context(), "first", b); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// wait adds a waiting request.
func (q *queueOrder) wait(ctx context.Context, key, name string) {
	go func() {
		if q.Acquire(ctx, key, q.bounds) == nil {
			q.admitted <- name
		}
	}()
	synctest.Wait()
}

// wantFull checks the owner of the limit that refuses a request; actor.NoScope: it waits.
func (q *queueOrder) wantFull(key string, want actor.Scope) {
	q.Helper()
	ctx, cancel := context.WithCancel(q.Context())
	cancel()
	var f Full
	if err := q.Acquire(ctx, key, q.bounds); errors.As(err, &f) != (want != actor.NoScope) || f.Scope != want {
		q.Errorf("a request of %s: got %v by %s, want %s", key, err, f.Scope, want)
	}
}

// wantOrder releases a place for each name, and checks who gets it.
func (q *queueOrder) wantOrder(names ...string) {
	q.Helper()
	var got []string
	for range names {
		q.Release()
		got = append(got, <-q.admitted)
	}
	if !slices.Equal(got, names) {
		q.Errorf("admitted %q, want %q", got, names)
	}
}

// end releases all places.
func (q *queueOrder) end() {
	q.Helper()
	for range q.bounds.Open {
		q.Release()
	}
	if q.open != 0 || q.Waiting() != 0 || len(q.keys) != 0 || len(q.turns) != 0 {
		q.Errorf("%d open, %d waiting, %d keys with %d turns", q.open, q.waiting, len(q.keys), len(q.turns))
	}
}

// Keys take turns, and the requests of one key keep their order.
func TestKeysOfQueueTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOrder(t, QueueBounds{2, 8, 6})
		leaving, leave := context.WithCancel(t.Context())
		for _, name := range []string{"a1", "a2", "b1", "a3", "gone", "c1", "b2"} {
			ctx := t.Context()
			if name == "gone" {
				ctx = leaving
			}
			q.wait(ctx, name[:1], name)
		}
		leave()
		synctest.Wait()
		q.wantOrder("a1", "b1", "c1", "a2")
		q.wait(t.Context(), "c", "c2") // c had its turn
		q.wantOrder("b2", "a3", "c2")
		q.end()
	})
}

// A key with many waiting requests delays that of another by one request, and leaves it a place.
func TestFloodOfQueueDelaysOthersByOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOrder(t, QueueBounds{20, 80, 60})
		for i := range 60 {
			q.wait(t.Context(), "mallory", "m"+strconv.Itoa(i))
		}
		if n := q.Waiting(); n != 60 {
			t.Fatalf("%d requests wait, want 60", n)
		}
		q.wantFull("mallory", actor.ScopeCaller)
		q.wantFull("bob", actor.NoScope)
		q.wait(t.Context(), "bob", "of bob")
		q.wantOrder("m0", "of bob", "m1", "m2")
		q.wait(t.Context(), "bob", "again")
		q.wantOrder("m3", "again")
		for i := range 60 - 4 {
			q.wantOrder("m" + strconv.Itoa(4+i))
		}
		q.end()
	})
}

// All keys together cannot exceed the bound of the queue.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOrder(t, QueueBounds{1, 4, 3})
		for _, key := range []string{"a", "b", "c", "d"} {
			q.wait(t.Context(), key, key)
		}
		q.wantFull("e", actor.ScopeCallee)
		q.wantFull("a", actor.ScopeCallee)
		q.wantOrder("a", "b", "c", "d")
		q.end()
	})
}
