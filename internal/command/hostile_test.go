// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// stuckConn is a connection whose peer reads nothing.
type stuckConn struct {
	writing chan struct{} // receives once for each Write
	closed  chan struct{}
}

func (c *stuckConn) Read([]byte) (int, error) {
	<-c.closed
	return 0, context.Canceled
}

func (c *stuckConn) Write([]byte) (int, error) {
	c.writing <- struct{}{}
	<-c.closed
	return 0, context.Canceled
}

func (c *stuckConn) Close() error { return nil }

// A client that reads no results cannot open more than OpenMax commands.
func TestUnreadResultsAreBounded(t *testing.T) {
	conn := &stuckConn{make(chan struct{}, 8), make(chan struct{})}
	s := server{conn: frameConn{rw: conn}, node: &testNode{}, ctx: t.Context(), open: map[uint64]context.CancelFunc{}}
	lookup := Lookup{testBy, HealthQuery{}}
	if err := s.handle(Frame{1, lookup}); err != nil {
		t.Fatal(err)
	}
	<-conn.writing
	s.mu.Lock()
	for n := range uint64(OpenMax - 1) {
		s.open[1<<32+n] = func() {}
	}
	s.mu.Unlock()
	if err := s.handle(Frame{2, lookup}); err != nil {
		t.Fatal(err)
	}
	for range 10000 { // time for the second command to end, which it must not
		runtime.Gosched()
	}
	err := s.handle(Frame{3, lookup})
	var violated *ProtocolError
	if !errors.As(err, &violated) {
		t.Errorf("got %v, want a ProtocolError", err)
	}
	close(conn.closed)
	s.running.Wait()
}

// A second notice that a call repeats another would be passed on twice.
func TestSecondJoinedEndsClient(t *testing.T) {
	a, b := net.Pipe()
	go func() {
		c := frameConn{rw: a}
		f, err := c.receive()
		for range 2 {
			err = errors.Join(err, c.send(Frame{f.Number, Joined{testRun}}))
		}
		if err != nil {
			t.Error(err)
		}
		_ = c.send(Frame{f.Number, Answer{HeldUntil: 1}})
	}()
	c := Dial(b)
	defer c.Close()
	var violated *ProtocolError
	if _, err := c.Invoke(t.Context(), Invoke{testBy, testCall(0, "join")}, func(actor.CallID) {}); !errors.As(err, &violated) {
		t.Errorf("got %v, want a ProtocolError", err)
	}
}

// unknownQuery satisfies Query, but is none of the queries.
type unknownQuery struct{ HealthQuery }

// A query or result of a type without a tag fails alone. Its connection remains.
func TestUnknownTypeFailsItsCommand(t *testing.T) {
	c, _, _, _, stop := serveTest(t, unlimited, unlimited)
	for _, q := range []Query{nil, unknownQuery{}, &HealthQuery{}} {
		if _, err := c.Lookup(t.Context(), Lookup{testBy, q}); err == nil || !strings.Contains(err.Error(), "unknown query 0") {
			t.Errorf("%T: got %v, want an unknown query", q, err)
		}
	}
	if _, err := AppendFrame(nil, Frame{1, Found{&Health{}}}); err == nil {
		t.Error("a result of an unknown type was encoded")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// panicNode panics in one command.
type panicNode struct{ testNode }

func (*panicNode) Cancel(context.Context, Cancel) error { panic("secret of the node") }

// A command that panics fails alone, as a request of a gateway does.
func TestPanicFailsItsCommand(t *testing.T) {
	a, b := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(b, &panicNode{}) }()
	c := Dial(a)
	if err := c.Cancel(t.Context(), Cancel{testBy, testRun, testActor}); err == nil || !strings.Contains(err.Error(), "panic in command.Cancel: secret of the node") ||
		!strings.Contains(err.Error(), "panicNode") {
		t.Errorf("got %v, want the panic and its stack", err)
	}
	if _, err := c.Lookup(t.Context(), Lookup{testBy, HealthQuery{}}); err != nil {
		t.Error(err)
	}
	c.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// loopConn receives what it sends.
type loopConn struct{ bytes.Buffer }

func (*loopConn) Close() error { return nil }

// A connection does not keep the memory of a large frame.
func TestLargeFrameIsReleased(t *testing.T) {
	c := frameConn{rw: &loopConn{}}
	for _, body := range []Body{Found{Health{Reason: strings.Repeat("x", 2*pooledBytesMax)}}, Stop{}} {
		if err := c.send(Frame{1, body}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.receive(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(c.out) > pooledBytesMax || c.in.Cap() > pooledBytesMax {
		t.Errorf("%d and %d bytes are kept, want at most %d", cap(c.out), c.in.Cap(), pooledBytesMax)
	}
}

// When Serve returns, its commands have ended and the connection is closed.
func TestServeEndsCommandsAndConnection(t *testing.T) {
	a, b := net.Pipe()
	n := &testNode{make(chan struct{}, 8)}
	served := make(chan error, 1)
	go func() { served <- Serve(b, n) }()
	c := frameConn{rw: a}
	call := testCall(0, "wait")
	call.SetClientDefaults()
	for _, f := range []Frame{{1, Invoke{testBy, call}}, {2, Updated{}}} {
		if err := c.send(f); err != nil {
			t.Fatal(err)
		}
	}
	var violated *ProtocolError
	if err := <-served; !errors.As(err, &violated) {
		t.Errorf("got %v, want a ProtocolError", err)
	}
	if len(n.stopped) != 1 {
		t.Error("the command is still running")
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want a closed connection", err)
	}
}

// A client that receives a wrong frame closes its connection.
func TestSecondDoneEndsClient(t *testing.T) {
	a, b := net.Pipe()
	c := Dial(b)
	defer c.Close()
	var closed error
	node := make(chan struct{})
	go func() {
		defer close(node)
		conn := frameConn{rw: a}
		f, _ := conn.receive()
		_, _ = conn.send(Frame{f.Number, Done{}}), conn.send(Frame{f.Number, Done{}})
		_, closed = conn.receive()
	}()
	updates, _, err := c.Follow(t.Context(), Follow{By: testBy, Run: testRun})
	if err == nil {
		<-updates // closed by the failure
	}
	<-node
	var violated *ProtocolError
	if !errors.As(c.Err(), &violated) || !errors.Is(closed, io.EOF) {
		t.Errorf("got %v, and %v at the node; want a ProtocolError and a closed connection", c.Err(), closed)
	}
}

// A command that has ended, or was abandoned before it was sent, leaves its place
// among the OpenMax commands.
func TestEndedCommandIsNotCounted(t *testing.T) {
	c, _, _, _, stop := serveTest(t, unlimited, unlimited)
	if _, err := c.Lookup(t.Context(), Lookup{testBy, HealthQuery{}}); err != nil || c.count != 0 {
		t.Errorf("%d commands are open: %v", c.count, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	blocked := &Client{queue: make(chan *request), done: make(chan struct{})}
	if _, err := blocked.Lookup(ctx, Lookup{testBy, HealthQuery{}}); !errors.Is(err, context.Canceled) || blocked.count != 0 {
		t.Errorf("%d commands are open: %v", blocked.count, err)
	}
}
