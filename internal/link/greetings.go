// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net"
	"net/netip"
	"slices"

	"github.com/troupe-run/troupe/host/gateway"
)

// Bounds of connections without a greeting yet.
const (
	greetingsMax           = 64
	greetingsPerAddressMax = 8
)

// greetings are the connections without a greeting yet, the oldest first. Beyond a bound the oldest
// is closed. Silent peers therefore keep no ingress out, whose greeting takes milliseconds. The
// zero greetings is empty.
type greetings []pendingGreeting

type pendingGreeting struct {
	conn    net.Conn
	address netip.Prefix // zero for a Unix socket, whose peer is known
}

// add adds a connection. It returns the one that yields to it, or nil.
func (g *greetings) add(c net.Conn) (yields net.Conn) {
	from, same := gateway.ClientPrefix(c), []net.Conn{}
	for _, x := range *g {
		if x.address == from {
			same = append(same, x.conn)
		}
	}
	switch {
	case from.IsValid() && len(same) >= greetingsPerAddressMax:
		yields = same[0]
	case len(*g) >= greetingsMax:
		yields = (*g)[0].conn
	}
	g.remove(yields)
	*g = append(*g, pendingGreeting{c, from})
	return yields
}

// remove removes a connection, if it is among them.
func (g *greetings) remove(c net.Conn) {
	for i, x := range *g {
		if x.conn == c {
			*g = slices.Delete(*g, i, i+1)
			return
		}
	}
}
