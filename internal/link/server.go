// SPDX-License-Identifier: Apache-2.0

package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/troupe-run/troupe/internal/command"
)

// Bounds of a server. A connection beyond them is refused, and its ingress tries again.
const (
	ConnectionsMax = 64 // ingress processes
	lingerBytesMax = 64 << 10
)

// Server serves an orchestrator to ingress processes.
type Server struct {
	address Address
	node    command.Node
	log     *slog.Logger

	mu        sync.Mutex
	listener  net.Listener
	greeting  greetings
	connected map[net.Conn]bool
	closed    bool
	serving   sync.WaitGroup
}

// NewServer returns a server that Serve starts.
func NewServer(a Address, l net.Listener, node *Orchestrator, log *slog.Logger) *Server {
	return &Server{address: a, listener: l, node: node, log: log, connected: map[net.Conn]bool{}}
}

// Serve serves connections until Close.
func (s *Server) Serve() error {
	for {
		c, err := s.listener.Accept()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // open connections are still served, and free resources when they end
			s.log.Warn("cannot accept a connection of an ingress", "error", err.Error())
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
	if err == nil {
		err = welcome(c, s.admit(raw))
	}
	if err != nil {
		s.log.Warn("connection of an ingress refused", "from", from, "error", err.Error())
		linger(raw)
		return
	}
	s.log.Info("ingress connected", "from", from)
	err = command.Serve(boundedConn{c}, s.node)
	s.log.Info("ingress disconnected", "from", from, "reason", fmt.Sprint(err))
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

// admit counts a connection. It returns the reason why it is not served, or "".
func (s *Server) admit(raw net.Conn) (busy string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greeting.remove(raw)
	if len(s.connected) >= ConnectionsMax {
		return fmt.Sprintf("%d ingress processes are connected, which is the limit: stop some", ConnectionsMax)
	}
	s.connected[raw] = true
	return ""
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
	s.mu.Unlock()
	s.serving.Wait()
	return err
}
