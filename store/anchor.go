// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// An anchor stores, outside the log, the Mark up to which the log was synced. Its
// file has two slots that are written alternately: a torn write damages only one.
const (
	AnchorSlotBytes  = 256
	AnchorSlotStride = 4096 // distance between the starts of the slots
	AnchorFileBytes  = AnchorSlotStride + AnchorSlotBytes
)

// anchorSumOffset is the offset of the checksum in a slot. The checksum covers all bytes
// before this offset.
const anchorSumOffset = AnchorSlotBytes - len(actor.Hash{})

// EncodeAnchor returns the AnchorSlotBytes of one slot.
func EncodeAnchor(node actor.NodeID, m Mark) []byte {
	var e actor.Encoder
	e.Uint(frameVersion)
	e.String(string(node))
	e.Uint(m.Batch)
	e.Uint(uint64(m.Pos))
	e.Hash(m.Hash)
	e.Raw(make([]byte, anchorSumOffset-len(e.Buf)))
	e.Hash(actor.HashOf(e.Buf))
	return e.Buf
}

// AnchorNode returns the node that an anchor file belongs to. The bool is false if no slot
// is intact.
func AnchorNode(file []byte) (actor.NodeID, bool) {
	for i := range 2 {
		if len(file) < i*AnchorSlotStride+AnchorSlotBytes {
			break
		}
		slot := file[i*AnchorSlotStride:][:AnchorSlotBytes]
		if sum := actor.HashOf(slot[:anchorSumOffset]); bytes.Equal(slot[anchorSumOffset:], sum[:]) {
			d := newDecoder(slot)
			err := d.readVersion("anchor", frameVersion)
			node := actor.NodeID(d.String(actor.NameBytesMax))
			return node, err == nil && d.Err() == nil
		}
	}
	return "", false
}

// DecodeAnchor returns the latest mark in the intact slots of an anchor file, and the
// slot that holds this mark. The next mark MUST be written to the other slot.
func DecodeAnchor(file []byte, node actor.NodeID) (m Mark, slot int, err error) {
	slot = -1
	var errs []error
	for i := range 2 {
		if len(file) < i*AnchorSlotStride+AnchorSlotBytes {
			errs = append(errs, fmt.Errorf("slot %d is cut off", i))
			continue
		}
		found, err := decodeSlot(file[i*AnchorSlotStride:][:AnchorSlotBytes], node)
		if err != nil {
			errs = append(errs, fmt.Errorf("slot %d: %w", i, err))
		} else if slot < 0 || found.Batch > m.Batch {
			m, slot = found, i
		}
	}
	if slot < 0 {
		return Mark{}, 0, fmt.Errorf("anchor: %w", errors.Join(errs...))
	}
	return m, slot, nil
}

func decodeSlot(b []byte, node actor.NodeID) (Mark, error) {
	sum := actor.HashOf(b[:anchorSumOffset])
	if !bytes.Equal(b[anchorSumOffset:], sum[:]) {
		return Mark{}, errors.New("is damaged: checksum mismatch")
	}
	d := newDecoder(b)
	if err := d.readVersion("anchor", frameVersion); err != nil {
		return Mark{}, err
	}
	of := actor.NodeID(d.String(actor.NameBytesMax))
	m := Mark{d.Uint(), Pos(d.Uint()), d.Hash()}
	if d.Err() == nil && of != node {
		d.Fail("belongs to node %s, not %s", of, node)
	}
	return m, d.Err()
}
