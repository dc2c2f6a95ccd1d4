// SPDX-License-Identifier: Apache-2.0

package link

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// MembersMax is the maximum number of other members that a member connects to.
const MembersMax = 32

// memberSilence is the maximum time without a byte from another member, or for it to take a write.
const memberSilence = 3 * command.MemberBeat

// Member is a process of a cluster, as its table names it.
type Member struct {
	Name    string // of this process alone: one that is started again has another name
	Address string // value of --listen-orchestrator: the path of a Unix socket, or host:port
}

// PeersConfig is what a member offers to the others.
type PeersConfig struct {
	Name  string       // of this member
	Files Files        // of TLS, for members with host:port
	Node  command.Node // performs the commands of other members; it answers a command.MemberQuery
	// Deliver takes a message for a cell of this member. It MUST NOT block. The messages of one member arrive in the
	// order in which it sent them, also over several connections; some may be lost between two.
	Deliver func(cell uint16, env *actor.Envelope)
	// Announced is told what another member announces: at each new connection and at each change; with ok false once its
	// connection has ended. The calls for one member follow each other, and they MUST return without delay. Announced MUST NOT call Close.
	Announced func(member string, state command.MemberState, ok bool)
	Logger    *slog.Logger
}

// Peers are the other members of a cluster. Each member opens two connections to each other one, for its commands and for
// messages of its cells, and opens them again whenever one fails.
type Peers struct {
	config  PeersConfig
	log     *slog.Logger
	silence time.Duration
	seldom  warnings
	ctx     context.Context
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup // peers
	serving sync.WaitGroup // inbound connections

	mu      sync.RWMutex
	members map[string]*peer
	ending  map[string]*peer // those without a place in members that have not ended
	changed chan struct{}    // closed when members changes
	inbound map[inboundKey]*inbound
	closed  bool
}

// NewPeers returns the members of a cluster that has only this one. The caller MUST close it.
func NewPeers(c PeersConfig) *Peers {
	p := &Peers{config: c, log: c.Logger, silence: memberSilence, members: map[string]*peer{}, ending: map[string]*peer{}, changed: make(chan struct{}), inbound: map[inboundKey]*inbound{}}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// SetMembers sets the members that have a lease now. It connects to new ones and ends the connections to and of
// others, which ends open commands with an error that is command.ErrClosed. It never blocks.
func (p *Peers) SetMembers(all []Member) {
	named := map[string]Member{}
	for _, m := range all {
		if m.Name != p.config.Name {
			named[m.Name] = m
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	changed := false
	for name, x := range p.members {
		m, ok := named[name]
		if ok && m == x.member {
			continue
		}
		changed = true
		x.cancel(errNoLease)
		delete(p.members, name)
		p.ending[name] = x
		for key, in := range p.inbound {
			if key.from == name && !ok {
				_ = in.raw.Close()
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if p.members[name] != nil {
			continue
		}
		if len(p.members) >= MembersMax || !validName(name) {
			if p.seldom.due() {
				p.log.Error("a member is not connected, because there are too many or its name is not valid", "member", name, "limit", MembersMax)
			}
			continue
		}
		changed = true
		x := newPeer(p, named[name], p.ending[name])
		p.members[name] = x
		p.work.Go(x.run)
	}
	if changed {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// Send sends a message to a cell of another member. It never blocks and does not retain the envelope. It returns false if the
// member is not connected or too many messages wait for it. Otherwise the message is delivered, unless the connection fails.
func (p *Peers) Send(member string, cell uint16, env *actor.Envelope) (sent bool) {
	p.mu.RLock()
	x := p.members[member]
	p.mu.RUnlock()
	return x != nil && x.send(cell, env)
}

// Node returns the node that performs commands on another member, or a *command.AwayError if the member is not connected. The
// error of a command is command.ErrClosed once the connection has failed.
func (p *Peers) Node(member string) (command.Node, error) {
	p.mu.RLock()
	x, changed := p.members[member], p.changed
	p.mu.RUnlock()
	if x == nil {
		return nil, away(changed)
	}
	return x.node()
}

// away returns the error of a command to a member that is not connected.
func away(back <-chan struct{}) error {
	return &command.AwayError{Back: back, Refusal: actor.RefuseUnavailable(time.Second, "another orchestrator of the cluster is not connected: retry later")}
}

// PeerStats are statistics of the connections to another member.
type PeerStats struct {
	Member    string
	Connected bool
	Sent      uint64 // messages that were written
	Dropped   uint64 // messages that were refused, or were not written when the connection failed
}

// Stats returns the statistics of all members, by name. They begin when SetMembers names the member.
func (p *Peers) Stats() []PeerStats {
	p.mu.RLock()
	all := slices.Collect(maps.Values(p.members))
	p.mu.RUnlock()
	stats := make([]PeerStats, 0, len(all))
	for _, x := range all {
		_, err := x.node()
		stats = append(stats, PeerStats{x.member.Name, err == nil, x.sent.Load(), x.dropped.Load()})
	}
	slices.SortFunc(stats, func(a, b PeerStats) int { return cmp.Compare(a.Member, b.Member) })
	return stats
}

// Close ends all connections to and of members. Once it returns, nothing is delivered or announced any longer.
func (p *Peers) Close() {
	p.mu.Lock()
	p.closed = true
	for _, in := range p.inbound {
		_ = in.raw.Close()
	}
	p.mu.Unlock()
	p.cancel(errStopping)
	p.work.Wait()
	p.serving.Wait()
}

// warnings limits the number of warnings about what may happen for each message.
type warnings struct {
	mu   sync.Mutex
	last time.Time
}

// due reports whether another warning may be written.
func (w *warnings) due() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.last) < warnInterval {
		return false
	}
	w.last = time.Now()
	return true
}

var errNoLease = errors.New("the member has no lease now")
