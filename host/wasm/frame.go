// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Kinds of frames. The server sends a start, a module, and then calls, one at a time. The worker answers
// the module with ready or failed, and each call with output or failed. A start for a stream has no answer.
const (
	frameStart  = 's' // a start as JSON
	frameModule = 'm' // the bytes of the module
	frameCall   = 'c' // the seed of its randomness, and the arguments
	frameReady  = 'r'
	frameOutput = 'o' // standard output of the module
	frameFailed = 'f' // text for people
)

// seedBytes is the length of a seed.
const seedBytes = 32

// writeFrame writes a frame: its kind, its length and its body.
func writeFrame(to io.Writer, kind byte, body ...[]byte) error {
	n := 0
	for _, b := range body {
		n += len(b)
	}
	frame := make([]byte, 5, 5+n)
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(n))
	for _, b := range body {
		frame = append(frame, b...)
	}
	_, err := to.Write(frame)
	return err
}

// readFrame reads a frame with a body of at most limit bytes. The other end is not trusted.
func readFrame(from io.Reader, limit int) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if uint64(n) > uint64(limit) {
		return 0, nil, fmt.Errorf("a frame of %d bytes, at most %d allowed", n, limit)
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(from, body); err != nil {
		return 0, nil, fmt.Errorf("a frame ends early: %w", err)
	}
	return head[0], body, nil
}
