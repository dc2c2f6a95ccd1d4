// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/command"
)

// Bounds of a server. A connection beyond them is refused, and its peer tries again.
const (
	ConnectionsMax       = 64             // ingress processes
	memberConnectionsMax = 4 * MembersMax // two of each member, and two that it has lost without notice
	lingerBytesMax       = 64 << 10
)

// Server serves an orchestrator to ingress processes, and to the other members of its cluster.
type Server struct {
	address Address
	node    command.Node
	peers   *Peers // nil without a cluster
	log     *slog.Logger

	held atomic.Bool // ingress processes wait

	mu        sync.Mutex
	listener  net.Listener
	greeting  greetings
	connected map[net.Conn]bool // ingress processes
	members   map[net.Conn]bool
	closed    bool
	serving   sync.WaitGroup
}

// NewServer returns a server that Serve starts. Without a cluster peers is nil.
func NewServer(a Address, l net.Listener, node *Orchestrator, peers *Peers, log *slog.Logger) *Server {
	return &Server{address: a, listener: l, node: node, peers: peers, log: log, connected: map[net.Conn]bool{}, members: map[net.Conn]bool{}}
}

// Hold closes the connections of ingress processes until Admit: the orchestrator has not started yet, but other members need
// it for that.
func (s *Server) Hold() { s.held.Store(true) }

// Admit ends a Hold.
func (s *Server) Admit() { s.held.Store(false) }

// Serve serves connections until Close.
func (s *Server) Serve() error {
	for {
		c, err := s.listener.Accept()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // open connections are still served, and free resources when they end
			s.log.Warn("cannot accept a connection", "error", err.Error())
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		if s.closed {
			_ = c.Close()
		} else {
			if old := s.greeting.add(c); old != nil {
				_ = old.Close()
			}
			s.serving.Go(func() { s.serve(c) })
		}
		s.mu.Unlock()
	}
}

// serve serves one connection until it ends.
func (s *Server) serve(raw net.Conn) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.greeting.remove(raw)
		delete(s.connected, raw)
		delete(s.members, raw)
		_ = raw.Close()
	}()
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return
	}
	from := s.address.String()
	if s.address.Path == "" {
		from = raw.RemoteAddr().String()
	}
	c, err := s.authenticate(raw)
	line := ""
	if err == nil {
		line, err = heard(c)
	}
	if err == nil && isHello(line) {
		s.serveMember(raw, c, line, from)
		return
	}
	if s.held.Load() {
		return // the ingress tries again
	}
	if err == nil {
		err = welcome(c, greeting, s.admit(raw, line))
	}
	if err != nil {
		s.log.Warn("connection of an ingress refused", "from", from, "error", err.Error())
		linger(raw)
		return
	}
	s.log.Info("ingress connected", "from", from)
	err = command.Serve(boundedConn{Conn: c, silence: silenceMax}, s.node)
	s.log.Info("ingress disconnected", "from", from, "reason", fmt.Sprint(err))
}

// serveMember serves a connection of another member until it ends.
func (s *Server) serveMember(raw, c net.Conn, line, from string) {
	h, err := parseHello(line)
	if err == nil {
		err = s.admitMember(raw)
	}
	var x *inbound
	if err == nil {
		x, err = s.peers.accept(raw, h)
	}
	if x != nil {
		defer x.end()
	}
	if err := welcome(c, h.answer().String(), err); err != nil {
		level := slog.LevelWarn
		if errors.As(err, new(replacedError)) || errors.Is(err, syscall.EPIPE) { // as after each restart
			level = slog.LevelDebug
		}
		s.log.Log(context.Background(), level, "connection of a member refused", "from", from, "member", h.from, "error", err.Error())
		linger(raw)
		return
	}
	s.log.Info("member connected here", "member", h.from, "for", h.channel, "from", from)
	err = x.serve(c)
	s.log.Info("member disconnected here", "member", h.from, "for", h.channel, "reason", fmt.Sprint(err))
}

// linger lets the peer read the reason of a refusal: closing with unread bytes would reset the
// connection. It ends with the deadline of the connection.
func linger(raw net.Conn) {
	if half, ok := raw.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, raw, lingerBytesMax)
	}
}

// authenticate performs the handshake of TLS. A Unix socket has checked its peer already.
func (s *Server) authenticate(raw net.Conn) (net.Conn, error) {
	if s.address.Path != "" {
		return raw, nil
	}
	config, err := s.address.Files.load()
	if err != nil {
		return nil, err
	}
	c := tls.Server(raw, config)
	return c, c.Handshake()
}

// admit counts the connection of an ingress. It returns the reason why it is not served, or nil.
func (s *Server) admit(raw net.Conn, line string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greeting.remove(raw)
	switch {
	case line != greeting:
		return fmt.Errorf("got the greeting %.80q, want %q: run both roles from one version, and let clients connect to an ingress", line, greeting)
	case len(s.connected) >= ConnectionsMax:
		return fmt.Errorf("%d ingress processes are connected, which is the limit: stop some", ConnectionsMax)
	}
	return s.count(s.connected, raw)
}

// admitMember is admit for another member.
func (s *Server) admitMember(raw net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greeting.remove(raw)
	if len(s.members) >= memberConnectionsMax {
		return fmt.Errorf("%d connections of members are open, which is the limit for %d members", memberConnectionsMax, MembersMax)
	}
	return s.count(s.members, raw)
}

// count adds a connection, which Close closes. The caller MUST hold mu.
func (s *Server) count(to map[net.Conn]bool, raw net.Conn) error {
	if s.closed {
		return errStopping
	}
	to[raw] = true
	return nil
}

// Close closes the listener and all connections. Runs continue.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	err := s.listener.Close()
	for _, x := range s.greeting {
		_ = x.conn.Close()
	}
	for c := range s.connected {
		_ = c.Close()
	}
	for c := range s.members {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
	return err
}
