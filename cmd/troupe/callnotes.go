// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/runs"
)

// notesDelay is the time without an answer after which failed attempts of models and agents are
// printed.
const notesDelay = 2 * time.Second

// attemptNotes prints the failed attempts of models and agents of a run, and of the runs below it,
// while a caller waits for its answer.
type attemptNotes struct {
	message *message
	to      streams
	quiet   atomic.Bool // a part of the answer is printed
}

// start prints notes until stop is called.
func (n *attemptNotes) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-time.After(notesDelay):
			n.print(ctx)
		case <-ctx.Done():
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// print prints notes until ctx or the run ends. An error ends them: the answer has the reason.
func (n *attemptNotes) print(ctx context.Context) {
	run := n.message.run.Load()
	if run == nil {
		found := n.message.findRun(ctx)
		if found.IsZero() {
			return
		}
		n.message.run.Store(&found)
		run = &found
	}
	_, _, _ = n.message.client.streamOnce(ctx, http.MethodGet, "/v1/runs/"+run.String()+"/events?tree=1", nil, 0, func(e runs.Event, _ string) error {
		if e.Type == runs.Attempt && e.Refusal != nil && !n.quiet.Load() {
			fmt.Fprintf(n.to.err, "%s; attempt %d after %s\n", oneLine(e.Refusal.Detail), e.Attempt, e.Refusal.RetryAfter.Round(time.Millisecond))
		}
		return nil
	})
}
