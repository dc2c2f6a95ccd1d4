// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// The estimate divides the space among tenants, whether they fill it with content or with many small
// entries, and a start knows it again. What the registry has is nobody's, although it is an actor of a tenant.
func TestUsageOfTenants(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	options := Options{WriteBuffer: 1 << 20, freeSpace: func(string) uint64 { return FreeFloor + 5<<30 }}
	d := mustOpen(t, dir, options)
	l, random := NewLog(d), rand.NewChaCha8([32]byte{1})
	text := func(n int) []actor.Part {
		b := make([]byte, n)
		_, _ = random.Read(b)
		return []actor.Part{{Media: "application/octet-stream", Bytes: b}}
	}
	write := func(tenant string, count, size int) {
		s := newEntryGenerator("alice")
		if s.id.Tenant = tenant; tenant == "" {
			s.id = actor.NewID(actor.SystemAgent, "registry")
		}
		var entries []store.Entry
		for range count {
			e := s.next()
			switch r := e.Record.(type) {
			case store.Accepted:
				r.Call.Parts = text(size)
				e.Record = r
			case store.Ended:
				r.Reply.Parts = text(size)
				e.Record = r
			}
			if entries = append(entries, e); len(entries) == 20 {
				commit(l, entries...)
				entries = nil
			}
		}
	}
	write("content", 400, 40<<10)
	write("entries", 4000, 3<<10)
	write("small", 100, 3<<10)
	write("", 400, 40<<10)
	write("", 2000, 3<<10)
	check := func(d *Disk) {
		t.Helper()
		u, err := ReadUsage(d)
		if err != nil {
			t.Fatal(err)
		}
		const mib = 1 << 20
		for tenant, want := range map[string][2]uint64{"content": {11, 20}, "entries": {8, 20}, "small": {0, 2}, "": {15, 30}, actor.DefaultTenant: {0, 1}} {
			if got := u.Of[tenant] / mib; got < want[0] || got > want[1] {
				t.Errorf("%s has %d MiB, want %v", tenant, got, want)
			}
		}
		if u.Free != 5<<30 || u.Stored != u.Of["content"]+u.Of["entries"]+u.Of["small"]+u.Of[""]+u.Of[actor.DefaultTenant] {
			t.Errorf("%+v", u)
		}
	}
	check(d)
	mustClose(t, l, d)
	check(mustOpen(t, dir, options))
}
