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

// Relog copies a store whose logs are not those of the copy. It verifies the logs that it reads, and writes the
// chains of the copy anew:
//
//		logs of the source ── batches, by time ──▶ the groups of each shard ──▶ log of the shard in the copy
//
//	 1. A log of the copy has the groups of its shards in the order in which the source has them, and a batch of it
//	    has groups of one batch of the source. So the journal of an actor and the events of a session keep their order.
//	 2. Between the logs of a source there is no order but that of the times of their batches.
//	 3. Numbers of batches, and so positions in the events of sessions, are others than in the source.
//	 4. A source whose front was cut gives a copy whose front was cut. What was deleted stays deleted.
type Relog struct {
	KV      KV                    // whose rows of the index cover the logs
	From    []LogEnd              // logs of the source, by number
	To      []actor.NodeID        // logs of the copy, by number
	ShardOf func(actor.ID) uint16 // shard of an actor
	// Passed is told each batch of the source that was copied, and the last batches of the logs of the copy, by number.
	// It MUST NOT keep them. It may be nil.
	Passed func(from actor.NodeID, batch uint64, last []uint64)
}

// Rows passes the rows of the copy to the callback each, each key once and in no order, until it returns an error. It
// returns the logs of the copy.
func (r Relog) Rows(each func(Row) error) ([]LogEnd, error) {
	c := relogging{Relog: r, each: each, index: NewIndex(IndexConfig{})}
	nodes, err := logNodes(r.KV)
	if err != nil {
		return nil, err
	}
	if at := slices.IndexFunc(nodes, func(node actor.NodeID) bool {
		return !slices.ContainsFunc(r.From, func(l LogEnd) bool { return l.Node == node })
	}); at >= 0 {
		return nil, fmt.Errorf("key %s: is of no log of the store", logKey(nodes[at]))
	}
	origin := Mark{}
	for _, l := range r.From {
		c.sources = append(c.sources, &relogSource{node: l.Node, end: l.End, last: l.Origin})
		if l.Origin.Batch >= origin.Batch {
			origin = l.Origin
		}
	}
	for _, node := range r.To {
		c.targets = append(c.targets, &relogTarget{node: node, last: origin})
	}
	if err = c.copyLogs(); err == nil {
		err = c.flush()
	}
	if err == nil {
		err = c.copyRows()
	}
	if err != nil {
		return nil, err
	}
	var ends []LogEnd
	for _, t := range c.targets {
		ends = append(ends, LogEnd{t.node, Anchor{End: t.last, Origin: origin}})
		if origin.Batch > 0 {
			err = cmp.Or(err, each(OriginRow(t.node, origin)))
		}
		if t.last.Batch > origin.Batch {
			err = cmp.Or(err, each(Row{Key: watermarkKey(t.node), Value: encodeWatermark(nodeMark{t.node, t.last.Batch, t.last.Batch})}))
		}
	}
	return ends, err
}

// relogging is a Relog under way.
type relogging struct {
	Relog
	each    func(Row) error
	sources []*relogSource
	targets []*relogTarget
	index   *Index // of the copy, since the last flush
	sealed  int    // rows that batches of the source have put, and that the copy has
	deleted int    // tombstones of the copy
}

// relogSource is the position in a log of the source.
type relogSource struct {
	node actor.NodeID
	end  Mark // of the log
	last Mark // batch that was copied last
	next []timedBatch
}

// timedBatch is a batch with the time of its first entry, at least that of the batch before.
type timedBatch struct {
	storedBatch
	at actor.Time
}

// The size of a page of a log that is read.
const (
	relogBatches = 256
	relogBytes   = 1 << 20
)

// read reads the next batches of the log, unless some wait.
func (s *relogSource) read(kv KV, at actor.Time) error {
	if len(s.next) > 0 || s.last.Batch >= s.end.Batch {
		return nil
	}
	size := 0
	return scanLog(kv, s.node, s.last.Batch+1, func(b *storedBatch) bool {
		page := timedBatch{*b, at}
		page.groups, page.places = slices.Clone(b.groups), slices.Clone(b.places)
		for _, group := range b.groups {
			size += len(group)
		}
		page.at = max(at, page.first())
		at = page.at
		s.next = append(s.next, page)
		return len(s.next) < relogBatches && size < relogBytes
	})
}

// first returns the time of the first entry of a batch that can be read; 0 if there is none.
func (b *timedBatch) first() (at actor.Time) {
	for _, group := range b.groups {
		content, err := openGroup(group)
		if err != nil {
			continue
		}
		unpackEntries(content, noBlob, func(e Entry) error { at = e.Record.at(); return errEnough }) //nolint:errcheck // of damage the copy tells
		if at != 0 {
			return at
		}
	}
	return 0
}

// copyLogs copies the logs, batch by batch.
func (c *relogging) copyLogs() error {
	now := actor.Time(0)
	var last []uint64
	for {
		var next *relogSource
		for _, s := range c.sources {
			if err := s.read(c.KV, now); err != nil {
				return err
			}
			if len(s.next) > 0 && (next == nil || s.next[0].at < next.next[0].at) {
				next = s
			}
		}
		if next == nil {
			break
		}
		b := next.next[0]
		next.next, now = next.next[1:], b.at
		if b.no != next.last.Batch+1 {
			return fmt.Errorf("batch %d of %s is missing: the next is %d", next.last.Batch+1, next.node, b.no)
		}
		end, err := verifyBatch(c.KV, next.node, &b.storedBatch, next.last, false)
		if err == nil {
			err = c.copyBatch(next.node, &b.storedBatch)
		}
		if err != nil {
			return fmt.Errorf("key %s: batch %d of %s: %w", partKey(next.node, b.no, 0), b.no, next.node, err)
		}
		next.last = end
		if c.Passed == nil {
			continue
		}
		last = last[:0]
		for _, t := range c.targets {
			last = append(last, t.last.Batch)
		}
		c.Passed(next.node, b.no, last)
	}
	for _, s := range c.sources {
		if s.last != s.end {
			return fmt.Errorf("the log of %s ends at batch %d, want batch %d", s.node, s.last.Batch, s.end.Batch)
		}
	}
	return nil
}

// copyBatch copies a batch into the logs of its groups.
func (c *relogging) copyBatch(from actor.NodeID, b *storedBatch) error {
	record, err := decodeBatch(b.record)
	if err != nil {
		return err
	}
	for i, group := range b.groups { // the n-th payload is the n-th group
		if err := c.copyGroup(from, b.no, group, record.payloads[i]); err != nil {
			return fmt.Errorf("group %d: %w", i, err)
		}
	}
	for _, p := range record.payloads[len(b.groups):] {
		if err := c.copyPayload(from, b.no, p); err != nil {
			return fmt.Errorf("key %s: %w", p.Key, err)
		}
	}
	left := int(record.to - record.from) // entries without a place of their own count, too: snapshots that another follows
	for _, t := range c.targets {
		left -= t.entries
	}
	for _, t := range c.targets {
		if len(t.digests)+len(t.payloads) == 0 {
			continue
		}
		t.entries, left = t.entries+left, 0
		for _, s := range record.shards {
			if c.target(s.Shard) == t {
				t.shards = append(t.shards, s)
			}
		}
		if err := t.write(c.each); err != nil {
			return err
		}
	}
	if c.index.entries < c.index.full {
		return nil
	}
	return c.flush()
}

func (c *relogging) target(shard uint16) *relogTarget { return c.targets[LogOf(shard, len(c.targets))] }

// copyGroup copies a group of entries, which are of one actor. One that was blanked stays so.
func (c *relogging) copyGroup(from actor.NodeID, no uint64, group []byte, p Payload) error {
	content, err := openGroup(group)
	if gone, ok := errors.AsType[Gone](err); ok {
		c.target(c.ShardOf(gone.actor())).add(group, p, 0)
		return nil
	}
	if err != nil {
		return err
	}
	var entries []Entry
	err = unpackEntries(content, noBlob, func(e Entry) error { entries = append(entries, e); return nil })
	if err != nil {
		return err
	}
	t := c.target(entries[0].Shard)
	at := location{t.node, t.last.Batch + 1, t.add(group, p, len(entries))}
	for i := range entries {
		e := &entries[i]
		if c.target(e.Shard) != t {
			return fmt.Errorf("has entries of shards %d and %d", entries[0].Shard, e.Shard)
		}
		if _, ok := e.Record.(Forgotten); ok {
			if err := c.copyTombstone(e, from, no, at); err != nil {
				return err
			}
			continue
		}
		if deleted, err := c.index.isDeleted(c.KV, e.Actor); deleted || err != nil {
			return err // the group has one actor
		}
		c.index.add(e, at, false)
	}
	return nil
}

// actor returns an actor of the session.
func (g Gone) actor() actor.ID {
	return actor.ID{Tenant: g.Tenant, Agent: actor.SessionAgent, Key: g.Session}
}

// copyTombstone copies the tombstone of a session that an entry deletes. Content that is not blanked yet is searched
// from the beginning of the log.
func (c *relogging) copyTombstone(e *Entry, from actor.NodeID, no uint64, at location) error {
	t, ok, err := readTombstone(c.KV, tenantSession{e.Actor.Tenant, e.Actor.Key})
	if err != nil {
		return err
	}
	if !ok || t.node != from || t.batch != no {
		return fmt.Errorf("the tombstone of session %s of tenant %s is missing", e.Actor.Key, e.Actor.Tenant)
	}
	t.node, t.batch, t.next = at.node, at.batch, 0
	c.deleted++
	return c.each(t.row())
}

// copyPayload copies the digest of a row, and the row unless a later batch has replaced it.
func (c *relogging) copyPayload(from actor.NodeID, no uint64, p Payload) error {
	t, err := c.scope(p.Key)
	if err != nil {
		return err
	}
	value, ok, err := c.KV.Get(p.Key)
	if err != nil {
		return err
	}
	key := bytes.Clone(p.Key)
	if ok {
		resealed, by, batch, err := reseal(value, t.node, t.last.Batch+1)
		if err != nil {
			return err
		}
		if by == from && batch == no {
			c.sealed++
			p.Digest = actor.HashOf(resealed)
			if err := c.each(Row{Key: key, Value: resealed}); err != nil {
				return err
			}
		}
	}
	entries := 1
	if s, _ := parseScoped(key); s.kind == kindBlob {
		entries = 0
	}
	t.payloads, t.entries = append(t.payloads, Payload{key, p.Digest}), t.entries+entries
	return nil
}

// scope returns the log of the copy with the batches that put a row.
func (c *relogging) scope(key []byte) (*relogTarget, error) {
	s, ok := parseScoped(key)
	if !ok {
		return nil, errors.New("is no row of an actor")
	}
	id := s.actor
	if session := sessionKey(id.Tenant, id.Key); bytes.HasPrefix(key, session) {
		id = Gone{id.Tenant, id.Key}.actor()
	}
	return c.target(c.ShardOf(id)), nil
}

// reseal returns a value of put as if another batch had put it, and the batch that did.
func reseal(value []byte, node actor.NodeID, batch uint64) (resealed []byte, by actor.NodeID, no uint64, err error) {
	by, no, content, err := unseal(value)
	if err != nil {
		return nil, by, no, err
	}
	d := actor.NewDecoder(value)
	d.String(actor.NameBytesMax)
	d.Uint()
	salt := d.Raw(saltBytes)
	var e actor.Encoder
	e.String(string(node))
	e.Uint(batch)
	e.Raw(salt)
	e.Bytes(content)
	return e.Buf, by, no, nil
}

// flush writes the rows of the index that are places. Their numbers have increased since the last flush.
func (c *relogging) flush() error {
	x := c.index
	for _, id := range x.ids {
		if err := c.each(Row{Key: indexKey(id, x.actors[id].spans[0].first), Value: encodeSpans(x.actors[id].spans)}); err != nil {
			return err
		}
	}
	for _, key := range x.runIDs {
		events := x.runs[key].events
		if len(events) == 0 {
			continue
		}
		if err := c.each(Row{Key: eventKey(key.tenant, key.run, events[0].first), Value: encodeSpans(events)}); err != nil {
			return err
		}
	}
	x.Clear()
	x.deleted = nil // of the sessions of these entries
	return nil
}

// copyRows copies the rows that do not depend on the logs, and checks that copyLogs has copied all others.
func (c *relogging) copyRows() error {
	var failure error
	sealed, deleted := 0, 0
	err := c.KV.Scan([]byte{0}, []byte{0xff}, func(key, value []byte) bool {
		s, scoped := parseScoped(key)
		family := byte(0)
		if parts := bytes.SplitN(key, []byte("/"), 4); !scoped && len(parts) == 4 && string(parts[0]) == "t" && len(parts[2]) == 1 {
			family = parts[2][0]
		}
		switch {
		case bytes.HasPrefix(key, []byte("l/")), bytes.HasPrefix(key, []byte("w/")), bytes.HasPrefix(key, []byte("o/")):
		case scoped && s.kind == kindIndex, family == 'e':
		case scoped && s.kind != kindRun:
			var left bool
			if left, failure = c.copyCut(key, value); !left {
				sealed++
			}
		case family == 'f':
			deleted++
		default:
			failure = c.each(Row{Key: bytes.Clone(key), Value: bytes.Clone(value)})
		}
		return failure == nil
	})
	if err := cmp.Or(failure, err); err != nil {
		return err
	}
	if sealed != c.sealed || deleted != c.deleted {
		return fmt.Errorf("the store has %d snapshots, blobs and outcomes and %d deleted sessions, its logs have put %d and %d: examine it with troupe doctor", sealed, deleted, c.sealed, c.deleted)
	}
	return nil
}

// copyCut copies a row if the batch that put it was cut. It reports whether it was.
func (c *relogging) copyCut(key, value []byte) (bool, error) {
	t, err := c.scope(key)
	if err != nil {
		return false, fmt.Errorf("key %s: %w", key, err)
	}
	resealed, by, no, err := reseal(value, t.node, 0)
	if err != nil {
		return false, fmt.Errorf("key %s: %w", key, err)
	}
	for _, s := range c.From {
		if by == s.Node && no > s.Origin.Batch {
			return false, nil
		}
	}
	if by == t.node { // continues as the log itself
		resealed = bytes.Clone(value)
	}
	return true, c.each(Row{Key: bytes.Clone(key), Value: resealed})
}

// relogTarget is a log of the copy, with its next batch.
type relogTarget struct {
	node actor.NodeID
	last Mark

	groups   [][]byte
	places   []Place
	digests  []Payload // of the groups
	payloads []Payload // of rows
	shards   []ShardEpoch
	entries  int
	size     int // of the last part
}

// add adds a group to the next batch.
func (t *relogTarget) add(group []byte, p Payload, entries int) (at Place) {
	if n := len(t.places); n > 0 {
		at = t.places[n-1]
		if at.Group++; t.size+len(group) > PartBytesMax {
			at, t.size = Place{Part: at.Part + 1}, 0
		}
	}
	t.size += len(group)
	t.groups, t.places, t.digests, t.entries = append(t.groups, group), append(t.places, at), append(t.digests, p), t.entries+entries
	return at
}

// write writes the batch.
func (t *relogTarget) write(each func(Row) error) error {
	end := Mark{Batch: t.last.Batch + 1, Pos: t.last.Pos + Pos(t.entries)}
	record := batchRecord{prev: t.last.Hash, from: t.last.Pos, to: end.Pos, shards: t.shards, payloads: append(t.digests, t.payloads...)}
	var e actor.Encoder
	e.Bytes(record.encode())
	end.Hash = actor.HashOf(record.encode())
	part := uint32(0)
	put := func() error {
		row := Row{Key: partKey(t.node, end.Batch, part), Value: e.Buf}
		e = actor.Encoder{}
		return each(row)
	}
	for i, group := range t.groups {
		if t.places[i].Part != part {
			if err := put(); err != nil {
				return err
			}
			part = t.places[i].Part
		}
		e.Bytes(group)
	}
	*t = relogTarget{node: t.node, last: end}
	return put()
}
