// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// A request that is admitted while it ends passes its place to the next.
func TestAdmittedAfterCancellationIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		b := QueueBounds{Open: 1, Waiting: 4, Each: 4}
		if err := q.Acquire(t.Context(), "a", b); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- q.Acquire(ctx, "a", b) }()
		synctest.Wait()
		q.mu.Lock()
		cancel() // wakes the waiter, which needs the lock
		q.release(q.keys["a"])
		q.mu.Unlock()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if q.open != 0 || q.waiting != 0 {
			t.Errorf("%d requests are admitted and %d wait, want none", q.open, q.waiting)
		}
	})
}
