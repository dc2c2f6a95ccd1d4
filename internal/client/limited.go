// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// limited is a node for a client that is limited to agents. A tree of runs belongs to the agent of its
// root. Of the trees of other agents, and of their conversations, the client neither reads nor changes
// anything: each command is refused before its effect as if they did not exist. A query that limited
// does not know is refused.
//
// AgentsQuery is not limited, because its result is shared and others index it: who names an agent to
// the client asks Finds.
type limited struct {
	command.Node
	agents []string
}

// Limit returns the node as a client sees it that is limited to agents; the node itself if there are none.
func Limit(n command.Node, agents []string) command.Node {
	if len(agents) == 0 {
		return n
	}
	return &limited{n, agents}
}

func (l *limited) finds(agent string) bool { return slices.Contains(l.agents, agent) }

// check refuses a run whose tree is not of an agent of the client.
func (l *limited) check(ctx context.Context, by actor.Principal, run actor.CallID) error {
	owner, err := command.Find(ctx, l.Node, by, command.OwnerQuery{Run: run})
	if err != nil {
		return err
	}
	if owner.Root != run {
		if owner, err = command.Find(ctx, l.Node, by, command.OwnerQuery{Run: owner.Root}); err != nil && !isNotFound(err) {
			return err
		}
	}
	if err != nil || !l.finds(owner.Actor.Agent) {
		return actor.RunNotFound(run)
	}
	return nil
}

// trees tells which runs of a list the client may see.
type trees struct {
	*limited
	ctx   context.Context
	by    actor.Principal
	known map[actor.CallID]bool
	err   error // the first one
}

func (l *limited) trees(ctx context.Context, by actor.Principal) *trees {
	return &trees{l, ctx, by, map[actor.CallID]bool{}, nil}
}

// show reports whether the client may see a run.
func (t *trees) show(run actor.CallID) bool {
	shown, known := t.known[run]
	if !known && t.err == nil {
		err := t.check(t.ctx, t.by, run)
		if shown = err == nil; err != nil && !isNotFound(err) {
			t.err = err
		}
		t.known[run] = shown
	}
	return shown && t.err == nil
}

// only returns the elements whose runs the client may see. The list may be shared and is not changed.
func only[T any](t *trees, all []T, run func(*T) actor.CallID) (out []T) {
	for i := range all {
		if t.show(run(&all[i])) {
			out = append(out, all[i])
		}
	}
	return out
}

// errLimited refuses what no limited client may ask.
var errLimited = &Forbidden{Detail: "a client that is limited to agents may not ask this"}

// Do implements command.Node.
func (l *limited) Do(context.Context, command.Do) (command.Result, error) { return nil, errLimited }

// Lookup implements command.Node.
func (l *limited) Lookup(ctx context.Context, c command.Lookup) (command.Result, error) {
	err := error(nil)
	switch q := c.Query.(type) {
	case command.AgentsQuery, command.ToolsQuery, command.ModelsQuery, command.HealthQuery, command.StatsQuery:
	case command.OwnerQuery:
		err = l.check(ctx, c.By, q.Run)
	case command.OpenRunQuery:
		err = l.check(ctx, c.By, q.Run)
	case command.RunQuery:
		err = l.check(ctx, c.By, q.Run)
	case command.WaitingQuery:
		err = l.check(ctx, c.By, q.Run)
	case command.EventsQuery:
		err = l.check(ctx, c.By, q.Run)
	case command.ToolCallQuery:
		err = l.check(ctx, c.By, q.ID.Run)
	case command.ActorsQuery:
		err = l.checkAgent(q.Agent)
	case command.ExternalQuery:
		err = l.checkAgent(q.Name)
	case command.WorkingQuery:
		for _, name := range q.Agents {
			err = cmp.Or(err, l.checkAgent(name))
		}
	case command.ContextQuery:
		err = l.checkSession(ctx, c.By, q.Session)
	case command.MessagesQuery:
		if err = l.checkSession(ctx, c.By, q.Session); err == nil && q.Agent == "" {
			q.Agent, err = l.onlyAgent(ctx, c.By, q.Session)
			c.Query = q
		}
		if err == nil {
			err = l.checkAgent(q.Agent)
		}
	case command.SessionQuery, command.SessionsQuery, command.SessionEndQuery, command.SessionEventsQuery,
		command.RunsQuery, command.ApprovalsQuery, command.TasksQuery, command.DeviceCallsQuery: // of whose results the client sees a part
	default:
		err = errLimited
	}
	if err != nil {
		return nil, err
	}
	if q, ok := c.Query.(command.ApprovalsQuery); ok {
		return l.approvals(ctx, c.By, q)
	}
	result, err := l.Node.Lookup(ctx, c)
	if err != nil {
		return result, err
	}
	return l.part(ctx, &c, result)
}

// part returns the part of a result that the client may see.
func (l *limited) part(ctx context.Context, c *command.Lookup, result command.Result) (command.Result, error) {
	t := l.trees(ctx, c.By)
	switch r := result.(type) {
	case command.Session:
		if !l.show(&r) {
			return nil, actor.SessionNotFound(r.Name)
		}
		return r, nil
	case command.Sessions:
		all := r.All
		r.All = nil
		for _, s := range all {
			if l.show(&s) {
				r.All = append(r.All, s)
			}
		}
		return r, nil
	case command.SessionEnd:
		_, err := command.Find(ctx, command.Node(l), c.By, command.SessionQuery{Session: c.Query.(command.SessionEndQuery).Session})
		if isNotFound(err) {
			return command.SessionEnd{Cursor: r.Cursor}, nil
		}
		return r, err
	case command.SessionEvents:
		r.All = slices.Clone(r.All)
		for i := range r.All {
			if !t.show(r.All[i].Run) {
				r.All[i].Body = nil
			}
		}
		return r, t.err
	case command.Runs:
		r.Page.All = only(t, r.Page.All, func(s *runs.Summary) actor.CallID { return s.Run })
		return r, t.err
	case command.Tasks:
		r.All = only(t, r.All, func(k *command.Task) actor.CallID { return k.Call })
		return r, t.err
	case command.DeviceCalls:
		r.All = only(t, r.All, func(d *command.DeviceCall) actor.CallID { return d.ID.Run })
		return r, t.err
	}
	return result, nil
}

// show removes from a session the agents that the client does not find. It reports whether the session
// is one of the client: it has a conversation with an agent of the client, or none at all.
func (l *limited) show(s *command.Session) bool {
	all := s.Agents
	s.Agents = nil
	for i := range all {
		if l.finds(all[i].Agent) {
			s.Agents = append(s.Agents, all[i])
		}
	}
	return len(s.Agents) > 0 || len(all) == 0
}

// onlyAgent returns the agent of the client that has a conversation in a session.
func (l *limited) onlyAgent(ctx context.Context, by actor.Principal, session string) (string, error) {
	found, err := command.Find(ctx, command.Node(l), by, command.SessionQuery{Session: session})
	if err != nil && !isNotFound(err) {
		return "", err
	}
	var names []string
	for i := range found.Agents {
		if a := &found.Agents[i]; a.Messages > 0 || len(a.Open) > 0 {
			names = append(names, a.Agent)
		}
	}
	switch len(names) {
	case 0:
		return l.agents[0], nil
	case 1:
		return names[0], nil
	}
	r := actor.Refuse(actor.Invalid, "session %s has conversations with several agents: want agent (--agent) to be one of %s", session, strings.Join(names, ", "))
	r.Field = "agent"
	return "", r
}

// approvals returns a page of the approvals that the client may see. It reads on until the page is full,
// because a list continues behind its last approval.
func (l *limited) approvals(ctx context.Context, by actor.Principal, q command.ApprovalsQuery) (out command.Approvals, err error) {
	t, limit := l.trees(ctx, by), q.Limit
	if limit == 0 {
		limit = command.ApprovalsMax
	}
	for q.Limit = limit; ; {
		page, err := command.Find(ctx, l.Node, by, q)
		if err != nil {
			return command.Approvals{}, err
		}
		out.All = append(out.All, only(t, page.All, func(a *command.Approval) actor.CallID { return a.ID.Run })...)
		switch {
		case t.err != nil:
			return command.Approvals{}, t.err
		case len(out.All) > limit:
			out.All, out.More = out.All[:limit], true
			return out, nil
		case !page.More || len(page.All) == 0:
			return out, nil
		case len(out.All) == limit:
			out.More = true
			return out, nil
		}
		q.After = page.All[len(page.All)-1].Position()
	}
}

func (l *limited) checkAgent(agent string) error {
	if !l.finds(agent) {
		return actor.AgentNotFound(agent)
	}
	return nil
}

// checkSession refuses a session that exists and is not one of the client.
func (l *limited) checkSession(ctx context.Context, by actor.Principal, session string) error {
	found, err := command.Find(ctx, l.Node, by, command.SessionQuery{Session: session})
	switch {
	case isNotFound(err):
		return nil
	case err == nil && !l.show(&found):
		return actor.SessionNotFound(session)
	}
	return err
}

// Invoke implements command.Node.
func (l *limited) Invoke(ctx context.Context, c command.Invoke, joined func(actor.CallID)) (command.Answer, error) {
	err := error(nil)
	switch to := c.Call.To; to.Agent {
	case actor.SessionAgent, actor.ContextAgent:
		err = l.checkSession(ctx, c.By, to.Key)
	default:
		err = l.checkAgent(to.Agent)
	}
	if err != nil {
		return command.Answer{}, err
	}
	return l.Node.Invoke(ctx, c, joined)
}

// Signal implements command.Node.
func (l *limited) Signal(ctx context.Context, c command.Signal) (command.Answer, error) {
	err := error(nil)
	if c.Call.Parent.IsZero() {
		err = l.checkAgent(c.Call.To.Agent)
	} else {
		err = l.check(ctx, c.By, c.Call.Parent)
	}
	if err != nil {
		return command.Answer{}, err
	}
	return l.Node.Signal(ctx, c)
}

// Cancel implements command.Node.
func (l *limited) Cancel(ctx context.Context, c command.Cancel) error {
	if err := l.check(ctx, c.By, c.Run); err != nil {
		return err
	}
	return l.Node.Cancel(ctx, c)
}

// Forget implements command.Node.
func (l *limited) Forget(ctx context.Context, c command.Forget) error {
	if err := l.checkForget(ctx, c.By, c.Session); err != nil {
		return err
	}
	return l.Node.Forget(ctx, c)
}

// checkForget refuses the deletion of a session that holds conversations of other agents. The
// conversations that the agents of the client have begun with others are its own.
func (l *limited) checkForget(ctx context.Context, by actor.Principal, session string) error {
	found, err := command.Find(ctx, l.Node, by, command.SessionQuery{Session: session})
	if err != nil {
		return err
	}
	all := found.Agents
	if !l.show(&found) {
		return actor.SessionNotFound(session)
	}
	for i := range all {
		switch own, err := l.ownsRuns(ctx, by, session, all[i].Agent); {
		case err != nil:
			return err
		case !own:
			return &Forbidden{Detail: "session " + session + " holds more than the conversations of this client: somebody who may see them all deletes it"}
		}
	}
	return nil
}

// ownsRuns reports whether all runs of an agent in a session are in trees of the client. The messages of
// another agent that has no runs are not of the client.
func (l *limited) ownsRuns(ctx context.Context, by actor.Principal, session, agent string) (bool, error) {
	t, any := l.trees(ctx, by), l.finds(agent)
	for q := (command.RunsQuery{Filter: runs.Filter{Session: session, Agent: agent, Calls: true}, Limit: command.RunsMax}); ; {
		found, err := command.Find(ctx, l.Node, by, q)
		if err != nil {
			return false, err
		}
		for i := range found.Page.All {
			if !t.show(found.Page.All[i].Run) {
				return false, t.err
			}
			any = true
		}
		if q.Before = found.Page.Next; q.Before.IsZero() {
			return any, nil
		}
	}
}

// Follow implements command.Node. A run that does not exist yet may be followed. A device gets the calls
// in trees of the client.
func (l *limited) Follow(ctx context.Context, c command.Follow) (updates <-chan struct{}, stop func(), err error) {
	if c.Session == "" && c.Device == "" {
		_, unknown := command.Find(ctx, l.Node, c.By, command.OwnerQuery{Run: c.Run})
		if err := l.check(ctx, c.By, c.Run); err != nil && !isNotFound(unknown) {
			return nil, nil, err
		}
	}
	c.Agents = l.agents
	return l.Node.Follow(ctx, c)
}

// checkForget refuses the deletion of a session that the client may not delete.
func (c *Client) checkForget(ctx context.Context, session string) error {
	if l, ok := c.Node.(*limited); ok {
		return l.checkForget(ctx, c.By, session)
	}
	return nil
}
