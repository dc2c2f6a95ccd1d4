// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// FormatVersion is the version of the layout of keys, values and the chain.
const FormatVersion = 1

// FormatKey is the key whose value is FormatVersion in decimal.
const FormatKey = "format"

// keyBuilder appends the segments of a key. Keys are text, so errors can print
// them. Names are verbatim and never contain a slash. Numbers are 16 hexadecimal
// digits, so byte order is numeric order.
//
//	t/<tenant>/a/<agent>/<key>/<n>   entries from number n on
//	t/<tenant>/a/<agent>/<key>/s     snapshot; its value contains its number
//	t/<tenant>/r/<run>               summary of a run
//	t/<tenant>/e/<run>/<seq>         run events from seq on, one line each
//	t/<tenant>/b/<sha256>            blob
//	x/<shard>/<due>/<tenant>/<agent>/<key>   expiry index: an actor with open runs; <due> is their earliest deadline
//	n/<node>/<batch>                 batch record
//	format                           FormatVersion
//	origin                           mark at which the chain begins, if it is not the start of the log
type keyBuilder []byte

func tenantKey(tenant string, family byte) keyBuilder {
	return appendTenantKey(make(keyBuilder, 0, 128), tenant, family)
}

func appendTenantKey(k keyBuilder, tenant string, family byte) keyBuilder {
	k = append(k, "t/"...)
	k = append(k, tenant...)
	return append(k, '/', family, '/')
}

func (k keyBuilder) name(s string) keyBuilder { return append(append(k, s...), '/') }

func (k keyBuilder) number(n uint64) keyBuilder {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return hex.AppendEncode(k, b[:])
}

func actorKey(id actor.ID) keyBuilder { return tenantKey(id.Tenant, 'a').name(id.Agent).name(id.Key) }

func entryKey(id actor.ID, n uint64) []byte { return actorKey(id).number(n) }

// snapshotKey returns the key of an actor's snapshot, which sorts after all its entries.
func snapshotKey(id actor.ID) []byte { return append(actorKey(id), 's') }

func runKey(tenant string, run actor.CallID) []byte {
	return run.AppendTo(tenantKey(tenant, 'r'))
}

func eventsKey(tenant string, run actor.CallID) keyBuilder {
	return append(run.AppendTo(tenantKey(tenant, 'e')), '/')
}

func eventKey(tenant string, run actor.CallID, seq uint64) []byte {
	return eventsKey(tenant, run).number(seq)
}

func blobKey(tenant string, blob actor.Hash) []byte {
	return hex.AppendEncode(tenantKey(tenant, 'b'), blob[:])
}

func shardKey(shard uint16) keyBuilder {
	k := append(make(keyBuilder, 0, 128), "x/"...)
	return append(hex.AppendEncode(k, []byte{byte(shard >> 8), byte(shard)}), '/')
}

func dueKey(shard uint16, due actor.Time, id actor.ID) []byte {
	k := append(shardKey(shard).number(uint64(due)), '/')
	return append(k.name(id.Tenant).name(id.Agent), id.Key...)
}

// shardOf returns the shard of an expiry index key. It does not validate the rest of the key.
func shardOf(key []byte) (shard uint16, ok bool) {
	var raw [2]byte
	if len(key) < 7 || key[6] != '/' {
		return 0, false
	}
	_, err := hex.Decode(raw[:], key[2:6])
	return binary.BigEndian.Uint16(raw[:]), err == nil
}

// parseDueKey is the inverse of dueKey. The due time is not returned.
func parseDueKey(key []byte) (shard uint16, id actor.ID, err error) {
	const idAt = len("x/") + 4 + len("/") + 16 + len("/")
	shard, ok := shardOf(key)
	if !ok || len(key) < idAt || key[idAt-1] != '/' {
		return 0, id, fmt.Errorf("key %q: is not an expiry index key", key)
	}
	names := string(key[idAt:])
	id.Tenant, names, _ = strings.Cut(names, "/")
	id.Agent, id.Key, _ = strings.Cut(names, "/")
	if err := id.Check(); err != nil {
		return 0, id, fmt.Errorf("key %q: %w", key, err)
	}
	return shard, id, nil
}

func nodeKey(node actor.NodeID) keyBuilder {
	return append(make(keyBuilder, 0, 96), "n/"...).name(string(node))
}

func batchKey(node actor.NodeID, batch uint64) []byte { return nodeKey(node).number(batch) }

// lastNumber parses the number that follows the first prefix bytes of key.
func lastNumber(key []byte, prefix int) (uint64, error) {
	if len(key) != prefix+16 {
		return 0, fmt.Errorf("key %q: does not end in a number", key)
	}
	raw, err := hex.DecodeString(string(key[prefix:]))
	if err != nil {
		return 0, fmt.Errorf("key %q: does not end in a number", key)
	}
	return binary.BigEndian.Uint64(raw), nil
}

// prefixEnd returns the smallest key greater than all keys with this prefix.
func prefixEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	end[len(end)-1]++ // cannot overflow: prefixes end in '/'
	return end
}
