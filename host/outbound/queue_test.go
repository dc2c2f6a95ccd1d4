// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestQueueAdmitsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q queue
		if err := q.acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		leaving, leave := context.WithCancel(t.Context())
		order := make(chan int, queueFactor)
		for i := range queueFactor {
			ctx := t.Context()
			if i == 1 {
				ctx = leaving
			}
			go func() {
				if q.acquire(ctx, 1) == nil {
					order <- i
				}
			}()
			synctest.Wait()
		}
		if err := q.acquire(t.Context(), 1); !errors.Is(err, full{}) {
			t.Errorf("got %v, want full", err)
		}
		leave()
		synctest.Wait()
		for _, want := range []int{0, 2, 3} {
			q.release()
			if got := <-order; got != want {
				t.Errorf("got request %d, want %d", got, want)
			}
		}
		q.release()
		if q.open != 0 || len(q.waiting) != 0 {
			t.Errorf("%d open, %d waiting", q.open, len(q.waiting))
		}
	})
}
