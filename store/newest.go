// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// newestBatches is the number of batches in which Newest looks: the last ones may have nothing but
// content of deleted sessions.
const newestBatches = 64

// Newest returns the latest time of the entries in the last batches of a node's log, 0 if they have none.
func (r Rows) Newest(node actor.NodeID) (newest actor.Time, err error) {
	last, err := r.lastBatch(node)
	if err != nil {
		return 0, err
	}
	var failure error
	err = scanLog(r.KV, node, last-min(last, newestBatches)+1, func(b *storedBatch) bool {
		for _, group := range b.groups {
			content, err := openGroup(group)
			if errors.As(err, new(Gone)) {
				continue
			}
			if err == nil {
				err = unpackEntries(content, noBlob, func(e Entry) error {
					newest = max(newest, e.Record.at())
					return nil
				})
			}
			if err != nil {
				failure = fmt.Errorf("key %s: %w", partKey(node, b.no, 0), err)
				return false
			}
		}
		return true
	})
	return newest, cmp.Or(failure, err)
}
