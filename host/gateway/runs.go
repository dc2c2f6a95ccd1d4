// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

const (
	signalTimeout  = 30 * time.Second
	cancelTimeout  = 5 * time.Second
	pollTimeoutMax = time.Minute
)

// lookup returns the result of a query on behalf of a caller.
func lookup[R command.Result](s *Server, by caller, q command.QueryFor[R]) (R, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return command.Find(ctx, nodeOf(s, &by), by.Principal, q)
}

// runOwner returns the owner of a run, or a NotFound refusal.
func (s *Server) runOwner(by caller, run actor.CallID) (command.Owner, error) {
	return lookup(s, by, command.OwnerQuery{Run: run})
}

func (s *Server) getRun(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	tree := false
	if p == nil {
		tree, p = queryFlag(ctx, "tree")
	}
	if p != nil {
		p.write(ctx)
		return
	}
	if by := callerOf(ctx); tree && !by.chats() { // a customer sees its run alone
		s.scan(ctx, func(reading context.Context) func() {
			body, err := s.appendTree(reading, by, id)
			if err != nil {
				return func() { s.respondError(ctx, err) }
			}
			return func() { respond(ctx, http.StatusOK, body) }
		})
		return
	}
	run, err := lookup(s, callerOf(ctx), command.RunQuery{Run: id})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	body := run.AppendJSON(nil)
	if record := run.Current(); record.Status == runs.Running && record.Started == 0 {
		body = appendPlace(s, callerOf(ctx), body, &record)
	}
	respond(ctx, http.StatusOK, body)
}

// appendTree returns a run and the runs below it as JSON, each before those that it
// called, in the order of the calls. It lists at most RunsMax runs. A call whose run
// has not begun is listed by its caller only.
func (s *Server) appendTree(ctx context.Context, by caller, id actor.CallID) ([]byte, error) {
	run, err := command.Find(ctx, nodeOf(s, &by), by.Principal, command.RunQuery{Run: id})
	if err != nil {
		return nil, err
	}
	body := []byte(`{"runs":[`)
	var next []actor.CallID // the last one comes first
	for listed := 1; ; listed++ {
		detached, err := detachedCalls(ctx, s, by, &run)
		if err != nil {
			return nil, err
		}
		next = append(next, detached...)
		run.Shorten()
		body = run.AppendJSON(body)
		for _, call := range slices.Backward(run.Record.Children) {
			if call.Run != (actor.CallID{}) { // else it was refused before it was sent
				next = append(next, call.Run)
			}
		}
		if run, next, err = s.nextRun(ctx, by, next); err != nil {
			return nil, err
		}
		switch {
		case run.Owner.Run == actor.CallID{}:
			return append(body, "]}"...), nil
		case listed == RunsMax:
			return append(body, `],"truncated":true}`...), nil
		}
		body = append(body, ',')
	}
}

// detachedCalls returns the runs of the calls that a run has made without waiting, newest first. Its events do
// not name them, so they are searched among the runs that began while it was open.
func detachedCalls(ctx context.Context, s *Server, by caller, run *command.Run) (all []actor.CallID, err error) {
	r := &run.Record
	// IDs have whole milliseconds: one of the same millisecond is that of a time before.
	since := r.Created.Add(-time.Millisecond)
	q := command.RunsQuery{Filter: runs.Filter{Root: r.Root, Parent: run.Owner.Run, Since: since, Calls: true}, Limit: RunsMax}
	if r.Ended != 0 {
		q.Filter.Until = r.Ended.Add(time.Second)
	}
	for {
		found, err := command.Find(ctx, nodeOf(s, &by), by.Principal, q)
		if err != nil {
			return nil, err
		}
		for i := range found.Page.All {
			if id := found.Page.All[i].Run; !slices.ContainsFunc(r.Children, func(c runs.Child) bool { return c.Run == id }) {
				all = append(all, id)
			}
		}
		if found.Page.Next.IsZero() {
			return all, nil
		}
		q.Before = found.Page.Next
	}
}

// nextRun returns the last run of a stack that has begun, and the stack without it.
// The run is empty if none has.
func (s *Server) nextRun(ctx context.Context, by caller, stack []actor.CallID) (command.Run, []actor.CallID, error) {
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		run, err := command.Find(ctx, nodeOf(s, &by), by.Principal, command.RunQuery{Run: id})
		if r := (*actor.Refusal)(nil); errors.As(err, &r) && r.Reason == actor.NotFound {
			continue
		}
		return run, stack, err
	}
	return command.Run{}, nil, nil
}

// eventRoutes handles the requests for events of a run.
type eventRoutes struct{ *Server }

// getEvents answers with the events of a run that follow the event whose number
// is the parameter after. The answer is a stream, or the existing events as
// JSON. If none exist, the JSON form waits at most wait_ms for an event.
func (s eventRoutes) getEvents(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	if p == nil && ingress.WantsStream(header(ctx, fasthttp.HeaderAccept)) {
		s.streamEvents(ctx, id)
		return
	}
	var after, limit, wait uint64
	if p == nil {
		after, p = queryUint(ctx, "after", 0, 1<<62)
	}
	if p == nil {
		limit, p = queryLimit(ctx, EventsDefault, EventsMax)
	}
	if p == nil {
		wait, p = queryUint(ctx, "wait_ms", 0, uint64(pollTimeoutMax/time.Millisecond))
	}
	if p == nil && ctx.QueryArgs().Has("tree") {
		p = invalid(http.StatusBadRequest, "tree", "tree=1 requires Accept: "+ingress.EventStream)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	query := command.EventsQuery{Run: id, After: after, Limit: int(limit), Strict: true}
	if wait > 0 {
		s.awaitEvents(ctx, query, time.Duration(wait)*time.Millisecond)
		return
	}
	by := callerOf(ctx)
	s.scan(ctx, func(reading context.Context) func() {
		page, err := command.Find(reading, nodeOf(s.Server, &by), by.Principal, query)
		return func() { s.respondEvents(ctx, &page, err) }
	})
}

// respondEvents answers with a page of events as JSON.
func (s eventRoutes) respondEvents(ctx *fasthttp.RequestCtx, page *command.Events, err error) {
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	respond(ctx, http.StatusOK, page.AppendJSON(nil))
}

// awaitEvents answers with a page of events. If there are none, it waits for one. It takes a place
// among the streams and reads in turn with those of its principal.
func (s eventRoutes) awaitEvents(ctx *fasthttp.RequestCtx, query command.EventsQuery, wait time.Duration) {
	by := callerOf(ctx)
	release, r := s.streams.acquire(&by)
	if r != nil {
		refusalProblem(r).write(ctx)
		return
	}
	defer release()
	watch := clientOf(s.Server, &by).Watch(s.draining)
	defer watch.Close()
	if err := watch.Follow(client.Subject{Run: query.Run}); err != nil {
		s.respondError(ctx, err)
		return
	}
	read := func() (command.Events, error) {
		defer s.turns.take(&by)()
		return lookup(s.Server, by, query)
	}
	waitCtx := s.newClientContext(ctx, wait)
	defer waitCtx.stop()
	for last := false; ; {
		page, err := read()
		if err != nil || len(page.All) > 0 || page.Ended || last {
			s.respondEvents(ctx, &page, err)
			return
		}
		if err := watch.Await(waitCtx); err != nil {
			if respondAborted(ctx, waitCtx.cause()) {
				return
			}
			last = true
		}
	}
}

// streamEvents streams a run, or a run with all runs below it, from the client's
// cursor.
func (s *Server) streamEvents(ctx *fasthttp.RequestCtx, id actor.CallID) {
	after, p := requestCursor(ctx)
	tree := false
	if p == nil {
		tree, p = queryFlag(ctx, "tree")
	}
	if p != nil {
		p.write(ctx)
		return
	}
	_, err := s.runOwner(callerOf(ctx), id)
	if err == nil { // a client would reconnect to a stream that ends because events were dropped
		q := command.EventsQuery{Run: id, Limit: 1}
		if len(after) > 0 {
			q.After = after[0]
		}
		_, err = lookup(s, callerOf(ctx), q)
	}
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	by := callerOf(ctx)
	release, r := s.streams.acquire(&by)
	if r != nil {
		refusalProblem(r).write(ctx)
		return
	}
	s.streamRun(ctx, id, tree, after, release)
}

// signalRun delivers a signal to a waiting run.
func (s *Server) signalRun(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	var signal ingress.RunSignal
	var r *client.Request
	if p == nil {
		signal, p = decodeBody(ctx, ingress.DecodeSignal)
	}
	if p == nil {
		r, p = requestOf(ctx, "POST /v1/runs/{id}:signal "+id.String(), headers(ctx, ingress.IdempotencyKey))
	}
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	waitCtx := s.newClientContext(ctx, client.Timeout)
	err := clientOf(s, &by).Signal(waitCtx, id, signal.Name, signal.Payload, r)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
	case err != nil:
		s.errorProblem(ctx, err).ofRun(id).write(ctx)
	default:
		respondJSON(ctx, http.StatusOK, struct {
			Run    string `json:"run_id"`
			Name   string `json:"name"`
			Status string `json:"status"`
		}{id.String(), signal.Name, "received"})
	}
}

// runToChange returns the run in the path of a request without a body, and its owner. If the run is
// unknown or one of the registry, it answers the request and reports false.
func runToChange(s *Server, ctx *fasthttp.RequestCtx) (id actor.CallID, owner command.Owner, ok bool) {
	id, p := pathRunID(ctx)
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	if p != nil {
		p.write(ctx)
		return id, owner, false
	}
	by := callerOf(ctx)
	reading := s.newTimeout(readTimeout)
	defer reading.stop()
	owner, err := clientOf(s, &by).RunToChange(reading, id)
	if err != nil {
		s.respondError(ctx, err)
	}
	return id, owner, err == nil
}

// cancelRun cancels a run and everything it waits for. It is idempotent: a run
// that has ended keeps its outcome.
func (s *Server) cancelRun(ctx *fasthttp.RequestCtx) {
	id, owner, ok := runToChange(s, ctx)
	if !ok {
		return
	}
	by := callerOf(ctx)
	waitCtx := s.newClientContext(ctx, cancelTimeout)
	status, err := clientOf(s, &by).CancelAndWait(waitCtx, owner)
	cause := waitCtx.cause()
	waitCtx.stop()
	out := struct {
		Run    string `json:"run_id"`
		Status string `json:"status"`
	}{id.String(), status.String()}
	switch {
	case respondAborted(ctx, cause):
	case err != nil:
		s.respondError(ctx, err)
	case status.Ended():
		respondJSON(ctx, http.StatusOK, out)
	default:
		respondJSON(ctx, http.StatusAccepted, out) // the run ends once its agent reacts
	}
}
