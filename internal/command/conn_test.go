// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

var (
	testBy    = actor.NewPrincipal("alice", "0123", "call", "read")
	testRun   = actor.NewCallID(1, 2, 3)
	testActor = actor.NewID("helper", "s-1")
	errTest   = actor.Refuse(actor.NotFound, "no such thing")
)

// testNode answers every command with a fixed result.
type testNode struct {
	stopped chan struct{} // receives when a Follow or a waiting Invoke has ended
}

func (n *testNode) NewCallID() actor.CallID { return testRun }

func (n *testNode) Invoke(ctx context.Context, c Invoke, joined func(actor.CallID)) (Answer, error) {
	switch c.Call.Operation {
	case "wait":
		<-ctx.Done()
		n.stopped <- struct{}{}
		return Answer{}, ctx.Err()
	case "join":
		joined(testRun)
	}
	return Answer{Reply: actor.Reply{Call: c.Call.ID, Run: c.Call.ID, Status: actor.Succeeded, Parts: c.Call.Parts}, Durable: true}, nil
}

func (n *testNode) Signal(_ context.Context, c Signal) (Answer, error) {
	return Answer{Reply: actor.Fail(c.Call.ID, errTest)}, nil
}

func (n *testNode) Cancel(_ context.Context, c Cancel) error {
	switch c.By.User {
	case "closed":
		return ErrClosed
	case "deadline":
		return context.DeadlineExceeded
	case "dropped":
		return fmt.Errorf("read: %w", EventsDropped{testRun, 7})
	case "internal":
		return errors.New("disk failed")
	}
	return nil
}

func (n *testNode) Forget(_ context.Context, c Forget) error {
	if c.Session != "s-1" {
		return errTest
	}
	return nil
}

func (n *testNode) Follow(_ context.Context, c Follow) (<-chan struct{}, func(), error) {
	if c.Run != testRun {
		return nil, nil, errTest
	}
	updates := make(chan struct{}, 1)
	updates <- struct{}{}
	return updates, func() { n.stopped <- struct{}{} }, nil
}

// testResults holds a result for each query.
var testResults = map[Query]Result{
	AgentsQuery{}:                          Agents{[]Agent{{Name: "helper", Doc: "a test agent", Spec: []byte("{}")}}},
	OwnerQuery{Run: testRun}:               Owner{testRun, testRun, testActor},
	RunQuery{testRun}:                      Run{Owner{testRun, testRun, testActor}, runs.Record{Run: testRun, Seq: 1, Status: runs.Done, Text: "hello", Refusal: errTest}},
	EveryRunQuery{From: "alice", Limit: 7}: EveryRun{runs.Page{All: []runs.Summary{{Run: testRun}}}, "bob"},
	RunsQuery{Limit: 7}:                    Runs{runs.Page{All: []runs.Summary{{Run: testRun}}}},
	WaitingQuery{testRun}:                  Waiting{Status: runs.Running, Found: true, Run: testRun, Name: "go", Until: 8},
	EventsQuery{testRun, 1, 9, true}:       Events{testRun, 2, []Event{{2, []byte(`{"seq":2}`)}}, true},
	ActorsQuery{"helper", 3}:               Actors{},
	HealthQuery{}:                          Health{"the disk is full", DatabaseSynchronous},
	StatsQuery{}:                           Stats{Cells: []CellStats{{Actors: 3}}, Clients: 1, Cluster: ClusterStats{2, 3, 4, 5}},
}

func (n *testNode) Lookup(_ context.Context, c Lookup) (Result, error) {
	if r, ok := testResults[c.Query]; ok {
		return r, nil
	}
	return nil, errTest
}

// testActions holds a result for each action.
var testActions = map[Action]Result{
	ReadChat{testRun}:   ChatPart{Bytes: []byte("hello"), Last: true},
	Heartbeat{"scribe"}: External{Known: true, Healthy: true, LastSeen: 7},
	MakeBackup{"one"}:   Backup{Dir: "/backups/one"},
}

func (n *testNode) Do(_ context.Context, c Do) (Result, error) {
	if r, ok := testActions[c.Action]; ok {
		return r, nil
	}
	return nil, errTest
}

func testCall(kind actor.Kind, operation string) actor.Call {
	return actor.Call{ID: testRun, To: testActor, Kind: kind, Operation: operation, Parts: actor.Text("hello")}
}

// session sends every command over a client. It returns an error for a wrong
// result, and the errors of failed commands.
func session(ctx context.Context, c Node) (failed []error, wrong error) {
	check := func(what string, ok bool, err error) {
		switch {
		case err != nil:
			failed = append(failed, err)
		case !ok && wrong == nil:
			wrong = fmt.Errorf("%s: wrong result", what)
		}
	}
	run := actor.CallID{}
	a, err := c.Invoke(ctx, Invoke{testBy, testCall(0, "join")}, func(joined actor.CallID) { run = joined })
	check("invoke", a.Durable && actor.TextOf(a.Reply.Parts) == "hello" && run == testRun, err)
	a, err = c.Signal(ctx, Signal{testBy, testCall(actor.Signal, "go")})
	check("signal", reflect.DeepEqual(a.Reply.Refusal, errTest), err)
	check("cancel", true, c.Cancel(ctx, Cancel{testBy, testRun, testActor}))
	check("forget", true, c.Forget(ctx, Forget{testBy, "s-1"}))
	updates, stop, err := c.Follow(ctx, Follow{By: testBy, Run: testRun})
	check("follow", err == nil, err)
	if err == nil {
		<-updates
		stop()
	}
	for q, want := range testResults {
		r, err := c.Lookup(ctx, Lookup{testBy, q})
		check(fmt.Sprintf("%T", q), reflect.DeepEqual(r, want), err)
	}
	for a, want := range testActions {
		r, err := c.Do(ctx, Do{testBy, a})
		check(fmt.Sprintf("%T", a), reflect.DeepEqual(r, want), err)
	}
	return failed, wrong
}

// cutConn closes the connection after a number of written bytes.
type cutConn struct {
	net.Conn
	mu      sync.Mutex
	left    int
	written int
}

func (c *cutConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(b) <= c.left {
		n, err := c.Conn.Write(b)
		c.left, c.written = c.left-n, c.written+n
		return n, err
	}
	n, _ := c.Conn.Write(b[:c.left])
	c.left = 0
	return n, errors.Join(io.ErrClosedPipe, c.Conn.Close())
}

// serveTest serves a testNode. Each side can write a number of bytes. stop closes
// the connection and returns the error of Serve.
func serveTest(t *testing.T, clientBytes, nodeBytes int) (c *Client, n *testNode, toNode, toClient *cutConn, stop func() error) {
	t.Helper()
	a, b := net.Pipe()
	toNode, toClient = &cutConn{Conn: a, left: clientBytes}, &cutConn{Conn: b, left: nodeBytes}
	n = &testNode{make(chan struct{}, 8)}
	served := make(chan error, 1)
	go func() { served <- Serve(toClient, n) }()
	c = Dial(toNode)
	return c, n, toNode, toClient, func() error {
		c.Close()
		return <-served
	}
}

const unlimited = 1 << 30

func TestCommandsOverPipe(t *testing.T) {
	c, n, _, _, stop := serveTest(t, unlimited, unlimited)
	if failed, wrong := session(t.Context(), c); len(failed) > 0 || wrong != nil {
		t.Error(failed, wrong)
	}
	<-n.stopped // the Follow of session
	for principal, want := range map[string]error{"closed": ErrClosed, "deadline": context.DeadlineExceeded, "dropped": EventsDropped{testRun, 7}} {
		if err := c.Cancel(t.Context(), Cancel{By: actor.NewPrincipal(principal, ""), Run: testRun, Actor: testActor}); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if err := c.Cancel(t.Context(), Cancel{By: actor.NewPrincipal("internal", ""), Run: testRun, Actor: testActor}); err == nil || err.Error() != "disk failed" {
		t.Error(err)
	}
	var r *actor.Refusal
	if _, err := c.Lookup(t.Context(), Lookup{testBy, OwnerQuery{}}); !errors.As(err, &r) || r.Reason != actor.NotFound {
		t.Error(err)
	}
	if _, _, err := c.Follow(t.Context(), Follow{By: testBy}); !errors.As(err, &r) || r.Reason != actor.NotFound {
		t.Error(err)
	}
	if a, err := c.Invoke(t.Context(), Invoke{}, nil); err != nil || a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Invalid {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := c.Invoke(t.Context(), Invoke{testBy, testCall(actor.Signal, "go")}, nil); err == nil || c.Err() != nil {
		t.Errorf("a signal was invoked: %v, %v", err, c.Err())
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A command ends at the node when the context of its caller ends.
func TestContextEndsCommand(t *testing.T) {
	c, n, _, _, stop := serveTest(t, unlimited, unlimited)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Invoke(ctx, Invoke{testBy, testCall(0, "wait")}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	<-n.stopped
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Open commands end with the connection, at both ends.
func TestCloseEndsOpenCommands(t *testing.T) {
	c, n, _, _, stop := serveTest(t, unlimited, unlimited)
	updates, _, err := c.Follow(t.Context(), Follow{By: testBy, Run: testRun})
	if err != nil {
		t.Fatal(err)
	}
	<-updates
	if err := stop(); err != nil {
		t.Error(err)
	}
	<-n.stopped
	if _, open := <-updates; open {
		t.Error("got an update, want a closed channel")
	}
	if _, err := c.Lookup(t.Context(), Lookup{testBy, HealthQuery{}}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// The connection is cut at every byte of a session, in either direction. Every
// command returns its result or a *ConnError, and so does Serve.
func TestConnectionCutAtEveryByte(t *testing.T) {
	c, _, toNode, toClient, stop := serveTest(t, unlimited, unlimited)
	if failed, wrong := session(t.Context(), c); len(failed) > 0 || wrong != nil {
		t.Fatal(failed, wrong)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for direction, total := range map[string]int{"to node": toNode.written, "to client": toClient.written} {
		truncated := 0
		for cut := range total {
			limits := [2]int{cut, unlimited}
			if direction == "to client" {
				limits = [2]int{unlimited, cut}
			}
			c, _, _, _, stop := serveTest(t, limits[0], limits[1])
			failed, wrong := session(t.Context(), c)
			clientErr := c.Err()
			serveErr := stop()
			if wrong != nil {
				t.Errorf("%s, byte %d: %v", direction, cut, wrong)
			}
			var broken *ConnError
			for _, err := range failed {
				if !errors.As(err, &broken) || !errors.Is(err, ErrClosed) {
					t.Errorf("%s, byte %d: got %v, want a ConnError", direction, cut, err)
				}
			}
			if serveErr != nil && !errors.As(serveErr, &broken) {
				t.Errorf("%s, byte %d: Serve returned %v, want a ConnError", direction, cut, serveErr)
			}
			if errors.Is(clientErr, io.ErrUnexpectedEOF) || errors.Is(serveErr, io.ErrUnexpectedEOF) {
				truncated++
			}
		}
		if truncated < total/2 {
			t.Errorf("%s: %d of %d cuts were reported as a truncated frame", direction, truncated, total)
		}
	}
}

// A connection that closes before the answer refuses the call.
func TestReplyChannelClosed(t *testing.T) {
	call := actor.Call{ID: actor.NewCallID(0, 1, 2), To: actor.NewID("a", "s"), Kind: actor.Waiting, Operation: actor.HandleMessageFull}
	call.Root = call.ID
	signal := call
	signal.Kind = actor.Signal
	for name, invoke := range map[string]func(*Client) error{
		"invoke": func(c *Client) error { _, err := c.Invoke(t.Context(), Invoke{testBy, call}, nil); return err },
		"signal": func(c *Client) error { _, err := c.Signal(t.Context(), Signal{testBy, signal}); return err },
	} {
		a, b := net.Pipe()
		c := Dial(b)
		result := make(chan error, 1)
		go func() { result <- invoke(c) }()
		node := frameConn{rw: a}
		if _, err := node.receive(); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		var r *actor.Refusal
		if err := <-result; !errors.As(err, &r) || r.Reason != actor.Unavailable || !strings.Contains(r.Detail, "reply channel closed") || r.RetryAfter <= 0 || !errors.Is(err, ErrClosed) {
			t.Errorf("%s: got %v, want Unavailable because the reply channel closed", name, err)
		}
		c.Close()
	}
}

// Close completes the frame that is being sent.
func TestCloseCompletesFrame(t *testing.T) {
	a, b := net.Pipe()
	c := Dial(b)
	go func() { _, _ = c.Lookup(t.Context(), Lookup{testBy, HealthQuery{}}) }()
	var head [frameHeadBytes]byte
	if _, err := io.ReadFull(a, head[:]); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		c.Close()
		close(closed)
	}()
	<-c.done
	if rest, err := io.ReadAll(a); err != nil || len(rest) != int(head[3]) {
		t.Errorf("got %d bytes, want %d: %v", len(rest), head[3], err)
	}
	<-closed
}

// exchange writes frames to one side of a connection and returns its error.
func exchange(t *testing.T, frames []Frame, side func(io.ReadWriteCloser) error) error {
	t.Helper()
	a, b := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, a) }()
	go func() {
		c := frameConn{rw: a}
		for _, f := range frames {
			if c.send(f) != nil {
				return
			}
		}
	}()
	defer a.Close()
	return side(b)
}

func TestProtocolViolationEndsServe(t *testing.T) {
	lookup := Lookup{testBy, HealthQuery{}}
	for name, frames := range map[string][]Frame{
		"notice":         {{1, Updated{}}},
		"repeated":       {{1, lookup}, {1, lookup}},
		"unordered":      {{2, lookup}, {1, lookup}},
		"stopped early":  {{1, Stop{}}},
		"answer of node": {{1, Done{}}},
	} {
		t.Run(name, func(t *testing.T) {
			var violated *ProtocolError
			err := exchange(t, frames, func(conn io.ReadWriteCloser) error { return Serve(conn, &testNode{}) })
			if !errors.As(err, &violated) {
				t.Errorf("got %v, want a ProtocolError", err)
			}
		})
	}
}

func TestProtocolViolationEndsClient(t *testing.T) {
	for name, body := range map[string]Body{"result of another type": Answer{HeldUntil: 1}, "notice": Updated{}, "command": Stop{}, "done": Done{}} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			go func() {
				c := frameConn{rw: a}
				f, err := c.receive()
				if err == nil {
					err = c.send(Frame{f.Number, body})
				}
				if err != nil {
					t.Error(err)
				}
			}()
			c := Dial(b)
			defer c.Close()
			var violated *ProtocolError
			if _, err := c.Lookup(t.Context(), Lookup{testBy, HealthQuery{}}); !errors.As(err, &violated) || !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want a ProtocolError", err)
			}
		})
	}
}

func TestOversizedFrameIsNotRead(t *testing.T) {
	a, b := net.Pipe()
	go func() { _, _ = a.Write([]byte{0xff, 0xff, 0xff, 0xff}) }()
	defer a.Close()
	var violated *ProtocolError
	if err := Serve(b, &testNode{}); !errors.As(err, &violated) || !strings.Contains(err.Error(), "at most 33554432 allowed") {
		t.Error(err)
	}
}

func TestOpenCommandsAreBounded(t *testing.T) {
	c, _, _, _, stop := serveTest(t, unlimited, unlimited)
	c.mu.Lock()
	c.count += OpenMax
	c.mu.Unlock()
	var r *actor.Refusal
	if _, err := c.Lookup(t.Context(), Lookup{testBy, HealthQuery{}}); !errors.As(err, &r) || r.Reason != actor.Busy {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	s := server{node: &testNode{}, ctx: t.Context(), open: map[uint64]context.CancelFunc{}}
	for n := range uint64(OpenMax) {
		s.open[n] = func() {}
	}
	var violated *ProtocolError
	if err := s.handle(Frame{OpenMax, Lookup{testBy, HealthQuery{}}}); !errors.As(err, &violated) {
		t.Errorf("got %v, want a ProtocolError", err)
	}
}

// A page that exceeds a frame is shortened; another result that does is refused.
func TestResultExceedingFrame(t *testing.T) {
	page := Events{Run: testRun, After: 3, Ended: true}
	for n := range uint64(3) {
		page.All = append(page.All, Event{n + 1, make([]byte, FrameBytesMax/4+1)})
	}
	if got := fit(page).(Events); len(got.All) != 1 || got.After != 1 || got.Ended {
		t.Errorf("%d events up to %d, ended: %v", len(got.All), got.After, got.Ended)
	}
	a, b := net.Pipe()
	s := server{conn: frameConn{rw: a}}
	go s.send(1, Found{Agents{[]Agent{{Spec: make([]byte, FrameBytesMax)}}}})
	c := frameConn{rw: b}
	f, err := c.receive()
	if failure, ok := f.Body.(Failure); err != nil || !ok || failure.Kind != FailedInternal {
		t.Errorf("%+v, %v", f, err)
	}
}
