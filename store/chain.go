// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
)

// Pos is a position in a node's log: the number of entries before it.
type Pos uint64

// Mark identifies a batch of a node's log: its number, the end of the log after it,
// and its hash. The hash covers all earlier batches through the chain. The zero Mark
// is the start of the log.
type Mark struct {
	Batch uint64
	Pos   Pos
	Hash  actor.Hash
}

// ShardEpoch is a shard and the epoch under which a batch wrote to it.
type ShardEpoch struct {
	Shard uint16
	Epoch actor.Epoch
}

// batchRecord is one link of the chain. The hash of a batch is the hash of its encoded
// record.
type batchRecord struct {
	prev     actor.Hash
	from, to Pos
	shards   []ShardEpoch // sorted, without duplicates
	payloads []Payload
}

func (r *batchRecord) encode() []byte {
	e := actor.Encoder{Buf: make([]byte, 0, 64+8*len(r.shards)+128*len(r.payloads))}
	e.Uint(frameVersion)
	e.Hash(r.prev)
	e.Uint(uint64(r.from))
	e.Uint(uint64(r.to))
	e.Uint(uint64(len(r.shards)))
	for _, s := range r.shards {
		e.Uint(uint64(s.Shard))
		e.Uint(uint64(s.Epoch))
	}
	e.Uint(uint64(len(r.payloads)))
	for _, p := range r.payloads {
		e.Bytes(p.Key)
		e.Hash(p.Digest)
	}
	return e.Buf
}

func decodeBatch(b []byte) (batchRecord, error) {
	d := newDecoder(b)
	if err := d.readVersion("batch", frameVersion); err != nil {
		return batchRecord{}, err
	}
	r := batchRecord{prev: d.Hash(), from: Pos(d.Uint()), to: Pos(d.Uint())}
	r.shards = decodeList(d, d.Count(1<<16, "shards"), func() ShardEpoch {
		return ShardEpoch{uint16(d.UintMax(1<<16-1, "shard")), actor.Epoch(d.Uint())}
	})
	r.payloads = decodeList(d, d.Count(itemsMax, "payloads"), func() Payload {
		return Payload{d.Bytes(actor.TextBytesMax), d.Hash()}
	})
	if r.to < r.from {
		d.Fail("ends at entry %d, before its start at entry %d", r.to, r.from)
	}
	return r, d.End()
}

// chain encodes consecutive batches as rows.
type chain struct {
	last Mark
	rows rowWriter
}

// seal sets the rows and the hash of the next batch. The batch record is the last row.
func (c *chain) seal(b *Batch) {
	rows, payloads := c.rows.write(b.No, b.Entries)
	r := batchRecord{prev: c.last.Hash, from: c.last.Pos, to: b.Pos, shards: b.Shards, payloads: payloads}
	record := r.encode()
	b.Rows = append(rows, Row{Key: batchKey(c.rows.node, b.No), Value: record})
	b.Hash = actor.HashOf(record)
	c.last = b.Mark()
}

func shardsOf(entries []Entry) []ShardEpoch {
	var all []ShardEpoch
	for _, e := range entries {
		all = append(all, ShardEpoch{e.Shard, e.Epoch})
	}
	slices.SortFunc(all, func(a, b ShardEpoch) int {
		return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Epoch, b.Epoch))
	})
	return slices.Compact(all)
}

// RecentBatches and RecentEntries bound the part of the log before its anchor that
// Verify checks. Counting back from the anchor, verification starts at the batch where
// either bound is reached. The start of a node therefore does not wait for the check
// of older batches. VerifyAll checks the older batches on demand.
const (
	RecentBatches = 4096
	RecentEntries = 8192
)

// Verify checks a node's chain from a recent batch before the anchor to the end of the
// log. It returns the end of the log, from which a Writer continues. For each of these
// defects it returns an error with the batch and, if it exists, the key:
//
//   - a log that ends before its anchor
//   - a batch that does not continue the previous one
//   - a payload that differs from the one written
func Verify(kv KV, node actor.NodeID, anchor Mark) (Mark, error) {
	origin, err := Origin(kv)
	if err != nil {
		return Mark{}, err
	}
	first, err := firstRecent(kv, node, origin, anchor)
	if err != nil {
		return Mark{}, err
	}
	return verify(kv, node, origin, anchor, first)
}

// firstRecent returns the number of the first batch that Verify checks. If no bound is
// reached, it is the first batch after origin, so that lost first batches are found.
// firstRecent ignores damaged records, because verify reports these later.
func firstRecent(kv KV, node actor.NodeID, origin, anchor Mark) (first uint64, err error) {
	first = origin.Batch + 1
	err = kv.ScanBack(batchKey(node, first), batchKey(node, max(first, anchor.Batch+1)), func(key, value []byte) bool {
		no, err := lastNumber(key, len(nodeKey(node)))
		if err != nil {
			return false
		}
		r, _ := decodeBatch(value)
		if anchor.Batch-no+1 < RecentBatches && anchor.Pos-min(r.from, anchor.Pos) < RecentEntries {
			return true
		}
		first = no
		return false
	})
	return first, err
}

// VerifyAll is like Verify, but checks the chain from its start.
func VerifyAll(kv KV, node actor.NodeID, anchor Mark) (Mark, error) {
	origin, err := Origin(kv)
	if err != nil {
		return Mark{}, err
	}
	return verify(kv, node, origin, anchor, origin.Batch+1)
}

func verify(kv KV, node actor.NodeID, origin, anchor Mark, first uint64) (end Mark, err error) {
	if origin.Batch == anchor.Batch && origin != anchor {
		return Mark{}, fmt.Errorf("key %s: batch %d of %s does not match the anchor", OriginKey, origin.Batch, node)
	}
	prefix := nodeKey(node)
	next, partial := first, first > origin.Batch+1
	if !partial {
		end = origin
	}
	var failure, later error // later holds the error of the first misplaced payload; it is returned only if the chain is intact to its end
	err = kv.Scan(batchKey(node, first), prefixEnd(prefix), func(key, value []byte) bool {
		no, err := lastNumber(key, len(prefix))
		if err != nil {
			failure = err
			return false
		}
		if no != next {
			failure = fmt.Errorf("batch %d of %s is missing: the next is %d", next, node, no)
			return false
		}
		if end, failure = verifyBatch(kv, node, no, value, end, next == first && partial); errors.As(failure, new(misplaced)) {
			later, failure = cmp.Or(later, fmt.Errorf("key %s: batch %d of %s: %w", key, no, node, failure)), nil
		}
		if failure == nil && no == anchor.Batch && end != anchor {
			failure = fmt.Errorf("hash %s at entry %d does not match the anchor: hash %s at entry %d", end.Hash, end.Pos, anchor.Hash, anchor.Pos)
		}
		if failure != nil {
			failure = fmt.Errorf("key %s: batch %d of %s: %w", key, no, node, failure)
		}
		next++
		return failure == nil
	})
	switch {
	case failure != nil:
		return Mark{}, failure
	case err != nil:
		return Mark{}, err
	case end.Batch < anchor.Batch && !mutant.On("log-may-end-early"):
		return Mark{}, fmt.Errorf("the log of %s ends at batch %d, before its anchor at batch %d: what was committed is lost", node, next-1, anchor.Batch)
	case later != nil:
		return Mark{}, later
	}
	return end, nil
}

// verifyBatch checks one batch against the mark of the previous one, and its payloads.
// If first is set, the previous batch was not read. Then verifyBatch does not check
// that the record continues the previous batch.
func verifyBatch(kv KV, node actor.NodeID, no uint64, value []byte, before Mark, first bool) (Mark, error) {
	r, err := decodeBatch(value)
	switch {
	case err != nil:
		return Mark{}, err
	case !first && r.prev != before.Hash:
		return Mark{}, errors.New("does not follow the previous batch: hash mismatch")
	case !first && r.from != before.Pos:
		return Mark{}, fmt.Errorf("starts at entry %d, but the previous batch ended at entry %d", r.from, before.Pos)
	}
	var later error
	for _, p := range r.payloads {
		if mutant.On("payload-unchecked") {
			break
		}
		switch err := verifyPayload(kv, node, no, p); {
		case errors.As(err, new(misplaced)):
			later = cmp.Or(later, fmt.Errorf("payload %s: %w", p.Key, err))
		case err != nil:
			return Mark{}, fmt.Errorf("payload %s: %w", p.Key, err)
		}
	}
	return Mark{no, r.to, actor.HashOf(value)}, later
}

// misplaced is the error for an intact value whose writer cannot be confirmed. The
// value names as its writer a later batch of the node or a batch of another node. The
// named batch is missing, unreadable, or did not put this value under this key.
type misplaced struct {
	batch   uint64
	node    actor.NodeID
	problem string
}

func (m misplaced) Error() string {
	return fmt.Sprintf("claims to be from batch %d of %s, which %s", m.batch, m.node, m.problem)
}

func verifyPayload(kv KV, node actor.NodeID, no uint64, p Payload) error {
	value, ok, err := kv.Get(p.Key)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.New("is missing")
	case actor.HashOf(value) == p.Digest:
		return nil
	case !isReplaceable(p.Key):
		return errors.New("differs from the value that was written")
	}
	// A later batch of this node, or a batch of another node, may have replaced the
	// value.
	by, batch, content, err := unseal(value)
	switch {
	case err != nil:
		return err
	case by == node && batch <= no:
		return errors.New("differs from the value that was written")
	case isBlob(p.Key) && !strings.HasSuffix(string(p.Key), "/"+actor.HashOf(content).String()):
		return errors.New("does not match the hash in its key")
	}
	return verifyReplacement(kv, Payload{p.Key, actor.HashOf(value)}, by, batch)
}

// verifyReplacement checks that the batch named in a value has put the value under the
// key of the payload.
func verifyReplacement(kv KV, p Payload, by actor.NodeID, batch uint64) error {
	record, ok, err := kv.Get(batchKey(by, batch))
	switch {
	case err != nil:
		return err
	case !ok:
		return misplaced{batch, by, "is missing"}
	}
	r, err := decodeBatch(record)
	if err != nil {
		return misplaced{batch, by, "cannot be read: " + err.Error()}
	}
	if !slices.ContainsFunc(r.payloads, func(o Payload) bool { return bytes.Equal(o.Key, p.Key) && o.Digest == p.Digest }) {
		return misplaced{batch, by, "did not put this value here"}
	}
	return nil
}

// isReplaceable reports whether a later batch may put the key again. This holds for
// keys of snapshots and blobs.
func isReplaceable(key []byte) bool {
	parts := strings.Split(string(key), "/")
	return isBlob(key) || len(parts) == 6 && parts[2] == "a" && parts[5] == "s"
}

// isBlob reports whether a key is that of a blob. Agents and sessions may be named b too.
func isBlob(key []byte) bool {
	parts := strings.Split(string(key), "/")
	return len(parts) == 4 && parts[2] == "b"
}
