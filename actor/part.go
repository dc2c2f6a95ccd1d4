// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// MediaText is the media type of plain text.
	MediaText = "text/plain"
	// MediaJSON is the media type of one JSON value.
	MediaJSON = "application/json"
)

// Hash is the SHA-256 of some content, and its name.
type Hash [32]byte

// HashOf names content.
func HashOf(content []byte) Hash { return sha256.Sum256(content) }

// String writes the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// IsZero tells whether there is no hash.
func (h Hash) IsZero() bool { return h == Hash{} }

// Part is one piece of content: inline, or by the name of a blob that is stored once.
type Part struct {
	Media string // media type; MediaText when in doubt
	Bytes []byte // the content, if inline
	Blob  Hash   // its name, if it stands elsewhere
	Size  uint64 // its length, if it stands elsewhere
}

// Text returns content of one inline part of plain text.
func Text(text string) []Part { return []Part{{Media: MediaText, Bytes: []byte(text)}} }

// TextOf joins the inline parts of plain text.
func TextOf(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Media == MediaText && p.Blob.IsZero() {
			b.Write(p.Bytes)
		}
	}
	return b.String()
}

// SizeOf is what the parts weigh: inline bytes and the length of what they refer to.
func SizeOf(parts []Part) int {
	n := 0
	for _, p := range parts {
		n += len(p.Media) + len(p.Bytes) + int(p.Size)
	}
	return n
}
