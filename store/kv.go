// SPDX-License-Identifier: Apache-2.0

package store

// KV is the one thing this room wants of a disk: ordered keys.
//
//  1. Apply does all its rows, in their order, or none.
//  2. Get, Scan and ScanBack see all that was applied before.
//  3. What they return is not to be changed, and that of a scan is good only inside each.
//  4. Apply may keep its rows; they are not changed afterwards.
type KV interface {
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan shows from <= key < to in order, until each returns false.
	Scan(from, to []byte, each func(key, value []byte) bool) error
	// ScanBack shows the same keys, the last first.
	ScanBack(from, to []byte, each func(key, value []byte) bool) error
	Apply(rows []Row) error
}

// Row is one key put or deleted.
type Row struct {
	Key    []byte
	Value  []byte
	Delete bool
}
