// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// Export passes all entries of a log to the callback each, as a Writer of another log
// accepts them: actor after actor, the entries of each in order, with the bodies of
// their events. The snapshot of an actor follows the last entry that it includes, with the
// pages of its transcript; a long transcript takes several copies of the snapshot.
// Export holds one part of the log at a time. It stops at the first damage, or with the
// first error of the callback. It refuses a log that was cut with ExportsWhole.
func (r Rows) Export(each func(Entry) error) error {
	return r.eachActor(func(id actor.ID) error { return r.exportActor(id, each) })
}

// eachActor passes every actor with entries to the callback each, until it returns an
// error.
func (r Rows) eachActor(each func(actor.ID) error) error {
	tenants, err := namesAfter(r.KV, "t/")
	if err != nil {
		return err
	}
	for _, tenant := range tenants {
		for _, family := range []byte("msy") {
			var last actor.ID
			var failure error
			prefix := tenantKey(tenant, family)
			err := r.KV.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
				if s, ok := parseScoped(key); ok && s.kind == kindIndex && s.actor != last {
					last = s.actor
					failure = each(last)
				}
				return failure == nil
			})
			if err := cmp.Or(failure, err); err != nil {
				return err
			}
		}
	}
	var newer []actor.ID
	r.with(func(x *Index) { newer = append(newer, x.ids...) })
	for _, id := range newer {
		indexed, err := r.isIndexed(id)
		if err == nil && !indexed {
			err = each(id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isIndexed reports whether an actor has index rows.
func (r Rows) isIndexed(id actor.ID) (found bool, err error) {
	prefix := indexPrefix(id)
	err = r.KV.Scan(prefix, prefixEnd(prefix), func(_, _ []byte) bool {
		found = true
		return false
	})
	return found, err
}

func (r Rows) exportActor(id actor.ID, each func(Entry) error) error {
	x := exported{id: id, each: each, blob: func(name actor.Hash) ([]byte, error) { return loadBlob(r.KV, id, name) }}
	key := snapshotKey(id)
	value, ok, err := r.KV.Get(key)
	if err != nil {
		return err
	}
	if ok {
		_, _, content, err := unseal(value)
		if err == nil {
			err = unpackEntries(content, r.blob, x.keepSnapshot)
		}
		if err != nil {
			return fmt.Errorf("key %s: %w", key, err)
		}
	}
	spans, err := r.spans(indexPrefix(id), indexKey(id, 1), r.tail(id))
	if err != nil {
		return err
	}
	if len(spans) > 0 && spans[0].first > 1 {
		return ExportsWhole{id}
	}
	reader := groupReader{kv: r.KV}
	for _, s := range spans {
		if err := reader.entries(id, s, r.blob, x.entry); err != nil {
			return err
		}
	}
	return x.end()
}

// ExportsWhole is the error for an export of a log that was cut: summaries of runs whose
// entries are gone have no place in an export.
type ExportsWhole struct{ Actor actor.ID }

// Error implements error.
func (e ExportsWhole) Error() string {
	return fmt.Sprintf("the first entries of %s were cut: only a whole log can be exported", e.Actor)
}

// exported is the position of an export in the entries of one actor.
type exported struct {
	id       actor.ID
	n        uint64 // number of the last entry
	snapshot *Entry // not yet exported; nil if there is none
	state    Journal
	each     func(Entry) error
	blob     func(actor.Hash) ([]byte, error)
}

func (x *exported) keepSnapshot(e Entry) error {
	if e.Actor != x.id {
		return fmt.Errorf("holds an entry of %s", e.Actor)
	}
	x.snapshot = &e
	return nil
}

// entry passes on the next entry with the summary of its run, and the snapshot if it is
// due.
func (x *exported) entry(e Entry) error {
	if x.n++; e.N != x.n {
		return fmt.Errorf("entry %d of %s is missing, the next is entry %d", x.n, x.id, e.N)
	}
	summary, changed, err := x.state.ApplyEntrySummarized(e)
	if err != nil {
		return err
	}
	x.state.dropOutcomes()
	x.state.Transcript = Transcript{} // its size depends on the number of entries
	if e.Summary = nil; changed {
		e.Summary = &summary
	}
	if err := x.each(e); err != nil {
		return err
	}
	if x.snapshot == nil || x.snapshot.N != e.N {
		return nil
	}
	return x.exportSnapshot()
}

// exportSnapshot passes on the snapshot with the pages of its transcript.
func (x *exported) exportSnapshot() error {
	snapshot := *x.snapshot
	x.snapshot = nil
	j, err := DecodeJournal(snapshot.Record.(Snapshot).Journal)
	if err != nil {
		return err
	}
	write := func() error {
		snapshot.Record = SnapshotOf(&j)
		return x.each(snapshot)
	}
	more, err := j.Transcript.restore(func(*Page) (bool, error) { return true, nil }, x.blob, write)
	if err == nil && (more || len(j.Transcript.Pages) == 0) {
		err = write()
	}
	return err
}

// end returns an error if the last entry of the snapshot is missing.
func (x *exported) end() error {
	if x.snapshot != nil {
		return fmt.Errorf("entry %d of %s, the last in its snapshot, is missing", x.snapshot.N, x.id)
	}
	return nil
}
