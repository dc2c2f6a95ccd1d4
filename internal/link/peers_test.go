// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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
	held      sync.Mutex // taken by each delivery
	entered   atomic.Int32
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
		Deliver: func(cell uint16, env *actor.Envelope) {
			m.entered.Add(1)
			m.held.Lock()
			defer m.held.Unlock()
			m.delivered <- delivery{cell, env}
		},
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

// hasSent returns the statistics once a number of messages to the first member were written.
func (m *testMember) hasSent(n uint64) (s []PeerStats) {
	for s = m.peers.Stats(); s[0].Sent < n; s = m.peers.Stats() {
		runtime.Gosched()
	}
	return s
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
			if s := a.hasSent(many); len(s) != 1 || s[0].Member != "b" || !s[0].Connected || s[0].Sent != many {
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

// A member whose cells take nothing for a while loses no message that was accepted. Beyond the bound each is refused at once.
func TestFullQueueRefuses(t *testing.T) {
	ours := newAuthority(t)
	for kind, addresses := range map[string][2]Address{
		"socket": {socketOf(t), socketOf(t)},
		"TCP":    {tcpOf(ours, "a"), tcpOf(ours, "b")},
	} {
		t.Run(kind, func(t *testing.T) {
			a, b := newMember(t, "a", addresses[0]), newMember(t, "b", addresses[1])
			a.sees(b)
			a.awaits("b 1 true")
			b.held.Lock()
			accepted := uint64(0)
			for refused := 0; refused < 100; {
				if a.peers.Send("b", uint16(accepted%16), numbered(accepted, 256<<10)) {
					accepted++
				} else {
					refused++
				}
			}
			b.held.Unlock()
			b.receives(0, accepted)
			a.sends("b", accepted, accepted+10)
			b.receives(accepted, accepted+10)
			if s := a.hasSent(accepted + 10)[0]; s.Sent != accepted+10 || s.Dropped < 100 || len(a.announced) > 0 {
				t.Errorf("%+v, %d announcements", s, len(a.announced))
			}
		})
	}
}

// The messages of a former connection are delivered before those of the next one, though some of them are still being read.
func TestOrderOutlastsConnection(t *testing.T) {
	a := newMember(t, "a", socketOf(t))
	a.held.Lock()
	line := hello{messagesChannel, "b", "a"}.String()
	for c := range uint64(3) {
		conn, _ := greeted(t, a, line)
		if _, err := io.WriteString(conn, message(4*c)+message(4*c+1)+message(4*c+2)+message(4*c+3)); err != nil {
			t.Fatal(err)
		}
		for wait := 0; a.entered.Load() == 0 || c > 0 && a.entered.Load() == 1 && wait < 10_000; wait++ {
			runtime.Gosched()
		}
	}
	if n := a.entered.Load(); n != 1 {
		t.Errorf("%d connections of one member deliver", n)
	}
	a.held.Unlock()
	for last := int64(-1); last < 11; {
		n := int64((<-a.delivered).env.From.Incarnation)
		if n <= last {
			t.Fatalf("message %d follows %d", n, last)
		}
		last = n
	}
}

// Only a member with a certificate of the authority for both sides connects over TCP.
func TestMembersOverTCPNeedCertificates(t *testing.T) {
	ours, foreign := newAuthority(t), newAuthority(t)
	b := newMember(t, "b", tcpOf(ours, "b"))
	for name, c := range map[string]struct {
		files Files
		want  string
	}{
		"of another authority": {Files{foreign.memberFiles("a").Certificate, filepath.Join(foreign.dir, "a-key.pem"), b.address.Files.Authority}, "the orchestrator does not accept --link-cert"},
		"for servers only":     {ours.files("server", x509.ExtKeyUsageServerAuth), "must be for clients too"},
		"for clients only":     {ours.files("client", x509.ExtKeyUsageClientAuth), ""},
		"for any usage":        {ours.files("any"), ""},
		"missing":              {Files{}, "need --link-cert"},
	} {
		x := newPeer(NewPeers(PeersConfig{Name: "a", Files: c.files, Logger: quietly}), b.member(), nil)
		l, err := x.connect()
		if err == nil {
			l.close()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Ingress processes cannot take the places of members, nor vice versa.
func TestMembersHavePlacesOfTheirOwn(t *testing.T) {
	a := newMember(t, "a", socketOf(t))
	member := func(n int) string { return hello{commandsChannel, fmt.Sprint("b", n), "a"}.String() }
	for n := range ConnectionsMax {
		if _, got := greeted(t, a, greeting); got != greeting {
			t.Fatal(n, got)
		}
	}
	var last net.Conn
	for n := range memberConnectionsMax {
		c, got := greeted(t, a, member(n))
		if !strings.HasPrefix(got, helloPrefix) {
			t.Fatal(n, got)
		}
		last = c
	}
	for line, want := range map[string]string{
		greeting:                     "refused: 64 ingress processes are connected",
		member(memberConnectionsMax): "refused: 128 connections of members are open",
	} {
		if _, got := greeted(t, a, line); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", line, got)
		}
	}
	_ = last.Close()
	for got := ""; !strings.HasPrefix(got, helloPrefix); {
		_, got = greeted(t, a, member(0))
	}
}

// At most MembersMax members are connected, by their names.
func TestMembersAreBounded(t *testing.T) {
	p := NewPeers(PeersConfig{Name: "a", Logger: quietly})
	defer p.Close()
	var all []Member
	for n := range MembersMax + 2 {
		all = append(all, Member{fmt.Sprintf("m%02d", n), "nowhere"})
	}
	p.SetMembers(all)
	if s := p.Stats(); len(s) != MembersMax || s[MembersMax-1].Member != "m31" {
		t.Errorf("%d members: %+v", len(s), s)
	}
	p.SetMembers(all[MembersMax:])
	if s := p.Stats(); len(s) != 2 || s[0].Member != "m32" {
		t.Errorf("%+v", s)
	}
}

// network passes connections on to an address. While it is cut they stay open, and nothing passes.
type network struct {
	net.Listener
	to   string
	cut  sync.RWMutex // held while it is cut
	work sync.WaitGroup
}

func newNetwork(t *testing.T, to string) *network {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{Listener: l, to: to}
	n.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.work.Go(func() { n.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		n.work.Wait()
	})
	return n
}

func (n *network) pass(c net.Conn) {
	other, err := net.Dial("tcp", n.to)
	if err != nil {
		_ = c.Close()
		return
	}
	one := func(to, from net.Conn) {
		for b := make([]byte, 64<<10); ; {
			read, err := from.Read(b)
			n.cut.RLock()
			_, failed := to.Write(b[:read])
			n.cut.RUnlock()
			if err != nil || failed != nil {
				break
			}
		}
		_ = c.Close()
		_ = other.Close()
	}
	n.work.Go(func() { one(c, other) })
	one(other, c)
}

// A network that is cut without notice, as by a firewall or a frozen process, is noticed by both sides. When it is back the
// members are connected again, and no message of before follows one of after.
func TestCutNetworkIsNoticed(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t)
	a, b := newMember(t, "a", tcpOf(ours, "a")), newMember(t, "b", tcpOf(ours, "b"))
	n := newNetwork(t, b.address.Host)
	a.peers.SetMembers([]Member{{"b", n.Addr().String()}})
	a.awaits("b 1 true")
	a.sends("b", 0, 10)
	b.receives(0, 10)
	n.cut.Lock()
	next := uint64(10)
	for a.peers.Send("b", uint16(next%16), numbered(next, 256<<10)) {
		next++
	}
	a.awaits("b 0 false")
	for _, s := range []bool{a.peers.Send("b", 0, numbered(next, 1)), a.peers.Stats()[0].Connected} {
		if s {
			t.Error("it is connected without a network")
		}
	}
	for served := true; served; runtime.Gosched() { // by b, which hears no beats
		b.peers.mu.Lock()
		served = len(b.peers.inbound) > 0
		b.peers.mu.Unlock()
	}
	n.cut.Unlock()
	a.awaits("b 1 true")
	a.sends("b", next, next+10)
	for last := uint64(9); last < next+9; {
		d := <-b.delivered
		if got := d.env.From.Incarnation; got <= last {
			t.Fatalf("message %d follows %d", got, last)
		}
		last = d.env.From.Incarnation
	}
	a.peers.Close()
	n.Close()
	b.close()
}
