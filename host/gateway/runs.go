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

// readView reads what is shown, which is durable by then.
func (s *Server) readView(at func(View) error) error {
	within, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return s.node.Read(within, func(kv store.KV) error { return at(View{kv}) })
}

// runOwner is whose run it is.
func (s *Server) runOwner(run actor.CallID) (owner store.RunOwner, err error) {
	err = s.readView(func(v View) (err error) {
		owner, err = v.Owner(run)
		return err
	})
	return owner, err
}

// respondView answers with what a read finds.
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

// getEvents shows a run's events behind the one numbered after, as they come or, as
// JSON, those there are; if there are none yet, it waits for one as long as the
// client wishes.
func (s *Server) getEvents(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	if p == nil && ingress.WantsStream(header(ctx, fasthttp.HeaderAccept)) {
		s.streamEvents(ctx, id)
		return
	}
	var of [3]uint64
	for i, q := range []struct {
		name     string
		or, most uint64
	}{{"after", 0, 1 << 62}, {"limit", EventsDefault, EventsMax}, {"wait_ms", 0, uint64(pollTimeoutMax / time.Millisecond)}} {
		if p == nil {
			of[i], p = queryUint(ctx, q.name, q.or, q.most)
		}
	}
	if p == nil && ctx.QueryArgs().Has("tree") {
		p = invalid(http.StatusBadRequest, "tree", "tree: a tree of runs is told as a stream: say Accept: "+ingress.EventStream)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	news, deaf := s.node.Watch(id)
	defer deaf()
	patience := s.newClientContext(ctx, time.Duration(of[2])*time.Millisecond)
	defer patience.stop()
	for last := of[2] == 0; ; {
		var body []byte
		var wait bool
		err := s.readView(func(v View) (err error) {
			body, wait, err = v.Events(id, of[0], int(of[1]))
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
		case <-news:
		case <-patience.Done():
			if respondAborted(ctx, patience.cause()) {
				return
			}
			last = true
		case <-s.draining:
			last = true
		}
	}
}

// streamEvents tells of a run, or of a run and all below it, from where the client left off.
func (s *Server) streamEvents(ctx *fasthttp.RequestCtx, id actor.CallID) {
	at, p := requestCursor(ctx)
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
	s.streamRun(ctx, id, tree, at, func() {})
}

// registryRunRefusal is why nobody has a hand in its runs: half a change would be
// written down, and not told.
func registryRunRefusal() *actor.Refusal {
	return actor.Refuse(actor.Rejected, "this run is the registry's, and ends by itself")
}

// signalRun answers a run that waits.
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
		p = invalid(http.StatusBadRequest, "name", "name: "+ingress.CallAgent+" is not for clients; an external agent says it by POST /v1/agents/{id}:invoke")
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
	within := s.newClientContext(ctx, signalTimeout)
	answer, err := s.node.Ask(within, call)
	why := within.cause()
	within.stop()
	switch {
	case respondAborted(ctx, why):
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

// cancelRun gives a run up, with all that it waits for. One that has ended stays as
// it is; so a cancel may be repeated.
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
	news, deaf := s.node.Watch(id)
	defer deaf()
	within := s.newClientContext(ctx, cancelTimeout)
	defer within.stop()
	for asked := false; ; {
		var record runs.Record
		err := s.readView(func(v View) (err error) {
			record, err = v.Record(id)
			return err
		})
		if err == nil && !record.Status.Ended() && !asked {
			if r := s.node.Cancel(id, owner.Actor); r != nil {
				err = r
			}
			asked = true
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
		case <-news:
		case <-within.Done():
			if respondAborted(ctx, within.cause()) {
				return
			}
			respondJSON(ctx, http.StatusAccepted, out) // it ends as soon as its agent lets it
			return
		}
	}
}
