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
	admitted chan admittedRequest
	holders  []string // keys of the admitted requests, the oldest first
}

type admittedRequest struct{ key, name string }

func newQueueOrder(t *testing.T, b QueueBounds) *queueOrder {
	q := &queueOrder{T: t, bounds: b, admitted: make(chan admittedRequest, b.Waiting)}
	for range b.Open {
		if err := q.Acquire(t.Context(), "first", b); err != nil {
			t.Fatal(err)
		}
		q.holders = append(q.holders, "first")
	}
	return q
}

// wait adds a waiting request.
func (q *queueOrder) wait(ctx context.Context, key, name string) {
	go func() {
		if q.Acquire(ctx, key, q.bounds) == nil {
			q.admitted <- admittedRequest{key, name}
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
		q.Release(q.holders[0])
		q.holders = q.holders[1:]
		next := <-q.admitted
		got, q.holders = append(got, next.name), append(q.holders, next.key)
	}
	if !slices.Equal(got, names) {
		q.Errorf("admitted %q, want %q", got, names)
	}
}

// end releases all places.
func (q *queueOrder) end() {
	q.Helper()
	for _, key := range q.holders {
		q.Release(key)
	}
	if q.open != 0 || q.Waiting() != 0 || len(q.keys) != 0 || len(q.turns) != 0 {
		q.Errorf("%d open, %d waiting, %d keys with %d turns", q.open, q.waiting, len(q.keys), len(q.turns))
	}
}

// Keys take turns, and the requests of one key keep their order.
func TestKeysOfQueueTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOrder(t, QueueBounds{Open: 2, Waiting: 8, Each: 6})
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
		q := newQueueOrder(t, QueueBounds{Open: 20, Waiting: 80, Each: 60})
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
		q := newQueueOrder(t, QueueBounds{Open: 1, Waiting: 4, Each: 3})
		for _, key := range []string{"a", "b", "c", "d"} {
			q.wait(t.Context(), key, key)
		}
		q.wantFull("e", actor.ScopeCallee)
		q.wantFull("a", actor.ScopeCallee)
		q.wantOrder("a", "b", "c", "d")
		q.end()
	})
}

// One key holds at most its bound of the places. Another key gets one at once, also while requests of
// the first wait, and a place of the first goes to its next request.
func TestKeyHoldsAPartOfThePlaces(t *testing.T) {
	for places, held := range map[int]int{1: 1, 2: 1, 3: 2, 4: 3, 8: 6, 64: 48} {
		synctest.Test(t, func(t *testing.T) {
			q := &queueOrder{T: t, bounds: PlacesOf(places), admitted: make(chan admittedRequest, 2*places)}
			for i := range places {
				q.wait(t.Context(), "mallory", "m"+strconv.Itoa(i))
			}
			if len(q.admitted) != held || q.Waiting() != places-held {
				t.Fatalf("of %d places one key holds %d, want %d", places, len(q.admitted), held)
			}
			for range held {
				q.holders = append(q.holders, (<-q.admitted).key)
			}
			for range places - held {
				q.wait(t.Context(), "bob", "b")
				q.holders = append(q.holders, (<-q.admitted).key)
			}
			if q.wait(t.Context(), "bob", "waits"); len(q.admitted) != 0 {
				t.Errorf("%d places: one too many is admitted", places)
			}
			if places == 1 {
				q.wantOrder("waits")
			} else {
				q.wantOrder("m" + strconv.Itoa(held)) // a place of mallory, whose turn precedes bob's
				for len(q.holders) > 0 && q.Waiting() > 0 {
					q.Release(q.holders[0])
					q.holders = q.holders[1:]
					synctest.Wait()
					for len(q.admitted) > 0 {
						q.holders = append(q.holders, (<-q.admitted).key)
					}
				}
			}
			q.end()
		})
	}
}
