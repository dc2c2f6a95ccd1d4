// SPDX-License-Identifier: Apache-2.0

package gateway

import "sync"

// turnsEach is the maximum number of reads of one principal at the same time: of pages of events, for
// its streams, sockets and waiting requests, and of contexts.
const turnsEach = 2

// turns lets the readers of a principal wait for each other, so that many of them leave time for
// the readers of others. No read is refused: each reader has a place among the streams, or a
// connection, and these places bound the number of readers that wait. The zero value is ready to use.
type turns struct {
	mu sync.Mutex
	by map[string]*turn // of the principals with readers
}

type turn struct {
	slots   chan struct{}
	readers int // that wait or read
}

// take waits until the caller may read, until done.
func (t *turns) take(by *caller) (done func()) {
	key := by.shareKey()
	t.mu.Lock()
	own := t.by[key]
	if own == nil {
		if t.by == nil {
			t.by = map[string]*turn{}
		}
		own = &turn{slots: make(chan struct{}, turnsEach)}
		t.by[key] = own
	}
	own.readers++
	t.mu.Unlock()
	own.slots <- struct{}{}
	return func() {
		<-own.slots
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.readers--; own.readers == 0 {
			delete(t.by, key)
		}
	}
}
