// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"net"

	"github.com/troupe-run/troupe/internal/command"
)

var errStopping = errors.New("this orchestrator is stopping")

// replacedError is the refusal of a connection to a process whose address another one has by now.
type replacedError struct{ name, wanted string }

// Error implements error.
func (e replacedError) Error() string {
	return fmt.Sprintf("this is the member %s, want %s: another process has its address by now", e.name, e.wanted)
}

// inbound is a connection that another member has opened.
type inbound struct {
	hello
	peers  *Peers
	raw    net.Conn
	former *inbound      // of the same member for messages, whose last one precedes those of this; nil: none
	ended  chan struct{} // closed at the end
}

// accept adds a connection that another member has opened. It returns the reason if it is not served. The
// caller MUST end it. A former connection of the member for the same channel is closed: the member has lost it.
func (p *Peers) accept(raw net.Conn, h hello) (*inbound, error) {
	switch {
	case p == nil:
		return nil, errors.New("this orchestrator is in no cluster")
	case h.to != p.config.Name:
		return nil, replacedError{p.config.Name, h.to}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errStopping
	}
	key := inboundKey{h.from, h.channel}
	x := &inbound{hello: h, peers: p, raw: raw, ended: make(chan struct{})}
	if old := p.inbound[key]; old != nil {
		_ = old.raw.Close()
		if h.channel == messagesChannel {
			x.former = old
		}
	}
	p.inbound[key] = x
	p.serving.Add(1)
	return x, nil
}

type inboundKey struct{ from, channel string }

// end ends the connection.
func (x *inbound) end() {
	p, key := x.peers, inboundKey{x.from, x.channel}
	_ = x.raw.Close()
	x.awaitFormer()
	p.mu.Lock()
	if p.inbound[key] == x {
		delete(p.inbound, key)
	}
	p.mu.Unlock()
	close(x.ended)
	p.serving.Done()
}

// serve serves the connection until it fails. Messages of a former one are delivered before those of this one.
func (x *inbound) serve(c net.Conn) error {
	bounded := memberConn{boundedConn{Conn: c, silence: x.peers.silence, answers: true}, x.raw}
	if x.channel == commandsChannel {
		return command.Serve(bounded, x.peers.config.Node)
	}
	x.awaitFormer()
	var seldom warnings
	return readMessages(bounded, x.peers.config.Deliver, func(err error) {
		if seldom.due() {
			x.peers.log.Error("a message of a member cannot be decoded and is lost", "member", x.from, "error", err.Error())
		}
	})
}

// awaitFormer waits until the former connection delivers no more messages.
func (x *inbound) awaitFormer() {
	if x.former != nil {
		<-x.former.ended
		x.former = nil
	}
}

// memberConn is a connection between members. Close returns at once, also while the peer is frozen: a notice that TLS
// sends could block.
type memberConn struct {
	boundedConn
	raw net.Conn
}

// Close implements net.Conn.
func (c memberConn) Close() error { return c.raw.Close() }
