// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// Anchor is stored outside the log. It names both ends of the log that was synced. Its
// file has two slots that are written alternately: a torn write damages only one.
type Anchor struct {
	End    Mark // the log was synced up to this batch
	Origin Mark // the chain begins behind this batch
}

const (
	AnchorSlotBytes  = 256
	AnchorSlotStride = 4096 // distance between the starts of the slots
	AnchorFileBytes  = AnchorSlotStride + AnchorSlotBytes
)

// anchorSumOffset is the offset of the checksum in a slot. The checksum covers all bytes
// before this offset.
const anchorSumOffset = AnchorSlotBytes - len(actor.Hash{})

// EncodeAnchor returns the AnchorSlotBytes of one slot.
func EncodeAnchor(node actor.NodeID, a Anchor) []byte {
	var e encoder
	e.Uint(frameVersion)
	e.String(string(node))
	e.mark(a.End)
	e.mark(a.Origin)
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

// DecodeAnchor returns the latest anchor in the intact slots of an anchor file, and the
// slot that holds it. The next anchor MUST be written to the other slot.
func DecodeAnchor(file []byte, node actor.NodeID) (a Anchor, slot int, err error) {
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
		} else if slot < 0 || found.End.Batch > a.End.Batch {
			a, slot = found, i
		}
	}
	if slot < 0 {
		return Anchor{}, 0, fmt.Errorf("anchor: %w", errors.Join(errs...))
	}
	return a, slot, nil
}

func decodeSlot(b []byte, node actor.NodeID) (Anchor, error) {
	sum := actor.HashOf(b[:anchorSumOffset])
	if !bytes.Equal(b[anchorSumOffset:], sum[:]) {
		return Anchor{}, errors.New("is damaged: checksum mismatch")
	}
	d := newDecoder(b)
	if err := d.readVersion("anchor", frameVersion); err != nil {
		return Anchor{}, err
	}
	of := actor.NodeID(d.String(actor.NameBytesMax))
	a := Anchor{d.mark(), d.mark()}
	if d.Err() == nil && of != node {
		d.Fail("belongs to node %s, not %s", of, node)
	}
	return a, d.Err()
}
