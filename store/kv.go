// SPDX-License-Identifier: Apache-2.0

package store

// KV is an ordered key-value store in which Rows stores a log.
//
//  1. Apply performs all of its rows in order, or none.
//  2. Get, Scan and ScanBack see the changes of all earlier calls of Apply.
//  3. Callers MUST NOT modify returned slices. Slices passed to the callback each are valid only during that call.
//  4. Apply may retain its rows; callers MUST NOT modify the rows afterwards.
type KV interface {
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan calls the callback each for the keys from <= key < to in ascending order,
	// until it returns false.
	Scan(from, to []byte, each func(key, value []byte) bool) error
	// ScanBack calls the callback each for the same keys in descending order.
	ScanBack(from, to []byte, each func(key, value []byte) bool) error
	Apply(rows []Row) error
}

// ManyGetter is a KV in which each read has a cost of its own, such as a round trip, so that reading
// several keys at once is cheaper.
type ManyGetter interface {
	KV
	// GetMany returns the values of those keys that exist, by key.
	GetMany(keys [][]byte) (map[string][]byte, error)
}

// Row is one put or delete of a key, or the delete of a range of keys.
type Row struct {
	Key    []byte
	Value  []byte
	Delete bool
	To     []byte // if it is not nil, Delete deletes the keys from Key on and before To
}
