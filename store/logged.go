// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// EachLogged passes the entries of a node's log to the callback each with their content, in order,
// until it returns an error. Those of deleted sessions are left out.
func (r Rows) EachLogged(node actor.NodeID, each func(*Entry) error) error {
	origin, err := Origin(r.KV, node)
	if err != nil {
		return err
	}
	var failure error
	blob := func(e *Entry, name actor.Hash) ([]byte, error) {
		if gone := r.gone(e.Actor); gone != nil {
			if errors.As(gone, new(Gone)) {
				return nil, nil
			}
			return nil, gone
		}
		return loadBlob(r.KV, e.Actor, name)
	}
	err = scanLog(r.KV, node, origin.Batch+1, func(b *storedBatch) bool {
		if failure = b.err; failure != nil {
			return false
		}
		for _, group := range b.groups {
			content, err := openGroup(group)
			if errors.As(err, new(Gone)) {
				continue
			}
			if err == nil {
				err = unpackEntries(content, blob, func(e Entry) error {
					if gone := r.gone(e.Actor); gone != nil {
						if errors.As(gone, new(Gone)) {
							return nil
						}
						return gone
					}
					return each(&e)
				})
			}
			if err != nil {
				failure = fmt.Errorf("key %s: %w", partKey(node, b.no, 0), err)
				return false
			}
		}
		return true
	})
	return cmp.Or(failure, err)
}
