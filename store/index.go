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
	"github.com/troupe-run/troupe/runs"
)

// IndexEntries is the default number of entries after which an Index is flushed.
const IndexEntries = 1024

// IndexConfig configures an Index.
type IndexConfig struct {
	Entries int `sim:"1..300"` // number of entries at which the Index must be flushed; 0 means IndexEntries
}

// Index finds entries in the log. It covers the end of the log, in memory: everything
// after the watermark of each node. Flush returns it as rows, so that it starts anew. The
// log comes first: an Index is a function of the log, so a crash loses none of it.
//
//	log   ──── batches ────┬──── batches ──▶
//	      covered by rows  │  covered by the Index
//	                   watermark
//
// A recovered Index also covers the batches of the last flush, in case some of its rows
// are lost: rows of the index are in no chain of hashes.
//
// An Index is not safe for concurrent use.
type Index struct {
	full    int // number of entries at which the Index must be flushed
	marks   []nodeMark
	entries int // after the watermark
	ids     []actor.ID
	actors  map[actor.ID]*actorTail
	runIDs  []tenantRun
	runs    map[tenantRun]*runTail
	changes []summaryChange // read from the log, until order

	forgotten []tombstone            // deleted sessions whose rows are left
	deleted   map[tenantSession]bool // of the sessions met in the log while it is recovered
}

// nodeMark is the covered part of a node's log.
type nodeMark struct {
	node    actor.NodeID
	flushed uint64 // last batch covered by the rows
	batch   uint64 // last batch covered by the Index
}

// location is the place of a group of entries in a log.
type location struct {
	node  actor.NodeID
	batch uint64
	Place
}

// span is a range of numbers whose entries or events are in one group.
type span struct {
	first, last uint64
	at          location
}

// actorTail is the part of an Index about an actor.
type actorTail struct {
	spans []span // in ascending order
	shard uint16
	from  uint64     // number of the first entry after the watermark; 0 if there is none
	n     uint64     // number of the last entry
	was   actor.Time // time in the rows of the expiry index
	due   actor.Time // time after the last entry
}

// runTail is the part of an Index about a run.
type runTail struct {
	summary *runs.Summary // nil if it has not changed
	events  []span        // in ascending order
}

// NewIndex returns an empty Index.
func NewIndex(config IndexConfig) *Index {
	return &Index{full: cmp.Or(config.Entries, IndexEntries), actors: map[actor.ID]*actorTail{}, runs: map[tenantRun]*runTail{}}
}

// recoveredFlushes bounds the number of entries in an Index that cannot be flushed: it
// takes as many as this number of flushes.
const recoveredFlushes = 64

// RecoverIndex returns the Index of a store. It reads the log of each node from the flush
// before its watermark on. With an error, the Index ends before the damage.
//
// The callback write writes the rows of a flush. It is called if rows of the index are lost,
// so that a start does not hold more entries than usual. It may be nil. Then, and for the
// logs of several nodes, whose entries have no order between flushes, RecoverIndex refuses
// a store with too many of them.
func RecoverIndex(kv KV, config IndexConfig, write func([]Row) error) (*Index, error) {
	x := NewIndex(config)
	nodes, err := logNodes(kv)
	if len(nodes) > 1 {
		write = nil
	}
	for _, node := range nodes {
		if err = cmp.Or(err, x.recover(kv, node, write)); err != nil {
			break
		}
	}
	x.deleted = nil
	return x, cmp.Or(err, x.order(kv), x.recoverForgotten(kv))
}

// recover adds the log of a node from the flush before its watermark on. Without a
// watermark, it reads from the last batch that a row of the index names.
func (x *Index) recover(kv KV, node actor.NodeID, write func([]Row) error) error {
	mark, ok, err := readWatermark(kv, node)
	if err == nil && !ok {
		mark.batch, err = lastIndexed(kv, node)
		mark.flushed = mark.batch
	}
	if err != nil {
		return err
	}
	origin, err := Origin(kv, node)
	if err != nil {
		return err
	}
	if mark.batch > origin.Batch {
		key := partKey(node, mark.batch, 0)
		if _, ok, err := kv.Get(key); err != nil || !ok {
			return cmp.Or(err, fmt.Errorf("key %s: is missing, but the index covers it", key))
		}
	}
	x.marks = append(x.marks, nodeMark{node, mark.batch, mark.batch})
	next := max(mark.flushed, origin.Batch) + 1
	for {
		var failure error
		full := false
		err = scanLog(kv, node, next, func(b *storedBatch) bool {
			if failure = x.addStored(kv, node, b, b.no <= mark.batch); b.no != next {
				failure = fmt.Errorf("key %s: is missing, the next is batch %d", partKey(node, next, 0), b.no)
			}
			if next++; failure == nil && write == nil {
				failure = x.tooLong(node)
			}
			full = write != nil && x.entries >= x.full
			return failure == nil && !full
		})
		if err := cmp.Or(failure, err); err != nil || !full {
			return err
		}
		if err := cmp.Or(x.order(kv), write(x.Rows())); err != nil {
			return err
		}
		x.Clear()
	}
}

// tooLong returns an error if the Index has more entries than one that cannot be flushed
// may have.
func (x *Index) tooLong(node actor.NodeID) error {
	if limit := recoveredFlushes * x.full; x.entries > limit {
		return fmt.Errorf("key %s: more than %d entries of the log are not in the index: start the node, which adds them", watermarkKey(node), limit)
	}
	return nil
}

// logNodes returns the nodes that have a log in the store.
func logNodes(kv KV) (nodes []actor.NodeID, err error) {
	names, err := namesAfter(kv, "l/")
	for _, name := range names {
		nodes = append(nodes, actor.NodeID(name))
	}
	return nodes, err
}

// namesAfter returns the names that follow a prefix in the keys of a store.
func namesAfter(kv KV, prefix string) (names []string, err error) {
	from, to := []byte(prefix), prefixEnd([]byte(prefix))
	for {
		found := ""
		err := kv.Scan(from, to, func(key, _ []byte) bool {
			found, _, _ = strings.Cut(string(key[len(prefix):]), "/")
			return false
		})
		if err != nil || found == "" {
			return names, err
		}
		names = append(names, found)
		from = prefixEnd([]byte(prefix + found + "/"))
	}
}

// readWatermark returns the watermark of a node: the last batch that the rows of the
// index cover, and the one of the flush before.
func readWatermark(kv KV, node actor.NodeID) (mark nodeMark, ok bool, err error) {
	key := watermarkKey(node)
	value, ok, err := kv.Get(key)
	if err != nil || !ok {
		return mark, false, err
	}
	d := newDecoder(value)
	if err := d.readVersion("watermark", frameVersion); err != nil {
		return mark, false, fmt.Errorf("key %s: %w", key, err)
	}
	mark = nodeMark{node, d.Uint(), d.Uint()}
	if !bytes.Equal(value, encodeWatermark(mark)) {
		return nodeMark{}, false, fmt.Errorf("key %s: is damaged: checksum mismatch", key)
	}
	return mark, true, nil
}

// lastIndexed returns the last batch of a node that a row of the index names, or 0.
func lastIndexed(kv KV, node actor.NodeID) (batch uint64, err error) {
	tenants, err := namesAfter(kv, "t/")
	var failure error
	for _, tenant := range tenants {
		for _, family := range []byte("msy") {
			prefix := tenantKey(tenant, family)
			err = cmp.Or(err, kv.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
				if s, ok := parseScoped(key); !ok || s.kind != kindIndex {
					return true
				}
				var spans []span
				spans, failure = readSpans(key, value)
				for i := range spans {
					if spans[i].at.node == node {
						batch = max(batch, spans[i].at.batch)
					}
				}
				return failure == nil
			}))
		}
	}
	return batch, cmp.Or(failure, err)
}

// encodeWatermark returns the value of a watermark. It ends in a checksum, because any
// number would be a valid watermark.
func encodeWatermark(m nodeMark) []byte {
	var e actor.Encoder
	e.Uint(frameVersion)
	e.Uint(m.flushed)
	e.Uint(m.batch)
	sum := actor.HashOf(append(watermarkKey(m.node), e.Buf...))
	e.Raw(sum[:8])
	return e.Buf
}

// addStored adds a batch that was read from the log. The argument covered is set if the
// rows of the index cover it.
func (x *Index) addStored(kv KV, node actor.NodeID, b *storedBatch, covered bool) error {
	if b.err != nil {
		return fmt.Errorf("key %s: %w", partKey(node, b.no, 0), b.err)
	}
	for i, group := range b.groups {
		content, err := openGroup(group)
		if errors.As(err, new(Gone)) {
			continue
		}
		if err == nil {
			err = unpackEntries(content, x.outcomeBlob(kv), func(e Entry) error {
				if skipped, err := x.skips(kv, &e, node, b.no); skipped || err != nil {
					return err
				}
				x.add(&e, location{node, b.no, b.places[i]}, covered)
				if c, ok := summaryChangeOf(&e); ok {
					x.changes = append(x.changes, c)
				}
				return nil
			})
		}
		if err != nil {
			return fmt.Errorf("key %s: %w", partKey(node, b.no, b.places[i].Part), err)
		}
	}
	if !covered {
		x.mark(node, b.no)
	}
	return nil
}

// outcomeBlob returns a reader of the blobs of outcomes, whose text is in the summary of
// the run. Those of deleted sessions are left out.
func (x *Index) outcomeBlob(kv KV) blobReader {
	return func(e *Entry, name actor.Hash) ([]byte, error) {
		if _, ends := e.Record.(Ended); !ends {
			return nil, nil
		}
		if deleted, err := x.isDeleted(kv, e.Actor); deleted || err != nil {
			return nil, err
		}
		return loadBlob(kv, e.Actor, name)
	}
}

// change completes the summary of a run.
func (x *Index) change(kv KV, c *summaryChange) error {
	var before *runs.Summary
	if t := x.runs[tenantRun{c.actor.Tenant, c.run}]; t != nil {
		before = t.summary
	}
	if before == nil && c.first == nil {
		key := runKey(c.actor.Tenant, c.run)
		value, ok, err := kv.Get(key)
		if err != nil || !ok {
			return err // the outcome of a call that had no run
		}
		s, err := decodeSummary(c.run, value)
		if err != nil {
			return fmt.Errorf("key %s: %w", key, err)
		}
		before = &s
	}
	x.run(c.actor.Tenant, c.run).summary = c.after(before)
	return nil
}

// Add adds a batch that was written to the log. It reports whether the Index must be
// flushed.
func (x *Index) Add(b *Batch) (full bool) {
	for i := range b.Entries {
		e := &b.Entries[i]
		if _, ok := e.Record.(Forgotten); ok {
			x.forgotten = append(x.forgotten, newTombstone(e, b.Node, b.No))
		}
		x.add(e, location{b.Node, b.No, b.Places[i]}, false)
		accepted, accepts := e.Record.(Accepted)
		switch {
		case e.Summary != nil:
			x.run(e.Actor.Tenant, runOf(e.Record)).summary = e.Summary
		case accepts: // another entry of its step has the summary
			first := acceptedSummary(&accepted)
			x.run(e.Actor.Tenant, first.Run).summary = &first
		}
	}
	x.mark(b.Node, b.No)
	return x.entries >= x.full
}

func (x *Index) mark(node actor.NodeID, batch uint64) {
	for i := range x.marks {
		if x.marks[i].node == node {
			x.marks[i].batch = batch
			return
		}
	}
	x.marks = append(x.marks, nodeMark{node, 0, batch})
}

func (x *Index) add(e *Entry, at location, covered bool) {
	if !isNumbered(e.Record) {
		return
	}
	a := x.actors[e.Actor]
	if a == nil {
		a = &actorTail{}
		x.actors[e.Actor] = a
		x.ids = append(x.ids, e.Actor)
	}
	switch {
	case covered && a.from == 0 && e.N > a.n:
		a.was = e.Due
	case !covered:
		if x.entries++; a.from == 0 || e.N < a.from {
			a.from, a.was = e.N, e.WasDue
		}
	}
	if e.N >= a.n {
		a.n, a.due, a.shard = e.N, e.Due, e.Shard
	}
	a.spans = extend(a.spans, e.N, at)
	for i := range e.Events {
		t := x.run(e.Actor.Tenant, e.Events[i].Run)
		t.events = extend(t.events, e.Events[i].Seq, at)
	}
	if n := uint64(e.Shown.N); n > 0 {
		t := x.run(e.Actor.Tenant, eventsOf(e.Record))
		for seq := e.Shown.Seq; seq < e.Shown.Seq+n; seq++ {
			t.events = extend(t.events, seq, at)
		}
	}
}

func (x *Index) run(tenant string, run actor.CallID) *runTail {
	key := tenantRun{tenant, run}
	t := x.runs[key]
	if t == nil {
		t = &runTail{}
		x.runs[key] = t
		x.runIDs = append(x.runIDs, key)
	}
	return t
}

// extend adds a number to spans. Numbers in one group that follow each other share a span.
func extend(spans []span, n uint64, at location) []span {
	if len(spans) > 0 {
		if s := &spans[len(spans)-1]; s.at == at && s.last+1 == n {
			s.last = n
			return spans
		}
	}
	return append(spans, span{n, n, at})
}

// order sorts the spans, and completes the summaries in the order of the entries. Several
// nodes may have written the entries of an actor, so logs have another order.
func (x *Index) order(kv KV) error {
	byFirst := func(a, b span) int { return cmp.Compare(a.first, b.first) }
	for _, id := range x.ids {
		slices.SortFunc(x.actors[id].spans, byFirst)
	}
	for _, key := range x.runIDs {
		slices.SortFunc(x.runs[key].events, byFirst)
	}
	slices.SortStableFunc(x.changes, func(a, b summaryChange) int { return cmp.Compare(a.n, b.n) })
	var failure error
	for i := range x.changes {
		failure = cmp.Or(failure, x.change(kv, &x.changes[i]))
	}
	x.changes = nil
	return failure
}

// RowsWith returns the rows of the Index with a batch that is about to be written, which MUST be
// written together with the batch. The Index is empty then. It is for stores whose readers are
// other processes: they do not see the memory of this one. The callback each receives the changed
// summaries of runs.
func (x *Index) RowsWith(b *Batch, each func(tenant string, s *runs.Summary)) []Row {
	x.Add(b)
	for _, key := range x.runIDs {
		if s := x.runs[key].summary; s != nil {
			each(key.tenant, s)
		}
	}
	// The rows already cover the other logs.
	rows := x.rows(slices.DeleteFunc(slices.Clone(x.marks), func(m nodeMark) bool { return m.node != b.Node }))
	x.Clear()
	x.forgotten = nil // their rows are tombstones
	return rows
}

// TakeForgotten returns an Index for the readers of a store whose rows are written by RowsWith: it holds
// the deleted sessions whose rows are left, and nothing else.
func (x *Index) TakeForgotten() *Index {
	readers := NewIndex(IndexConfig{})
	readers.forgotten, x.forgotten = x.forgotten, nil
	return readers
}

// AddForgotten adds the sessions that a batch, which was written, deletes.
func (x *Index) AddForgotten(b *Batch) {
	for i := range b.Entries {
		if _, ok := b.Entries[i].Record.(Forgotten); ok {
			x.forgotten = append(x.forgotten, newTombstone(&b.Entries[i], b.Node, b.No))
		}
	}
}

// DropForgotten drops the deleted sessions of a log, which another process erases.
func (x *Index) DropForgotten(log actor.NodeID) {
	x.forgotten = slices.DeleteFunc(x.forgotten, func(t tombstone) bool { return t.node == log })
}

// Entries returns the number of entries that the rows do not cover.
func (x *Index) Entries() int { return x.entries }

// Rows returns the Index as rows, which MUST be written in one batch. Then the host calls
// Clear. A reader that looks into the Index first and into the rows then misses nothing.
func (x *Index) Rows() []Row { return x.rows(x.marks) }

// rows returns the Index as rows with the watermarks of some nodes.
func (x *Index) rows(marks []nodeMark) []Row {
	rows := make([]Row, 0, 2*len(x.ids)+2*len(x.runIDs)+len(x.forgotten)+len(marks))
	for _, id := range x.ids {
		a := x.actors[id]
		rows = append(rows, Row{Key: indexKey(id, a.spans[0].first), Value: encodeSpans(a.spans)})
		if a.was != a.due && a.was != 0 {
			rows = append(rows, Row{Key: dueKey(a.shard, a.was, id), Delete: true})
		}
		if a.due != 0 {
			rows = append(rows, Row{Key: dueKey(a.shard, a.due, id)})
		}
	}
	for _, key := range x.runIDs {
		t := x.runs[key]
		if t.summary != nil {
			rows = append(rows, Row{Key: runKey(key.tenant, key.run), Value: appendSummary(nil, t.summary)})
		}
		if len(t.events) > 0 {
			rows = append(rows, Row{Key: eventKey(key.tenant, key.run, t.events[0].first), Value: encodeSpans(t.events)})
		}
	}
	for i := range x.forgotten {
		rows = append(rows, x.forgotten[i].row())
	}
	for _, m := range marks {
		rows = append(rows, Row{Key: watermarkKey(m.node), Value: encodeWatermark(m)})
	}
	return rows
}

// Clear empties the Index after its rows were written.
func (x *Index) Clear() {
	for i := range x.marks {
		x.marks[i].flushed = x.marks[i].batch
	}
	x.entries = 0
	clear(x.actors)
	clear(x.runs)
	clear(x.ids)
	clear(x.runIDs)
	x.ids, x.runIDs = x.ids[:0], x.runIDs[:0]
}

// cut drops the places in batches of a node up to this one, which are about to be deleted.
// The rows cover them all.
func (x *Index) cut(node actor.NodeID, upto uint64) {
	isCut := func(s span) bool { return s.at.node == node && s.at.batch <= upto }
	x.ids = slices.DeleteFunc(x.ids, func(id actor.ID) bool {
		a := x.actors[id]
		if a.spans = slices.DeleteFunc(a.spans, isCut); len(a.spans) == 0 {
			delete(x.actors, id)
		}
		return len(a.spans) == 0
	})
	for _, key := range x.runIDs {
		t := x.runs[key]
		t.events = slices.DeleteFunc(t.events, isCut)
	}
}

// encodeSpans encodes spans as differences to their predecessors, because most are small.
func encodeSpans(spans []span) []byte {
	var e actor.Encoder
	e.Uint(frameVersion)
	e.Uint(uint64(len(spans)))
	var before span
	for _, s := range spans {
		e.Uint(s.first - before.last)
		e.Uint(s.last - s.first)
		if s.at.node == before.at.node {
			e.String("")
		} else {
			e.String(string(s.at.node))
		}
		e.Int(int64(s.at.batch - before.at.batch))
		e.Uint(uint64(s.at.Part))
		e.Uint(uint64(s.at.Group))
		before = s
	}
	return e.Buf
}

func decodeSpans(value []byte) ([]span, error) {
	d := newDecoder(value)
	if err := d.readVersion("index", frameVersion); err != nil {
		return nil, err
	}
	var before span
	spans := decodeList(d, d.Count(itemsMax, "spans"), func() span {
		s := span{first: before.last + d.Uint()}
		s.last = s.first + d.Uint()
		if s.at.node = actor.NodeID(d.String(actor.NameBytesMax)); s.at.node == "" {
			s.at.node = before.at.node
		}
		s.at.batch = before.at.batch + uint64(d.Int())
		s.at.Part, s.at.Group = uint32(d.UintMax(1<<32-1, "part")), uint32(d.UintMax(1<<32-1, "group"))
		if d.Err() == nil && (s.at.node == "" || s.first == 0 || s.last < s.first) {
			d.Fail("span without a node or number")
		}
		before = s
		return s
	})
	return spans, d.End()
}
