// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// readableKV is a KV without the keys that the disk cannot read. A scan continues behind
// them. A range of such keys is read once, because a disk spends up to a second on each
// failed read.
type readableKV struct {
	KV
	unreadable *unreadableKeys
}

// Get implements KV. After the first error in a family of rows, it searches all of the
// family for keys that cannot be read.
func (k readableKV) Get(key []byte) ([]byte, bool, error) {
	if readable, _ := k.unreadable.skip(key, key); !bytes.Equal(readable, key) {
		return nil, false, fmt.Errorf("key %s: cannot be read", key)
	}
	value, ok, err := k.KV.Get(key)
	if family := familyPrefix(key); err != nil && family != nil && !k.unreadable.scanned[string(family)] {
		k.unreadable.scanned[string(family)] = true
		return nil, false, cmp.Or(k.Scan(family, prefixEnd(family), func(_, _ []byte) bool { return true }), err)
	}
	return value, ok, err
}

// Scan implements KV. Each turn of its loop ends behind the key at which it began.
func (k readableKV) Scan(from, to []byte, each func(key, value []byte) bool) error {
	for {
		var end []byte
		if from, end = k.unreadable.skip(from, to); bytes.Compare(from, to) >= 0 {
			return nil
		}
		next, stopped := slices.Clone(from), false // the smallest key that was not passed
		err := k.KV.Scan(from, end, func(key, value []byte) bool {
			next = append(append(next[:0], key...), 0)
			stopped = !each(key, value)
			return !stopped
		})
		if err == nil {
			next = end
		} else if from, end = k.unreadable.skip(next, end); bytes.Equal(from, next) && !stopped { // the callback has met no such keys
			next = nextReadable(k.KV, from, k.unreadable.searchEnd(from, end))
			stopped = !k.unreadable.add(from, next, err)
		}
		if stopped {
			return nil
		}
		from = next
	}
}

// unreadableKeys are disjoint ranges of keys in ascending order. A range does not include
// its end.
type unreadableKeys struct {
	ranges  [][2][]byte
	scanned map[string]bool // prefixes of the families that were searched
	report  func(from, to []byte, err error)
}

// searchEnd returns the end of the search for readable keys behind a failed read: the
// end of the family of rows, even if the scan ends earlier.
func (u *unreadableKeys) searchEnd(from, end []byte) []byte {
	if family := familyPrefix(from); family != nil && bytes.Compare(end, prefixEnd(family)) < 0 {
		_, end = u.skip(from, prefixEnd(family))
	}
	return end
}

// skip returns the first key from the argument from on that is in no range, and the next
// start of a range, at most to.
func (u *unreadableKeys) skip(from, to []byte) (start, end []byte) {
	i := sort.Search(len(u.ranges), func(i int) bool { return bytes.Compare(u.ranges[i][1], from) > 0 })
	for ; i < len(u.ranges); i++ {
		r := u.ranges[i]
		if bytes.Compare(r[0], from) > 0 {
			if bytes.Compare(r[0], to) < 0 {
				to = r[0]
			}
			break
		}
		from = r[1]
	}
	return from, to
}

// add adds a range. It returns false if there are unreadableMax.
func (u *unreadableKeys) add(from, to []byte, err error) bool {
	i := sort.Search(len(u.ranges), func(i int) bool { return bytes.Compare(u.ranges[i][0], from) >= 0 })
	u.ranges = slices.Insert(u.ranges, i, [2][]byte{from, to})
	u.report(bytes.TrimSuffix(from, []byte{0}), to, err)
	return len(u.ranges) < unreadableMax
}

// blocks is implemented by a KV that knows where its blocks of keys start.
type blocks interface {
	// NextBlock returns the first key that is behind the argument key and behind more
	// than skip further bytes, where another block starts; to if there is none before.
	NextBlock(key, to []byte, skip uint64) []byte
}

// Bounds of the search for the end of damage. A disk spends up to a second on each
// failed read.
const (
	singleSkips = 8        // number of blocks that are skipped one at a time
	skipMin     = 64 << 10 // bytes of the first longer skip; each further one is twice as long
)

// nextReadable returns the start of the next block behind the damaged key from that the
// disk can read; to if there is none before.
func nextReadable(kv KV, from, to []byte) []byte {
	b, ok := kv.(blocks)
	if !ok {
		return to
	}
	skip := uint64(0)
	for n := 1; ; n++ {
		from = b.NextBlock(from, to, skip)
		if string(from) >= string(to) {
			return to
		}
		if err := kv.Scan(from, to, func(_, _ []byte) bool { return false }); err == nil {
			return from
		}
		if n >= singleSkips {
			skip = max(skipMin, 2*skip)
		}
	}
}
