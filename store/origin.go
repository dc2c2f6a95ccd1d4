// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// OriginKey is the key of the mark at which the chain of batches begins. It is absent
// in a log that begins at its first batch. In a migrated log it is the end of the log
// that was migrated, so the numbers of batches and of entries continue.
const OriginKey = "origin"

// OriginRow returns the row that records where the chain begins.
func OriginRow(m Mark) Row {
	var e actor.Encoder
	e.Uint(frameVersion)
	e.Uint(m.Batch)
	e.Uint(uint64(m.Pos))
	e.Hash(m.Hash)
	return Row{Key: []byte(OriginKey), Value: e.Buf}
}

// Origin returns the mark at which the chain begins.
func Origin(kv KV) (Mark, error) {
	value, ok, err := kv.Get([]byte(OriginKey))
	if err != nil || !ok {
		return Mark{}, err
	}
	d := newDecoder(value)
	if err := d.readVersion("origin", frameVersion); err != nil {
		return Mark{}, fmt.Errorf("key %s: %w", OriginKey, err)
	}
	m := Mark{d.Uint(), Pos(d.Uint()), d.Hash()}
	if err := d.End(); err != nil {
		return Mark{}, fmt.Errorf("key %s: %w", OriginKey, err)
	}
	return m, nil
}
