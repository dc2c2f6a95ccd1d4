// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// peerBackoffMax is the maximum delay between two attempts to connect to another member. The table of the cluster says how
// long they are made.
const peerBackoffMax = time.Second

// announceTimeout is the maximum time to the answer of a command.MemberQuery: a large answer to another command
// may be sent before it.
const announceTimeout = 10 * command.MemberBeat

// peer is another member.
type peer struct {
	peers         *Peers
	member        Member
	former        *peer // of the same name, whose end is awaited; nil: none
	ctx           context.Context
	cancel        context.CancelCauseFunc
	done          chan struct{} // closed at the end
	sent, dropped atomic.Uint64
	seldom        warnings

	mu   sync.Mutex
	link *peerLink     // nil: not connected
	back chan struct{} // closed at the next connection; set while link is nil
}

func newPeer(p *Peers, m Member, former *peer) *peer {
	x := &peer{peers: p, member: m, former: former, done: make(chan struct{}), back: make(chan struct{})}
	x.ctx, x.cancel = context.WithCancelCause(p.ctx)
	return x
}

// send sends a message.
func (x *peer) send(cell uint16, env *actor.Envelope) bool {
	x.mu.Lock()
	l := x.link
	x.mu.Unlock()
	err := errEnded
	if l != nil {
		err = l.out.put(cell, env)
	}
	if err != nil {
		x.dropped.Add(1)
	}
	if err == errTooLarge && x.seldom.due() {
		x.peers.log.Error("a message to a member cannot be sent", "member", x.member.Name, "error", err.Error())
	}
	return err == nil
}

// node returns the node that performs commands on the member.
func (x *peer) node() (command.Node, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.link == nil {
		return nil, away(x.back)
	}
	return x.link.client, nil
}

// set sets the link, or nil once it has ended.
func (x *peer) set(l *peerLink) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.link = l; l == nil {
		x.back = make(chan struct{})
	} else {
		close(x.back)
	}
}

// run keeps the member connected until the peer is cancelled.
func (x *peer) run() {
	defer x.end()
	defer x.cancel(nil)
	if x.former != nil {
		<-x.former.done // its last announcement precedes those of this one
		x.former = nil
	}
	for delay := backoffMin; x.ctx.Err() == nil; delay = min(2*delay, peerBackoffMax) {
		l, err := x.connect()
		if err == nil {
			began := time.Now()
			x.serve(l)
			if time.Since(began) > peerBackoffMax {
				delay = backoffMin
			}
		} else if x.ctx.Err() == nil {
			x.warn(err, delay)
		}
		timer := time.NewTimer(delay/2 + rand.N(delay/2))
		select {
		case <-timer.C:
		case <-x.ctx.Done():
			timer.Stop()
		}
	}
}

// end notes that the peer has ended.
func (x *peer) end() {
	x.peers.mu.Lock()
	if name := x.member.Name; x.peers.ending[name] == x {
		delete(x.peers.ending, name)
	}
	x.peers.mu.Unlock()
	close(x.done)
}

// warn logs that an attempt has failed, unless it did so lately.
func (x *peer) warn(err error, delay time.Duration) {
	var refused *RefusedError
	if (delay >= peerBackoffMax || errors.As(err, &refused)) && x.seldom.due() {
		x.peers.log.Warn("cannot connect to a member: will try again", "member", x.member.Name, "address", x.member.Address, "error", err.Error())
	}
}

// peerLink are the two connections to a member.
type peerLink struct {
	commands, messages memberConn
	client             *command.Client // over commands
	out                *outbox         // for messages
	state              command.MemberState
}

// close closes the connections and waits for the goroutines of client, which a frozen member cannot delay.
func (l *peerLink) close() {
	_ = l.commands.Close()
	_ = l.messages.Close()
	l.client.Close()
}

// connect opens both connections and asks for the first announcement.
func (x *peer) connect() (l *peerLink, err error) {
	ctx, cancel := context.WithTimeout(x.ctx, greetingTimeout)
	defer cancel()
	a, err := memberAddress(x.member.Address, x.peers.config.Files)
	if err != nil {
		return nil, err
	}
	l = &peerLink{out: newOutbox()}
	if l.messages, err = x.open(ctx, a, messagesChannel); err != nil {
		return nil, err
	}
	if l.commands, err = x.open(ctx, a, commandsChannel); err != nil {
		return nil, errors.Join(err, l.messages.Close())
	}
	l.client = command.Dial(l.commands)
	if l.state, err = command.Find(ctx, l.client, self, command.MemberQuery{}); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// open opens one connection.
func (x *peer) open(ctx context.Context, a Address, channel string) (memberConn, error) {
	c, err := dial(ctx, a)
	if err != nil {
		return memberConn{}, refusedOf(err)
	}
	bounded := memberConn{boundedConn{Conn: c, silence: x.peers.silence}, c}
	if secure, ok := c.(*tls.Conn); ok {
		bounded.raw = secure.NetConn()
	}
	defer context.AfterFunc(ctx, func() { _ = bounded.Close() })()
	h := hello{channel, x.peers.config.Name, x.member.Name}
	if err := greet(c, h.String(), h.answer().String()); err != nil {
		return memberConn{}, errors.Join(err, bounded.Close())
	}
	return bounded, nil
}

// serve uses a link until it fails or the peer is cancelled.
func (x *peer) serve(l *peerLink) {
	p, name := x.peers, x.member.Name
	ctx, fail := context.WithCancelCause(x.ctx)
	defer fail(nil)
	var work sync.WaitGroup
	work.Go(func() {
		fail(l.out.write(ctx, l.messages, func(n int) { x.sent.Add(uint64(n)) }))
	})
	work.Go(func() { fail(silent(l.messages.Conn)) })
	x.set(l)
	p.log.Info("connected to a member", "member", name, "address", x.member.Address)
	p.config.Announced(name, l.state, true)
	for version := l.state.Version; ; {
		state, err := l.next(ctx, version)
		if err != nil {
			fail(err)
			break
		}
		if state.Version != version {
			version = state.Version
			p.config.Announced(name, state, true)
		}
	}
	x.set(nil)
	l.close()
	work.Wait()
	x.dropped.Add(uint64(l.out.end()))
	p.log.Info("disconnected from a member", "member", name, "reason", context.Cause(ctx).Error())
	p.config.Announced(name, command.MemberState{}, false)
}

// next returns the next announcement, or the same after a beat.
func (l *peerLink) next(ctx context.Context, version uint64) (command.MemberState, error) {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	return command.Find(ctx, l.client, self, command.MemberQuery{After: version})
}

// silent returns once a connection on which nothing arrives has ended.
func silent(c net.Conn) error {
	n, err := c.Read(make([]byte, 1))
	if n > 0 {
		return &command.ProtocolError{Err: errors.New("a byte arrived on a connection for messages in the other direction")}
	}
	if err == io.EOF {
		return errEnded
	}
	return err
}

// memberAddress returns the address that another member has in the table. Over TCP the certificate of this member
// must identify a client too.
func memberAddress(text string, files Files) (Address, error) {
	if _, ok := socketPath(text); ok {
		files = Files{}
	}
	a, err := ParseAddress("address of a member", text, files)
	if err != nil || a.Path != "" {
		return a, err
	}
	config, err := files.load()
	if err != nil {
		return a, err
	}
	leaf := config.Certificates[0].Leaf
	if uses := leaf.ExtKeyUsage; len(uses)+len(leaf.UnknownExtKeyUsage) > 0 && !slices.Contains(uses, x509.ExtKeyUsageClientAuth) && !slices.Contains(uses, x509.ExtKeyUsageAny) {
		err = &RefusedError{fmt.Errorf("the certificate %s of a member must be for clients too (extended key usage clientAuth): members connect to each other", files.Certificate)}
	}
	return a, err
}
