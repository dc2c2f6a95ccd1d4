// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/internal/client"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// sessionFeed reads the events of all runs of a session in order.
type sessionFeed struct {
	server  *Server
	by      caller
	session string
	cursors ingress.SessionCursors
	after   runs.SessionCursor
	watch   *client.Watch
	stop    func()
}

// getSessionEvents answers with the events of a session that follow a cursor: as a stream, or
// the existing ones as JSON.
func (s sessionRoutes) getSessionEvents(ctx *fasthttp.RequestCtx) {
	name, r := ingress.CheckSession(pathParam(ctx, "id"))
	p := badRequest(r)
	var after string
	if p == nil {
		after, p = sessionCursor(ctx)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	streams := ingress.WantsStream(header(ctx, fasthttp.HeaderAccept))
	end, err := lookup(s.Server, callerOf(ctx), command.SessionEndQuery{Session: name})
	switch {
	case deletedSession(err) != nil, err == nil && !end.Exists:
		sessionNotFound(name).write(ctx)
		return
	case err != nil:
		s.respondError(ctx, err)
		return
	}
	f := &sessionFeed{server: s.Server, by: callerOf(ctx), session: name, stop: func() {}}
	f.cursors = sessionCursors(s.Server, &f.by)
	known := false
	if f.after, known = f.cursors.Find(name, after); !known {
		newProblem(http.StatusGone, "events_dropped", "EventsDropped", ingress.ForeignCursor+": read the events of this session from the first one, without a cursor").write(ctx)
		return
	}
	var limit, wait uint64
	if !streams {
		limit, p = queryLimit(ctx, EventsDefault, EventsMax)
		if p == nil {
			wait, p = queryUint(ctx, "wait_ms", 0, uint64(pollTimeoutMax/time.Millisecond))
		}
	}
	if p == nil && (streams || wait > 0) {
		p = f.follow(ctx, streams)
	}
	switch {
	case p != nil:
		p.write(ctx)
	case streams:
		f.stream(ctx)
	case wait == 0:
		s.scan(ctx, func(context.Context) func() {
			page, p, err := f.read(int(limit))
			return func() { s.respondPage(ctx, &page, p, err) }
		})
	default:
		defer f.stop()
		f.respond(ctx, int(limit), time.Duration(wait)*time.Millisecond)
	}
}

// deletedSession returns the refusal of a session that was deleted, or nil for other errors.
func deletedSession(err error) *actor.Refusal {
	var r *actor.Refusal
	if errors.As(err, &r) && r.IsNotFound(actor.WhatDeleted) {
		return r
	}
	return nil
}

// follow takes a place among the streams and subscribes to the session, until stop.
func (f *sessionFeed) follow(ctx *fasthttp.RequestCtx, streams bool) *problem {
	release, r := f.server.streams.acquire(&f.by)
	if r != nil {
		return refusalProblem(r)
	}
	ends := f.server.draining
	if streams {
		ends = f.server.stopping
	}
	f.watch = clientOf(f.server, &f.by).Watch(ends)
	f.stop = sync.OnceFunc(func() {
		f.watch.Close()
		release()
	})
	if err := f.watch.Follow(client.Subject{Session: f.session}); err != nil {
		f.stop()
		return f.server.errorProblem(ctx, err)
	}
	return nil
}

// sessionCursors makes the cursors of the sessions of a caller.
func sessionCursors(s *Server, by *caller) ingress.SessionCursors {
	return ingress.SessionCursors{Key: ingress.CursorKey(s.config.Secret), Tenant: by.Tenant}
}

// sessionCursor returns the cursor of the client, as requestCursor does.
func sessionCursor(ctx *fasthttp.RequestCtx) (string, *problem) {
	field, text := lastEventID, header(ctx, lastEventID)
	if text == "" {
		field, text = "after", string(ctx.QueryArgs().Peek("after"))
	}
	if err := ingress.CheckSessionCursor(text); err != nil {
		return "", invalid(http.StatusBadRequest, field, field+": "+err.Error())
	}
	return text, nil
}

// eventPage is a page of events and the cursor before the first of them.
type eventPage struct {
	after runs.SessionCursor
	text  func(runs.SessionCursor) string // of a cursor
	command.SessionEvents
}

// readInTurn is read for a feed that has a place among the streams.
func (f *sessionFeed) readInTurn(limit int) (page eventPage, p *problem, err error) {
	defer f.server.turns.take(&f.by)()
	return f.read(limit)
}

// read returns the next page and moves the cursor past it.
func (f *sessionFeed) read(limit int) (page eventPage, p *problem, err error) {
	page.after = f.after
	page.text = func(at runs.SessionCursor) string { return f.cursors.Text(f.session, at) }
	page.SessionEvents, err = lookup(f.server, f.by, command.SessionEventsQuery{Session: f.session, After: f.after, Limit: limit})
	if len(page.Dropped) > 0 {
		return page, newProblem(http.StatusGone, "events_dropped", "EventsDropped", "the log was cut, or the store was restored from a backup: read the events of this session after "+f.cursors.Text(f.session, page.Dropped)), nil
	}
	for _, e := range page.All {
		f.after = f.after.After(e.At)
	}
	return page, nil, err
}

// respondPage answers with a page as JSON.
func (s sessionRoutes) respondPage(ctx *fasthttp.RequestCtx, page *eventPage, p *problem, err error) {
	switch {
	case err != nil:
		s.respondError(ctx, err)
	case p != nil:
		p.write(ctx)
	default:
		respond(ctx, http.StatusOK, page.appendJSON())
	}
}

// respond answers with a page as JSON. If there are no events, it waits for one.
func (f *sessionFeed) respond(ctx *fasthttp.RequestCtx, limit int, wait time.Duration) {
	waitCtx := f.server.newClientContext(ctx, wait)
	defer waitCtx.stop()
	for last := false; ; {
		page, p, err := f.readInTurn(limit)
		if err != nil || p != nil || page.shows() || last {
			sessionRoutes{f.server}.respondPage(ctx, &page, p, err)
			return
		}
		if err := f.watch.Await(waitCtx); err != nil {
			if respondAborted(ctx, waitCtx.cause()) {
				return
			}
			last = true
		}
	}
}

// shows reports whether the page has events that the client may see.
func (page *eventPage) shows() bool {
	return slices.ContainsFunc(page.All, func(e command.SessionEvent) bool { return e.Body != nil })
}

// appendJSON returns the page as JSON. Each event has the cursor that follows it.
func (page *eventPage) appendJSON() []byte {
	b, cursor := []byte(`{"events":[`), page.after
	for _, e := range page.All {
		if cursor = cursor.After(e.At); e.Body == nil {
			continue
		}
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
		b = append(b, e.Body[:len(e.Body)-1]...)
		b = append(appendQuoted(append(b, `,"cursor":`...), page.text(cursor)), '}')
	}
	b = appendQuoted(append(b, `],"cursor":`...), page.text(cursor))
	return fmt.Appendf(b, `,"more":%t}`, page.More)
}

// appendFrames appends the page as events of a stream.
func (page *eventPage) appendFrames(b []byte) []byte {
	cursor := page.after
	for _, e := range page.All {
		if cursor = cursor.After(e.At); e.Body == nil {
			continue
		}
		b = runs.Frame{ID: page.text(cursor), Name: runs.TypeOf(e.Body).String(), Data: string(e.Body)}.Append(b)
	}
	return b
}

// sessionPageEvents is the number of events that a stream reads at once.
const sessionPageEvents = 64

// stream answers with a stream of events that ends when the client leaves.
func (f *sessionFeed) stream(ctx *fasthttp.RequestCtx) {
	first, p, err := f.readInTurn(sessionPageEvents)
	cleanup := f.stop
	switch {
	case err != nil:
		cleanup()
		f.server.respondError(ctx, err)
		return
	case p != nil:
		cleanup()
		p.write(ctx)
		return
	}
	openEventStream(f.server, ctx, "", cleanup, func(e eventStream, head []byte) {
		f.serve(e, runs.AppendRetry(head, ingress.RetryMean), &first)
	})
}

// serve writes the events until the client leaves, is too slow or loses its key, the session is
// deleted, or the server stops.
func (f *sessionFeed) serve(e eventStream, out []byte, page *eventPage) {
	gone, unwatch := watchPeer(e.conn)
	defer unwatch()
	for {
		if out = page.appendFrames(out); !e.write(out) {
			return
		}
		out = nil
		if !f.await(e, peerContext{gone}, page.More) {
			return
		}
		next, p, err := f.readInTurn(sessionPageEvents)
		switch {
		case p != nil:
			f.end(e, ingress.Broken, p.Detail)
			return
		case f.watch.Away(err):
			next = eventPage{}
		case deletedSession(err) != nil:
			f.end(e, ingress.SessionDeleted, deletedSession(err).Detail)
			return
		case err != nil:
			f.end(e, ingress.Broken, "the events cannot be read now: reconnect with the id of the last event read as Last-Event-ID")
			return
		}
		page = &next
	}
}

// await blocks until there are new events, or with ready not at all. It reports false if the
// stream has ended.
func (f *sessionFeed) await(e eventStream, peer peerContext, ready bool) bool {
	for pinged := time.Now(); ; {
		news, err := ready, f.watch.Check(peer)
		if err == nil && !ready {
			news, err = f.watch.Wait(peer, time.Until(pinged.Add(ingress.PingInterval)))
		}
		switch {
		case errors.Is(err, context.Canceled):
			return false
		case errors.Is(err, command.ErrClosed):
			f.end(e, ingress.Drained, "this server is stopping; reconnect with the id of the last event read as Last-Event-ID")
			return false
		case err != nil:
			f.end(e, ingress.NoAccess, err.Error())
			return false
		case news:
			return true
		}
		if pinged = time.Now(); !e.write(runs.AppendComment(nil, "ping")) {
			return false
		}
	}
}

// end writes the last frame, which has no id.
func (f *sessionFeed) end(e eventStream, reason ingress.EndReason, detail string) {
	data := appendQuoted(fmt.Appendf(nil, `{"reason":%q,"detail":`, reason), detail)
	e.writeFinal(runs.Frame{Name: ingress.StreamClosed, Data: string(append(data, '}'))}.Append(nil))
}
