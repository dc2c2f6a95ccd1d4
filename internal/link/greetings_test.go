// SPDX-License-Identifier: Apache-2.0

package link

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// strangerConn is a connection from an address.
type strangerConn struct {
	net.Conn
	from string
}

func (c *strangerConn) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", c.from)
	if a == nil {
		return &net.UnixAddr{}
	}
	return a
}

// The oldest connection of an address yields to the ninth, and the oldest of all to the 65th.
func TestOldestGreetingYields(t *testing.T) {
	var others, sockets []string
	for i := range greetingsMax {
		others = append(others, fmt.Sprintf("10.0.0.%d:1", i))
		sockets = append(sockets, "")
	}
	same := strings.Split(strings.Repeat(" 10.0.1.1:1", greetingsPerAddressMax)[1:], " ")
	for name, c := range map[string]struct {
		open   []string
		from   string
		yields int // index in open; -1: none
	}{
		"first":                  {nil, "10.0.1.1:1", -1},
		"another address":        {same, "10.0.1.2:1", -1},
		"ninth of an address":    {append([]string{"10.0.0.1:1"}, same...), "10.0.1.1:2", 1},
		"network of IPv6":        {strings.Split(strings.Repeat(" [2001:db8::1]:1", greetingsPerAddressMax)[1:], " "), "[2001:db8::2]:1", 0},
		"65th":                   {others, "10.0.1.1:1", 0},
		"few of a Unix socket":   {sockets[:greetingsMax-1], "", -1},
		"65th of a Unix socket":  {sockets, "", 0},
		"ninth, and 65th of all": {append(others[:greetingsMax-greetingsPerAddressMax:greetingsMax-greetingsPerAddressMax], same...), "10.0.1.1:1", greetingsMax - greetingsPerAddressMax},
	} {
		var g greetings
		var open []net.Conn
		for _, from := range c.open {
			conn := &strangerConn{from: from}
			open = append(open, conn)
			if got := g.add(conn); got != nil {
				t.Fatalf("%s: %v yields early", name, got)
			}
		}
		got, want := g.add(&strangerConn{from: c.from}), net.Conn(nil)
		if c.yields >= 0 {
			want = open[c.yields]
		}
		if got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
		for _, x := range append([]pendingGreeting{}, g...) {
			g.remove(x.conn)
		}
		if len(g) != 0 {
			t.Errorf("%s: %d remain", name, len(g))
		}
	}
}

// Silent connections keep no ingress out: it connects at once.
func TestIngressConnectsBesideSilentStrangers(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t)
	a := Address{Host: "127.0.0.1:0", Files: ours.files("server", x509.ExtKeyUsageServerAuth)}
	serve(t, &a, &testNode{})
	for range greetingsMax {
		c, err := net.Dial("tcp", a.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	c, err := dial(t.Context(), Address{Host: a.Host, Files: ours.files("client", x509.ExtKeyUsageClientAuth)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := greet(c, greeting, greeting); err != nil {
		t.Error(err)
	}
}

// A connection that begins no handshake of TLS has a place for a second, not until the greeting.
func TestHandshakeHasADeadlineOfItsOwn(t *testing.T) {
	ours := newAuthority(t)
	s := &Server{address: Address{Host: "127.0.0.1:0", Files: ours.files("server", x509.ExtKeyUsageServerAuth)}, log: quietly, connected: map[net.Conn]bool{}}
	c := &silentConn{strangerConn: strangerConn{from: "10.0.1.1:1"}}
	s.serve(c)
	if left := time.Until(c.deadline); !c.read || left > handshakeTimeout {
		t.Errorf("it was read %v, with %v left", c.read, left)
	}
}

// silentConn is a connection that nothing arrives on until its first deadline.
type silentConn struct {
	strangerConn
	deadline time.Time
	read     bool
}

func (c *silentConn) SetDeadline(at time.Time) error {
	if c.deadline.IsZero() {
		c.deadline = at
	}
	return nil
}

func (c *silentConn) Read([]byte) (int, error)    { c.read = true; return 0, os.ErrDeadlineExceeded }
func (c *silentConn) Write(b []byte) (int, error) { return len(b), nil }
func (c *silentConn) Close() error                { return nil }
