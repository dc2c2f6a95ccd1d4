// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
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

// seal sets the rows and the hash of the next batch.
func (c *chain) seal(b *Batch) {
	rows, record, places := c.rows.write(b.No, b.Entries, func(payloads []Payload) []byte {
		r := batchRecord{prev: c.last.Hash, from: c.last.Pos, to: b.Pos, shards: b.Shards, payloads: payloads}
		return r.encode()
	})
	b.Rows, b.Places, b.Hash = rows, places, actor.HashOf(record)
	c.last = b.Mark()
}

func shardsOf(entries []Entry) []ShardEpoch {
	var all []ShardEpoch
	for _, e := range entries {
		if _, ok := e.Record.(Cut); !ok { // belongs to the node
			all = append(all, ShardEpoch{e.Shard, e.Epoch})
		}
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
	origin, err := Origin(kv, node)
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
		no, part, err := parsePartKey(key, len(logKey(node)))
		if err != nil {
			return false
		}
		if part > 0 {
			return true
		}
		record, _, _ := decodePart(0, value)
		r, _ := decodeBatch(record)
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
	origin, err := Origin(kv, node)
	if err != nil {
		return Mark{}, err
	}
	return verify(kv, node, origin, anchor, origin.Batch+1)
}

func verify(kv KV, node actor.NodeID, origin, anchor Mark, first uint64) (end Mark, err error) {
	if origin.Batch == anchor.Batch && origin != anchor {
		return Mark{}, fmt.Errorf("key %s: batch %d of %s does not match the anchor", OriginKey(node), origin.Batch, node)
	}
	next, partial := first, first > origin.Batch+1
	if !partial {
		end = origin
	}
	var failure, later error // later holds the error of the first misplaced payload; it is returned only if the chain is intact to its end
	err = scanLog(kv, node, first, func(b *storedBatch) bool {
		if b.no != next {
			failure = fmt.Errorf("batch %d of %s is missing: the next is %d", next, node, b.no)
			return false
		}
		if end, failure = verifyBatch(kv, node, b, end, next == first && partial); errors.As(failure, new(misplaced)) {
			later, failure = cmp.Or(later, fmt.Errorf("key %s: batch %d of %s: %w", partKey(node, b.no, 0), b.no, node, failure)), nil
		}
		if failure == nil && b.no == anchor.Batch && end != anchor {
			failure = fmt.Errorf("hash %s at entry %d does not match the anchor: hash %s at entry %d", end.Hash, end.Pos, anchor.Hash, anchor.Pos)
		}
		if failure != nil {
			failure = fmt.Errorf("key %s: batch %d of %s: %w", partKey(node, b.no, 0), b.no, node, failure)
		}
		next++
		return failure == nil
	})
	switch {
	case failure != nil:
		return Mark{}, failure
	case err != nil:
		return Mark{}, err
	case end.Batch < anchor.Batch:
		return Mark{}, fmt.Errorf("the log of %s ends at batch %d, before its anchor at batch %d: what was committed is lost", node, next-1, anchor.Batch)
	case later != nil:
		return Mark{}, later
	}
	return end, nil
}

// storedBatch is a batch as read from the log. It aliases memory of the scan.
type storedBatch struct {
	no     uint64
	record []byte   // nil if part 0 is missing
	groups [][]byte // of all parts
	places []Place  // of the groups
	err    error    // first part that is missing or cannot be decoded
}

// scanLog calls the callback each for the batches of a node's log from the first batch on,
// until it returns false.
func scanLog(kv KV, node actor.NodeID, first uint64, each func(*storedBatch) bool) error {
	prefix := logKey(node)
	var b storedBatch
	var failure error
	next, stopped := uint32(0), false
	flush := func() bool {
		stopped = stopped || b.no > 0 && !each(&b)
		return !stopped
	}
	err := kv.Scan(batchKey(node, first), prefixEnd(prefix), func(key, value []byte) bool {
		no, part, err := parsePartKey(key, len(prefix))
		if err != nil {
			failure = err
			return false
		}
		if no != b.no {
			if !flush() {
				return false
			}
			b, next = storedBatch{no: no, groups: b.groups[:0], places: b.places[:0]}, 0
		}
		if b.err == nil && part != next {
			b.err = fmt.Errorf("part %d is missing, the next is %d", next, part)
		}
		next = part + 1
		record, groups, err := decodePart(part, bytes.Clone(value))
		if b.err == nil && err != nil {
			b.err = fmt.Errorf("part %d: %w", part, err)
		}
		if part == 0 {
			b.record = record
		}
		for i, g := range groups {
			b.groups, b.places = append(b.groups, g), append(b.places, Place{part, uint32(i)})
		}
		return true
	})
	if failure == nil && err == nil {
		flush()
	}
	return cmp.Or(failure, err)
}

// verifyBatch checks one batch against the mark of the previous one, and its payloads.
// If first is set, the previous batch was not read. Then verifyBatch does not check
// that the record continues the previous batch.
func verifyBatch(kv KV, node actor.NodeID, b *storedBatch, before Mark, first bool) (Mark, error) {
	if b.err != nil {
		return Mark{}, b.err
	}
	r, err := decodeBatch(b.record)
	switch {
	case err != nil:
		return Mark{}, err
	case !first && r.prev != before.Hash:
		return Mark{}, errors.New("does not follow the previous batch: hash mismatch")
	case !first && r.from != before.Pos:
		return Mark{}, fmt.Errorf("starts at entry %d, but the previous batch ended at entry %d", r.from, before.Pos)
	}
	end := Mark{b.no, r.to, actor.HashOf(b.record)}
	var later error
	err = r.verifyPayloads(kv, node, b, func(_ []byte, err error) bool {
		if errors.As(err, new(misplaced)) {
			later = cmp.Or(later, err)
			return true
		}
		later = err
		return false
	})
	if err != nil {
		return Mark{}, err
	}
	if later != nil && !errors.As(later, new(misplaced)) {
		return Mark{}, later
	}
	return end, later
}

// verifyPayloads checks the groups of a batch and the rows of its snapshots and blobs. It
// passes each defect and the key of its row to the callback report, until it returns
// false.
func (r *batchRecord) verifyPayloads(kv KV, node actor.NodeID, b *storedBatch, report func(key []byte, err error) bool) error {
	count := 0
	for _, p := range r.payloads {
		if len(p.Key) == 0 {
			count++
		}
	}
	if count != len(b.groups) && !report(partKey(node, b.no, 0), fmt.Errorf("holds %d groups of entries, want %d", len(b.groups), count)) {
		return nil
	}
	for i, p := range r.payloads {
		key, what := p.Key, "payload"
		var err error
		switch {
		case len(p.Key) > 0:
			err = verifyPayload(kv, node, b.no, p)
		case i >= len(b.groups):
			continue
		default:
			key, what = partKey(node, b.no, b.places[i].Part), fmt.Sprintf("group %d of", b.places[i].Group)
			if actor.HashOf(b.groups[i]) != p.Digest {
				err = verifyBlanked(kv, b.groups[i])
			}
		}
		if err != nil && !report(key, fmt.Errorf("%s %s: %w", what, key, err)) {
			return nil
		}
	}
	return nil
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
		return verifyDeleted(kv, p.Key)
	case actor.HashOf(value) == p.Digest:
		return nil
	}
	// A later batch of this node, or a batch of another node, may have replaced the
	// value.
	by, batch, content, err := unseal(value)
	switch {
	case err != nil:
		return err
	case by == node && batch <= no:
		return errors.New("differs from the value that was written")
	}
	if s, ok := parseScoped(p.Key); ok && s.kind == kindBlob && s.blob != actor.HashOf(content).String() {
		return errors.New("does not match the hash in its key")
	}
	return verifyReplacement(kv, Payload{p.Key, actor.HashOf(value)}, by, batch)
}

// verifyReplacement checks that the batch named in a value has put the value under the
// key of the payload.
func verifyReplacement(kv KV, p Payload, by actor.NodeID, batch uint64) error {
	value, ok, err := kv.Get(partKey(by, batch, 0))
	switch {
	case err != nil:
		return err
	case !ok:
		return misplaced{batch, by, "is missing"}
	}
	record, _, err := decodePart(0, value)
	var r batchRecord
	if err == nil {
		r, err = decodeBatch(record)
	}
	if err != nil {
		return misplaced{batch, by, "cannot be read: " + err.Error()}
	}
	if !slices.ContainsFunc(r.payloads, func(o Payload) bool { return bytes.Equal(o.Key, p.Key) && o.Digest == p.Digest }) {
		return misplaced{batch, by, "did not put this value here"}
	}
	return nil
}
