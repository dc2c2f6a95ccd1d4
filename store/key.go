// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// FormatVersion is the version of the layout of keys, values and the chain.
const FormatVersion = 3

// FormatKey is the key whose value is FormatVersion in decimal.
const FormatKey = "format"

// keyBuilder appends the segments of a key. Keys are text, so errors can print
// them. Names are verbatim and never contain a slash. Numbers are 16 hexadecimal
// digits, so byte order is numeric order.
//
//	l/<node>/<batch>/<part>   the log: entries of a batch; part 0 begins with the batch record
//	o/<node>                  mark at which the chain begins, if it is not the start of the log
//	w/<node>                  watermark: the index rows cover the log up to this batch
//	t/<tenant>/s/<session>/…  rows of a session
//	t/<tenant>/m/<agent>/…    rows of an agent's actor under DefaultKey
//	t/<tenant>/y/<agent>/<key>/…   rows of the runtime's own actors
//	  …a/<agent>              snapshot of an actor; its value contains its number
//	  …i/<agent>/<n>          index: places of an actor's entries from number n on
//	  …b/<sha256>             blob
//	  …o/<agent>/<n>          outcome of an actor's entry n, which was cut
//	  …r/<run>                run of the session whose first entry was cut
//	t/<tenant>/r/<run>        owner of a run
//	t/<tenant>/e/<run>/<seq>  index: places of the run's events from seq on
//	t/<tenant>/d/<run>        number of the last event of the run that was cut
//	t/<tenant>/f/<session>    tombstone of a deleted session
//	x/<shard>/<due>/<tenant>/<agent>/<key>   expiry index: an actor with open runs; <due> is their earliest deadline
//	format                    FormatVersion
type keyBuilder []byte

// The kinds of rows in the range of a session.
const (
	kindSnapshot = 'a'
	kindBlob     = 'b'
	kindIndex    = 'i'
	kindKept     = 'o'
	kindRun      = 'r'
)

func tenantKey(tenant string, family byte) keyBuilder {
	k := make(keyBuilder, 0, 128)
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

func (k keyBuilder) kind(kind byte) keyBuilder { return append(k, kind, '/') }

// scopeKey returns the prefix of the rows that live and end together with those of the
// actor: the rows of its session, if it has one.
func scopeKey(id actor.ID) keyBuilder {
	session, ok := id.Session()
	switch {
	case ok:
		return tenantKey(id.Tenant, 's').name(session)
	case id.Key == actor.DefaultKey:
		return tenantKey(id.Tenant, 'm').name(id.Agent)
	default:
		return tenantKey(id.Tenant, 'y').name(id.Agent).name(id.Key)
	}
}

// SnapshotKey returns the key of an actor's snapshot.
func SnapshotKey(id actor.ID) []byte { return snapshotKey(id) }

func snapshotKey(id actor.ID) []byte { return append(scopeKey(id).kind(kindSnapshot), id.Agent...) }

// indexPrefix returns the prefix of the rows with the places of an actor's entries.
func indexPrefix(id actor.ID) keyBuilder { return scopeKey(id).kind(kindIndex).name(id.Agent) }

func indexKey(id actor.ID, n uint64) []byte { return indexPrefix(id).number(n) }

func keptKey(id actor.ID, n uint64) []byte {
	return scopeKey(id).kind(kindKept).name(id.Agent).number(n)
}

// sessionKey returns the prefix of the rows of a session.
func sessionKey(tenant, session string) keyBuilder { return tenantKey(tenant, 's').name(session) }

func sessionRunKey(tenant, session string, run actor.CallID) []byte {
	return run.AppendTo(sessionKey(tenant, session).kind(kindRun))
}

func droppedKey(tenant string, run actor.CallID) []byte {
	return run.AppendTo(tenantKey(tenant, 'd'))
}

func tombstoneKey(tenant, session string) []byte {
	return append(tenantKey(tenant, 'f'), session...)
}

func blobKey(id actor.ID, blob actor.Hash) []byte {
	return hex.AppendEncode(scopeKey(id).kind(kindBlob), blob[:])
}

func runKey(tenant string, run actor.CallID) []byte {
	return run.AppendTo(tenantKey(tenant, 'r'))
}

func eventsKey(tenant string, run actor.CallID) keyBuilder {
	return append(run.AppendTo(tenantKey(tenant, 'e')), '/')
}

func eventKey(tenant string, run actor.CallID, seq uint64) []byte {
	return eventsKey(tenant, run).number(seq)
}

// scopedKey is a parsed key of a row in the range of a session, of an agent's actor under
// DefaultKey, or of a system actor.
type scopedKey struct {
	kind  byte
	actor actor.ID // of a snapshot, an index row or an outcome; of a blob or a run only its scope
	n     uint64   // first number of an index row; number of an outcome
	blob  string   // hash of a blob
	run   string   // ID of a run
}

// parseScoped parses keys made by snapshotKey, indexKey, blobKey, keptKey and sessionRunKey.
func parseScoped(key []byte) (s scopedKey, ok bool) {
	parts := strings.Split(string(key), "/")
	if len(parts) < 6 || parts[0] != "t" {
		return s, false
	}
	s.actor.Tenant = parts[1]
	rest := parts[4:]
	switch parts[2] {
	case "s":
		s.actor.Key = parts[3]
	case "m":
		s.actor.Agent, s.actor.Key = parts[3], actor.DefaultKey
	case "y":
		s.actor.Agent, s.actor.Key, rest = parts[3], parts[4], parts[5:]
	default:
		return s, false
	}
	if len(rest) < 2 || len(rest[0]) != 1 {
		return s, false
	}
	switch s.kind = rest[0][0]; {
	case s.kind == kindBlob && len(rest) == 2:
		s.blob = rest[1]
		return s, true
	case s.kind == kindSnapshot && len(rest) == 2:
		s.actor.Agent = rest[1]
		return s, string(snapshotKey(s.actor)) == string(key)
	case s.kind == kindRun && len(rest) == 2 && parts[2] == "s":
		s.run = rest[1]
		return s, true
	case (s.kind == kindIndex || s.kind == kindKept) && len(rest) == 3:
		s.actor.Agent = rest[1]
		n, err := lastNumber(key, len(key)-len(rest[2]))
		s.n = n
		made := indexKey(s.actor, n)
		if s.kind == kindKept {
			made = keptKey(s.actor, n)
		}
		return s, err == nil && string(made) == string(key)
	}
	return s, false
}

// ActorOfKey returns the actor of a snapshot, an index row or a kept outcome.
func ActorOfKey(key []byte) (id actor.ID, ok bool) {
	s, ok := parseScoped(key)
	return s.actor, ok && s.kind != kindBlob && s.kind != kindRun
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

func logKey(node actor.NodeID) keyBuilder {
	return append(make(keyBuilder, 0, 96), "l/"...).name(string(node))
}

func batchKey(node actor.NodeID, batch uint64) keyBuilder {
	return append(logKey(node).number(batch), '/')
}

func partKey(node actor.NodeID, batch uint64, part uint32) []byte {
	return shortNumber(batchKey(node, batch), part)
}

// shortNumber appends a number of 8 hexadecimal digits.
func shortNumber(k keyBuilder, n uint32) keyBuilder {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return hex.AppendEncode(k, b[:])
}

// parsePartKey returns the batch and the part of a key of a node's log. The argument
// prefix is the length of the result of logKey.
func parsePartKey(key []byte, prefix int) (batch uint64, part uint32, err error) {
	var raw [12]byte
	if len(key) != prefix+16+1+8 || key[prefix+16] != '/' {
		return 0, 0, fmt.Errorf("key %q: is not a key of the log", key)
	}
	_, err = hex.Decode(raw[:8], key[prefix:prefix+16])
	if err == nil {
		_, err = hex.Decode(raw[8:], key[prefix+17:])
	}
	if err != nil {
		return 0, 0, fmt.Errorf("key %q: is not a key of the log", key)
	}
	return binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint32(raw[8:]), nil
}

func watermarkKey(node actor.NodeID) []byte { return append([]byte("w/"), node...) }

// familyPrefix returns the prefix of the rows of one family: of a letter of a tenant, or
// of a first segment. It returns nil for a key without a slash.
func familyPrefix(key []byte) []byte {
	slashes := 1
	if bytes.HasPrefix(key, []byte("t/")) {
		slashes = 3
	}
	for i, c := range key {
		if c != '/' {
			continue
		}
		if slashes--; slashes == 0 {
			return key[:i+1]
		}
	}
	return nil
}

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
