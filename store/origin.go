// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// OriginKey returns the key of the mark at which the chain of a node begins. The key is
// absent in a log that begins at its first batch. After a Cut the mark is the last batch that
// was cut, so the numbers of batches and of entries continue.
func OriginKey(node actor.NodeID) []byte { return append([]byte("o/"), node...) }

// OriginRow returns the row that records where the chain of a node begins.
func OriginRow(node actor.NodeID, m Mark) Row {
	w := encoder{}
	w.Uint(frameVersion)
	w.mark(m)
	return Row{Key: OriginKey(node), Value: w.Buf}
}

// Origin returns the mark at which the chain of a node begins.
func Origin(kv KV, node actor.NodeID) (Mark, error) { return readOrigin(kv, OriginKey(node)) }

func readOrigin(kv KV, key []byte) (Mark, error) {
	value, ok, err := kv.Get(key)
	if err != nil || !ok {
		return Mark{}, err
	}
	d := newDecoder(value)
	if err := d.readVersion("origin", frameVersion); err != nil {
		return Mark{}, fmt.Errorf("key %s: %w", key, err)
	}
	m := d.mark()
	if err := d.End(); err != nil {
		return Mark{}, fmt.Errorf("key %s: %w", key, err)
	}
	return m, nil
}

// CheckOrigin checks that the chain of a node begins where the anchor states it, or that an
// entry behind the anchor has cut the log since. Otherwise the store is older than its
// anchor, or batches are lost.
func CheckOrigin(kv KV, node actor.NodeID, anchor Anchor) error {
	origin, err := Origin(kv, node)
	if err != nil || origin == anchor.Origin {
		return err
	}
	cut := false
	if origin.Batch > anchor.Origin.Batch {
		err = eachLogged(kv, node, anchor.End.Batch+1, func(e Entry) {
			r, ok := e.Record.(Cut)
			cut = cut || ok && r.Upto == origin
		})
	}
	if err == nil && !cut {
		err = fmt.Errorf("key %s: the chain begins after batch %d, the anchor names batch %d, and no entry has cut the log since", OriginKey(node), origin.Batch, anchor.Origin.Batch)
	}
	return err
}

// eachLogged passes the entries of a log to the callback each, from the first batch on.
// Blobs are left out, and damage is skipped.
func eachLogged(kv KV, node actor.NodeID, first uint64, each func(Entry)) error {
	return scanLog(kv, node, first, func(b *storedBatch) bool {
		for _, group := range b.groups {
			if content, err := openGroup(group); err == nil {
				unpackEntries(content, noBlob, func(e Entry) error { each(e); return nil }) //nolint:errcheck // Verify reports damage
			}
		}
		return true
	})
}
