// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Rows is a Log that is stored as rows of a KV, and its Reader. It reads the Index of the
// end of the log first and the rows then, because a flush moves data from the Index to the
// rows. If a value is damaged or missing, the error names its key.
type Rows struct {
	KV    KV
	Index *Index
	Logs  int               // number of logs of the store, of which each shard has one: see LogOf; 0 means 1
	With  func(read func()) // runs a function that reads the Index; a host excludes changes of the Index in the meantime. May be nil
}

var (
	_ Log    = Rows{}
	_ Reader = Rows{}
)

// Append implements Log. It does not check the epochs of the batch: a KV has no owner of
// shards.
func (r Rows) Append(b *Batch) error {
	rows, err := r.StoredRows(b)
	if err == nil {
		err = r.KV.Apply(rows)
	}
	full := false
	if err == nil {
		r.with(func(x *Index) { full = x.Add(b) })
	}
	if err != nil || !full {
		return err
	}
	if err := r.KV.Apply(r.Index.Rows()); err != nil {
		return err
	}
	r.with((*Index).Clear)
	return nil
}

// Settle implements Log.
func (r Rows) Settle(b *Batch) (bool, error) {
	key := partKey(b.Node, b.No, 0)
	value, ok, err := r.KV.Get(key)
	if err != nil || !ok {
		return false, err
	}
	record, _, err := decodePart(0, value)
	if err == nil && actor.HashOf(record) != b.Hash {
		err = fmt.Errorf("key %s: holds another batch", key)
	}
	return err == nil, err
}

// Sync implements Log. A KV has made its rows durable when Apply returns.
func (r Rows) Sync(uint64) error { return nil }

// with runs a function that reads the Index.
func (r Rows) with(read func(*Index)) {
	switch {
	case r.With != nil:
		r.With(func() { read(r.Index) })
	case r.Index != nil:
		read(r.Index)
	}
}

// tail returns the places of an actor's entries in the Index.
func (r Rows) tail(id actor.ID) (tail []span) {
	r.with(func(x *Index) {
		if a := x.actors[id]; a != nil {
			tail = slices.Clone(a.spans)
		}
	})
	return tail
}

// Load implements Reader. It restores blobs in the records. It reads again if the actor got
// another snapshot in the meantime, because the log may be cut before it.
func (r Rows) Load(id actor.ID) (Saved, error) {
	key := snapshotKey(id)
	for {
		value, ok, err := r.KV.Get(key)
		if err != nil {
			return Saved{}, err
		}
		saved, err := r.load(id, key, value, ok)
		if gone := r.gone(id); gone != nil {
			return Saved{}, gone
		}
		if err == nil && len(saved.Entries) > 0 {
			return saved, nil
		}
		if now, _, failed := r.KV.Get(key); failed != nil || bytes.Equal(now, value) {
			return saved, cmp.Or(err, failed)
		}
	}
}

// load is Load with the row of the snapshot, if there is one.
func (r Rows) load(id actor.ID, key, value []byte, ok bool) (saved Saved, err error) {
	tail := r.tail(id)
	n := uint64(0)
	if ok {
		snapshot, err := snapshotEntry(id, key, value, r.blob)
		if err != nil {
			return Saved{}, err
		}
		saved.Snapshot, n = snapshot.Record.(Snapshot).Journal, snapshot.N
	}
	spans, err := r.spans(indexPrefix(id), indexKey(id, n+1), tail)
	if err != nil {
		return Saved{}, err
	}
	reader := groupReader{kv: r.KV, next: spans}
	for _, s := range spans {
		if s.last <= n {
			continue
		}
		err := reader.entries(id, s, r.blob, func(e Entry) error {
			if e.N <= n {
				return nil
			}
			if n++; e.N != n {
				return fmt.Errorf("holds entry %d, want entry %d", e.N, n)
			}
			e = e.WithoutBodies() // a journal needs only the numbers
			e.Summary = nil
			saved.Entries = append(saved.Entries, e)
			return nil
		})
		if err == nil && n != s.last {
			err = fmt.Errorf("key %s: ends at entry %d of %s, want entry %d", s.at.key(), n, id, s.last)
		}
		if err != nil {
			return Saved{}, err
		}
	}
	return saved, nil
}

// spans returns the spans of the index rows with a prefix, from the row that covers the
// key from on, and of the tail. The spans are in ascending order. It is one scan, because a
// flush between two would leave a gap.
func (r Rows) spans(prefix keyBuilder, from []byte, tail []span) ([]span, error) {
	all := tail
	var failure error
	err := r.KV.ScanBack(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var s []span
		if s, failure = readSpans(key, value); failure == nil {
			all = append(all, s...)
		}
		return failure == nil && bytes.Compare(key, from) > 0
	})
	if err := cmp.Or(failure, err); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	// A flush between the two reads shows the tail twice.
	return slices.CompactFunc(all, func(a, b span) bool { return a == b }), nil
}

func readSpans(key, value []byte) ([]span, error) {
	spans, err := decodeSpans(value)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", key, err)
	}
	return spans, nil
}

func (l location) key() []byte { return partKey(l.node, l.batch, l.Part) }

// groupReader reads groups of entries. It keeps the last part, because consecutive groups
// are often in the same one.
type groupReader struct {
	kv     KV
	at     location // of the part; its group is 0
	groups [][]byte

	next  []span            // that follow, in this order; those of a ManyGetter are read aheadMax at a time
	ahead map[string][]byte // values that were read ahead, by key
}

// aheadMax is the number of parts that are read at once.
const aheadMax = 32

// part returns the value of a part.
func (g *groupReader) part(at location) ([]byte, bool, error) {
	many, ok := g.kv.(ManyGetter)
	if !ok || len(g.next) < 2 {
		return g.kv.Get(at.key())
	}
	key := string(at.key())
	if value, ok := g.ahead[key]; ok {
		return value, true, nil
	}
	for len(g.next) > 0 && string(g.next[0].at.key()) != key {
		g.next = g.next[1:]
	}
	keys := [][]byte{[]byte(key)}
	for _, s := range g.next {
		if k := s.at.key(); len(keys) < aheadMax && !bytes.Equal(k, keys[len(keys)-1]) {
			keys = append(keys, k)
		}
	}
	var err error
	if g.ahead, err = many.GetMany(keys); err != nil {
		return nil, false, err
	}
	value, ok := g.ahead[key]
	return value, ok, nil
}

// group returns the content of a group without its salt.
func (g *groupReader) group(at location) ([]byte, error) {
	part := at
	part.Group = 0
	if g.groups == nil || g.at != part {
		value, ok, err := g.part(at)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("key %s: is missing", at.key())
		}
		if _, g.groups, err = decodePart(at.Part, value); err != nil {
			g.groups = nil
			return nil, fmt.Errorf("key %s: %w", at.key(), err)
		}
		g.at = part
	}
	if int(at.Group) >= len(g.groups) {
		return nil, fmt.Errorf("key %s: holds %d groups, want group %d", at.key(), len(g.groups), at.Group)
	}
	content, err := openGroup(g.groups[at.Group])
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", at.key(), err)
	}
	return content, nil
}

// entries passes the entries of a span to the callback each. It reads the blobs of no others.
// Errors name the key.
func (g *groupReader) entries(id actor.ID, s span, blob blobReader, each func(Entry) error) error {
	content, err := g.group(s.at)
	if err != nil {
		return err
	}
	within := func(e *Entry, name actor.Hash) ([]byte, error) {
		if e.N < s.first || e.N > s.last {
			return nil, nil
		}
		return blob(e, name)
	}
	err = unpackEntries(content, within, func(e Entry) error {
		switch {
		case e.Actor != id:
			return fmt.Errorf("holds an entry of %s, want %s", e.Actor, id)
		case e.N < s.first || e.N > s.last:
			return nil
		}
		return each(e)
	})
	if err != nil {
		return fmt.Errorf("key %s: %w", s.at.key(), err)
	}
	return nil
}

// Outcome implements Reader.
func (r Rows) Outcome(id actor.ID, n uint64) (Ended, error) {
	outcome, err := r.loggedOutcome(id, n)
	if err == nil {
		return outcome, nil
	}
	key := keptKey(id, n)
	value, ok, failed := r.KV.Get(key)
	if failed != nil || !ok {
		return Ended{}, cmp.Or(failed, err)
	}
	_, _, content, err := unseal(value)
	if err == nil {
		err = unpackEntries(content, r.blob, func(e Entry) error {
			kept, ok := e.Record.(Kept)
			if !ok || e.Actor != id || e.N != n {
				return fmt.Errorf("holds %T %d of %s", e.Record, e.N, e.Actor)
			}
			outcome = kept.Outcome
			return nil
		})
	}
	if err != nil {
		return Ended{}, fmt.Errorf("key %s: %w", key, err)
	}
	return outcome, nil
}

// loggedOutcome returns the outcome in an entry that was not cut.
func (r Rows) loggedOutcome(id actor.ID, n uint64) (Ended, error) {
	spans, err := r.spans(indexPrefix(id), indexKey(id, n), r.tail(id))
	if err != nil {
		return Ended{}, err
	}
	var outcome Ended
	i := slices.IndexFunc(spans, func(s span) bool { return s.first <= n && n <= s.last })
	if i < 0 {
		return Ended{}, fmt.Errorf("key %s: entry %d of %s is missing", indexKey(id, n), n, id)
	}
	reader := groupReader{kv: r.KV}
	err = reader.entries(id, spans[i], r.blob, func(e Entry) error {
		if ended, ok := e.Record.(Ended); ok && e.N == n {
			outcome = ended
		}
		return nil
	})
	if err == nil && outcome.Call.IsZero() {
		err = fmt.Errorf("key %s: entry %d of %s is not an outcome", spans[i].at.key(), n, id)
	}
	return outcome, err
}

// snapshotEntry decodes the row of a snapshot.
func snapshotEntry(id actor.ID, key, value []byte, blob blobReader) (snapshot Entry, err error) {
	_, _, content, err := unseal(value)
	if err == nil {
		err = unpackEntries(content, blob, func(e Entry) error {
			_, ok := e.Record.(Snapshot)
			switch {
			case e.Actor != id:
				return fmt.Errorf("holds an entry of %s", e.Actor)
			case !ok:
				return fmt.Errorf("holds %T, not a snapshot", e.Record)
			}
			snapshot = e
			return nil
		})
	}
	if err != nil {
		return Entry{}, fmt.Errorf("key %s: %w", key, err)
	}
	return snapshot, nil
}

// blob is a blobReader. A reference resolves in the session of the entry's actor.
func (r Rows) blob(e *Entry, name actor.Hash) ([]byte, error) { return loadBlob(r.KV, e.Actor, name) }

// loadBlob reads a blob of an actor and checks its content against its hash.
func loadBlob(kv KV, id actor.ID, name actor.Hash) ([]byte, error) {
	return readBlob(kv, blobKey(id, name), name)
}

func readBlob(kv KV, key []byte, name actor.Hash) ([]byte, error) {
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
	j.folds = true // a large state is merged with all updates at once
	for _, e := range saved.Entries {
		if err := j.ApplyEntry(e); err != nil {
			return Journal{}, fmt.Errorf("%s: %w", e.Actor, err)
		}
	}
	j.mergeState(j.updates)
	j.folds, j.updates = false, nil
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
	isWanted := func(shard uint16) bool { return int(shard) < len(wanted) && wanted[shard] }
	newer := map[actor.ID]bool{} // actors whose rows are out of date
	var open []dueRow            // actors with rows to come
	r.with(func(x *Index) {
		for _, id := range x.ids {
			if a := x.actors[id]; isWanted(a.shard) {
				newer[id] = true
				if a.due != 0 {
					open = append(open, dueRow{dueKey(a.shard, a.due, id), id})
				}
			}
		}
	})
	slices.SortFunc(open, func(a, b dueRow) int { return bytes.Compare(a.key, b.key) })
	passOpen := func(before []byte) {
		for len(open) > 0 && (before == nil || bytes.Compare(open[0].key, before) < 0) {
			each(open[0].id)
			open = open[1:]
		}
	}
	var failure error
	err := r.KV.Scan(shardKey(slices.Min(shards)), prefixEnd(shardKey(slices.Max(shards))), func(key, _ []byte) bool {
		if shard, ok := shardOf(key); ok && !isWanted(shard) {
			return true
		}
		_, id, err := parseDueKey(key)
		if err != nil {
			failure = err
			return false
		}
		if !newer[id] {
			passOpen(key)
			each(id)
		}
		return true
	})
	if err := cmp.Or(failure, err); err != nil {
		return err
	}
	passOpen(nil)
	return nil
}

// dueRow is a row of the expiry index.
type dueRow struct {
	key []byte
	id  actor.ID
}

// Run implements Reader.
func (r Rows) Run(tenant string, run actor.CallID) (owner RunOwner, ok bool, err error) {
	s, ok, err := r.summary(tenant, run)
	if of, in := sessionOf(s.Actor); ok && in {
		r.with(func(x *Index) { ok = !x.isForgotten(of) })
	}
	if !ok || err != nil {
		return RunOwner{}, false, err
	}
	return RunOwner{run, s.Root, s.Actor}, true, nil
}

// Ended implements Reader.
func (r Rows) Ended(tenant string, run actor.CallID) (bool, error) {
	s, ok, err := r.summary(tenant, run)
	return ok && s.Ended != 0, err
}

// summary returns the summary of a run; ok is false if the run is unknown.
func (r Rows) summary(tenant string, run actor.CallID) (s runs.Summary, ok bool, err error) {
	r.with(func(x *Index) {
		if t := x.runs[tenantRun{tenant, run}]; t != nil && t.summary != nil {
			s, ok = *t.summary, true
		}
	})
	if ok {
		return s, true, nil
	}
	key := runKey(tenant, run)
	value, ok, err := r.KV.Get(key)
	if !ok || err != nil {
		return s, false, err
	}
	if s, err = decodeSummary(run, value); err != nil {
		return s, false, fmt.Errorf("key %s: %w", key, err)
	}
	return s, true, nil
}

// errEnough ends a scan.
var errEnough = errors.New("enough")

// Events implements Reader. Events that were cut are EventsDropped, also if they are cut
// during the read.
func (r Rows) Events(tenant string, run actor.CallID, after uint64, limit int) ([]RunEvent, error) {
	events, err := r.events(tenant, run, after, limit)
	if limit <= 0 || err == nil && len(events) > 0 {
		return events, err
	}
	last, failed := r.dropped(tenant, run)
	switch {
	case failed != nil:
		return nil, failed
	case after < last:
		return nil, EventsDropped{run, last + 1}
	}
	return events, err
}

func (r Rows) events(tenant string, run actor.CallID, after uint64, limit int) ([]RunEvent, error) {
	var tail []span
	r.with(func(x *Index) {
		if t := x.runs[tenantRun{tenant, run}]; t != nil {
			tail = slices.Clone(t.events)
		}
	})
	if limit <= 0 {
		return nil, nil
	}
	spans, err := r.spans(eventsKey(tenant, run), eventKey(tenant, run, after+1), tail)
	if err != nil {
		return nil, err
	}
	var events []RunEvent
	reader := groupReader{kv: r.KV, next: spans}
	next := after + 1
	for _, s := range spans {
		if s.last < next {
			continue
		}
		if s.first > next {
			return nil, fmt.Errorf("key %s: event %d of run %s is missing, the next is %d", eventKey(tenant, run, next), next, run, s.first)
		}
		s.first = max(s.first, next) // an earlier event may be damaged
		err := reader.events(tenant, run, s, r.blob, func(e RunEvent) error {
			if e.Seq != next {
				return nil
			}
			events, next = append(events, RunEvent{run, e.Seq, bytes.Clone(e.Body)}), next+1
			if len(events) == limit {
				return errEnough
			}
			return nil
		})
		switch {
		case errors.Is(err, errEnough):
			return events, nil
		case err != nil:
			return nil, err
		case next <= s.last:
			return nil, fmt.Errorf("key %s: event %d of run %s is missing", s.at.key(), next, run)
		}
	}
	return events, nil
}

// Result implements Reader.
func (r Rows) Result(tenant string, run actor.CallID, seq uint64) (parts []actor.Part, err error) {
	var tail []span
	r.with(func(x *Index) {
		if t := x.runs[tenantRun{tenant, run}]; t != nil {
			tail = slices.Clone(t.events)
		}
	})
	spans, err := r.spans(eventsKey(tenant, run), eventKey(tenant, run, seq), tail)
	if err != nil {
		return nil, err
	}
	reader := groupReader{kv: r.KV}
	for _, s := range spans {
		if seq < s.first || seq > s.last {
			continue
		}
		s.first, s.last = seq, seq
		found := func(e *Entry) ([]RunEvent, error) {
			parts = answerOf(e, seq)
			return nil, nil
		}
		if err := reader.eventsOf(tenant, run, s, eventsBlob(run, s, r.blob), found, nil); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// answerOf returns the content of the answer or outcome that an event of an entry shows.
func answerOf(e *Entry, seq uint64) []actor.Part {
	var asks []Asked
	first := 0 // index of the first ask
	switch r := e.Record.(type) {
	case Answered:
		return actor.CloneParts(r.Answer.Parts)
	case Ended:
		return actor.CloneParts(r.Reply.Parts)
	case Asking:
		asks = r.Asks
	case Added:
		asks, first = []Asked{r.Ask}, int(e.Shown.Index)
	}
	for _, v := range e.RunEvents() {
		if i := int(v.Index) - first; v.Seq == seq && v.Type == runs.ToolResult && i >= 0 && i < len(asks) && asks[i].Answer != nil {
			return actor.CloneParts(asks[i].Answer.Parts)
		}
	}
	return nil
}

// events passes the events of a run in a group to the callback each.
func (g *groupReader) events(tenant string, run actor.CallID, s span, blob blobReader, each func(RunEvent) error) error {
	return g.eventsOf(tenant, run, s, eventsBlob(run, s, blob), (*Entry).AllEvents, each)
}

// numbers is events without the bodies.
func (g *groupReader) numbers(tenant string, run actor.CallID, s span, each func(RunEvent) error) error {
	numbers := func(e *Entry) ([]RunEvent, error) { return e.WithoutBodies().Events, nil }
	return g.eventsOf(tenant, run, s, noBlob, numbers, each)
}

func (g *groupReader) eventsOf(tenant string, run actor.CallID, s span, blob blobReader, read func(*Entry) ([]RunEvent, error), each func(RunEvent) error) error {
	content, err := g.group(s.at)
	if err != nil {
		return err
	}
	err = unpackEntries(content, blob, func(e Entry) error {
		if e.Actor.Tenant != tenant {
			return fmt.Errorf("holds an entry of tenant %s, want %s", e.Actor.Tenant, tenant)
		}
		events := e.Events
		if e.shows(run, s.first, s.last) {
			var err error
			if events, err = read(&e); err != nil {
				return err
			}
		}
		for _, ev := range events {
			if ev.Run == run && ev.Seq >= s.first && ev.Seq <= s.last {
				if err := each(ev); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return fmt.Errorf("key %s: %w", s.at.key(), err)
	}
	return err
}

// shows reports whether an entry has derived events of a run in a range of numbers.
func (e *Entry) shows(run actor.CallID, first, last uint64) bool {
	s := &e.Shown
	return s.N > 0 && s.Seq <= last && s.Seq+uint64(s.N) > first && eventsOf(e.Record) == run
}

// eventsBlob is a blobReader for those entries only whose events are read.
func eventsBlob(run actor.CallID, s span, blob blobReader) blobReader {
	return func(e *Entry, name actor.Hash) ([]byte, error) {
		if !e.shows(run, s.first, s.last) {
			return nil, nil
		}
		return blob(e, name)
	}
}

// CheckFormat returns an error if a KV was written in another format version. An empty
// KV passes; its writer starts with FormatRow.
func CheckFormat(kv KV) error {
	value, ok, err := kv.Get([]byte(FormatKey))
	if err != nil {
		return err
	}
	if want := FormatRow().Value; ok && !bytes.Equal(value, want) {
		return fmt.Errorf("store of format %.20q, this program reads format %s", value, want)
	}
	return nil
}

// FormatRow returns the row that records the format version.
func FormatRow() Row {
	return Row{Key: []byte(FormatKey), Value: fmt.Append(nil, FormatVersion)}
}
