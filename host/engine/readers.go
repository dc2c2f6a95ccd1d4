// SPDX-License-Identifier: Apache-2.0

package engine

import "sync"

// readers is a pool of goroutines that read the disk for cells. Its queue is
// bounded by the requests of the cells: one read per actor that is being
// loaded.
type readers struct {
	mu     sync.Mutex
	cond   sync.Cond
	queue  []func()
	closed bool
	wg     sync.WaitGroup
}

func newReaders(n int) *readers {
	r := &readers{}
	r.cond.L = &r.mu
	for range n {
		r.wg.Go(r.loop)
	}
	return r
}

// do runs the function read on one of the goroutines. After close it does not
// run the function.
func (r *readers) do(read func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, read)
	r.cond.Signal()
}

func (r *readers) loop() {
	for {
		r.mu.Lock()
		for len(r.queue) == 0 && !r.closed {
			r.cond.Wait()
		}
		if r.closed {
			r.mu.Unlock()
			return
		}
		read := r.queue[0]
		r.queue[0] = nil
		r.queue = r.queue[1:]
		r.mu.Unlock()
		read()
	}
}

// close waits for the running reads and drops the queued ones.
func (r *readers) close() {
	r.mu.Lock()
	r.closed = true
	r.cond.Broadcast()
	r.mu.Unlock()
	r.wg.Wait()
}
