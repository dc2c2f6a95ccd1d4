// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/troupe-run/troupe/actor"
)

// queueOrder records the requests that a queue admits.
type queueOrder struct {
	*testing.T
	queue
	limit    int
	admitted chan string
}

func newQueueOrder(t *testing.T, limit int) *queueOrder {
	q := &queueOrder{T: t, limit: limit, admitted: make(chan string, queueFactor*limit)}
	for range limit {
		if err := q.acquire(t.Context(), "first", limit); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// wait adds a waiting request.
func (q *queueOrder) wait(ctx context.Context, user, name string) {
	go func() {
		if q.acquire(ctx, user, q.limit) == nil {
			q.admitted <- name
		}
	}()
	synctest.Wait()
}

// wantFull checks the owner of the limit that refuses a request; actor.NoScope: it waits.
func (q *queueOrder) wantFull(user string, want actor.Scope) {
	q.Helper()
	ctx, cancel := context.WithCancel(q.Context())
	cancel()
	var f full
	if err := q.acquire(ctx, user, q.limit); errors.As(err, &f) != (want != actor.NoScope) || f.scope != want {
		q.Errorf("a request of %s: got %v by %s, want %s", user, err, f.scope, want)
	}
}

// wantOrder releases a place for each name, and checks who gets it.
func (q *queueOrder) wantOrder(names ...string) {
	q.Helper()
	var got []string
	for range names {
		q.release()
		got = append(got, <-q.admitted)
	}
	if !slices.Equal(got, names) {
		q.Errorf("admitted %q, want %q", got, names)
	}
}

// end releases all places.
func (q *queueOrder) end() {
	q.Helper()
	for range q.limit {
		q.release()
	}
	if q.open != 0 || q.waiting != 0 || len(q.users) != 0 || len(q.turns) != 0 {
		q.Errorf("%d open, %d waiting, %d users with %d turns", q.open, q.waiting, len(q.users), len(q.turns))
	}
}

// Users take turns, and the requests of one user keep their order.
func TestUsersOfQueueTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOrder(t, 2)
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

// A user with many waiting requests delays that of another by one request, and leaves it a place.
func TestFloodOfQueueDelaysOthersByOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOrder(t, 20)
		for i := range userQueueFactor * 20 {
			q.wait(t.Context(), "mallory", "m"+strconv.Itoa(i))
		}
		if q.waiting != 60 {
			t.Fatalf("%d requests wait, want 60", q.waiting)
		}
		q.wantFull("mallory", actor.ScopeCaller)
		q.wantFull("bob", actor.NoScope)
		q.wait(t.Context(), "bob", "of bob")
		q.wantOrder("m0", "of bob", "m1", "m2")
		q.wait(t.Context(), "bob", "again")
		q.wantOrder("m3", "again")
		for i := range userQueueFactor*20 - 4 {
			q.wantOrder("m" + strconv.Itoa(4+i))
		}
		q.end()
	})
}

// The page has the numbers of the queue.
func TestLimitsPageHasQueue(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("at most %d times as many of all users and %d times\nof one", queueFactor, userQueueFactor); !strings.Contains(string(page), text) {
		t.Errorf("docs/limits.md lacks: %s", text)
	}
}

// All users together cannot exceed the bound of the queue.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOrder(t, 1)
		for _, user := range []string{"a", "b", "c", "d"} {
			q.wait(t.Context(), user, user)
		}
		q.wantFull("e", actor.ScopeCallee)
		q.wantFull("a", actor.ScopeCallee)
		q.wantOrder("a", "b", "c", "d")
		q.end()
	})
}
