// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/troupe-run/troupe/store"
)

// purgeFile exists while deleted content may be left in the files of Pebble, which keep old
// versions of a row until a compaction. It is created before the first deletion and removed
// by Purge, so a purge that a crash prevented is made up for by the next process.
const purgeFile = "PURGE"

// staleRangesMax is the maximum number of key ranges that wait for a Purge. Beyond it, the
// two that are closest to each other are merged.
const staleRangesMax = 64

// recycledLogs is the maximum number of write-ahead logs that Pebble keeps: those whose
// files it will reuse, and the current one.
const recycledLogs = 4

// stale is the set of key ranges with deleted content.
type stale struct {
	mu       sync.Mutex
	ranges   []keyRange // in ascending order, disjoint
	owed     bool       // purgeFile exists
	draining atomic.Bool
	purging  sync.Mutex // held by Purge
}

// take empties the set.
func (s *stale) take() (ranges []keyRange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ranges, s.ranges = s.ranges, nil
	return ranges
}

// putBack adds ranges that were taken.
func (s *stale) putBack(ranges []keyRange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range ranges {
		s.addRange(r)
	}
}

// keyRange is the keys from one key on and before another.
type keyRange struct{ from, to []byte }

// everything is all keys that sessions and logs have.
var everything = []keyRange{{[]byte("l/"), []byte("m")}, {[]byte("t/"), []byte("u")}}

// add adds the keys of rows that were changed or deleted, and of the snapshots of actors
// whose index changed.
func (s *stale) add(rows []store.Row) {
	for _, row := range rows {
		to := row.To
		if to == nil {
			to = append(bytes.Clone(row.Key), 0)
		}
		s.addRange(keyRange{bytes.Clone(row.Key), bytes.Clone(to)})
		if id, ok := store.ActorOfKey(row.Key); ok {
			key := store.SnapshotKey(id)
			s.addRange(keyRange{key, append(bytes.Clone(key), 0)})
		}
	}
}

func (s *stale) addRange(r keyRange) {
	at, _ := slices.BinarySearchFunc(s.ranges, r.from, func(x keyRange, from []byte) int { return bytes.Compare(x.from, from) })
	if at > 0 && bytes.Compare(s.ranges[at-1].to, r.from) >= 0 {
		at--
		r.from, r.to = s.ranges[at].from, later(s.ranges[at].to, r.to)
	}
	end := at
	for ; end < len(s.ranges) && bytes.Compare(s.ranges[end].from, r.to) <= 0; end++ {
		r.to = later(r.to, s.ranges[end].to)
	}
	s.ranges = slices.Replace(s.ranges, at, end, r)
	if len(s.ranges) <= staleRangesMax {
		return
	}
	best, length := 0, -1
	for i := range len(s.ranges) - 1 {
		if n := commonPrefix(s.ranges[i].to, s.ranges[i+1].from); n > length {
			best, length = i, n
		}
	}
	s.ranges[best].to = s.ranges[best+1].to
	s.ranges = slices.Delete(s.ranges, best+1, best+2)
}

func later(a, b []byte) []byte {
	if bytes.Compare(a, b) < 0 {
		return b
	}
	return a
}

func commonPrefix(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// isCut reports whether an entry cuts the log.
func isCut(e store.Entry) bool {
	_, ok := e.Record.(store.Cut)
	return ok
}

// purger is the part of a store that removes deleted content from its files.
type purger struct{ *Disk }

// eraser is the store.KV of a step of Erase.
type eraser struct{ *Disk }

// Apply implements store.KV. It may use the reserve.
func (e eraser) Apply(rows []store.Row) error {
	if err := purger(e).owePurge(rows); err != nil {
		return err
	}
	if err := e.checkFree(e.options.FreeFloor / reservePart); err != nil {
		return err
	}
	return e.keys.Apply(rows)
}

// owePurge records durably that rows are about to be deleted. d.writing is held until they
// are.
func (d purger) owePurge(rows []store.Row) error {
	s := &d.stale
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.owed {
		if err := d.writeAtomic(purgeFile, nil); err != nil {
			return err
		}
		s.owed = true
	}
	s.add(rows)
	return nil
}

// recoverPurge finds out whether the last process left deleted content. It does not know
// where, so that the next Purge covers all keys.
func (d purger) recoverPurge() error {
	_, err := d.options.fs.Stat(d.path(purgeFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	d.stale.owed, d.stale.ranges = true, slices.Clone(everything)
	return err
}

// PurgeOwed reports whether deleted content may be left in the files.
func (d *Disk) PurgeOwed() bool {
	d.stale.mu.Lock()
	defer d.stale.mu.Unlock()
	return d.stale.owed
}

// Purge removes from the files of the store content that was deleted before the call, by compacting
// the tables with these keys and replacing the write-ahead logs. A file that a reader still
// uses is removed once that reader ends. If ctx ends, the next Purge continues. It may
// run at the same time as Append and Erase.
func (d *Disk) Purge(ctx context.Context) error {
	s := &d.stale
	s.purging.Lock()
	defer s.purging.Unlock()
	if !d.PurgeOwed() {
		return nil
	}
	d.writing.Lock() // what the set holds is deleted
	ranges := s.take()
	d.writing.Unlock()
	if err := (purger{d}).purge(ctx, ranges); err != nil {
		s.putBack(ranges)
		return fmt.Errorf("purge: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ranges) > 0 {
		return nil // deleted in the meantime
	}
	if err := errors.Join(d.options.fs.Remove(d.path(purgeFile)), syncDir(d.options.fs, d.dir)); err != nil {
		s.ranges = ranges
		return fmt.Errorf("file %s: %w", purgeFile, cause(err))
	}
	s.owed = false
	return nil
}

func (d purger) purge(ctx context.Context, ranges []keyRange) error {
	if err := d.db.Flush(); err != nil {
		return err
	}
	for _, r := range ranges {
		if err := d.db.Compact(ctx, r.from, r.to, false); err != nil {
			return fmt.Errorf("keys from %s: %w", r.from, err)
		}
	}
	return d.drainLogs(ctx)
}

// drainLogs replaces each write-ahead log that Pebble would reuse by a new file.
func (d purger) drainLogs(ctx context.Context) error {
	d.stale.draining.Store(true)
	defer d.stale.draining.Store(false)
	for range recycledLogs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.db.Flush(); err != nil {
			return err
		}
	}
	return nil
}
