// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

const (
	signalTimeout  = 30 * time.Second
	cancelTimeout  = 5 * time.Second
	pollTimeoutMax = time.Minute
)

// readView reads the store once everything visible in it is durable.
func (s *Server) readView(fn func(View) error) error {
	readCtx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return s.node.Read(readCtx, func(kv store.KV) error { return fn(View{kv}) })
}

// runOwner returns the owner of a run, or a NotFound refusal.
func (s *Server) runOwner(run actor.CallID) (owner store.RunOwner, err error) {
	err = s.readView(func(v View) (err error) {
		owner, err = v.Owner(run)
		return err
	})
	return owner, err
}

// respondView answers with the result of a read.
func (s *Server) respondView(ctx *fasthttp.RequestCtx, read func(View) ([]byte, error)) {
	var body []byte
	err := s.readView(func(v View) (err error) {
		body, err = read(v)
		return err
	})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	respond(ctx, http.StatusOK, body)
}

func (s *Server) listRuns(ctx *fasthttp.RequestCtx) {
	limit, p := queryUint(ctx, "limit", RunsDefault, RunsMax)
	if p != nil {
		p.write(ctx)
		return
	}
	s.respondView(ctx, func(v View) ([]byte, error) { return v.Runs(int(limit)) })
}

func (s *Server) getRun(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	if p != nil {
		p.write(ctx)
		return
	}
	s.respondView(ctx, func(v View) ([]byte, error) { return v.Run(id) })
}

// getEvents returns the events of a run that follow the event numbered after: as
// a stream, or as the JSON of those that exist. If none exist, the JSON form
// waits for one up to wait_ms.
func (s *Server) getEvents(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	if p == nil && ingress.WantsStream(header(ctx, fasthttp.HeaderAccept)) {
		s.streamEvents(ctx, id)
		return
	}
	var params [3]uint64
	for i, q := range []struct {
		name                   string
		defaultValue, maxValue uint64
	}{{"after", 0, 1 << 62}, {"limit", EventsDefault, EventsMax}, {"wait_ms", 0, uint64(pollTimeoutMax / time.Millisecond)}} {
		if p == nil {
			params[i], p = queryUint(ctx, q.name, q.defaultValue, q.maxValue)
		}
	}
	if p == nil && ctx.QueryArgs().Has("tree") {
		p = invalid(http.StatusBadRequest, "tree", "tree=1 requires Accept: "+ingress.EventStream)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	appended, unwatch := s.node.Watch(id)
	defer unwatch()
	waitCtx := s.newClientContext(ctx, time.Duration(params[2])*time.Millisecond)
	defer waitCtx.stop()
	for last := params[2] == 0; ; {
		var body []byte
		var wait bool
		err := s.readView(func(v View) (err error) {
			body, wait, err = v.Events(id, params[0], int(params[1]))
			return err
		})
		if err != nil {
			s.respondError(ctx, err)
			return
		}
		if !wait || last {
			respond(ctx, http.StatusOK, body)
			return
		}
		select {
		case <-appended:
		case <-waitCtx.Done():
			if respondAborted(ctx, waitCtx.cause()) {
				return
			}
			last = true
		case <-s.draining:
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
	if _, err := s.runOwner(id); err != nil {
		s.respondError(ctx, err)
		return
	}
	if r := s.streams.acquire(); r != nil {
		refusalProblem(r).write(ctx)
		return
	}
	s.streamRun(ctx, id, tree, after, func() {})
}

// registryRunRefusal is the refusal to signal or cancel a run of the registry. An
// interrupted change would be stored but not announced.
func registryRunRefusal() *actor.Refusal {
	return actor.Refuse(actor.Rejected, "runs of the registry can be neither signalled nor cancelled")
}

// signalRun delivers a signal to a waiting run.
func (s *Server) signalRun(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	var call actor.Call
	if p == nil {
		call, p = decodeBody(ctx, func(b []byte) (actor.Call, *actor.Refusal) { return ingress.Signal(id, b) })
	}
	if p == nil {
		p = fillRequestContext(ctx, "POST /v1/runs/{id}:signal "+id.String(), &call)
	}
	if p == nil && call.Operation == ingress.CallAgent {
		p = invalid(http.StatusBadRequest, "name", "name: "+ingress.CallAgent+" is reserved; an external agent uses POST /v1/agents/{id}:invoke")
	}
	if p != nil {
		p.write(ctx)
		return
	}
	owner, err := s.runOwner(id)
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	if owner.Actor == agents.RegistryID {
		refusalProblem(registryRunRefusal()).write(ctx)
		return
	}
	call.ID, call.To, call.Left = s.node.NewCallID(), owner.Actor, signalTimeout
	waitCtx := s.newClientContext(ctx, signalTimeout)
	answer, err := s.node.Ask(waitCtx, call)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
	case err != nil:
		s.respondError(ctx, err)
	case answer.Reply.Refusal != nil:
		p := refusalProblem(answer.Reply.Refusal)
		p.Run = id.String()
		p.write(ctx)
	default:
		respondJSON(ctx, http.StatusOK, struct {
			Run    string `json:"run_id"`
			Name   string `json:"name"`
			Status string `json:"status"`
		}{id.String(), call.Operation, "received"})
	}
}

// cancelRun cancels a run and everything it waits for. It is idempotent: a run
// that has ended keeps its outcome.
func (s *Server) cancelRun(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	owner, err := s.runOwner(id)
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	if owner.Actor == agents.RegistryID {
		refusalProblem(registryRunRefusal()).write(ctx)
		return
	}
	appended, unwatch := s.node.Watch(id)
	defer unwatch()
	waitCtx := s.newClientContext(ctx, cancelTimeout)
	defer waitCtx.stop()
	for requested := false; ; {
		var record runs.Record
		err := s.readView(func(v View) (err error) {
			record, err = v.Record(id)
			return err
		})
		if err == nil && !record.Status.Ended() && !requested {
			if r := s.node.Cancel(id, owner.Actor); r != nil {
				err = r
			}
			requested = true
		}
		if err != nil {
			s.respondError(ctx, err)
			return
		}
		out := struct {
			Run    string `json:"run_id"`
			Status string `json:"status"`
		}{id.String(), record.Status.String()}
		if record.Status.Ended() {
			respondJSON(ctx, http.StatusOK, out)
			return
		}
		select {
		case <-appended:
		case <-waitCtx.Done():
			if respondAborted(ctx, waitCtx.cause()) {
				return
			}
			respondJSON(ctx, http.StatusAccepted, out) // the run ends once its agent reacts
			return
		}
	}
}
