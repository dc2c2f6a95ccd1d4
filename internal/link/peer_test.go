// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// busyMember answers a query once. It then waits, though it sends a notice every second if it is busy.
type busyMember struct {
	command.Node
	busy     bool
	answered bool
}

func (m *busyMember) Lookup(ctx context.Context, _ command.Lookup) (command.Result, error) {
	if m.answered {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	m.answered = true
	return command.MemberState{Version: 2}, nil
}

func (m *busyMember) Follow(ctx context.Context, _ command.Follow) (<-chan struct{}, func(), error) {
	updates := make(chan struct{})
	go func() {
		for every := time.NewTicker(time.Second); ; {
			select {
			case <-every.C:
				updates <- struct{}{}
			case <-ctx.Done():
				return
			}
		}
	}()
	return updates, func() {}, nil
}

// A member that takes or says nothing is gone after a few beats, and Send returns at once all the time. One that is busy
// with other commands has longer.
func TestFrozenMemberIsNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		reads bool // messages
		busy  bool
		after time.Duration
	}{
		"silent":                {reads: true, after: memberSilence},
		"takes no messages":     {busy: true, after: memberSilence}, // from the first one
		"answers nothing":       {reads: true, busy: true, after: announceTimeout},
		"silent, takes nothing": {after: memberSilence},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var announced []string
				p := NewPeers(PeersConfig{Name: "a", Logger: quietly, Announced: func(_ string, s command.MemberState, ok bool) {
					announced = append(announced, fmt.Sprint(s.Version, ok))
				}})
				x := newPeer(p, Member{Name: "b"}, nil)
				p.members["b"] = x
				commands, served := net.Pipe()
				messages, read := net.Pipe()
				var work sync.WaitGroup
				work.Go(func() { _ = command.Serve(served, &busyMember{busy: c.busy}) })
				if c.reads {
					work.Go(func() { _, _ = io.Copy(io.Discard, read) })
				}
				bounded := func(c net.Conn) memberConn { return memberConn{boundedConn{Conn: c, silence: p.silence}, c} }
				l := &peerLink{commands: bounded(commands), messages: bounded(messages), client: command.Dial(bounded(commands)), out: newOutbox(), state: command.MemberState{Version: 1}}
				if c.busy {
					if _, _, err := l.client.Follow(t.Context(), command.Follow{By: self}); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				work.Go(func() { x.serve(l) })
				synctest.Wait()
				for !c.reads && p.Send("b", 1, numbered(1, 1<<20-100)) { // one is being written, and the queue is full
				}
				if time.Since(began) > 0 {
					t.Error("Send waited")
				}
				work.Wait()
				if after := time.Since(began); after != c.after || fmt.Sprint(announced) != "[1 true 2 true 0 false]" {
					t.Errorf("gone after %v, want %v; announced %v", after, c.after, announced)
				}
				if p.Send("b", 1, numbered(1, 1)) {
					t.Error("sent to a member that is gone")
				}
			})
		})
	}
}

// An idle connection for messages has a beat, so that the other side notices the end of this one.
func TestIdleMessagesHaveBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ours, theirs := net.Pipe()
		out := newOutbox()
		var work sync.WaitGroup
		var got []uint64
		work.Go(func() { _ = out.write(ctx, ours, func(int) {}) })
		bounded := boundedConn{Conn: theirs, silence: memberSilence}
		work.Go(func() {
			_ = readMessages(bounded, func(_ uint16, env *actor.Envelope) { got = append(got, env.From.Incarnation) }, nil)
		})
		for n := range uint64(3) {
			<-time.After(time.Minute)
			if err := out.put(1, numbered(n, 1)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		cancel() // frozen from now on
		began := time.Now()
		work.Wait()
		if silence := time.Since(began); fmt.Sprint(got) != "[0 1 2]" || silence != memberSilence {
			t.Errorf("got %v, and noticed the end after %v", got, silence)
		}
	})
}

// A write that is larger than the network takes in one silence does not fail as long as it proceeds, nor does the read of
// its side if it is an answer.
func TestSlowWriteProceeds(t *testing.T) {
	for _, answers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			c := boundedConn{Conn: ours, silence: time.Second, answers: answers}
			var work sync.WaitGroup
			var read time.Duration
			began := time.Now()
			work.Go(func() {
				_, _ = c.Read(make([]byte, 1))
				read = time.Since(began)
			})
			work.Go(func() {
				for b := make([]byte, chunkBytesMax); ; {
					<-time.After(700 * time.Millisecond)
					if _, err := io.ReadFull(theirs, b); err != nil {
						return
					}
				}
			})
			if n, err := c.Write(make([]byte, 10*chunkBytesMax)); n != 10*chunkBytesMax || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
			if n, err := c.Write(nil); n != 0 || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
			<-time.After(time.Minute)
			_ = ours.Close()
			work.Wait()
			want := time.Second
			if answers {
				want += 7 * time.Second
			}
			if read != want {
				t.Errorf("answers %v: the read ended after %v, want %v", answers, read, want)
			}
		})
	}
}

// The connections of a member that is frozen end here too, and leave their place.
func TestFrozenMemberLosesItsPlace(t *testing.T) {
	for _, channel := range []string{commandsChannel, messagesChannel} {
		synctest.Test(t, func(t *testing.T) {
			p := NewPeers(PeersConfig{Name: "a", Node: &busyMember{}, Logger: quietly})
			ours, _ := net.Pipe()
			x, err := p.accept(ours, hello{channel, "b", "a"})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			err = x.serve(ours)
			x.end()
			if after := time.Since(began); err == nil || after != memberSilence || len(p.inbound) != 0 {
				t.Errorf("%s: %v after %v, %d connections", channel, err, after, len(p.inbound))
			}
			p.Close()
			if _, err := p.accept(ours, x.hello); err != errStopping {
				t.Errorf("closed: %v", err)
			}
		})
	}
}

// What a member announces is sent at each change, and otherwise at each beat.
func TestAnnouncementIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Announcement
		began := time.Now()
		for _, want := range []struct {
			after, version, registry uint64
			at                       time.Duration
		}{
			{0, 0, 0, time.Second},             // nothing is announced yet
			{0, 1, 5, 1500 * time.Millisecond}, // a change
			{0, 1, 5, 1500 * time.Millisecond}, // known already
			{1, 1, 5, 2500 * time.Millisecond}, // no change
			{7, 1, 5, 2500 * time.Millisecond}, // another process had this version
		} {
			if want.version == 1 && want.at == 1500*time.Millisecond && time.Since(began) == time.Second {
				time.AfterFunc(500*time.Millisecond, func() { a.Set([]command.OwnedLog{{Log: 1, Epoch: 2}}, 5) })
			}
			got, err := a.Answer(t.Context(), command.MemberQuery{After: want.after})
			if at := time.Since(began); err != nil || got.Version != want.version || got.Registry != want.registry || len(got.Logs) != int(want.version) || at != want.at {
				t.Errorf("%+v, %v at %v; want %+v", got, err, at, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.Answer(ctx, command.MemberQuery{After: 1}); err != context.Canceled {
			t.Error(err)
		}
	})
}

// A member that is named again at once is announced again after the end of its former connection.
func TestAnnouncementsOfOneMemberFollowEachOther(t *testing.T) {
	a, b := newMember(t, "a", socketOf(t)), newMember(t, "b", socketOf(t))
	a.sees(b)
	a.awaits("b 1 true")
	for range 20 {
		a.sees()
		a.sees(b)
		a.awaits("b 0 false", "b 1 true")
	}
	link, err := filepath.EvalSymlinks(b.address.Path)
	if err != nil {
		t.Fatal(err)
	}
	a.peers.SetMembers([]Member{{"b", "unix:" + link}}) // another address
	a.awaits("b 0 false", "b 1 true")
	for forgotten := false; !forgotten; runtime.Gosched() {
		a.peers.mu.Lock()
		forgotten = len(a.peers.ending) == 0
		a.peers.mu.Unlock()
	}
	synctest.Test(t, func(t *testing.T) {
		p := NewPeers(PeersConfig{Name: "a", Logger: quietly})
		former := newPeer(p, Member{Name: "b"}, nil)
		x := newPeer(p, Member{"b", "nowhere"}, former)
		go x.run()
		x.cancel(nil)
		synctest.Wait()
		if isClosed(x.done) {
			t.Error("it does not await the former one")
		}
		close(former.done)
		<-x.done
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
