// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// Usage is an estimate of the space that a store takes. What was written in the last seconds is not in
// it.
type Usage struct {
	Free   uint64            // bytes that new work may still take
	Stored uint64            // bytes of all tenants and the registry
	Of     map[string]uint64 // of each tenant, and with "" of the registry, which has definitions of all
	Burst  uint64            // bytes that a store takes for seconds while it writes its buffers to tables
}

// TenantRange returns the range of the keys with the rows of a tenant.
func TenantRange(tenant string) (from, to []byte) {
	from = append(append([]byte("t/"), tenant...), '/')
	return from, prefixEnd(from)
}

// RegistryRange returns the range of the keys with the rows of the registry, which is in the range of a tenant.
func RegistryRange() (from, to []byte) {
	from = tenantKey(actor.DefaultTenant, 'y').name(actor.SystemAgent)
	return from, prefixEnd(from)
}

// LogRange returns the range of the keys of a node's log.
func LogRange(node actor.NodeID) (from, to []byte) {
	from = logKey(node)
	return from, prefixEnd(from)
}

// SampleLog returns the bytes that tenants, and with "" the registry, have in some batches of a node's
// log, which are spread evenly. The log itself has no sums, because a cut and a deletion would have to know
// those of each tenant.
func (r Rows) SampleLog(node actor.NodeID, samples int) (of map[string]uint64, err error) {
	origin, err := Origin(r.KV, node)
	last := uint64(0)
	if err == nil {
		last, err = r.lastBatch(node)
	}
	if err != nil {
		return nil, err
	}
	of = map[string]uint64{}
	count := last - min(last, origin.Batch)
	parts := min(uint64(samples), count)
	for i := range parts {
		var failure error
		err := scanLog(r.KV, node, origin.Batch+1+i*count/parts, func(b *storedBatch) bool {
			if failure = b.addTo(of); failure != nil {
				failure = fmt.Errorf("key %s: %w", partKey(node, b.no, 0), failure)
			}
			return false
		})
		if err = cmp.Or(failure, err); err != nil {
			return nil, err
		}
	}
	return of, nil
}

// errFirst ends the decoding of a group after its first entry.
var errFirst = errors.New("first entry")

// addTo adds the sizes of the groups of a batch to the sums of their tenants. All entries of a group
// are of one actor.
func (b *storedBatch) addTo(of map[string]uint64) error {
	for _, group := range b.groups {
		content, err := openGroup(group)
		if errors.As(err, new(Gone)) {
			continue
		}
		if err == nil {
			err = unpackEntries(content, noBlob, func(e Entry) error {
				tenant := e.Actor.Tenant
				if e.Actor.Agent == actor.SystemAgent {
					tenant = ""
				}
				of[tenant] += uint64(len(group))
				return errFirst
			})
		}
		if err != nil && !errors.Is(err, errFirst) {
			return err
		}
	}
	return nil
}
