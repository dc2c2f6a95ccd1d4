// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
)

// PageMax is the maximum number of elements of a page.
const PageMax = 200

// The node accepts such pages.
const _ = uint(min(command.SessionsMax, command.MessagesMax) - PageMax)

// Sessions reads and changes the sessions of one user. Its errors are a *Refusal, ErrClosed or the error
// of a context.
type Sessions struct {
	server *Server
	by     actor.Principal
	err    error // of the options
}

// Sessions returns the sessions of a user. Its option is User.
func (s *Server) Sessions(opts ...Option) Sessions {
	o, err := collect("Sessions", opts, optionUser)
	return Sessions{s, o.principal(), err}
}

// SessionInfo describes a session.
type SessionInfo struct {
	ID       string
	Title    string
	Metadata json.RawMessage // JSON object, or nil
	Created  time.Time       // zero if unknown
	Last     time.Time       // time of the last message; zero if there is none
	Agents   []SessionAgent  // those that have a transcript or an open run
}

// SessionAgent describes an agent in a session.
type SessionAgent struct {
	Agent    string
	Messages uint64   // messages of its transcript
	Runs     uint64   // ended runs of clients
	Open     []string // IDs of open runs, in order of acceptance
	Usage    Usage    // of the ended runs, with all calls below them
}

// Page selects a part of a list.
type Page struct {
	Cursor string // Next of the page before; empty for the first page
	Limit  int    // maximum number of elements, at most PageMax; 0 means 50
}

func (p Page) limit() (int, error) {
	switch {
	case p.Limit < 0 || p.Limit > PageMax:
		return 0, invalid("limit", "Limit: got %d, want 1 to %d", p.Limit, PageMax)
	case p.Limit == 0:
		return 50, nil
	}
	return p.Limit, nil
}

// SessionPage is a part of a list of sessions.
type SessionPage struct {
	All  []SessionInfo
	Next string // cursor of the next page; empty if this is the last one
}

// List returns a page of sessions, the last changed first. The pages are in descending order of the
// IDs. With at most PageMax sessions, one page with that limit thus lists all by time.
func (s Sessions) List(ctx context.Context, p Page) (SessionPage, error) {
	limit, err := p.limit()
	if err = cmp.Or(s.err, err); err != nil {
		return SessionPage{}, err
	}
	found, err := command.Find(ctx, s.server.node(), s.by, command.SessionsQuery{Before: p.Cursor, Limit: limit})
	if err != nil {
		return SessionPage{}, errorOf(err)
	}
	out := SessionPage{Next: found.Next}
	for i := range found.All {
		out.All = append(out.All, newSession(&found.All[i]))
	}
	return out, nil
}

// Get returns one session.
func (s Sessions) Get(ctx context.Context, session string) (SessionInfo, error) {
	found, err := s.get(ctx, session)
	if err != nil {
		return SessionInfo{}, err
	}
	return newSession(&found), nil
}

func (s Sessions) get(ctx context.Context, session string) (command.Session, error) {
	if err := s.check(session); err != nil {
		return command.Session{}, err
	}
	found, err := command.Find(ctx, s.server.node(), s.by, command.SessionQuery{Session: session})
	return found, errorOf(err)
}

// check returns the error of the options, or that of the name of a session.
func (s Sessions) check(session string) error {
	if s.err != nil {
		return s.err
	}
	if _, r := ingress.CheckSession(session); r != nil {
		return newRefusal(r)
	}
	return nil
}

func newSession(s *command.Session) SessionInfo {
	out := SessionInfo{ID: s.Name, Title: s.Title, Metadata: s.Metadata, Created: newTime(s.Created), Last: newTime(s.Last)}
	for i := range s.Agents {
		a := &s.Agents[i]
		agent := SessionAgent{Agent: a.Agent, Messages: a.Messages, Runs: a.Runs, Usage: newUsage(a.Usage)}
		for _, run := range a.Open {
			agent.Open = append(agent.Open, run.String())
		}
		out.Agents = append(out.Agents, agent)
	}
	return out
}

func newTime(t actor.Time) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t))
}

// The roles of a message.
const (
	RoleUser      = "user"
	RoleAssistant = "assistant" // the agent
	RoleSystem    = "system"
	RoleTool      = "tool"
)

// Message is a message of a session.
type Message struct {
	ID     string // empty in Append
	Role   string // a role above
	Text   string
	Origin string    // "user", "agent", "operator" (Append) or "delivered"; empty in Append
	Run    string    // ID of the run that the message began or ended; empty if there is none
	At     time.Time // zero in Append
}

func newMessages(all []actor.ChatMessage) (out []Message) {
	for i := range all {
		m := &all[i]
		message := Message{ID: m.ID().String(), Role: m.Role.String(), Text: actor.ReadableText(m.Parts), Origin: m.Source.String(), At: newTime(m.At)}
		if m.Source == actor.FromUser || m.Source == actor.FromAgent {
			message.Run = m.Call.String()
		}
		out = append(out, message)
	}
	return out
}

// Messages is a part of the transcript of an agent in a session.
type Messages struct {
	Agent string
	All   []Message // oldest first
	Open  []Message // messages of clients whose runs are open, in order of acceptance
	Total uint64    // messages of the whole transcript
	Next  string    // cursor of the page with older messages; empty if there are none
}

// Messages returns the latest messages of the transcript of an agent, or those before a cursor. The
// agent may be empty if the session has the transcript of one agent. The transcript has the messages
// of clients and the answers to them, but not those of calls between agents.
func (s Sessions) Messages(ctx context.Context, session, agent string, p Page) (Messages, error) {
	limit, err := p.limit()
	if err = cmp.Or(s.check(session), err); err != nil {
		return Messages{}, err
	}
	q := command.MessagesQuery{Session: session, Agent: agent, Limit: limit}
	if p.Cursor != "" {
		if q.Before, err = actor.ParseMessageID(p.Cursor); err != nil {
			return Messages{}, invalid("before", "%v", err)
		}
	}
	found, err := command.Find(ctx, s.server.node(), s.by, q)
	if err != nil {
		return Messages{}, errorOf(err)
	}
	slices.Reverse(found.All)
	out := Messages{Agent: found.Agent, All: newMessages(found.All), Open: newMessages(found.Open), Total: found.Total}
	if found.More && len(out.All) > 0 {
		out.Next = out.All[0].ID
	}
	return out, nil
}

// Append adds a message with a Role and a Text to the transcript of an agent, and returns its ID. It
// starts no run. The agent may be empty if the session has the transcript of one agent.
func (s Sessions) Append(ctx context.Context, session, agent string, m Message) (id string, err error) {
	if err := s.check(session); err != nil {
		return "", err
	}
	role, err := actor.ParseRole(m.Role)
	switch {
	case err != nil:
		return "", invalid("role", "Role: got %.40q, want %s, %s, %s or %s", m.Role, RoleUser, RoleAssistant, RoleSystem, RoleTool)
	case m.Text == "":
		return "", invalid("content", "Text is empty")
	}
	if agent == "" {
		found, err := s.Messages(ctx, session, "", Page{Limit: 1})
		if err != nil {
			return "", err
		}
		if agent = found.Agent; agent == "" {
			return "", invalid("agent_id", "session %s has the transcript of no agent yet: name the agent", session)
		}
	}
	if _, err := s.server.find(ctx, s.by, agent); err != nil {
		return "", err
	}
	added, err := s.server.client(s.by).Append(ctx, s.by.ID(agent, session), client.Message{Role: role, Text: m.Text}, &client.Request{})
	if err != nil {
		return "", s.server.failed(err)
	}
	return added.String(), nil
}

// Delete deletes a session with its transcripts, states, runs and events. Once it returns nil, no
// content of the session is left in the data folder, apart from backups. A session with open runs is refused
// with CodeSessionBusy: cancel them first.
func (s Sessions) Delete(ctx context.Context, session string) error {
	if _, err := s.get(ctx, session); err != nil {
		return err
	}
	return errorOf(s.server.node().Forget(ctx, command.Forget{By: s.by, Session: session}))
}
