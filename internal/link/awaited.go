// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"sync"
	"time"
)

// awaited is a value whose changes can be awaited. The zero awaited has the version 0 and no value.
type awaited[T any] struct {
	mu      sync.Mutex
	version uint64
	value   T
	changed chan struct{} // closed by the next set; nil if nothing waits
}

// set replaces the value, which MUST NOT be changed afterwards.
func (a *awaited[T]) set(value T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version, a.value = a.version+1, value
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// await returns the value once its version differs from after, or at the latest after a beat.
func (a *awaited[T]) await(ctx context.Context, after uint64, beat time.Duration) (version uint64, value T, err error) {
	timer := time.NewTimer(beat)
	defer timer.Stop()
	for over := false; ; {
		a.mu.Lock()
		version, value = a.version, a.value
		if a.changed == nil {
			a.changed = make(chan struct{})
		}
		changed := a.changed
		a.mu.Unlock()
		if over || version != after {
			return version, value, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			return 0, *new(T), ctx.Err()
		}
	}
}
