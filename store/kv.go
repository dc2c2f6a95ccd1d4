// SPDX-License-Identifier: Apache-2.0

package store

// KV is an ordered key-value store, the only interface to a disk in this package.
//
//  1. Apply performs all of its rows in order, or none.
//  2. Get, Scan and ScanBack see everything applied before.
//  3. Callers MUST NOT modify returned slices. Slices passed to each are valid only during that call.
//  4. Apply may retain its rows; callers MUST NOT modify them afterwards.
type KV interface {
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan calls the function each for the keys from <= key < to in ascending order,
	// until it returns false.
	Scan(from, to []byte, each func(key, value []byte) bool) error
	// ScanBack does the same in descending order.
	ScanBack(from, to []byte, each func(key, value []byte) bool) error
	Apply(rows []Row) error
}

// Row is one put or delete of a key.
type Row struct {
	Key    []byte
	Value  []byte
	Delete bool
}
