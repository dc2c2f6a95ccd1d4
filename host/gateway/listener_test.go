// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// deadlineRecorder records the deadlines set on a connection.
type deadlineRecorder struct {
	net.Conn
	reads, writes []time.Time
	err           error
}

func (c *deadlineRecorder) Read(b []byte) (int, error)  { return len(b), nil }
func (c *deadlineRecorder) Write(b []byte) (int, error) { return len(b), nil }
func (c *deadlineRecorder) SetReadDeadline(t time.Time) error {
	c.reads = append(c.reads, t)
	return c.err
}
func (c *deadlineRecorder) SetWriteDeadline(t time.Time) error {
	c.writes = append(c.writes, t)
	return c.err
}
func (c *deadlineRecorder) SetDeadline(t time.Time) error {
	c.reads, c.writes = append(c.reads, t), append(c.writes, t)
	return c.err
}

// The deadline in effect during I/O is the last one requested. It may be earlier
// by less than the slack, but never later.
func TestDeadlineIsAppliedBeforeIO(t *testing.T) {
	const slack = 100 * time.Millisecond
	below := &deadlineRecorder{}
	c := &connection{Conn: below, readDeadline: lazyDeadline{slack: slack}, writeDeadline: lazyDeadline{slack: slack}}
	at := time.Now()
	later := func(d time.Duration) time.Time { return at.Add(d) }
	for i, step := range []struct {
		ask  []time.Duration
		want time.Duration // deadline in effect
		sets int           // number of deadlines set so far
	}{
		{ask: []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute}, want: 2 * time.Minute, sets: 1},
		{want: 2 * time.Minute, sets: 1},
		{ask: []time.Duration{2*time.Minute + slack - 1}, want: 2 * time.Minute, sets: 1},
		{ask: []time.Duration{2*time.Minute + slack}, want: 2*time.Minute + slack, sets: 2},
		{ask: []time.Duration{2*time.Minute + slack - 1}, want: 2*time.Minute + slack - 1, sets: 3}, // not later than requested
		{ask: []time.Duration{5 * time.Second}, want: 5 * time.Second, sets: 4},
	} {
		for _, d := range step.ask {
			if err := errors.Join(c.SetReadDeadline(later(d)), c.SetWriteDeadline(later(d))); err != nil {
				t.Fatal(err)
			}
		}
		_, err := c.Read(make([]byte, 1))
		_, writeErr := c.Write(nil)
		if err := errors.Join(err, writeErr); err != nil {
			t.Fatal(err)
		}
		if n := len(below.reads); n != step.sets || !below.reads[n-1].Equal(later(step.want)) || !slices.Equal(below.reads, below.writes) {
			t.Fatalf("step %d: %d deadlines set, the last to %v; want %d, %v", i, n, below.reads[n-1].Sub(at), step.sets, step.want)
		}
	}

	// After unwrap, the deadline in effect is unknown and is set again.
	if c.unwrap() != net.Conn(below) {
		t.Error("unwrap returned another connection")
	}
	if _, err := c.Read(make([]byte, 1)); err != nil || len(below.reads) != 5 {
		t.Errorf("%v: deadline set %d times, want 5", err, len(below.reads))
	}

	// After a hijack, each deadline is applied at once.
	if err := errors.Join(c.SetDeadline(time.Time{}), c.SetReadDeadline(later(time.Hour)), c.SetWriteDeadline(later(time.Hour))); err != nil {
		t.Fatal(err)
	}
	if n, m := len(below.reads), len(below.writes); n != 7 || m != 6 || !below.writes[m-1].Equal(later(time.Hour)) {
		t.Errorf("deadlines set %d and %d times, want 7 and 6", n, m)
	}

	below.err = errors.New("test error")
	broken := &connection{Conn: below, readDeadline: lazyDeadline{slack: slack}, writeDeadline: lazyDeadline{slack: slack}}
	_ = errors.Join(broken.SetReadDeadline(at), broken.SetWriteDeadline(at))
	if _, err := broken.Read(nil); err == nil {
		t.Error("Read succeeded without a deadline")
	}
	if _, err := broken.Write(nil); err == nil {
		t.Error("Write succeeded without a deadline")
	}
}

// failingListener returns the given errors before it accepts connections.
type failingListener struct {
	net.Listener
	errs []error
}

func (l *failingListener) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	return l.Listener.Accept()
}

// Accept retries after a temporary error, such as missing descriptors, and
// returns a permanent error.
func TestAcceptRetriesTemporaryErrors(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := startGateway(t).server.limitConnections(&failingListener{inner, []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED}})
	defer l.Close()
	c, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	taken, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	taken.Close()
	l = startGateway(t).server.limitConnections(&failingListener{inner, []error{syscall.EBADF}})
	if _, err := l.Accept(); !errors.Is(err, syscall.EBADF) {
		t.Errorf("%v", err)
	}
}
