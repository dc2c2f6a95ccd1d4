// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
)

// Rows is a Log that is stored as rows of a KV, and its Reader. If a value is damaged or
// missing, the error names its key.
type Rows struct{ KV KV }

var (
	_ Log    = Rows{}
	_ Reader = Rows{}
)

// Append implements Log. It does not check the epochs of the batch: a KV has no owner of
// shards.
func (r Rows) Append(b *Batch) error { return r.KV.Apply(b.Rows) }

// Settle implements Log.
func (r Rows) Settle(b *Batch) (bool, error) {
	key := batchKey(b.Node, b.No)
	record, ok, err := r.KV.Get(key)
	if err == nil && ok && actor.HashOf(record) != b.Hash {
		err = fmt.Errorf("key %s: holds another batch", key)
	}
	return ok && err == nil, err
}

// Sync implements Log. A KV has made its rows durable when Apply returns.
func (r Rows) Sync(uint64) error { return nil }

// Load implements Reader.
//
// Load scans in descending order, starting with the snapshot, if any. The number
// of the snapshot determines the end of the scan, so a single scan suffices. A second
// scan would be expensive, because the fixed cost of a scan exceeds the cost of its
// data.
func (r Rows) Load(id actor.ID) (Saved, error) {
	blob := func(h actor.Hash) ([]byte, error) { return loadBlob(r.KV, id.Tenant, h) }
	var saved Saved
	var rows []Row // entries after the snapshot, in descending order
	var failure error
	n := uint64(0)
	snapshot, prefix := snapshotKey(id), len(actorKey(id))
	err := r.KV.ScanBack(entryKey(id, 1), append(snapshot, 0), func(key, value []byte) bool {
		if bytes.Equal(key, snapshot) {
			saved.Snapshot, n, failure = readSnapshot(id, key, value, blob)
			return failure == nil
		}
		var at uint64
		if at, failure = lastNumber(key, prefix); failure != nil || at <= n {
			return false
		}
		rows = append(rows, Row{Key: bytes.Clone(key), Value: bytes.Clone(value)})
		return true
	})
	if failure != nil {
		err = failure
	}
	if err != nil {
		return Saved{}, err
	}
	for _, row := range slices.Backward(rows) {
		if at, _ := lastNumber(row.Key, prefix); at != n+1 {
			return Saved{}, fmt.Errorf("key %s: is missing, the next is %s", entryKey(id, n+1), row.Key)
		}
		err := readEntries(id, row.Key, row.Value, blob, func(e Entry) error {
			if n++; e.N != n {
				return fmt.Errorf("key %s: holds entry %d, want entry %d", row.Key, e.N, n)
			}
			saved.Entries = append(saved.Entries, e)
			return nil
		})
		if err != nil {
			return Saved{}, err
		}
	}
	return saved, nil
}

// Outcome implements Reader. The entry is in the last row that starts at n or before.
func (r Rows) Outcome(id actor.ID, n uint64) (Ended, error) {
	var outcome Ended
	failure := fmt.Errorf("key %s: is missing", entryKey(id, n))
	err := r.KV.ScanBack(entryKey(id, 1), entryKey(id, n+1), func(key, value []byte) bool {
		failure = readEntries(id, key, value, func(h actor.Hash) ([]byte, error) { return loadBlob(r.KV, id.Tenant, h) }, func(e Entry) error {
			if ended, ok := e.Record.(Ended); ok && e.N == n {
				outcome = ended
			}
			return nil
		})
		if failure == nil && outcome.Call.IsZero() {
			failure = fmt.Errorf("key %s: entry %d is not an outcome", key, n)
		}
		return false
	})
	if err == nil && !mutant.On("unread-outcome-empty") {
		err = failure
	}
	return outcome, err
}

// readSnapshot decodes the row of a snapshot. It returns the encoded journal and the
// number of the last entry that the journal includes.
func readSnapshot(id actor.ID, key, value []byte, blob func(actor.Hash) ([]byte, error)) (journal []byte, n uint64, err error) {
	err = readEntries(id, key, value, blob, func(e Entry) error {
		s, ok := e.Record.(Snapshot)
		if !ok {
			return fmt.Errorf("key %s: holds %T, not a snapshot", key, e.Record)
		}
		journal, n = s.Journal, e.N
		return nil
	})
	return journal, n, err
}

// readEntries decodes the entries of a row and passes each entry to the callback each.
// It returns errors of the callback unchanged and adds the key to all other errors.
func readEntries(id actor.ID, key, value []byte, blob func(actor.Hash) ([]byte, error), each func(Entry) error) error {
	_, _, content, err := unseal(value)
	if err != nil {
		return fmt.Errorf("key %s: %w", key, err)
	}
	var eachErr error
	err = unpackEntries(content, blob, func(e Entry) error {
		if e.Actor != id {
			return fmt.Errorf("holds an entry of %s", e.Actor)
		}
		eachErr = each(e)
		return eachErr
	})
	if err != nil && eachErr == nil {
		err = fmt.Errorf("key %s: %w", key, err)
	}
	return err
}

// loadBlob reads a blob and checks its content against its hash.
func loadBlob(kv KV, tenant string, name actor.Hash) ([]byte, error) {
	key := blobKey(tenant, name)
	value, ok, err := kv.Get(key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("blob %s is missing", key)
	}
	_, _, content, err := unseal(value)
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", key, err)
	}
	if actor.HashOf(content) != name {
		return nil, fmt.Errorf("blob %s does not match its hash", key)
	}
	return bytes.Clone(content), nil
}

// Fold returns the journal of an actor from its stored data.
func Fold(saved Saved) (Journal, error) {
	var j Journal
	if saved.Snapshot != nil {
		var err error
		if j, err = DecodeJournal(saved.Snapshot); err != nil {
			return Journal{}, err
		}
	}
	for _, e := range saved.Entries {
		if err := j.ApplyEntry(e); err != nil {
			return Journal{}, fmt.Errorf("%s: %w", e.Actor, err)
		}
	}
	if mutant.On("key-forgotten-at-restart") {
		for i := range j.Ended {
			j.Ended[i].Idempotency = actor.Idempotency{}
		}
		for i := range j.Evicted {
			j.Evicted[i].Idempotency = nil
		}
	}
	return j, nil
}

// Due implements Reader.
func (r Rows) Due(shards []uint16, each func(actor.ID)) error {
	if len(shards) == 0 {
		return nil
	}
	wanted := make([]bool, int(slices.Max(shards))+1)
	for _, s := range shards {
		wanted[s] = true
	}
	var failure error
	err := r.KV.Scan(shardKey(slices.Min(shards)), prefixEnd(shardKey(slices.Max(shards))), func(key, _ []byte) bool {
		shard, ok := shardOf(key)
		if ok && (int(shard) >= len(wanted) || !wanted[shard]) {
			return true
		}
		_, id, err := parseDueKey(key)
		if err != nil {
			failure = err
			return false
		}
		each(id)
		return true
	})
	if failure != nil {
		err = failure
	}
	return err
}

// Run implements Reader.
func (r Rows) Run(tenant string, run actor.CallID) (owner RunOwner, ok bool, err error) {
	value, ok, err := r.KV.Get(runKey(tenant, run))
	if !ok || err != nil {
		return RunOwner{}, false, err
	}
	s, err := decodeSummary(run, value)
	if err != nil {
		return RunOwner{}, false, fmt.Errorf("key %s: %w", runKey(tenant, run), err)
	}
	return RunOwner{run, s.Root, s.Actor}, true, nil
}

// Events implements Reader.
func (r Rows) Events(tenant string, run actor.CallID, after uint64, limit int) ([]RunEvent, error) {
	prefix := eventsKey(tenant, run)
	first := eventKey(tenant, run, 1)
	if after > 0 { // the row that holds the next event may start at an earlier event
		err := r.KV.ScanBack(first, eventKey(tenant, run, after+2), func(key, _ []byte) bool {
			first = bytes.Clone(key)
			return false
		})
		if err != nil {
			return nil, err
		}
	}
	var events []RunEvent
	var failure error
	err := r.KV.Scan(first, prefixEnd(prefix), func(key, value []byte) bool {
		if len(events) >= limit {
			return false
		}
		failure = readEvents(key, len(prefix), value, func(seq uint64, body []byte) error {
			want := after + uint64(len(events)) + 1
			switch {
			case seq > want && len(events) < limit:
				return fmt.Errorf("key %s: is missing, the next is %s", eventKey(tenant, run, want), key)
			case seq == want && len(events) < limit:
				events = append(events, RunEvent{run, seq, bytes.Clone(body)})
			}
			return nil
		})
		return failure == nil
	})
	if failure != nil {
		err = failure
	}
	return events, err
}

// readEvents decodes the events of a row and passes each event to the callback each.
// The argument prefix is the length in bytes of the part of the key before the number
// of the first event.
func readEvents(key []byte, prefix int, value []byte, each func(seq uint64, body []byte) error) error {
	seq, err := lastNumber(key, prefix)
	if err != nil {
		return err
	}
	_, _, content, err := unseal(value)
	if err != nil && !mutant.On("truncated-events-read") {
		return fmt.Errorf("key %s: %w", key, err)
	}
	for body := range bytes.SplitSeq(content, []byte{eventSeparator}) {
		if err := each(seq, body); err != nil {
			return err
		}
		seq++
	}
	return nil
}

// CheckFormat returns an error if a KV was written in another format version. An empty
// KV passes; its writer starts with FormatRow.
func CheckFormat(kv KV) error {
	value, ok, err := kv.Get([]byte(FormatKey))
	if err != nil {
		return err
	}
	if want := FormatRow().Value; ok && !bytes.Equal(value, want) && !mutant.On("newer-format-read") {
		return fmt.Errorf("store of format %.20q, this program reads format %s", value, want)
	}
	return nil
}

// FormatRow returns the row that records the format version.
func FormatRow() Row {
	return Row{Key: []byte(FormatKey), Value: fmt.Append(nil, FormatVersion)}
}
