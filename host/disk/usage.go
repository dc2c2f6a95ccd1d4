// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// usageSamples is the number of batches of the log from which the shares of tenants are estimated.
const usageSamples = 256

// burstBuffers is the number of write buffers by which a store grows at most until they are tables and their
// part of the write-ahead log is deleted: three in memory, and the table of one.
const burstBuffers = 4

// FreeSpace returns the bytes that are free for a folder.
func FreeSpace(dir string) uint64 {
	return Options{}.withDefaults(dir).freeSpace(dir)
}

// ReadUsage estimates the space of the tenants of a store. It reads some batches of the log.
func ReadUsage(d *Disk) (store.Usage, error) {
	u := store.Usage{Of: map[string]uint64{}, Burst: burstBuffers * d.options.WriteBuffer}
	if free := d.options.freeSpace(d.dir); free > d.options.FreeFloor {
		u.Free = free - d.options.FreeFloor
	}
	tenants, err := d.Tenants()
	if err != nil {
		return u, err
	}
	for _, tenant := range tenants {
		n, err := d.db.EstimateDiskUsage(store.TenantRange(tenant))
		if err != nil {
			return u, err
		}
		u.Of[tenant] = n
	}
	registry, err := d.db.EstimateDiskUsage(store.RegistryRange())
	if err != nil {
		return u, err
	}
	u.Of[actor.DefaultTenant] -= min(u.Of[actor.DefaultTenant], registry)
	u.Of[""] = registry
	sample, err := d.SampleLog(d.node, usageSamples)
	if err != nil {
		return u, err
	}
	log, err := d.db.EstimateDiskUsage(store.LogRange(d.node))
	if err != nil {
		return u, err
	}
	sum := uint64(0)
	for _, tenant := range slices.Sorted(maps.Keys(sample)) {
		sum += sample[tenant]
	}
	for tenant, n := range sample {
		u.Of[tenant] += uint64(float64(log) * float64(n) / float64(max(sum, 1)))
	}
	for _, n := range u.Of {
		u.Stored += n
	}
	return u, nil
}
