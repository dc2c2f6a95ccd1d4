// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// Events of a process keep their order if a pause is extended while some of them
// already wait for its end.
func TestPostponedEventsKeepTheirOrder(t *testing.T) {
	var q eventQueue
	var got []string
	push := func(at actor.Time, name string) {
		q.push(queuedEvent{at: at, fn: func() { got = append(got, name) }})
	}
	push(3, "body")
	push(2, "head")
	push(9, "timer")
	e, _ := q.pop()
	q.postpone(e, 5) // the head, until the end of the first pause
	e, _ = q.pop()
	q.postpone(e, 9) // the body: the pause was extended at 3
	e, _ = q.pop()
	q.postpone(e, 9) // the head again
	for {
		e, ok := q.pop()
		if !ok {
			break
		}
		e.fn()
	}
	if want := []string{"head", "body", "timer"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
