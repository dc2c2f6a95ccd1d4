// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Export passes all entries of a log to the callback each, as a Writer of another log
// accepts them: actor after actor, the entries of each in order, with the bodies of
// their events. The snapshot of an actor follows the last entry that it includes.
// Export holds one row at a time. It stops at the first damage, or with the first
// error of the callback.
func (r Rows) Export(each func(Entry) error) error {
	for tenant, next := "", []byte("t/"); ; next = prefixEnd([]byte("t/" + tenant + "/")) {
		tenant = ""
		err := r.KV.Scan(next, []byte("t0"), func(key, _ []byte) bool {
			tenant = strings.Split(string(key), "/")[1]
			return false
		})
		if err != nil || tenant == "" {
			return err
		}
		if err := r.exportTenant(tenant, each); err != nil {
			return err
		}
	}
}

func (r Rows) exportTenant(tenant string, each func(Entry) error) error {
	prefix := tenantKey(tenant, 'a')
	var current *exported
	var failure error
	err := r.KV.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		parts := strings.Split(string(key), "/")
		if len(parts) != 6 {
			failure = fmt.Errorf("key %s: unknown kind of key", key)
			return false
		}
		id := actor.ID{Tenant: tenant, Agent: parts[3], Key: parts[4]}
		if current == nil || current.id != id {
			if current, failure = r.startExport(id, each); failure != nil {
				return false
			}
		}
		if parts[5] != "s" {
			failure = readEntries(id, key, value, current.blob, current.entry)
		} else if current.snapshot != nil {
			failure = fmt.Errorf("key %s: entry %d, the last in the snapshot, is missing", key, current.snapshot.N)
		}
		return failure == nil
	})
	if failure != nil {
		err = failure
	}
	return err
}

// exported is the position of an export in the entries of one actor.
type exported struct {
	rows     Rows
	id       actor.ID
	n        uint64 // number of the last entry
	snapshot *Entry // not yet exported; nil if there is none
	state    Journal
	each     func(Entry) error
}

// startExport reads the snapshot of an actor, if it has one.
func (r Rows) startExport(id actor.ID, each func(Entry) error) (*exported, error) {
	x := &exported{rows: r, id: id, each: each}
	key := snapshotKey(id)
	value, ok, err := r.KV.Get(key)
	if err != nil || !ok {
		return x, err
	}
	return x, readEntries(id, key, value, x.blob, func(e Entry) error {
		x.snapshot = &e
		return nil
	})
}

func (x *exported) blob(name actor.Hash) ([]byte, error) {
	return loadBlob(x.rows.KV, x.id.Tenant, name)
}

// entry passes on the next entry, and the snapshot if it is due.
func (x *exported) entry(e Entry) error {
	if x.n++; e.N != x.n {
		return fmt.Errorf("key %s: is missing, the next is entry %d", entryKey(x.id, x.n), e.N)
	}
	if err := x.addBodies(e.Events); err != nil {
		return err
	}
	summary, changed, err := x.state.ApplyEntrySummarized(e)
	if err != nil {
		return err
	}
	x.state.dropOutcomes()
	if changed {
		e.Summary = &summary
	}
	if err := x.each(e); err != nil {
		return err
	}
	if x.snapshot == nil || x.snapshot.N != e.N {
		return nil
	}
	snapshot := *x.snapshot
	x.snapshot = nil
	return x.each(snapshot)
}

// addBodies reads the bodies of events, which are in order for each run.
func (x *exported) addBodies(events []RunEvent) error {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Run == events[0].Run && events[n].Seq == events[n-1].Seq+1 {
			n++
		}
		stored, err := x.rows.Events(x.id.Tenant, events[0].Run, events[0].Seq-1, n)
		if err != nil {
			return err
		}
		if len(stored) != n {
			return fmt.Errorf("key %s: is missing", eventKey(x.id.Tenant, events[0].Run, events[0].Seq+uint64(len(stored))))
		}
		copy(events, stored)
		events = events[n:]
	}
	return nil
}
