// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

func TestKeyOrderMatchesNumberOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, run, shard := drawID(t), drawRun(t), rapid.Uint16().Draw(t, "shard")
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		due := func(n uint64) actor.Time { return actor.Time(n >> 1) }
		for _, key := range []func(uint64) []byte{
			func(n uint64) []byte { return indexKey(id, n) },
			func(n uint64) []byte { return eventKey(id.Tenant, run, n) },
			func(n uint64) []byte { return partKey("node", n, 3) },
		} {
			if got := bytes.Compare(key(a), key(b)); got != cmp.Compare(a, b) {
				t.Fatalf("keys %s and %s compare as %d", key(a), key(b), got)
			}
		}
		if got, want := bytes.Compare(dueKey(shard, due(a), id), dueKey(shard, due(b), id)), cmp.Compare(due(a), due(b)); got != want {
			t.Fatalf("due %d and %d compare as %d", due(a), due(b), got)
		}
		batch, part, err := parsePartKey(partKey("node", a, uint32(b)), len(logKey("node")))
		if err != nil || batch != a || part != uint32(b) {
			t.Fatalf("part %d of batch %d parses as %d, %d, %v", uint32(b), a, part, batch, err)
		}
	})
}

func TestKeysOfActorsAreDisjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SampledFrom([]string{"a", "a-", "a.b", "aa", "s", "r", "e", "0", "i", "b", "m", "main", "troupe", "troupe.x", "troupe.session"})
		draw := func() actor.ID {
			return actor.ID{Tenant: names.Draw(t, "tenant"), Agent: names.Draw(t, "agent"), Key: names.Draw(t, "key")}
		}
		a, b := draw(), draw()
		if in := bytes.HasPrefix(indexKey(a, 1), indexPrefix(b)); in != (a == b) {
			t.Fatalf("key %s has prefix %s: %v", indexKey(a, 1), indexPrefix(b), in)
		}
		for kind, key := range map[byte][]byte{kindIndex: indexKey(a, 7), kindSnapshot: snapshotKey(a)} {
			if s, ok := parseScoped(key); !ok || s.kind != kind || s.actor != a || kind == kindIndex && s.n != 7 {
				t.Fatalf("key %s parses as %+v, %v", key, s, ok)
			}
			if of, ok := ActorOfKey(key); !ok || of != a {
				t.Fatalf("key %s is of %s, %v", key, of, ok)
			}
		}
		hash := actor.HashOf([]byte("x"))
		if s, ok := parseScoped(blobKey(a, hash)); !ok || s.kind != kindBlob || s.blob != hash.String() {
			t.Fatalf("key %s parses as %+v, %v", blobKey(a, hash), s, ok)
		}
		sessionA, inA := a.Session()
		sessionB, inB := b.Session()
		if together := bytes.Equal(scopeKey(a), scopeKey(b)); together != (a == b || a.Tenant == b.Tenant && inA && inB && sessionA == sessionB) {
			t.Fatalf("%s and %s share the rows of a session: %v", a, b, together)
		}
		shard, due := rapid.Uint16().Draw(t, "shard"), drawTime(t)
		gotShard, got, err := parseDueKey(dueKey(shard, due, a))
		if err != nil || gotShard != shard || got != a {
			t.Fatalf("key %s parses as %d, %s, %v", dueKey(shard, due, a), gotShard, got, err)
		}
	})
}

// A key that ends in another number of digits has no number.
func TestNumberOfKeyHasFixedLength(t *testing.T) {
	if n, err := lastNumber([]byte("n/o1/000000000000000a"), 5); err != nil || n != 10 {
		t.Errorf("got %d, %v", n, err)
	}
	for _, key := range []string{"n/o1/", "n/o1/00", "n/o1/00000000000000000a", "n/o1/000000000000000x"} {
		if n, err := lastNumber([]byte(key), 5); err == nil {
			t.Errorf("%s ends in %d, want an error", key, n)
		}
	}
}

// unreadable is a KV whose disk fails.
type unreadable struct{ KV }

func (unreadable) Get([]byte) ([]byte, bool, error) { return nil, false, errors.New("disk failure") }

func TestUnreadableFormatIsAnError(t *testing.T) {
	if err := CheckFormat(unreadable{}); err == nil || err.Error() != "disk failure" {
		t.Errorf("got %v, want the failure of the disk", err)
	}
}
