// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"time"
)

// Bounds of a lingering close.
const (
	lingerBytesMax     = 16 << 20
	lingerTimeout      = 2 * time.Second
	lingeringMax       = 512 // served connections that linger at once
	lingeringExcessMax = 64  // connections over a limit that linger at once
)

// lingerer closes connections whose peer may still be sending. Its capacity is
// the maximum number of connections that linger at once.
type lingerer chan struct{}

// close closes a connection after its last answer. The kernel resets a connection
// that is closed with unread bytes, and the reset discards an answer that the
// peer has not read yet. So close ends the sending half first, which completes
// the answer, and discards bytes of the peer until it closes too. If lingerTimeout
// or lingerBytesMax is exceeded, or too many connections linger, the connection is
// closed at once.
func (l lingerer) close(c net.Conn) error {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return c.Close()
	}
	select {
	case l <- struct{}{}:
		defer func() { <-l }()
	default:
		return c.Close()
	}
	if half.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingerTimeout)) == nil {
		_, _ = io.CopyN(io.Discard, c, lingerBytesMax)
	}
	return c.Close()
}
