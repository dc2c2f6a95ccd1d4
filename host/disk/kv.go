// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/store"
)

// keys implements store.KV on Pebble.
type keys struct{ db *pebble.DB }

// Get implements store.KV. The caller owns the value.
func (k keys) Get(key []byte) ([]byte, bool, error) {
	value, closer, err := k.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("key %s: %w", key, firstLine{err})
	}
	value = append([]byte(nil), value...)
	return value, true, closer.Close()
}

// firstLine is an error with the first line of its message. Pebble appends further
// lines to errors of damage.
type firstLine struct{ error }

func (e firstLine) Error() string {
	line, _, _ := strings.Cut(e.error.Error(), "\n")
	return line
}

func (e firstLine) Unwrap() error { return e.error }

// Scan implements store.KV. It reads a snapshot taken at its start.
func (k keys) Scan(from, to []byte, each func(key, value []byte) bool) error {
	return k.scan(from, to, (*pebble.Iterator).First, (*pebble.Iterator).Next, each)
}

// ScanBack implements store.KV. It reads a snapshot taken at its start.
func (k keys) ScanBack(from, to []byte, each func(key, value []byte) bool) error {
	return k.scan(from, to, (*pebble.Iterator).Last, (*pebble.Iterator).Prev, each)
}

func (k keys) scan(from, to []byte, first, next func(*pebble.Iterator) bool, each func(key, value []byte) bool) error {
	it, err := k.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return fmt.Errorf("key %s: %w", from, firstLine{err})
	}
	for ok := first(it); ok; ok = next(it) {
		value, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(fmt.Errorf("key %s: %w", it.Key(), firstLine{err}), it.Close())
		}
		if !each(it.Key(), value) {
			break
		}
	}
	if err := it.Close(); err != nil {
		return fmt.Errorf("keys from %s: %w", from, firstLine{err})
	}
	return nil
}

// Apply implements store.KV. The rows are durable when it returns.
func (k keys) Apply(rows []store.Row) error {
	w, err := k.write(rows)
	if err != nil {
		return err
	}
	return w.sync()
}

// rowOverhead is the maximum size in bytes of a row in a batch, in addition to
// its key and value.
const rowOverhead = 16

// write is a batch that was written to the write-ahead log but not yet synced.
type write struct {
	rows  *pebble.Batch
	batch uint64 // number of the batch of a store.Log
}

func (k keys) write(rows []store.Row) (write, error) {
	b, err := k.batch(rows)
	if err != nil {
		return write{}, err
	}
	return write{rows: b}, k.db.ApplyNoSyncWait(b, pebble.Sync)
}

// writeUnsynced writes rows that become durable with a later write.
func (k keys) writeUnsynced(rows []store.Row) error {
	b, err := k.batch(rows)
	if err != nil {
		return err
	}
	if err := k.db.Apply(b, pebble.NoSync); err != nil {
		return err
	}
	return b.Close()
}

func (k keys) batch(rows []store.Row) (*pebble.Batch, error) {
	size := 0
	for i := range rows {
		size += len(rows[i].Key) + len(rows[i].Value) + len(rows[i].To) + rowOverhead
	}
	b := k.db.NewBatchWithSize(size)
	for _, row := range rows {
		var err error
		switch {
		case row.Delete && row.To != nil:
			err = b.DeleteRange(row.Key, row.To, nil)
		case row.Delete:
			err = b.Delete(row.Key, nil)
		default:
			err = b.Set(row.Key, row.Value, nil)
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (w write) sync() error {
	if err := w.rows.SyncWait(); err != nil {
		return err
	}
	return w.rows.Close()
}
