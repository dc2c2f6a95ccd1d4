// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// testMember is a member of a cluster in this process.
type testMember struct {
	command.Node
	*testing.T
	name      string
	address   Address
	peers     *Peers
	announces Announcement
	stop      func()

	invoked   chan struct{} // receives for each Invoke, which waits for the end of its context
	delivered chan delivery
	announced chan string // receives "name version ok"
}

type delivery struct {
	cell uint16
	env  *actor.Envelope
}

// newMember serves a member at an address.
func newMember(t *testing.T, name string, a Address) *testMember {
	t.Helper()
	m := &testMember{T: t, name: name, address: a, invoked: make(chan struct{}, 1), delivered: make(chan delivery, 1<<16), announced: make(chan string, 64)}
	m.peers = NewPeers(PeersConfig{Name: name, Files: a.Files, Node: m, Logger: quietly,
		Deliver: func(cell uint16, env *actor.Envelope) { m.delivered <- delivery{cell, env} },
		Announced: func(member string, state command.MemberState, ok bool) {
			m.announced <- fmt.Sprintf("%s %d %v", member, state.Registry, ok)
		}})
	m.announces.Set([]command.OwnedLog{{Log: 3, Epoch: 7}}, 1)
	m.serve()
	t.Cleanup(m.close)
	return m
}

// serve starts the server of the member.
func (m *testMember) serve() {
	m.Helper()
	l, err := Listen(m.address)
	if err != nil {
		m.Fatal(err)
	}
	if m.address.Path == "" {
		m.address.Host = l.Addr().String()
	}
	s := NewServer(m.address, l, nil, m.peers, quietly)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve() }()
	m.stop = sync.OnceFunc(func() {
		if err := errors.Join(s.Close(), <-ended); err != nil {
			m.Error(err)
		}
	})
}

func (m *testMember) close() {
	m.peers.Close()
	m.stop()
}

func (m *testMember) Lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	if q, ok := in.Query.(command.MemberQuery); ok {
		return m.announces.Answer(ctx, q)
	}
	return command.Agents{All: []command.Agent{{Name: m.name}}}, nil
}

func (m *testMember) Invoke(ctx context.Context, _ command.Invoke, _ func(actor.CallID)) (command.Answer, error) {
	m.invoked <- struct{}{}
	<-ctx.Done()
	return command.Answer{}, ctx.Err()
}

func (m *testMember) member() Member { return Member{m.name, m.address.String()} }

// sees sets the other members of this one.
func (m *testMember) sees(others ...*testMember) {
	var all []Member
	for _, o := range others {
		all = append(all, o.member())
	}
	m.peers.SetMembers(all)
}

// awaits waits for announcements.
func (m *testMember) awaits(want ...string) {
	m.Helper()
	for _, w := range want {
		if got := <-m.announced; got != w {
			m.Fatalf("%s: got %q, want %q", m.name, got, w)
		}
	}
}

// numbered returns a message with a number and a text of some size.
func numbered(n uint64, size int) *actor.Envelope {
	call := actor.Call{ID: actor.NewCallID(1, n, 3), To: actor.NewID("bob", "k"), Parts: actor.Text(strings.Repeat("x", size))}
	call.SetClientDefaults()
	return &actor.Envelope{From: actor.Address{Node: "n", Cell: 1, Incarnation: n}, To: call.To, Epoch: 1, Body: actor.Request{Call: call}}
}

// receives waits for the messages from one number to another.
func (m *testMember) receives(from, to uint64) {
	m.Helper()
	for n := from; n < to; n++ {
		d := <-m.delivered
		if d.env.From.Incarnation != n || d.cell != uint16(n%16) {
			m.Fatalf("%s: got message %d for cell %d, want message %d", m.name, d.env.From.Incarnation, d.cell, n)
		}
	}
}

// sends sends the messages from one number to another, and again while the queue is full.
func (m *testMember) sends(to string, from, end uint64) {
	for n := from; n < end; n++ {
		for !m.peers.Send(to, uint16(n%16), numbered(n, 10)) {
			runtime.Gosched()
		}
	}
}

func socketOf(t *testing.T) Address { return Address{Path: filepath.Join(privateDir(t), SocketName)} }

func tcpOf(a *authority, name string) Address {
	return Address{Host: "127.0.0.1:0", Files: a.memberFiles(name)}
}

// memberFiles returns the files of a certificate for both sides.
func (a *authority) memberFiles(name string) Files {
	return a.files(name, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

// Messages of both directions arrive in their order, over both kinds of addresses, and commands are performed.
func TestMembersExchangeMessagesInOrder(t *testing.T) {
	ours := newAuthority(t)
	for kind, addresses := range map[string][2]Address{
		"socket": {socketOf(t), socketOf(t)},
		"TCP":    {tcpOf(ours, "a"), tcpOf(ours, "b")},
	} {
		t.Run(kind, func(t *testing.T) {
			a, b := newMember(t, "a", addresses[0]), newMember(t, "b", addresses[1])
			a.sees(a, b)
			b.sees(a, b)
			a.awaits("b 1 true")
			b.awaits("a 1 true")
			const many = 10_000
			var work sync.WaitGroup
			work.Go(func() { a.sends("b", 0, many) })
			work.Go(func() { b.sends("a", 0, many) })
			a.receives(0, many)
			b.receives(0, many)
			work.Wait()
			n, err := a.peers.Node("b")
			if err != nil {
				t.Fatal(err)
			}
			found, err := command.Find(t.Context(), n, self, command.AgentsQuery{})
			if err != nil || len(found.All) != 1 || found.All[0].Name != "b" {
				t.Errorf("%+v %v", found, err)
			}
			if s := a.peers.Stats(); len(s) != 1 || s[0].Member != "b" || !s[0].Connected || s[0].Sent != many {
				t.Errorf("%+v", s)
			}
			if !a.peers.Send("b", 1, numbered(many, 1<<20-100)) {
				t.Error("a large message was refused")
			}
			if d := <-b.delivered; d.env.From.Incarnation != many || len(d.env.Body.(actor.Request).Call.Parts[0].Bytes) != 1<<20-100 {
				t.Errorf("%+v", d.env)
			}
		})
	}
}

// What a member announces arrives at each connection and change, and its end too.
func TestAnnouncementsArrive(t *testing.T) {
	a, b := newMember(t, "a", socketOf(t)), newMember(t, "b", socketOf(t))
	a.sees(b)
	a.awaits("b 1 true")
	b.announces.Set(nil, 2)
	a.awaits("b 2 true")
	b.announces.Set([]command.OwnedLog{{Log: 4, Epoch: 8}}, 3)
	a.awaits("b 3 true")
	a.sees()
	a.awaits("b 0 false")
	a.sees(b)
	a.awaits("b 3 true")
	a.peers.Close()
	a.awaits("b 0 false")
	a.sees(b)
	if s := a.peers.Stats(); len(s) == 1 && s[0].Connected || a.peers.Send("b", 0, numbered(1, 1)) {
		t.Errorf("closed: %+v", s)
	}
}

// A process that is started again has its address and another name: it is not taken for the former one. Under the same name
// the member is connected again.
func TestMemberIsReconnectedUnderItsNameOnly(t *testing.T) {
	a, b := newMember(t, "a", socketOf(t)), newMember(t, "b", socketOf(t))
	a.sees(b)
	a.awaits("b 1 true")
	a.sends("b", 0, 10)
	b.receives(0, 10)
	b.stop() // the network fails, and is back
	a.awaits("b 0 false")
	if a.peers.Send("b", 0, numbered(1, 1)) {
		t.Error("sent without a connection")
	}
	_, err := a.peers.Node("b")
	var away *command.AwayError
	if !errors.As(err, &away) || !errors.Is(err, command.ErrClosed) {
		t.Fatal(err)
	}
	b.serve()
	<-away.Back
	a.awaits("b 1 true")
	a.sends("b", 10, 20)
	b.receives(10, 20)
	b.close()
	a.awaits("b 0 false")
	c := newMember(t, "c", b.address)
	x := &peer{peers: a.peers, member: b.member(), ctx: t.Context()}
	var refused *RefusedError
	if _, err := x.connect(); !errors.As(err, &refused) || !strings.Contains(err.Error(), "this is the member c, want b") {
		t.Errorf("another process: %v", err)
	}
	_, err = a.peers.Node("c")
	if !errors.As(err, &away) {
		t.Fatal(err)
	}
	a.sees(c)
	<-away.Back // the members are others
	a.awaits("c 1 true")
	if _, err := a.peers.Node("b"); !errors.As(err, &away) {
		t.Error(err)
	}
}

// The end of a member's lease ends the commands that are open there, and those that it has opened here.
func TestLostLeaseEndsCommands(t *testing.T) {
	a, b := newMember(t, "a", socketOf(t)), newMember(t, "b", socketOf(t))
	a.sees(b)
	b.sees(a)
	a.awaits("b 1 true")
	b.awaits("a 1 true")
	invoke := func(at *testMember, other string) error {
		n, err := at.peers.Node(other)
		if err != nil {
			return err
		}
		_, err = n.Invoke(t.Context(), command.Invoke{By: self, Call: numbered(1, 1).Body.(actor.Request).Call}, nil)
		return err
	}
	ended := make(chan error)
	go func() { ended <- invoke(a, "b") }()
	<-b.invoked
	go func() { ended <- invoke(b, "a") }()
	<-a.invoked
	a.sees()
	for range 2 {
		if err := <-ended; !errors.Is(err, command.ErrClosed) {
			t.Error(err)
		}
	}
	a.awaits("b 0 false")
}

// Close leaves no goroutine, also while members are connected, frozen or away.
func TestCloseOfPeersLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	a, b := newMember(t, "a", socketOf(t)), newMember(t, "b", socketOf(t))
	frozen := frozenMember(t)
	a.peers.SetMembers([]Member{b.member(), frozen, {"away", filepath.Join(privateDir(t), SocketName)}, {"no address", "nowhere"}, {"odd", "nowhere"}})
	b.sees(a)
	a.awaits("b 1 true")
	b.awaits("a 1 true")
	a.close()
	b.close()
	for runtime.NumGoroutine() > before+1 { // that of frozenMember
		runtime.Gosched()
	}
}

// frozenMember is a process that takes connections and says nothing.
func frozenMember(t *testing.T) Member {
	a := socketOf(t)
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return Member{"frozen", a.Path}
}

// greeted opens a connection to a member by hand.
func greeted(t *testing.T, to *testMember, line string) (net.Conn, string) {
	t.Helper()
	c, err := net.Dial("unix", to.address.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := fmt.Fprintln(c, line); err != nil {
		t.Fatal(err)
	}
	answer, err := readLine(c)
	if err != nil && answer == "" {
		t.Fatal(err)
	}
	return c, answer
}

// Only the greeting of a member of this version, for this member, is accepted, and an ingress cannot take its place.
func TestGreetingsOfMembersAreChecked(t *testing.T) {
	a := newMember(t, "a", socketOf(t))
	good := hello{messagesChannel, "b", "a"}
	for line, want := range map[string]string{
		good.String():                                             good.answer().String(),
		hello{"gossip", "b", "a"}.String():                        "refused: got the greeting",
		hello{"messages", "b", "c"}.String():                      "refused: this is the member a, want c: another process has its address by now",
		strings.Replace(good.String(), helloVersion, "1.1", 1):    "of version 1.1, this member has version " + helloVersion,
		good.String() + " more":                                   "refused: got the greeting",
		helloPrefix:                                               "refused: got the greeting",
		hello{"messages", strings.Repeat("b", 129), "a"}.String(): "refused: got the greeting",
		"GET / HTTP/1.1":                                          "refused: got the greeting",
	} {
		if _, got := greeted(t, a, line); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
	alone := socketOf(t)
	l, err := Listen(alone)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(alone, l, nil, nil, quietly)
	go func() { _ = s.Serve() }()
	defer s.Close()
	if _, got := greeted(t, &testMember{address: alone}, good.String()); got != "refused: this orchestrator is in no cluster" {
		t.Error(got)
	}
}

// A frame that no member sends ends the connection. A message that cannot be decoded is lost alone.
func TestMalformedFramesEndConnection(t *testing.T) {
	frame := func(size uint32, body string) string {
		return string(binary.BigEndian.AppendUint32(nil, size)) + body
	}
	message := func(n uint64) string {
		body := "\x00\x01" + string(actor.Encode(*numbered(n, 1)))
		return frame(uint32(len(body)), body)
	}
	for name, c := range map[string]struct {
		sent string
		ends string // prefix of the error
		got  []uint64
	}{
		"beats":              {sent: frame(0, "") + message(1) + frame(0, "") + message(2), ends: "EOF", got: []uint64{1, 2}},
		"nothing":            {ends: "EOF"},
		"cut in a length":    {sent: message(1) + "\x00\x00", ends: "unexpected EOF", got: []uint64{1}},
		"cut in a cell":      {sent: frame(9, "\x00"), ends: "unexpected EOF"},
		"cut in a message":   {sent: message(1)[:40], ends: "unexpected EOF"},
		"cut in a large one": {sent: frame(1<<20, strings.Repeat("x", 1<<19)), ends: "unexpected EOF"},
		"no message":         {sent: frame(2, "\x00\x01") + message(1), ends: "protocol violated by the peer: frame of 2 bytes"},
		"oversized":          {sent: frame(messageBytesMax+3, "") + message(1), ends: "protocol violated by the peer: frame of 4194307 bytes"},
		"text":               {sent: "GET / HTTP/1.1\r\n", ends: "protocol violated"},
		"undecodable":        {sent: frame(4, "\x00\x01\xff\xff") + message(2), ends: "EOF", got: []uint64{2}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []uint64
			lost := 0
			err := readMessages(strings.NewReader(c.sent), func(_ uint16, env *actor.Envelope) { got = append(got, env.From.Incarnation) }, func(error) { lost++ })
			if err == nil || !strings.HasPrefix(err.Error(), c.ends) || fmt.Sprint(got) != fmt.Sprint(c.got) || (lost > 0) != (name == "undecodable") {
				t.Errorf("%v, %v, %d lost; want %s, %v", err, got, lost, c.ends, c.got)
			}
		})
	}
	a := newMember(t, "a", socketOf(t))
	c, _ := greeted(t, a, hello{messagesChannel, "b", "a"}.String())
	if _, err := c.Write([]byte(message(0) + frame(messageBytesMax+3, ""))); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes after an oversized frame", n)
	}
	if d := <-a.delivered; d.env.From.Incarnation != 0 {
		t.Errorf("%+v", d.env)
	}
}
