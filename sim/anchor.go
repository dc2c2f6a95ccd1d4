// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// anchorFile returns the anchor file of a node, with anchors written to its two slots in
// turn, starting at slot.
func anchorFile(node actor.NodeID, slot int, anchors ...store.Anchor) []byte {
	file := make([]byte, store.AnchorFileBytes)
	for i, a := range anchors {
		copy(file[(slot+i)%2*store.AnchorSlotStride:], store.EncodeAnchor(node, a))
	}
	return file
}

// readAnchor returns the mark from which a starting process reads its log. This is the
// mark of its last batch, or of the batch before if the last write of the anchor was
// torn. If neither slot can be decoded, the result wait is the time until an operator has
// restored the anchor.
func (d *disk) readAnchor() (m store.Mark, wait time.Duration) {
	w, n := d.n.w, d.n
	if d.previous.Batch == 0 || !w.faultFires(DiskTornAnchor) {
		return d.mark, 0
	}
	slot := int(d.mark.Batch % 2)
	file := anchorFile(n.id, slot, store.Anchor{End: d.mark}, store.Anchor{End: d.previous})
	plain := bytes.Clone(file)
	last := file[slot*store.AnchorSlotStride:][:store.AnchorSlotBytes]
	want := d.previous
	what := "torn write"
	switch w.entropy.Int(4) {
	case 0:
		at := w.entropy.Int(len(last))
		for i := range last[at:] { // the inverted bytes represent stale bytes of two batches earlier
			last[at+i] = ^last[at+i]
		}
	case 1:
		last[w.entropy.Int(len(last))] ^= 1 << w.entropy.Int(8)
		what = "one bit flipped"
	case 2:
		file, want, what = file[:w.entropy.Int(store.AnchorSlotBytes)], store.Mark{}, "truncated file"
	case 3:
		file, want, what = anchorFile("n0", slot, store.Anchor{End: d.mark}, store.Anchor{End: d.previous}), store.Mark{}, "written by another node"
	}
	if !w.acts(DiskTornAnchor) {
		want = d.mark
	}
	anchor, _, err := store.DecodeAnchor(w.faultyBytes(DiskTornAnchor, plain, file), n.id)
	m = anchor.End
	switch {
	case w.doses[DiskTornAnchor] == HalfDose: // one damaged byte may lie in the unused part of the file
	case err == nil && m != want || err != nil && want != (store.Mark{}):
		w.fail(CorruptionReported, fmt.Sprintf("%s uses the anchor of batch %d, error %v; it wrote anchors of batches %d and %d, the last one damaged: %s", n.id, m.Batch, err, d.previous.Batch, d.mark.Batch, what))
	}
	recordChange(w, DiskTornAnchor, d.mark, m, "%s starts from batch %d instead of %d, error %v: %s", n.id, m.Batch, d.mark.Batch, err, what)
	if err != nil {
		return d.mark, w.between(500*time.Millisecond, 5*time.Second)
	}
	return m, 0
}
