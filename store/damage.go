// SPDX-License-Identifier: Apache-2.0

package store

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
