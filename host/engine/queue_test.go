// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// A negative length could not be sent to an ingress, which then answered GET /metrics with 500.
func TestLengthOfQueueIsNeverNegative(t *testing.T) {
	q := newQueue(4)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var env actor.Envelope
		for range 200_000 {
			q.push(&env)
			q.pop(&env)
		}
	}()
	for {
		if n := q.len(); n < 0 {
			t.Fatalf("length %d", n)
		}
		select {
		case <-ended:
			return
		default:
		}
	}
}
