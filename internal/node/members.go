// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/placement"
	"github.com/troupe-run/troupe/store"
)

// Member is another process of the cluster.
type Member struct{ Name, Address string }

// MemberSide is what a process offers to the other members of its cluster.
type MemberSide struct {
	Name string       // of this member
	Node command.Node // performs commands on the actors of this member
	// Deliver takes a message for a cell.
	Deliver func(cell uint16, env *actor.Envelope)
	// Announced is told what another member announces, and with ok false that its connection has ended.
	Announced func(member string, s command.MemberState, ok bool)
}

// Members are the connections to the other members of a cluster.
type Members interface {
	// SetMembers replaces the members that have connections.
	SetMembers(all []Member)
	// Send delivers a message to a cell of a member. It does not block, and reports whether the message was taken.
	Send(member string, cell uint16, env *actor.Envelope) bool
	// Node returns a member that is connected; otherwise the error is a *command.AwayError.
	Node(member string) (command.Node, error)
	Close()
}

// placeRetry is the time after which a log that could not be adopted or released is tried again.
const placeRetry = time.Second

// registryLog returns the log of the registry among a number of logs.
func registryLog(count int) uint16 { return store.LogOf(dispatcher.ShardOf(agents.RegistryID), count) }

// membership adopts and releases the logs of a node, as its cluster says, and tells the cells who owns which. It
// implements engine.Peers.
type membership struct {
	node    *Node
	cluster *postgres.Cluster
	store   *postgres.Store
	logger  *slog.Logger
	links   Members

	changes chan struct{} // capacity 1: look again
	stop    context.CancelFunc
	done    chan struct{}

	starts []uint64 // by log; 0: not adopted. Used by run only, as is last
	last   []uint64 // by log: the greatest start so far

	leaving atomic.Bool // all logs go to others

	mu        sync.Mutex
	version   uint64        // of what this member announces
	moved     chan struct{} // closed when version rises
	registry  uint64        // how often the registry has changed here
	announced map[string]command.MemberState
	seen      registryVersion // of the catalog
	placed    chan struct{}   // closed at the next change of owners
	unplaced  int             // logs without an owner that is reached
}

// registryVersion is the state of the registry at the member that owns its log.
type registryVersion struct {
	member  string
	version uint64
}

// newMembership returns the membership of a node, or nil if it belongs to no cluster.
func newMembership(n *Node, c *Config, log *slog.Logger) *membership {
	s, ok := n.store.(*postgres.Store)
	if c.Cluster == nil || !ok {
		return nil
	}
	count := n.log.Count()
	return &membership{node: n, cluster: c.Cluster, store: s, logger: log, changes: make(chan struct{}, 1), done: make(chan struct{}), starts: make([]uint64, count), last: make([]uint64, count),
		version: 1, moved: make(chan struct{}), announced: map[string]command.MemberState{}, placed: make(chan struct{}), unplaced: count}
}

// peers returns the engine.Peers of a membership; nil for none.
func (m *membership) peers() engine.Peers {
	if m == nil {
		return nil
	}
	return m
}

// name returns the name of the node for the cells; the name of the store if it belongs to no cluster.
func (m *membership) name(of string) actor.NodeID {
	if m == nil {
		return actor.NodeID(of)
	}
	return actor.NodeID(m.cluster.Name())
}

// begin joins the cluster. The node is complete.
func (m *membership) begin(connect func(MemberSide) Members) error {
	m.links = connect(MemberSide{Name: m.cluster.Name(), Node: memberCommands{m.node.Commands}, Deliver: m.deliver, Announced: m.hear})
	if err := m.cluster.Begin(); err != nil {
		m.links.Close()
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	go m.run(ctx)
	return nil
}

// handOver gives all logs to the other members, if there are any, and adopts none any more. What waits at this node for an actor
// is answered by its next owner.
func (m *membership) handOver(ctx context.Context) {
	if m == nil || m.stop == nil {
		return
	}
	if view, _ := m.cluster.View(); len(view.Members) < 2 {
		return
	}
	m.cluster.Leave()
	m.leaving.Store(true)
	m.look()
	for {
		view, changed := m.cluster.View()
		if len(view.Held) == 0 {
			return
		}
		select {
		case <-changed:
		case <-m.node.Done():
			return
		case <-ctx.Done(): // the others claim the rest once this process has ended
			return
		}
	}
}

// end stops to adopt and to release logs, and then the connections.
func (m *membership) end() {
	if m == nil || m.stop == nil {
		return
	}
	m.stop()
	<-m.done
	m.links.Close()
}

// Send implements engine.Peers.
func (m *membership) Send(to actor.NodeID, cell uint16, env *actor.Envelope) {
	m.links.Send(string(to), cell, env)
}

// Changed implements engine.Peers.
func (m *membership) Changed() { m.announce(func() {}) }

// announce changes what the other members are told.
func (m *membership) announce(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	m.version++
	close(m.moved)
	m.moved = make(chan struct{})
}

// registryChanged tells the other members to read the registry again.
func (m *membership) registryChanged() {
	if m != nil {
		m.announce(func() { m.registry++ })
	}
}

// state answers a MemberQuery once the version differs from after, or after command.MemberBeat.
func (m *membership) state(ctx context.Context, after uint64) (s command.MemberState, err error) {
	beat := time.NewTimer(command.MemberBeat)
	defer beat.Stop()
	for over := false; ; {
		m.mu.Lock()
		s = command.MemberState{Version: m.version, Registry: m.registry}
		moved := m.moved
		m.mu.Unlock()
		if s.Version != after {
			for log, epoch := range m.node.engine.Owned() {
				if epoch != 0 {
					s.Logs = append(s.Logs, command.OwnedLog{Log: uint16(log), Epoch: uint64(epoch)})
				}
			}
			return s, nil
		}
		if over {
			return command.MemberState{Version: after}, nil
		}
		select {
		case <-moved:
		case <-beat.C:
			over = true
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

func (m *membership) deliver(cell uint16, env *actor.Envelope) { m.node.engine.Deliver(cell, env) }

// hear takes what another member announces.
func (m *membership) hear(member string, s command.MemberState, ok bool) {
	m.mu.Lock()
	_, known := m.announced[member]
	if ok {
		m.announced[member] = s
	} else {
		delete(m.announced, member)
	}
	m.mu.Unlock()
	if ok && !known { // what was sent before may be lost
		m.node.engine.Reconnected(actor.NodeID(member))
	}
	m.look()
}

// look has run look again.
func (m *membership) look() {
	select {
	case m.changes <- struct{}{}:
	default:
	}
}

// run follows the cluster until ctx ends.
func (m *membership) run(ctx context.Context) {
	defer close(m.done)
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		view, changed := m.cluster.View()
		if err := m.follow(ctx, &view); err != nil && ctx.Err() == nil {
			m.logger.Error("the logs of this node are not as the cluster says: will try again", "error", err.Error())
			retry.Reset(placeRetry)
		}
		select {
		case <-changed:
		case <-m.changes:
		case <-retry.C:
		case <-ctx.Done():
			return
		}
	}
}

// follow adopts and releases logs as a view of the cluster says.
func (m *membership) follow(ctx context.Context, v *postgres.View) (err error) {
	var others []Member
	for _, o := range v.Members {
		if o.Member != m.cluster.Name() {
			others = append(others, Member{o.Member, o.Address})
		}
	}
	m.links.SetMembers(others)
	for log := range m.starts {
		held := slices.ContainsFunc(v.Held, func(h placement.Held) bool { return int(h.Log) == log })
		if m.starts[log] != 0 && !held { // as after a release whose outcome is unknown
			err = cmp.Or(err, m.drop(ctx, v, uint16(log)))
		}
	}
	surplus := v.Surplus
	if m.leaving.Load() {
		surplus = v.Held
	}
	for _, h := range v.Held {
		if m.starts[h.Log] == 0 && !slices.Contains(surplus, h) {
			if failed := m.adopt(ctx, h.Log, h.Epoch); failed != nil {
				err = cmp.Or(err, failed)
				continue
			}
			m.setOwners(v)
			m.adopted(ctx, h.Log)
		}
	}
	m.setOwners(v)
	for _, h := range slices.Backward(surplus) {
		failed := m.drop(ctx, v, h.Log)
		if failed == nil {
			failed = m.cluster.Release(h.Log)
		}
		return cmp.Or(err, failed) // a released log is a change, with which it looks again
	}
	return cmp.Or(err, m.readRegistry(ctx, v))
}

// adopt begins to write a log. Its cell does not know it yet.
func (m *membership) adopt(ctx context.Context, log uint16, epoch actor.Epoch) error {
	a, err := m.store.Adopt(log, epoch)
	if err != nil {
		return err
	}
	n := m.node
	n.log.Adopt(log, a.End)
	err = n.hooks.adopt(int(log), n.log)
	if err == nil {
		err = n.traces.adopt(int(log), n.log)
	}
	if err != nil {
		n.hooks.drop(int(log), n.log) // they are opened again with the next attempt
		return fmt.Errorf("log %d: %w", log, err)
	}
	if log == registryLog(len(m.starts)) { // its former owner has changed it, perhaps
		if err := n.catalog.reload(ctx, m.store); err != nil {
			n.hooks.drop(int(log), n.log)
			n.traces.drop(int(log), n.log)
			return err
		}
	}
	n.Commands.memories.dropAll()
	m.last[log] = max(m.last[log]+1, a.Start)
	m.starts[log] = m.last[log]
	return nil
}

// adopted completes the adoption of a log whose cell knows it.
func (m *membership) adopted(ctx context.Context, log uint16) {
	n := m.node
	if log == registryLog(len(m.starts)) {
		newest, err := newestOf(m.store, n.log)
		if err != nil {
			m.logger.Error("the time of the newest record is unknown: schedules leave out what was missed", "error", err.Error())
		}
		n.catalog.scheduling(true, newest)
		m.registryChanged()
	}
	if err := n.log.Erase(); err != nil {
		m.logger.Warn("the deletion of sessions is completed with the next one", "error", err.Error())
	}
	m.logger.Info("serves a log", "log", log)
}

// drop ends what the node does with a log. All that it has written is durable then.
func (m *membership) drop(ctx context.Context, v *postgres.View, log uint16) error {
	if m.starts[log] == 0 {
		return nil
	}
	n := m.node
	if log == registryLog(len(m.starts)) {
		n.catalog.scheduling(false, 0)
	}
	m.starts[log] = 0
	m.setOwners(v)
	if err := n.engine.Settle(ctx, log); err != nil {
		return err
	}
	n.hooks.drop(int(log), n.log)
	n.traces.drop(int(log), n.log)
	n.log.Drop(log)
	m.store.Drop(log)
	n.Commands.memories.dropAll()
	m.logger.Info("hands a log over", "log", log)
	return nil
}

// setOwners tells the cells who owns which shards.
func (m *membership) setOwners(v *postgres.View) {
	others := make([]dispatcher.Owner, len(m.starts))
	unplaced := 0
	m.mu.Lock()
	for log, o := range v.Owners {
		if m.starts[log] != 0 {
			continue
		}
		if o.Member != m.cluster.Name() {
			for _, owned := range m.announced[o.Member].Logs {
				if int(owned.Log) == log {
					others[log] = dispatcher.Owner{Node: actor.NodeID(o.Member), Cell: uint16(log), Epoch: actor.Epoch(owned.Epoch)}
				}
			}
		}
		if others[log].Node == "" {
			unplaced++
		}
	}
	m.mu.Unlock()
	m.node.engine.SetOwners(m.starts, others)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unplaced = unplaced
	close(m.placed)
	m.placed = make(chan struct{})
}

// readRegistry reads the registry again if its owner has changed it since.
func (m *membership) readRegistry(ctx context.Context, v *postgres.View) error {
	log := registryLog(len(m.starts))
	if m.starts[log] != 0 {
		return nil
	}
	owner := v.Owners[log].Member
	m.mu.Lock()
	now, ok := registryVersion{owner, m.announced[owner].Registry}, m.seen
	m.mu.Unlock()
	if owner == "" || now == ok {
		return nil
	}
	if err := m.node.catalog.reload(ctx, m.store); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = now
	return nil
}

// catchUp waits until this node has applied what the registry has answered.
func (m *membership) catchUp(ctx context.Context) error {
	if m == nil || m.node.engine.Owns(agents.RegistryID) {
		return nil
	}
	return m.node.catalog.reload(ctx, m.store)
}

// Placed waits until each log has an owner that this node reaches, or until ctx ends.
func (m *membership) Placed(ctx context.Context) error {
	for {
		m.mu.Lock()
		unplaced, placed := m.unplaced, m.placed
		m.mu.Unlock()
		if unplaced == 0 {
			return nil
		}
		select {
		case <-placed:
		case <-m.cluster.Leaving():
			return postgres.ErrLeaving
		case <-m.node.Done():
			return m.node.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ownerWait is the time for which a command waits for an owner of its log: a new one follows within it.
const ownerWait = 10 * time.Second

// passed marks the context of a command that another member has passed on.
type passed struct{}

// owner returns the member that owns the shard of an actor; nil: this one does. A command that was passed on is not passed
// on again: the members may not agree yet on who owns a log.
func (m *membership) owner(ctx context.Context, id actor.ID) (command.Node, error) {
	if m == nil || ctx.Value(passed{}) != nil && m.node.engine.Owns(id) {
		return nil, nil
	}
	if ctx.Value(passed{}) != nil {
		return nil, actor.RefuseUnavailable(time.Second, "another process of the cluster serves this actor now: retry later")
	}
	ctx, cancel := context.WithTimeout(ctx, ownerWait)
	defer cancel()
	for {
		m.mu.Lock()
		placed := m.placed
		m.mu.Unlock()
		owner, own := m.node.engine.OwnerOf(id)
		if own {
			return nil, nil
		}
		if owner != "" {
			if n, err := m.links.Node(string(owner)); err == nil {
				return n, nil
			}
		}
		select {
		case <-placed:
		case <-ctx.Done():
			return nil, actor.RefuseUnavailable(time.Second, "no process of the cluster serves this actor now: retry later")
		}
	}
}

// others returns the other members that own logs. It fails if one is not connected.
func (m *membership) others() (all []command.Node, err error) {
	if m == nil {
		return nil, nil
	}
	view, _ := m.cluster.View()
	for _, o := range view.Members {
		if o.Member == m.cluster.Name() {
			continue
		}
		n, failed := m.links.Node(o.Member)
		if failed != nil {
			if slices.ContainsFunc(view.Owners, func(l placement.Owner) bool { return l.Member == o.Member }) {
				return nil, actor.RefuseUnavailable(time.Second, "member %s of the cluster is not connected: retry later", o.Member)
			}
			continue // it has no log
		}
		all = append(all, n)
	}
	return all, nil
}
