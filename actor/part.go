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

// Hash is the SHA-256 of some content and identifies it.
type Hash [32]byte

// HashOf returns the hash of content.
func HashOf(content []byte) Hash { return sha256.Sum256(content) }

// String returns the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// IsZero reports whether the hash is unset.
func (h Hash) IsZero() bool { return h == Hash{} }

// Part is one piece of content, either inline or a reference to a blob that is
// stored once.
type Part struct {
	Media string // media type; MediaText when in doubt
	Bytes []byte // inline content
	Blob  Hash   // hash of the blob, if the content is not inline
	Size  uint64 // length of the blob in bytes, if the content is not inline
}

// Text returns content of one inline part of plain text.
func Text(text string) []Part { return []Part{{Media: MediaText, Bytes: []byte(text)}} }

// TextOf returns the concatenation of the inline parts of plain text.
func TextOf(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Media == MediaText && p.Blob.IsZero() {
			b.Write(p.Bytes)
		}
	}
	return b.String()
}

// Readable reports whether the content of the part is in place, and text or JSON.
func (p *Part) Readable() bool {
	return p.Blob.IsZero() && (p.Media == MediaText || p.Media == MediaJSON)
}

// ReadableText returns the readable parts as one valid UTF-8 text.
func ReadableText(parts []Part) string {
	var b strings.Builder
	for i := range parts {
		if parts[i].Readable() {
			b.Write(parts[i].Bytes)
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// SizeOf returns the size of the parts in bytes: inline content, media types and
// the length of referenced blobs.
func SizeOf(parts []Part) int {
	n := 0
	for _, p := range parts {
		n += len(p.Media) + len(p.Bytes) + int(p.Size)
	}
	return n
}
