// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/troupe-run/troupe/actor"
)

// Serve performs the commands that arrive on conn until the client closes it. It
// returns nil then, or a *ConnError. It closes conn and has ended all commands
// when it returns: their runs continue.
func Serve(conn io.ReadWriteCloser, n Node) error {
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{conn: frameConn{rw: conn}, node: n, ctx: ctx, open: map[uint64]context.CancelFunc{}}
	err := s.loop()
	cancel()
	_ = conn.Close() // a notice that is being sent does not block
	s.running.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// server is one connection of Serve.
type server struct {
	conn    frameConn
	node    Node
	ctx     context.Context
	running sync.WaitGroup

	mu   sync.Mutex
	last uint64                        // highest number of a command
	open map[uint64]context.CancelFunc // commands by number; at most OpenMax
}

func (s *server) loop() error {
	for {
		f, err := s.conn.receive()
		if err == nil {
			err = s.handle(f)
		}
		if err != nil {
			return err
		}
	}
}

// handle starts or stops a command. It never sends: the client may be sending
// too, and would not read.
func (s *server) handle(f Frame) error {
	if _, ok := f.Body.(Stop); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.Number > s.last {
			return &ConnError{violation("command %d is stopped before it was sent", f.Number)}
		}
		if cancel := s.open[f.Number]; cancel != nil {
			cancel()
		}
		return nil
	}
	perform := s.performer(f)
	if perform == nil {
		return &ConnError{violation("a client sent a %T", f.Body)}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Number <= s.last || len(s.open) >= OpenMax {
		cancel()
		return &ConnError{violation("command %d follows %d while %d are open, at most %d allowed", f.Number, s.last, len(s.open), OpenMax)}
	}
	s.last, s.open[f.Number] = f.Number, cancel
	s.running.Go(func() {
		body, err := guard(ctx, f.Body, perform)
		cancel()
		if err != nil {
			body = failureOf(err)
		}
		s.end(f.Number, body)
	})
	return nil
}

// end sends the frame that ends a command. The command is open until the frame
// is written, so that OpenMax bounds the results that a slow client has not read.
func (s *server) end(number uint64, body Body) {
	s.sendAfter(number, body, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, number)
	})
}

// guard performs a command. A panic is the error of this command: a gateway in
// the process of the node recovers from it too.
func guard(ctx context.Context, command Body, perform func(context.Context) (Body, error)) (body Body, err error) {
	defer func() {
		if p := recover(); p != nil {
			body, err = nil, fmt.Errorf("panic in %T: %v\n%s", command, p, debug.Stack())
		}
	}()
	return perform(ctx)
}

// performer returns the function that performs a command and returns the body
// that ends it. It is nil for a body that no client sends.
func (s *server) performer(f Frame) func(context.Context) (Body, error) {
	switch c := f.Body.(type) {
	case Invoke:
		return func(ctx context.Context) (Body, error) {
			return s.node.Invoke(ctx, c, func(run actor.CallID) { s.send(f.Number, Joined{run}) })
		}
	case Signal:
		return func(ctx context.Context) (Body, error) { return s.node.Signal(ctx, c) }
	case Cancel:
		return func(ctx context.Context) (Body, error) { return Done{}, s.node.Cancel(ctx, c) }
	case Forget:
		return func(ctx context.Context) (Body, error) { return Done{}, s.node.Forget(ctx, c) }
	case Follow:
		return func(ctx context.Context) (Body, error) { return s.follow(ctx, f.Number, c) }
	case Lookup:
		return func(ctx context.Context) (Body, error) {
			r, err := s.node.Lookup(ctx, c)
			return Found{fit(r)}, err
		}
	case Do:
		return func(ctx context.Context) (Body, error) {
			r, err := s.node.Do(ctx, c)
			return Found{r}, err
		}
	default:
		return nil
	}
}

// follow sends a notice for each update until the client stops it.
func (s *server) follow(ctx context.Context, number uint64, c Follow) (Body, error) {
	updates, stop, err := s.node.Follow(ctx, c)
	if err != nil {
		return nil, err
	}
	defer stop()
	s.send(number, Done{})
	for {
		select {
		case _, ok := <-updates:
			if !ok {
				return nil, ErrClosed
			}
			s.send(number, Updated{})
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// fit shortens a page of events to the size of a frame: the rest is a later page.
func fit(r Result) Result {
	if page, ok := r.(SessionEvents); ok {
		return page.fit()
	}
	page, ok := r.(Events)
	if !ok {
		return r
	}
	size := 0
	for i, e := range page.All {
		if size += len(e.Body); size > FrameBytesMax/2 && i > 0 {
			return Events{Run: page.Run, After: page.All[i-1].Seq, All: page.All[:i]}
		}
	}
	return page
}

// send sends one frame. A body that has no encoding, such as a list that is too
// large, is replaced by its error. A connection that fails here fails for loop
// too, which returns the error.
func (s *server) send(number uint64, body Body) { s.sendAfter(number, body, func() {}) }

// sendAfter is send that calls before once no other frame precedes this one.
func (s *server) sendAfter(number uint64, body Body, before func()) {
	err := s.conn.sendAfter(Frame{number, body}, before)
	var broken *ConnError
	switch {
	case err == nil:
	case errors.As(err, &broken):
		_ = s.conn.rw.Close()
	default:
		s.sendAfter(number, failureOf(err), before)
	}
}
