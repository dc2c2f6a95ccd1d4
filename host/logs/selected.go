// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"slices"
	"sync"

	"github.com/troupe-run/troupe/store"
)

// selectedMax is the number of selected batches that are remembered.
const selectedMax = 4096

// Selected knows which batches of a log since the start have entries that a filter selects, so that a reader of the log
// need not read the others.
type Selected struct {
	log    uint16
	filter func(*store.Entry) bool

	mu      sync.Mutex
	from    uint64   // of batches up to this one it is unknown
	synced  uint64   // last durable batch
	batches []uint64 // selected ones after from, in order, at most selectedMax; the last ones may not be durable
	changed []chan struct{}
}

// Select returns the batches of a log with entries that a filter selects. It MUST be called before the first
// Commit to the log.
func (l *Log) Select(log int, filter func(*store.Entry) bool) *Selected {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.synced[log].End.Batch
	s := &Selected{log: uint16(log), filter: filter, from: end, synced: end}
	l.selected = append(slices.Clip(l.selected), s) // readers have the former list
	return s
}

// Unselect ends a Select.
func (l *Log) Unselect(s *Selected) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.selected = slices.DeleteFunc(slices.Clone(l.selected), func(o *Selected) bool { return o == s })
}

// add notes the batch of a transaction before it is durable.
func (s *Selected) add(t *store.Transaction) {
	at := slices.IndexFunc(t.Batches, func(b store.Batch) bool { return b.Log == s.log })
	if at < 0 {
		return
	}
	b := &t.Batches[at]
	for i := range b.Entries {
		if !s.filter(&b.Entries[i]) {
			continue
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.batches) == selectedMax {
			s.from, s.batches = s.batches[selectedMax/2-1], append(s.batches[:0], s.batches[selectedMax/2:]...)
		}
		s.batches = append(s.batches, b.No)
		return
	}
}

// sync notes that batches are durable, and notifies readers of selected ones.
func (s *Selected) sync(upto uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.synced
	s.synced = upto
	for i := len(s.batches) - 1; i >= 0 && s.batches[i] > before; i-- {
		if s.batches[i] <= upto {
			for _, c := range s.changed {
				notify(c)
			}
			return
		}
	}
}

// Changed returns a channel that receives a value once further selected batches are durable.
func (s *Selected) Changed() <-chan struct{} {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = append(s.changed, c)
	return c
}

// After returns the next batches after one that may have selected entries, and the last durable batch. If there
// are none, first is 0.
func (s *Selected) After(batch uint64) (first, last, synced uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if batch >= s.synced {
		return 0, 0, s.synced
	}
	if batch < s.from {
		return batch + 1, min(s.from, s.synced), s.synced
	}
	for _, no := range s.batches {
		if no > batch && no <= s.synced {
			return no, no, s.synced
		}
	}
	return 0, 0, s.synced
}
