// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// runWatchInterval is the minimum time between two checks whether a run has ended.
const runWatchInterval = 200 * time.Millisecond

// watchRunEnd returns a channel that is closed when a run has ended, unless ctx ends before. A run that
// cannot be followed now is not watched.
func watchRunEnd(ctx context.Context, s *Server, by caller, run actor.CallID) <-chan struct{} {
	ended := make(chan struct{})
	changed, stop, err := changesOf(s, by, run)
	if err != nil {
		return ended
	}
	go func() {
		defer stop()
		for changed(ctx) && ctx.Err() == nil {
			found, err := lookup(s, by, command.RunQuery{Run: run})
			if record := found.Current(); err == nil && record.Status.Ended() {
				close(ended)
				return
			}
			select {
			case <-time.After(runWatchInterval):
			case <-ctx.Done():
				return
			}
		}
	}()
	return ended
}
