// SPDX-License-Identifier: Apache-2.0

package engine

import "sync"

// readers are the goroutines that read the disk for cells. What waits for them
// is bounded by what the cells wait for: one read per actor that is being loaded.
type readers struct {
	mu      sync.Mutex
	more    sync.Cond
	waiting []func()
	closed  bool
	running sync.WaitGroup
}

func newReaders(n int) *readers {
	r := &readers{}
	r.more.L = &r.mu
	for range n {
		r.running.Go(r.loop)
	}
	return r
}

// do has one of the readers call read. After close nothing is read any more.
func (r *readers) do(read func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, read)
	r.more.Signal()
}

func (r *readers) loop() {
	for {
		r.mu.Lock()
		for len(r.waiting) == 0 && !r.closed {
			r.more.Wait()
		}
		if r.closed {
			r.mu.Unlock()
			return
		}
		read := r.waiting[0]
		r.waiting[0] = nil
		r.waiting = r.waiting[1:]
		r.mu.Unlock()
		read()
	}
}

// close waits for the reads under way.
func (r *readers) close() {
	r.mu.Lock()
	r.closed = true
	r.more.Broadcast()
	r.mu.Unlock()
	r.running.Wait()
}
