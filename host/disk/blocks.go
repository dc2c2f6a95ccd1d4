// SPDX-License-Identifier: Apache-2.0

package disk

import "bytes"

// boundaryBytesMax is the number of bytes to which NextBlock determines a key.
const boundaryBytesMax = 256

// NextBlock implements the optional method of a store.KV. It reads the indexes of the
// tables, and none of their blocks.
func (k keys) NextBlock(key, to []byte, skip uint64) []byte {
	size := func(end []byte) uint64 {
		n, err := k.db.EstimateDiskUsage(key, end)
		if err != nil {
			return 0
		}
		return n
	}
	low, high := key, to
	limit := size(key) + skip
	if size(to) <= limit {
		return to // also if the index of the table cannot be read: each size then reads it again
	}
	for {
		middle := between(low, high, boundaryBytesMax)
		switch {
		case bytes.Compare(middle, low) <= 0 || bytes.Compare(middle, high) >= 0:
			return high
		case size(middle) > limit:
			high = middle
		default:
			low = middle
		}
	}
}

// between returns the key of at most the given length halfway between two keys.
func between(low, high []byte, length int) []byte {
	middle := make([]byte, length)
	at := func(key []byte, i int) int {
		if i < len(key) {
			return int(key[i])
		}
		return 0
	}
	carry := 0
	for i := length - 1; i >= 0; i-- {
		carry += at(low, i) + at(high, i)
		middle[i], carry = byte(carry), carry>>8
	}
	for i := range middle { // halve; the carry is the bit before the first byte
		next := int(middle[i]) & 1
		middle[i] = byte(carry<<7) | middle[i]>>1
		carry = next
	}
	return bytes.TrimRight(middle, "\x00")
}
