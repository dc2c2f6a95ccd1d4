// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
)

// Bounds of a lingering close.
const (
	lingerBytesMax = 16 << 20
	lingerTimeout  = 2 * time.Second
)

// Bounds of the connections that linger at once, in all and of one client address: served
// ones, and those over a limit.
const (
	lingeringMax, lingeringEach             = 1024, 64
	lingeringExcessMax, lingeringExcessEach = 256, 32
)

// lingerer closes connections whose peer may still be sending.
type lingerer struct{ *shares.Shares[netip.Prefix] }

func newLingerer(max, each int64) lingerer {
	return lingerer{shares.New[netip.Prefix](shares.Bounds{Max: max, Each: each})}
}

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
	address := ClientPrefix(c)
	if l.Take(address, 1, false) != actor.NoScope {
		return c.Close()
	}
	defer l.Give(address, 1)
	if half.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingerTimeout)) == nil {
		_, _ = io.CopyN(io.Discard, c, lingerBytesMax)
	}
	return c.Close()
}
