// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Format1 reads a store of format 1, in order to copy it into a store of the current
// format. Its rows are:
//
//	t/<tenant>/a/<agent>/<key>/<n>   entries from number n on, without the bodies of events
//	t/<tenant>/a/<agent>/<key>/s     snapshot
//	t/<tenant>/r/<run>               owner of a run
//	t/<tenant>/e/<run>/<seq>         run events from seq on, one line each
//	t/<tenant>/b/<sha256>            blob
//	x/<shard>/<due>/…                expiry index
//	n/<node>/<batch>                 batch record
type Format1 struct{ KV KV }

// Verify checks the chain of a node from its start to the end of the log, and every
// payload against its digest. It returns the end of the log.
func (f Format1) Verify(node actor.NodeID, anchor Mark) (end Mark, err error) {
	prefix := append(append([]byte("n/"), node...), '/')
	if end, err = readOrigin(f.KV, []byte("origin")); err != nil {
		return end, err
	}
	var failure error
	err = f.KV.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		no, err := lastNumber(key, len(prefix))
		if err == nil {
			end, err = f.verifyBatch(node, no, value, end)
		}
		if err == nil && no == anchor.Batch && end != anchor {
			err = errors.New("does not match the anchor")
		}
		if err != nil {
			failure = fmt.Errorf("key %s: %w", key, err)
		}
		return err == nil
	})
	if err = cmp.Or(failure, err); err == nil && end.Batch < anchor.Batch {
		err = fmt.Errorf("the log of %s ends at batch %d, before its anchor at batch %d", node, end.Batch, anchor.Batch)
	}
	return end, err
}

func (f Format1) verifyBatch(node actor.NodeID, no uint64, value []byte, before Mark) (Mark, error) {
	r, err := decodeBatch(value)
	switch {
	case err != nil:
		return Mark{}, err
	case no != before.Batch+1:
		return Mark{}, fmt.Errorf("batch %d is missing", before.Batch+1)
	case r.prev != before.Hash || r.from != before.Pos:
		return Mark{}, errors.New("does not follow the previous batch")
	}
	for _, p := range r.payloads {
		if err := f.verifyPayload(node, no, p); err != nil {
			return Mark{}, fmt.Errorf("payload %s: %w", p.Key, err)
		}
	}
	return Mark{no, r.to, actor.HashOf(value)}, nil
}

// verifyPayload checks a payload. A later batch may have replaced a snapshot or a blob.
func (f Format1) verifyPayload(node actor.NodeID, no uint64, p Payload) error {
	value, ok, err := f.KV.Get(p.Key)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.New("is missing")
	case actor.HashOf(value) == p.Digest:
		return nil
	}
	by, batch, _, err := unseal(value)
	if err != nil {
		return err
	}
	record, ok, err := f.KV.Get(append(append([]byte("n/"), by...), fmt.Sprintf("/%016x", batch)...))
	if err != nil || !ok || by == node && batch <= no {
		return cmp.Or(err, errors.New("differs from the value that was written"))
	}
	r, err := decodeBatch(record)
	if err != nil {
		return err
	}
	for _, o := range r.payloads {
		if bytes.Equal(o.Key, p.Key) && o.Digest == actor.HashOf(value) {
			return nil
		}
	}
	return fmt.Errorf("claims to be from batch %d of %s, which did not put this value here", batch, by)
}

// Export passes all entries to the callback each, as a Writer accepts them: actor after
// actor, the entries of each in order, with the bodies of their events. The snapshot of
// an actor follows the last entry that it includes. Export holds one row at a time. It
// stops at the first damage, or with the first error of the callback.
func (f Format1) Export(each func(Entry) error) error {
	tenants, err := namesAfter(f.KV, "t/")
	for _, tenant := range tenants {
		if err = cmp.Or(err, f.exportTenant(tenant, each)); err != nil {
			break
		}
	}
	return err
}

func (f Format1) exportTenant(tenant string, each func(Entry) error) error {
	prefix := tenantKey(tenant, 'a')
	var current exported1
	var failure error
	err := f.KV.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		parts := strings.Split(string(key), "/")
		if len(parts) != 6 {
			failure = fmt.Errorf("key %s: unknown kind of key", key)
			return false
		}
		id := actor.ID{Tenant: tenant, Agent: parts[3], Key: parts[4]}
		if current.id != id {
			if failure = current.end(); failure == nil {
				current, failure = f.startExport(id, each)
			}
		}
		if failure == nil && parts[5] != "s" {
			failure = current.row(key, value, current.entryWithBodies)
		}
		return failure == nil
	})
	return cmp.Or(failure, err, current.end())
}

// exported1 is the position of an export in the entries of one actor.
type exported1 struct {
	Format1
	*exported
	id actor.ID
}

func (x exported1) end() error {
	if x.exported == nil {
		return nil
	}
	return x.exported.end()
}

// startExport reads the snapshot of an actor, if it has one.
func (f Format1) startExport(id actor.ID, each func(Entry) error) (exported1, error) {
	x := exported1{f, &exported{id: id, each: each}, id}
	key := append(tenantKey(id.Tenant, 'a').name(id.Agent).name(id.Key), 's')
	value, ok, err := f.KV.Get(key)
	if err != nil || !ok {
		return x, err
	}
	return x, x.row(key, value, x.keepSnapshot)
}

// row passes the entries of a row to the callback each.
func (x exported1) row(key, value []byte, each func(Entry) error) error {
	_, _, content, err := unseal(value)
	if err == nil {
		err = unpackEntries(content, x.blob, func(e Entry) error {
			if e.Actor != x.id {
				return fmt.Errorf("holds an entry of %s", e.Actor)
			}
			return each(e)
		})
	}
	if err != nil {
		return fmt.Errorf("key %s: %w", key, err)
	}
	return nil
}

func (x exported1) blob(_ *Entry, name actor.Hash) ([]byte, error) {
	return readBlob(x.KV, hex.AppendEncode(tenantKey(x.id.Tenant, 'b'), name[:]), name)
}

// entryWithBodies passes on the next entry with the bodies of its events, which are in
// rows of their own.
func (x exported1) entryWithBodies(e Entry) error {
	for i := range e.Events {
		if err := x.addBody(&e.Events[i]); err != nil {
			return err
		}
	}
	return x.entry(e)
}

// addBody reads the body of an event. The row of the event may start at an earlier one.
func (x exported1) addBody(e *RunEvent) error {
	prefix := eventsKey(x.id.Tenant, e.Run)
	var failure error
	err := x.KV.ScanBack(eventKey(x.id.Tenant, e.Run, 1), eventKey(x.id.Tenant, e.Run, e.Seq+1), func(key, value []byte) bool {
		first, err := lastNumber(key, len(prefix))
		var content []byte
		if err == nil {
			_, _, content, err = unseal(value)
		}
		if failure = err; err != nil {
			return false
		}
		bodies := bytes.Split(content, []byte("\n"))
		if i := e.Seq - first; i < uint64(len(bodies)) {
			e.Body = bytes.Clone(bodies[i])
		}
		return false
	})
	if err = cmp.Or(failure, err); err == nil && e.Body == nil {
		err = fmt.Errorf("key %s: is missing", eventKey(x.id.Tenant, e.Run, e.Seq))
	}
	return err
}
