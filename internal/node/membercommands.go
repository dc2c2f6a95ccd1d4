// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// memberCommands performs commands that another member passes on. It passes nothing on itself.
type memberCommands struct{ *Commands }

// Invoke implements command.Node.
func (c memberCommands) Invoke(ctx context.Context, in command.Invoke, joined func(run actor.CallID)) (command.Answer, error) {
	return c.invoke(context.WithValue(ctx, passed{}, true), in, joined)
}

// Signal implements command.Node.
func (c memberCommands) Signal(ctx context.Context, in command.Signal) (command.Answer, error) {
	return c.signal(ctx, in)
}

// Cancel implements command.Node.
func (c memberCommands) Cancel(_ context.Context, in command.Cancel) error { return c.cancel(in) }

// Forget implements command.Node.
func (c memberCommands) Forget(ctx context.Context, in command.Forget) error {
	return c.forget(ctx, in)
}

// Follow implements command.Node.
func (c memberCommands) Follow(_ context.Context, in command.Follow) (updates <-chan struct{}, stop func(), err error) {
	return c.follow(in)
}

// Lookup implements command.Node.
func (c memberCommands) Lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	switch q := in.Query.(type) {
	case command.MemberQuery:
		return c.members.state(ctx, q.After)
	case command.DefinitionsQuery:
		open, err := c.engine.OpenDefinitions(ctx, q.Of)
		return c.leased(command.Definitions{Open: open}, errorOf(err))
	}
	r, err := c.lookup(context.WithValue(ctx, passed{}, true), in)
	return c.leased(r, err)
}

// Do implements command.Node.
func (c memberCommands) Do(ctx context.Context, in command.Do) (command.Result, error) {
	if a, ok := in.Action.(command.Heartbeat); ok {
		return command.External{Known: c.members.node.outbound.Heartbeat(a.Name)}, nil
	}
	return c.Commands.Do(ctx, in)
}

// passInvoke passes a call on to the owner of its actor if the client follows the run that it may repeat: the owner knows
// the ID of that run. If the owner goes meanwhile, the call is sent again as a repeat, from this node.
func (m *membership) passInvoke(ctx context.Context, in *command.Invoke, joined func(run actor.CallID)) (a command.Answer, passed bool, err error) {
	if m == nil || joined == nil || in.Call.Idempotency == (actor.Idempotency{}) {
		return a, false, nil
	}
	n, err := m.owner(ctx, in.Call.To)
	if n == nil || err != nil {
		return a, err != nil, err
	}
	a, err = n.Invoke(ctx, *in, joined)
	if hasGone(err) {
		in.Call.Attempt = max(1, in.Call.Attempt) + 1
		return command.Answer{}, false, nil
	}
	return a, true, err
}

// principal returns the principal of what a member asks of another one on its own behalf. It may write the global memory.
func (m *membership) principal(id actor.ID) actor.Principal {
	by := actor.NewPrincipal("", "", string(ingress.ScopeOperator))
	by.Tenant = id.Tenant
	return by
}

// hasGone reports whether a member was gone before its answer to a command that was passed on to it.
func hasGone(err error) bool { return errors.Is(err, command.ErrClosed) }

// passTries is how often a query is passed on while members go.
const passTries = 3

// passedError returns the error of a command that was passed on, and may have been performed.
func passedError(err error) error {
	if hasGone(err) {
		return actor.RefuseReplyClosed()
	}
	return err
}

// gather asks this node and all members that own logs.
func gather[R command.Result](ctx context.Context, c *Commands, in command.Lookup) (all []R, err error) {
	for range passTries {
		if all, err = gatherOnce[R](ctx, c, in); !hasGone(err) {
			break
		}
	}
	return all, passedError(err)
}

func gatherOnce[R command.Result](ctx context.Context, c *Commands, in command.Lookup) (all []R, err error) {
	here, err := c.lookup(ctx, in)
	if err != nil {
		return nil, err
	}
	all = append(all, here.(R))
	others, err := c.members.others()
	if err != nil {
		return nil, err
	}
	for _, n := range others {
		found, err := n.Lookup(ctx, in)
		if err != nil {
			return nil, err
		}
		all = append(all, found.(R))
	}
	return all, nil
}

// passLookup answers a query about what is in the memory of cells, which may be those of other members. All else is in the
// store, which each member reads.
func (c *Commands) passLookup(ctx context.Context, in command.Lookup) (command.Result, bool, error) {
	if c.members == nil {
		return nil, false, nil
	}
	switch q := in.Query.(type) {
	case command.ApprovalsQuery:
		pages, err := gather[command.Approvals](ctx, c, in)
		return joinApprovals(pages, q.Limit), true, err
	case command.TasksQuery:
		pages, err := gather[command.Tasks](ctx, c, in)
		return joinTasks(pages), true, err
	case command.WorkingQuery:
		pages, err := gather[command.Working](ctx, c, in)
		var out command.Working
		for _, p := range pages {
			out.All = append(out.All, p.All...)
		}
		out.All = out.All[:min(len(out.All), command.WorkingMax)]
		return out, true, err
	case command.ActorsQuery:
		pages, err := gather[command.Actors](ctx, c, in)
		var out command.Actors
		for _, p := range pages {
			out.All = append(out.All, p.All...)
		}
		out.All = out.All[:min(len(out.All), max(0, q.Limit))]
		return out, true, err
	case command.DeviceCallsQuery:
		pages, err := gather[command.DeviceCalls](ctx, c, in)
		var out command.DeviceCalls
		for _, p := range pages {
			out.All = append(out.All, p.All...)
		}
		slices.SortFunc(out.All, func(a, b command.DeviceCall) int {
			return cmp.Or(a.ID.Run.Compare(b.ID.Run), cmp.Compare(a.ID.Step, b.ID.Step), cmp.Compare(a.ID.Index, b.ID.Index))
		})
		return out, true, err
	case command.SchedulesQuery:
		return c.passTo(ctx, agents.RegistryID, in)
	case command.ToolCallQuery:
		found, err := read(ctx, c, &in.By, func(v View) (command.Owner, error) { return v.Owner(q.ID.Run) })
		if err != nil {
			return nil, true, err
		}
		return c.passTo(ctx, found.(command.Owner).Actor, in)
	}
	return nil, false, nil
}

// passTo passes a query on to the owner of an actor, unless that is this node.
func (c *Commands) passTo(ctx context.Context, id actor.ID, in command.Lookup) (command.Result, bool, error) {
	for range passTries {
		n, err := c.members.owner(ctx, id)
		if n == nil {
			return nil, err != nil, err
		}
		if r, err := n.Lookup(ctx, in); !hasGone(err) {
			return r, true, err
		}
	}
	return nil, true, actor.RefuseReplyClosed()
}

// openDefinitions returns those of the definitions with which open runs began, of all members.
func (c *Commands) openDefinitions(ctx context.Context, of []actor.Hash) ([]actor.Hash, error) {
	open, err := c.engine.OpenDefinitions(ctx, of)
	if err != nil {
		return nil, err
	}
	others, err := c.members.others()
	for _, n := range others {
		found, failed := command.Find(ctx, n, c.members.principal(agents.RegistryID), command.DefinitionsQuery{Of: of})
		err = cmp.Or(err, passedError(failed))
		for _, hash := range found.Open {
			if !slices.Contains(open, hash) {
				open = append(open, hash)
			}
		}
	}
	return open, err
}

// joinApprovals returns the first page of those of all members, each of which has what follows the cursor.
func joinApprovals(pages []command.Approvals, limit int) (out command.Approvals) {
	for _, p := range pages {
		out.All, out.More = append(out.All, p.All...), out.More || p.More
	}
	slices.SortFunc(out.All, func(a, b command.Approval) int { return a.Position().Compare(b.Position()) })
	if limit <= 0 || limit > command.ApprovalsMax {
		limit = command.ApprovalsMax
	}
	if len(out.All) > limit {
		out.All, out.More = out.All[:limit], true
	}
	return out
}

func joinTasks(pages []command.Tasks) (out command.Tasks) {
	for _, p := range pages {
		out.All, out.More = append(out.All, p.All...), out.More || p.More
	}
	slices.SortFunc(out.All, func(a, b command.Task) int { return a.Call.Compare(b.Call) })
	if len(out.All) > command.TasksMax {
		out.All, out.More = out.All[:command.TasksMax], true
	}
	return out
}

// passFollow adds the updates of all other members to those of this node: each publishes the events of its own runs.
func (m *membership) passFollow(in command.Follow, here <-chan struct{}, end func()) (updates <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	f := follower{members: m, in: in, out: make(chan struct{}, 1), ended: make(chan string), ctx: ctx}
	f.work.Go(func() { f.run(here) })
	return f.out, sync.OnceFunc(func() {
		cancel()
		end()
	})
}

// followAgain is the time between two attempts to subscribe at a member.
const followAgain = time.Second

// follower is a subscription at all members.
type follower struct {
	members *membership
	in      command.Follow
	out     chan struct{} // capacity 1
	ended   chan string   // names of members whose subscription has ended
	ctx     context.Context
	work    sync.WaitGroup
}

func (f *follower) run(here <-chan struct{}) {
	of := map[string]bool{} // members with a subscription
	var failed []string     // of these: subscriptions that have ended
	var again <-chan time.Time
	for {
		f.members.mu.Lock()
		placed := f.members.placed
		for member := range f.members.announced { // connected
			if !of[member] {
				of[member] = true
				f.work.Go(func() { f.follow(member) })
			}
		}
		f.members.mu.Unlock()
		select {
		case <-here:
			f.notify()
		case member := <-f.ended:
			f.notify() // events may have been missed
			if failed = append(failed, member); again == nil {
				again = time.After(followAgain)
			}
		case <-again:
			for _, member := range failed {
				delete(of, member)
			}
			failed, again = nil, nil
		case <-placed: // an owner that has gone has told nobody of the last events that it wrote
			f.notify()
		case <-f.ctx.Done():
			return
		}
	}
}

// follow passes on the updates of a member until its subscription ends.
func (f *follower) follow(member string) {
	defer func() {
		select {
		case f.ended <- member:
		case <-f.ctx.Done():
		}
	}()
	n, err := f.members.links.Node(member)
	if err != nil {
		return
	}
	updates, stop, err := n.Follow(f.ctx, f.in)
	if err != nil {
		return
	}
	defer stop()
	f.notify()
	for {
		select {
		case _, open := <-updates:
			if !open {
				return
			}
			f.notify()
		case <-f.ctx.Done():
			return
		}
	}
}

func (f *follower) notify() {
	select {
	case f.out <- struct{}{}:
	default:
	}
}

// heartbeatTimeout is the maximum time for a member to take a heartbeat.
const heartbeatTimeout = 2 * time.Second

// External is the egress of a node for its gateway.
type External struct {
	*outbound.Outbound
	members *membership
}

// Heartbeat records a heartbeat at all members, because each may call the agent.
func (e External) Heartbeat(name string) bool {
	if e.members == nil {
		return e.Outbound.Heartbeat(name)
	}
	known := e.Outbound.Heartbeat(name)
	others, _ := e.members.others()
	for _, n := range others {
		ctx, cancel := context.WithTimeout(context.Background(), heartbeatTimeout)
		_, _ = command.Perform(ctx, n, e.members.principal(agents.RegistryID), command.Heartbeat{Name: name})
		cancel()
	}
	return known
}
