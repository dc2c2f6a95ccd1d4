// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// runWatchInterval is the time before and between checks whether a run has ended. Most answers of
// models that are fast need none.
const runWatchInterval = 200 * time.Millisecond

// watchRunEnd returns a channel that is closed when a run has ended, unless ctx ends before. A run that
// cannot be read is not watched.
func watchRunEnd(ctx context.Context, s *Server, by caller, run actor.CallID) <-chan struct{} {
	ended := make(chan struct{})
	pause := func(*command.Run) error {
		select {
		case <-time.After(runWatchInterval): // an answer of the agent has many events
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	go func() {
		if pause(nil) != nil {
			return
		}
		if _, err := clientOf(s, &by).AwaitEnd(ctx, run, s.stopping, nil, pause); err == nil {
			close(ended)
		}
	}()
	return ended
}
