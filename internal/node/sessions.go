// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/store"
)

// Sessions returns a page of sessions, the last changed first. The pages are in descending order
// of the names: no index orders all sessions by time.
func (v View) Sessions(q command.SessionsQuery) (command.Sessions, error) {
	if err := checkLimit(q.Limit, command.SessionsMax); err != nil {
		return command.Sessions{}, err
	}
	names, next, err := v.Log.Sessions(v.Tenant, q.Before, q.Limit)
	out := command.Sessions{Next: next}
	for _, name := range names {
		if err != nil {
			break
		}
		var s command.Session
		s, err = v.Session(name)
		if r := (*actor.Refusal)(nil); errors.As(err, &r) && r.Reason == actor.NotFound { // deleted in the meantime
			err = nil
			continue
		}
		out.All = append(out.All, s)
	}
	slices.SortStableFunc(out.All, func(a, b command.Session) int { return cmp.Compare(b.Updated, a.Updated) })
	return out, err
}

// Session returns a session, or a NotFound refusal. It was created with its first message,
// description or context. A client may have chosen its name, so a time in the name means nothing.
func (v View) Session(name string) (command.Session, error) {
	s := command.Session{Name: name}
	ids, err := v.Log.SessionActors(v.Tenant, name)
	if err == nil && len(ids) == 0 {
		return s, actor.SessionNotFound(name)
	}
	began := func(at actor.Time) {
		if at != 0 && (s.Created == 0 || at < s.Created) {
			s.Created = at
		}
	}
	for _, id := range ids {
		if err != nil {
			break
		}
		var j store.Journal
		if j, err = v.journal(id); err != nil {
			continue
		}
		s.Updated = max(s.Updated, j.At)
		if id.Agent == actor.SessionAgent {
			describe(&s, j.ActorState)
		}
		if actor.IsSystemAgent(id.Agent) {
			began(agents.ReadCreated(j.ActorState))
			continue
		}
		a := command.SessionAgent{Agent: id.Agent, Messages: j.Transcript.Len(), Runs: j.Transcript.Runs, Usage: j.Transcript.Usage}
		for _, run := range j.Runs {
			a.Open = append(a.Open, run.Call.ID)
			began(run.At)
		}
		if a.Messages == 0 && len(a.Open) == 0 {
			continue // other agents have called it
		}
		if t := &j.Transcript; t.Len() > 0 {
			s.Last = max(s.Last, t.Last)
			began(t.Began)
		}
		s.Agents = append(s.Agents, a)
	}
	return s, orNotFound(err, name)
}

// orNotFound returns an error, or a NotFound refusal if it states that the session was deleted.
func orNotFound(err error, session string) error {
	if errors.As(err, new(store.Gone)) {
		return actor.SessionNotFound(session)
	}
	return err
}

// orDeleted returns an error, or a refusal if it states that the session was deleted: a client that
// follows the session learns why nothing follows.
func orDeleted(err error, session string) error {
	if errors.As(err, new(store.Gone)) {
		return actor.RefuseNotFound(actor.WhatDeleted, "session %s was deleted: choose another name to begin one", session)
	}
	return err
}

// describe sets what the actor of the session knows.
func describe(s *command.Session, items []actor.StateItem) {
	for _, item := range items {
		switch item.Name {
		case agents.SessionTitle:
			s.Title = string(item.Value)
		case agents.SessionMetadata:
			s.Metadata = item.Value
		}
	}
}

// Context returns a version of a context, or a NotFound refusal.
func (v View) Context(q command.ContextQuery) (command.Context, error) {
	j, err := v.journal(actor.ID{Tenant: v.Tenant, Agent: actor.ContextAgent, Key: q.Session})
	if _, gone := err.(store.Gone); gone {
		return command.Context{}, agents.ContextNotFound()
	}
	if err != nil {
		return command.Context{}, err
	}
	info, version, value := agents.ReadContext(j.ActorState, q.ID, q.Version)
	switch {
	case value != nil:
	case len(info.Versions) > 0:
		return command.Context{}, info.VersionNotFound(q.Version)
	default:
		return command.Context{}, agents.ContextNotFound()
	}
	return command.Context{OwnerType: info.OwnerType, OwnerID: info.OwnerID, Version: version.Version, At: version.At, Value: value}, nil
}

func (v View) journal(id actor.ID) (store.Journal, error) {
	saved, err := v.Log.Load(id)
	if err != nil {
		return store.Journal{}, err
	}
	return store.Fold(saved)
}

// SessionEvents returns a page of the events of a session.
func (v View) SessionEvents(q command.SessionEventsQuery) (out command.SessionEvents, err error) {
	if err := checkLimit(q.Limit, command.EventsMax); err != nil {
		return out, err
	}
	page, err := v.Log.SessionEvents(v.Tenant, q.Session, q.After, q.Limit)
	if dropped := (store.SessionEventsDropped{}); errors.As(err, &dropped) {
		out.Dropped = dropped.First
		return out, nil
	}
	for _, e := range page {
		out.All = append(out.All, command.SessionEvent{At: e.At, Run: e.Run, Seq: e.Seq, Body: e.Body})
	}
	out.More = len(page) == q.Limit && len(page) > 0
	return out, orDeleted(err, q.Session)
}

// SessionEnd returns the end of the events of a session, and whether it exists.
func (v View) SessionEnd(name string) (out command.SessionEnd, err error) {
	ids, err := v.Log.SessionActors(v.Tenant, name)
	if err == nil && len(ids) > 0 {
		out.Exists = true
		out.Cursor, err = v.Log.SessionEnd(v.Tenant, name)
	}
	return out, orDeleted(err, name)
}

// messagesBytesMax is the approximate maximum size in bytes of the messages of a page. A
// larger message is a page of its own.
const messagesBytesMax = 8 << 20

// Messages returns a page of a transcript.
func (v View) Messages(q command.MessagesQuery) (command.Messages, error) {
	out := command.Messages{Session: q.Session, Agent: q.Agent}
	if err := checkLimit(q.Limit, command.MessagesMax); err != nil {
		return out, err
	}
	id, j, err := v.conversation(q)
	if err != nil || id == (actor.ID{}) {
		return out, orNotFound(err, q.Session)
	}
	out.Agent = id.Agent
	for _, run := range j.Runs {
		if store.IsMessage(&run.Call) {
			out.Open = append(out.Open, run.Message())
		}
	}
	out.Total = j.Transcript.Len()
	to := out.Total
	if q.Before != (actor.MessageID{}) {
		if to, err = v.find(id, &j.Transcript, q.Before); err != nil {
			return out, orNotFound(err, q.Session)
		}
	}
	size := 0
	for to > 0 && len(out.All) < q.Limit {
		from := to - min(to, uint64(q.Limit-len(out.All)), store.PageMessagesMax)
		all, err := store.ReadTranscript(v.Log, id, &j.Transcript, from, to)
		if err != nil {
			return out, orNotFound(err, q.Session)
		}
		for _, m := range slices.Backward(all) {
			if size += actor.SizeOf(m.Parts); size > messagesBytesMax && len(out.All) > 0 {
				out.More = true
				return out, nil
			}
			out.All = append(out.All, m)
		}
		to = from
	}
	out.More = to > 0
	return out, nil
}

// conversation returns the actor whose transcript a query asks for, and its journal. The actor
// is zero if no agent of the session has messages.
func (v View) conversation(q command.MessagesQuery) (id actor.ID, j store.Journal, err error) {
	ids := []actor.ID{{Tenant: v.Tenant, Agent: q.Agent, Key: q.Session}}
	if q.Agent == "" || q.Session != actor.DefaultKey {
		if ids, err = v.Log.SessionActors(v.Tenant, q.Session); err == nil && len(ids) == 0 {
			err = actor.SessionNotFound(q.Session)
		}
	}
	var found []string
	for _, next := range ids {
		if err != nil {
			break
		}
		if q.Agent != "" && q.Agent != next.Agent || actor.IsSystemAgent(next.Agent) {
			continue
		}
		var journal store.Journal
		if journal, err = v.journal(next); err != nil || q.Agent == "" && !hasMessages(&journal) {
			continue
		}
		id, j, found = next, journal, append(found, next.Agent)
	}
	if err == nil && len(found) > 1 {
		r := actor.Refuse(actor.Invalid, "session %s has conversations with several agents: want agent (--agent) to be one of %s", q.Session, strings.Join(found, ", "))
		r.Field = "agent"
		err = r
	}
	return id, j, err
}

// hasMessages reports whether an actor has messages of clients, or an open run of one.
func hasMessages(j *store.Journal) bool {
	return j.Transcript.Len() > 0 || slices.ContainsFunc(j.Runs, func(run *store.Run) bool { return store.IsMessage(&run.Call) })
}

// find returns the number of a message. It reads the transcript backwards, page by page.
func (v View) find(id actor.ID, t *store.Transcript, message actor.MessageID) (uint64, error) {
	for to := t.Len(); to > 0; {
		from := to - min(to, store.PageMessagesMax)
		all, err := store.ReadTranscript(v.Log, id, t, from, to)
		if err != nil {
			return 0, err
		}
		for i := range all {
			if all[i].ID() == message {
				return from + uint64(i), nil
			}
		}
		to = from
	}
	r := actor.Refuse(actor.Invalid, "the transcript has no message %s: want a message_id of this session", message)
	r.Field = "before"
	return 0, r
}
